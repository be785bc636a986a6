package decode

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/ddtree"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"github.com/tandem-inference/tandem/worker-target/internal/drafts"
)

// watched is an engine whose rows are cheap in wide steps, and which counts how features are asked for.
type watched struct {
	engine.Target
	atOnce, batches, largest, beside, alone int
	failAlone                               error // instead of a step without rows
}

func (w *watched) Step(ctx context.Context, step *engine.Step, result *engine.StepResult) error {
	if len(step.Rows) == 0 && w.failAlone != nil {
		return w.failAlone
	}
	for i := range step.Rows {
		if step.Rows[i].Want&engine.WantFeatures != 0 && !step.Groups[0].Commit {
			w.atOnce++
		}
	}
	if kept := int(step.Groups[0].Kept.Rows); kept > 0 {
		w.batches++
		w.largest = max(w.largest, kept)
		switch len(step.Rows) {
		case 0:
			w.alone++
		case 1:
		default:
			w.beside++
		}
	}
	err := w.Target.Step(ctx, step, result)
	result.EngineNanos = int64(100*time.Microsecond) + int64(len(step.Rows))*1000
	return err
}

// flaky is a drafter that is there now and then and guesses badly. It holds the ring to be complete at every question.
type flaky struct {
	t      *testing.T
	random *rand.Rand
	width  int
	ring   *drafts.Ring
	ask    drafts.Ask
	asked  int
}

func (f *flaky) Known() bool { return true }
func (f *flaky) Capture() *drafts.Capture {
	return &drafts.Capture{Encoding: engine.FeatureRawBF16, Width: f.width, Block: 8}
}

func (f *flaky) Open(_ context.Context, _ string, ring *drafts.Ring, _ *drafts.Capture, _ int, _ bool) Drafter {
	f.ring = ring
	return f
}
func (f *flaky) Fed()        {}
func (f *flaky) Ready() bool { return f.random.IntN(48) == 0 }
func (f *flaky) Close()      {}
func (f *flaky) Forget()     {}

func (f *flaky) Work() time.Duration { return 0 }

func (f *flaky) Ask(a drafts.Ask) {
	f.ask = a
	f.asked++
	if _, next := f.ring.Span(); next != a.Position {
		f.t.Errorf("asked at %d, the ring ends at %d", a.Position, next)
	}
}

func (f *flaky) Poll(tree *ddtree.Tree) (drafts.Outcome, bool) {
	return f.Wait(context.Background(), tree), true
}

func (f *flaky) Wait(_ context.Context, tree *ddtree.Tree) drafts.Outcome {
	if f.random.IntN(3) == 0 {
		return drafts.Lost
	}
	tokens, parents, logprobs := []int32{}, []int32{}, []float32{}
	for i := range int32(min(4, f.ask.Block-1, f.ask.Budget)) {
		tokens, parents, logprobs = append(tokens, int32(f.random.IntN(64))), append(parents, i),
			append(logprobs, -float32(i))
	}
	if err := tree.Set(f.ask.Anchor, tokens, parents, logprobs,
		ddtree.Limits{Vocab: 64, Nodes: f.ask.Budget, Depth: f.ask.Block - 1}); err != nil {
		return drafts.Malformed
	}
	return drafts.Proposed
}

// newWatched returns an engine of so many rows a step, 0 = its default.
func newWatched(t *testing.T, rows int) *watched {
	t.Helper()
	// The text goes round in circles of 9 and now and then leaves them, so that lookup has something to find.
	next := func(history []int32) (int32, bool) {
		n := len(history)
		return (history[n-1] + 1) % 9, n%70 < 60
	}
	e, err := enginefake.New(enginefake.Options{Next: next}).OpenTarget(t.Context(), engine.OpenOptions{
		ModelPath: "target", MaxSequences: 2, MaxContext: 1024, MaxTreeRows: rows, MaxBatchRows: rows,
		KVTypeK: engine.KVDefault, KVTypeV: engine.KVDefault,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	if err := e.SetCapture(t.Context(), []int32{1, 3}); err != nil {
		t.Fatal(err)
	}
	return &watched{Target: e}
}

// TestKeptFeatures: however rounds get their features, the ring ends up with those that a prompt of the whole text
// gives, and plain steps get them many at a time.
func TestKeptFeatures(t *testing.T) {
	racetest.Bubble(t, testKeptFeatures) // what is drafted, and so fetched, depends on times
}

func testKeptFeatures(t *testing.T) {
	for _, c := range []struct {
		mode tandemv1.SpeculationMode
		rows int
	}{
		{tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN, 0}, {tandemv1.SpeculationMode_SPECULATION_MODE_AUTO, 0},
		// Kept features and those of a wide round's rows are too many for one step.
		{tandemv1.SpeculationMode_SPECULATION_MODE_AUTO, 36},
	} {
		mode := c.mode
		e := newWatched(t, c.rows)
		drafter := &flaky{t: t, random: rand.New(rand.NewPCG(1, uint64(mode))), width: 2 * e.Info().FeatureRaw}
		slot := NewSlot(Config{}, auto.New(), drafter)
		prompt := []int32{1, 2, 3, 4, 5, 6}
		var stats Stats
		var out recording
		_, err := slot.Run(t.Context(), e, &Request{
			Prompt: prompt, Sampler: engine.DefaultSampler(), Max: 700, Mode: mode, TopLogprobs: -1,
		}, &out, &stats)
		if err != nil {
			t.Fatal(mode, err)
		}
		t.Logf("%v: %d steps, %d plain, %d questions; features of %d rows at once, %d batches of up to %d, %d beside rows, %d alone",
			mode, stats.Steps, stats.Plain, drafter.asked, e.atOnce, e.batches, e.largest, e.beside, e.alone)
		if e.largest != engine.KeptRows && mode == tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN {
			t.Errorf("%v: the largest batch has %d rows", mode, e.largest)
		}
		if drafter.asked == 0 || e.alone == 0 || e.beside == 0 && mode == tandemv1.SpeculationMode_SPECULATION_MODE_AUTO {
			t.Errorf("%v: not all ways of getting features were taken", mode)
		}
		first, next := drafter.ring.Span()
		got, rows, ok := drafter.ring.Copy(nil, first, next-first)
		if !ok || first != 0 || next < 600 {
			t.Fatalf("%v: the ring holds %d..%d", mode, first, next)
		}
		whole := append(append([]int32(nil), prompt...), out.tokens...)
		if want := featuresOf(t, e, whole[:rows]); string(got) != string(want) {
			t.Errorf("%v: features in the ring differ", mode)
		}
	}
}

// featuresOf is what a prompt of the tokens gives.
func featuresOf(t *testing.T, e engine.Target, tokens []int32) (all []byte) {
	t.Helper()
	seq, err := e.NewSequence(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.FreeSequence(t.Context(), seq) }()
	for at := 0; at < len(tokens); {
		n := min(e.Info().MaxTreeRows, len(tokens)-at)
		step := &engine.Step{Groups: []engine.Group{{Sequence: seq, Rows: n, Commit: true}}, Features: engine.FeatureRawBF16}
		for i := range n {
			step.Rows = append(step.Rows, engine.Row{
				Token: tokens[at+i], Position: int32(at + i), Parent: int32(i - 1), Want: engine.WantFeatures, Mask: -1,
			})
		}
		var r engine.StepResult
		if err := e.Step(t.Context(), step, &r); err != nil {
			t.Fatal(err)
		}
		all = append(all, r.Features...)
		at += len(step.Rows)
	}
	return all
}

// TestKeptFeaturesLost: an engine that fails while features are fetched ends the request, after the tokens that are
// there.
func TestKeptFeaturesLost(t *testing.T) {
	e := newWatched(t, 0)
	e.failAlone = context.DeadlineExceeded
	drafter := &flaky{t: t, random: rand.New(rand.NewPCG(1, 2)), width: 2 * e.Info().FeatureRaw}
	var stats Stats
	var out recording
	_, err := NewSlot(Config{}, auto.New(), drafter).Run(t.Context(), e, &Request{
		Prompt: []int32{1, 2, 3}, Sampler: engine.DefaultSampler(), Max: 700,
		Mode: tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN, TopLogprobs: -1,
	}, &out, &stats)
	if err == nil || len(out.tokens) != stats.Steps+1 {
		t.Errorf("%v after %d tokens of %d steps", err, len(out.tokens), stats.Steps)
	}
}
