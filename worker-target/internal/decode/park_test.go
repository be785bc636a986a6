package decode

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"github.com/tandem-inference/tandem/worker-target/internal/decode/output"
	"github.com/tandem-inference/tandem/worker-target/internal/preempt"
)

// short is an engine that is short of memory now and then: it refuses steps, snapshots and demotions by chance.
type short struct {
	engine.Target
	random *rand.Rand
	// Chances in percent that a step, a snapshot or a demotion is refused.
	steps, snapshots, demotions int
	refused                     int // steps
}

func (e *short) refuses(percent int) error {
	if e.random.IntN(100) < percent {
		return rpcerr.MemoryCap.With("no page is free")
	}
	return nil
}

func (e *short) Step(ctx context.Context, step *engine.Step, result *engine.StepResult) error {
	if len(step.Rows) > 0 {
		percent := e.steps
		if percent > 0 && step.Groups[0].Kept.Rows > 0 {
			percent = 60 // such steps are rare
		}
		if err := e.refuses(percent); err != nil {
			e.refused++
			return err
		}
	}
	return e.Target.Step(ctx, step, result)
}

func (e *short) NewSnapshot(ctx context.Context, s engine.Sequence) (engine.Snapshot, error) {
	if err := e.refuses(e.snapshots); err != nil {
		return 0, err
	}
	return e.Target.NewSnapshot(ctx, s)
}

func (e *short) DemoteSnapshot(ctx context.Context, p engine.Snapshot) error {
	if err := e.refuses(e.demotions); err != nil {
		return err
	}
	return e.Target.DemoteSnapshot(ctx, p)
}

// rival keeps a pool from having one member alone: one runs at all times, and when a request has parked another one
// takes its place, so that it comes back. It ends with ctx.
func rival(ctx context.Context, p *preempt.Pool) {
	var last *preempt.Member
	for ctx.Err() == nil {
		m := p.Join(9)
		_ = m.Enter(ctx) // at once: nobody of that priority is parked
		if last != nil {
			last.Leave()
		}
		for last = m; ctx.Err() == nil && p.Stats().Parked == 0; {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Millisecond)
	}
	last.Leave()
}

// preempted runs a request that is preempted by chance.
func preempted(t *testing.T, e engine.Target, r Request, drafter Drafts, seed uint64) (outcome, Stats, preempt.Stats) {
	t.Helper()
	pool := preempt.New()
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { rival(ctx, pool) })
	defer group.Wait()
	defer cancel()
	time.Sleep(time.Millisecond) // the rival runs
	slot := NewSlot(Config{Markers: fakeMarkers, Members: pool, RingRows: 256}, auto.New(), drafter)
	r.Arrived = time.Now()
	var stats Stats
	var sink scored
	if _, err := slot.Run(t.Context(), e, &r, &sink, &stats); err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	return outcome{tokens: sink.tokens, first: sink.logprobs, read: sink.read}, stats, pool.Stats()
}

// scored keeps tokens and all log-probabilities.
type scored struct {
	prefilled
	logprobs []float32
}

func (s *scored) Prefilled(read output.Prefill) error {
	for _, p := range read.Logprobs {
		s.logprobs = append(s.logprobs, p.Logprob)
	}
	return s.prefilled.Prefilled(read)
}

func (s *scored) Committed(tokens []int32, logprobs []*tandemv1.PositionLogprobs, closed tandemv1.CloseKind) error {
	for _, p := range logprobs {
		s.logprobs = append(s.logprobs, p.Logprob)
	}
	return s.prefilled.Committed(tokens, logprobs, closed)
}

// TestPreempted: whenever a request gives up its memory, and whether it goes on from a snapshot or by reading its text
// again, it gives the tokens and log-probabilities that it gives undisturbed, and its draft has all features.
func TestPreempted(t *testing.T) {
	racetest.Bubble(t, testPreempted)
}

func testPreempted(t *testing.T) {
	modes := []tandemv1.SpeculationMode{
		tandemv1.SpeculationMode_SPECULATION_MODE_OFF, tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN,
		tandemv1.SpeculationMode_SPECULATION_MODE_TREE, tandemv1.SpeculationMode_SPECULATION_MODE_AUTO,
		tandemv1.SpeculationMode_SPECULATION_MODE_LOOKUP,
	}
	var restored, recomputed uint64
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 7))
		rows := []int{0, 64}[seed%2]
		fake := newFake(t, enginefake.Options{PromptRows: rows, Next: func(history []int32) (int32, bool) {
			n := len(history)
			return (history[n-1] + 1) % 9, n%70 < 60
		}}, engine.OpenOptions{})
		if err := fake.SetCapture(t.Context(), []int32{1, 3}); err != nil {
			t.Fatal(err)
		}
		prompt := fakeChats(seed).prompt([]message{
			fakeChats(seed).message(random.IntN(700)), fakeChats(seed + 1).message(random.IntN(400)),
		})
		r := Request{
			Prompt: prompt, Sampler: engine.DefaultSampler(), Max: 60 + random.IntN(200), Mode: modes[seed/2%5],
			PromptLogprobs: random.IntN(3) == 0,
		}
		if random.IntN(2) == 0 {
			r.Sampler.Temperature, r.Sampler.Seed = 1.2, seed
			r.Sampler.FrequencyPenalty = 0.3
		}
		if !r.PromptLogprobs {
			r.Committed = slices.Repeat([]int32{int32(3 + seed%5)}, random.IntN(40))
		}
		draft := func() *flaky {
			return &flaky{t: t, random: rand.New(rand.NewPCG(1, seed)), width: 2 * fake.Info().FeatureRaw}
		}
		alone, _, _ := preempted(t, &short{Target: fake, random: random}, r, draft(), seed)
		e := &short{Target: fake, random: random, steps: 15 + random.IntN(20)}
		switch random.IntN(4) {
		case 0:
			e.snapshots = 100
		case 1:
			e.demotions = 100
		case 2:
			e.snapshots, e.demotions = 30, 30
		}
		drafter := draft()
		got, stats, counts := preempted(t, e, r, drafter, seed)
		what := fmt.Sprintf("seed %d, mode %v, prompt of %d, %d refusals", seed, r.Mode, len(prompt), e.refused)
		same(t, what, alone, got)
		if stats.Preemptions == 0 || stats.Preemptions > e.refused || counts.Preemptions < uint64(stats.Preemptions) {
			t.Errorf("%s: %+v, %+v", what, stats, counts)
		}
		if e.snapshots == 100 && (counts.Restored > 0 || stats.ReadAgain == 0) {
			t.Errorf("%s: went on from a snapshot that could not be made: %+v", what, counts)
		}
		if e.demotions == 100 && counts.Restored > 0 {
			t.Errorf("%s: kept pages in the pool: %+v", what, counts)
		}
		restored, recomputed = restored+counts.Restored, recomputed+counts.Recomputed
		if drafter.asked > 0 {
			first, next := drafter.ring.Span()
			ring, n, ok := drafter.ring.Copy(nil, first, next-first)
			whole := slices.Concat(prompt, r.Committed, got.tokens)
			want := featuresOf(t, fake, whole[:next])
			if !ok || string(ring) != string(want[len(want)-len(ring):]) && rows == 0 {
				t.Errorf("%s: %d features in the ring differ", what, n)
			}
		}
	}
	if restored == 0 || recomputed == 0 {
		t.Errorf("%d went on from snapshots, %d read their text again", restored, recomputed)
	}
}

// TestAloneIsRefused: a request that has the memory for itself and finds none fails with the engine's error.
func TestAloneIsRefused(t *testing.T) {
	fake := newFake(t, enginefake.Options{}, engine.OpenOptions{})
	e := &short{Target: fake, random: rand.New(rand.NewPCG(1, 1)), steps: 100}
	var stats Stats
	_, err := NewSlot(Config{}, auto.New(), nil).Run(t.Context(), e, &Request{
		Prompt: []int32{1, 2, 3}, Sampler: engine.DefaultSampler(), Max: 5, TopLogprobs: -1,
	}, &discard{}, &stats)
	if rpcerr.Reason(err) != rpcerr.MemoryCap.Reason() {
		t.Errorf("%v", err)
	}
}

// TestParkedIsCancelled: a request that is cancelled while it is parked leaves nothing in the engine, whatever it had
// stored.
func TestParkedIsCancelled(t *testing.T) {
	for _, snapshots := range []int{0, 100} {
		racetest.Bubble(t, func(t *testing.T) {
			e := &short{
				Target: newFake(t, enginefake.Options{}, engine.OpenOptions{}), random: rand.New(rand.NewPCG(1, 1)),
				snapshots: snapshots,
			}
			pool := preempt.New()
			other := pool.Join(1)
			if err := other.Enter(t.Context()); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() {
				for pool.Stats().Parked == 0 {
					time.Sleep(time.Millisecond)
				}
				cancel()
			}()
			var stats Stats
			var sink cutting
			sink.cut = func() { e.steps = 100 }
			_, err := NewSlot(Config{Members: pool}, auto.New(), nil).Run(ctx, e, &Request{
				Prompt: []int32{1, 2, 3}, Sampler: engine.DefaultSampler(), Max: 50, TopLogprobs: -1,
			}, &sink, &stats)
			if rpcerr.Code(err) != rpcerr.Code(rpcerr.From(context.Canceled)) || sink.tokens == 0 {
				t.Errorf("%v after %d tokens", err, sink.tokens)
			}
			other.Leave()
		})
	}
}

// cutting calls cut when the first tokens come.
type cutting struct {
	discard
	cut func()
}

func (c *cutting) Committed(tokens []int32, l []*tandemv1.PositionLogprobs, k tandemv1.CloseKind) error {
	c.cut()
	return c.discard.Committed(tokens, l, k)
}
