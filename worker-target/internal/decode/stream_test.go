package decode

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/engine/staged"
	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"github.com/tandem-inference/tandem/worker-target/internal/prefix"
	"github.com/tandem-inference/tandem/worker-target/internal/schedule"
)

// inStages is newFake in three stages, whose steps are composed.
func inStages(t testing.TB, o enginefake.Options) *schedule.Engine {
	t.Helper()
	var stages []staged.Stage
	for _, layers := range []int{2, 1, 1} {
		stages = append(stages, staged.Stage{Open: enginefake.New(o).OpenTarget, Layers: layers})
	}
	e, err := staged.Open(stages, engine.HiddenF32)(t.Context(), engine.OpenOptions{ModelPath: "target", MaxSequences: 16,
		KVTypeK: engine.KVDefault, KVTypeV: engine.KVDefault}, nil)
	if err != nil {
		t.Fatal(err)
	}
	guard := engine.GuardTarget(e, engine.GuardConfig{})
	t.Cleanup(func() { _ = guard.Close() })
	return schedule.New(guard, schedule.Options{Costs: auto.New()})
}

// shortLine is short for an engine in stages: of steps that follow each other it refuses some, and all behind those.
type shortLine struct {
	*short
	streamer
	submitted, together, out int
	failed                   error
}

func newShortLine(s *short) *shortLine { return &shortLine{short: s, streamer: s.Target.(streamer)} }

func (e *shortLine) Submit(ctx context.Context, step *engine.Step,
	result *engine.StepResult) func() (rows int, err error) {
	if e.out == 0 {
		e.failed = nil
	}
	if e.failed == nil {
		e.failed = e.refuses(e.steps)
	}
	e.submitted++
	e.out++
	e.together = max(e.together, e.out)
	wait := func() (int, error) { return 0, e.failed }
	if e.failed == nil {
		wait = e.streamer.Submit(ctx, step, result)
	} else {
		e.refused++
	}
	return func() (int, error) {
		e.out--
		return wait()
	}
}

// TestStreamedPrompts: a prompt whose pieces follow each other through stages gives the tokens, and its draft the
// features, that it gives on one engine, also where pieces are refused and its request gives up its memory.
func TestStreamedPrompts(t *testing.T) { racetest.Bubble(t, testStreamedPrompts) }

func testStreamedPrompts(t *testing.T) {
	together, refused := 0, 0
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 17))
		o := enginefake.Options{PromptRows: []int{0, 64}[seed%2], Next: func(history []int32) (int32, bool) {
			n := len(history)
			return (history[n-1] + 1) % 9, n%70 < 60
		}}
		fake, line := newFake(t, o, engine.OpenOptions{}), inStages(t, o)
		for _, e := range []engine.Target{fake, line} {
			if err := e.SetCapture(t.Context(), []int32{1, 3}); err != nil {
				t.Fatal(err)
			}
		}
		chat := fakeChats(seed)
		r := Request{
			Prompt:  chat.prompt([]message{chat.message(random.IntN(3000)), chat.message(random.IntN(700))}),
			Sampler: engine.DefaultSampler(), Max: 30,
			Mode: []tandemv1.SpeculationMode{tandemv1.SpeculationMode_SPECULATION_MODE_OFF,
				tandemv1.SpeculationMode_SPECULATION_MODE_TREE}[seed/2%2],
		}
		draft := func() *flaky {
			return &flaky{t: t, random: rand.New(rand.NewPCG(1, seed)), width: 2 * fake.Info().FeatureRaw}
		}
		alone, _, _ := preempted(t, &short{Target: fake, random: random}, r, draft(), seed)
		e := newShortLine(&short{Target: line.For(schedule.Request{}), random: random, steps: int(seed%3) * 10})
		drafter := draft()
		got, _, _ := preempted(t, e, r, drafter, seed)
		what := fmt.Sprintf("seed %d, prompt of %d, %d steps handed over", seed, len(r.Prompt), e.submitted)
		same(t, what, alone, got)
		together, refused = max(together, e.together), refused+e.refused
		if e.out != 0 {
			t.Errorf("%s: %d were not waited for", what, e.out)
		}
		if drafter.asked > 0 {
			first, next := drafter.ring.Span()
			ring, n, ok := drafter.ring.Copy(nil, first, next-first)
			want := featuresOf(t, fake, slices.Concat(r.Prompt, got.tokens)[:next])
			if !ok || string(ring) != string(want[len(want)-len(ring):]) && o.PromptRows == 0 {
				t.Errorf("%s: %d features in the ring differ", what, n)
			}
		}
	}
	if together < 4 || refused == 0 {
		t.Errorf("at most %d steps were handed over together, %d were refused", together, refused)
	}
}

// TestStreamedStates: the states that streamed prompts leave are those of prompts read step by step, so that the next
// turn goes on from the same border with the same bits.
func TestStreamedStates(t *testing.T) {
	o := enginefake.Options{PromptRows: 64}
	turns := func(e engine.Target, base engine.Target) (out []outcome) {
		cache := prefix.New(prefix.Config{Bytes: 1 << 30, Slots: 100})
		cache.Use(base)
		t.Cleanup(cache.Close)
		slot := NewSlot(Config{Markers: fakeMarkers, Prefixes: cache}, auto.New(), nil)
		chat := fakeChats(5)
		list := []message{chat.message(1600), chat.message(700)}
		for range 3 {
			r := greedy(chat.prompt(list), 12)
			r.Arrived = time.Now()
			var stats Stats
			var sink prefilled
			if _, err := slot.Run(t.Context(), e, &r, &sink, &stats); err != nil {
				t.Fatal(err)
			}
			out = append(out, outcome{tokens: sink.tokens, read: sink.read})
			list = append(list, chat.message(40), chat.message(400))
		}
		return out
	}
	fake, line := newFake(t, o, engine.OpenOptions{}), inStages(t, o)
	want, got := turns(fake, fake), turns(line.For(schedule.Request{}), line)
	for i := range want {
		if !slices.Equal(want[i].tokens, got[i].tokens) || want[i].read.Cached != got[i].read.Cached {
			t.Errorf("turn %d: %v after %d tokens from the cache, want %v after %d", i, got[i].tokens, got[i].read.Cached,
				want[i].tokens, want[i].read.Cached)
		}
	}
	if got[1].read.Cached == 0 {
		t.Error("no state of a streamed prompt was found again")
	}
}
