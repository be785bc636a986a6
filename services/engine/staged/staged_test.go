package staged_test

import (
	"context"
	"errors"
	"testing"

	"go.uber.org/goleak"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/engine/enginetest"
	"github.com/tandem-inference/tandem/services/engine/staged"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// opener opens targets in stages and everything else as it is.
type opener struct {
	engine.Opener
	layers []int
	rows   engine.HiddenEncoding
}

func (o opener) OpenTarget(ctx context.Context, options engine.OpenOptions, p engine.Progress) (engine.Target, error) {
	var stages []staged.Stage
	for _, n := range o.layers {
		stages = append(stages, staged.Stage{Open: o.Opener.OpenTarget, Layers: n})
	}
	return staged.Open(stages, o.rows)(ctx, options, p)
}

// TestStages: targets in stages keep every promise of an engine, whichever layers the stages have.
func TestStages(t *testing.T) {
	for name, c := range map[string]struct {
		layers  []int
		options enginefake.Options
		rows    engine.HiddenEncoding
	}{
		"two":                  {[]int{2, 2}, enginefake.Options{}, engine.HiddenF32},
		"uneven, truncatable":  {[]int{1, 3}, enginefake.Options{Truncatable: true, Vocab: 100}, engine.HiddenF32},
		"four, prompt bits":    {[]int{1, 1, 1, 1}, enginefake.Options{PromptRows: 64}, engine.HiddenF32},
		"all captured in one":  {[]int{3, 1}, enginefake.Options{CaptureLayers: []int32{0, 2}}, engine.HiddenF32},
		"all captured in last": {[]int{1, 3}, enginefake.Options{CaptureLayers: []int32{1, 3}}, engine.HiddenF32},
		"one":                  {[]int{4}, enginefake.Options{}, engine.HiddenF32},
		"bfloat16":             {[]int{1, 2, 1}, enginefake.Options{}, engine.HiddenBF16},
	} {
		t.Run(name, func(t *testing.T) {
			enginetest.Run(t, func(*testing.T) (engine.Opener, enginetest.Models) {
				return opener{&enginefake.Opener{Options: c.options}, c.layers, c.rows}, enginetest.Models{
					Target: "target", Draft: "draft", Tables: "target", Score: "score", Missing: "missing", OtherKV: 1,
				}
			})
		})
	}
}

// TestKindsOfStages: a stage for which both kinds of groups are one goes with stages that have bits for prompts, and
// the target has their contract; stages with two such contracts do not go together.
func TestKindsOfStages(t *testing.T) {
	open := func(rows ...int) (engine.Target, error) {
		var stages []staged.Stage
		for _, n := range rows {
			fake := enginefake.New(enginefake.Options{PromptRows: n})
			stages = append(stages, staged.Stage{Open: fake.OpenTarget, Layers: 4 / len(rows)})
		}
		return staged.Open(stages, engine.HiddenF32)(t.Context(), enginetest.TargetOptions(), nil)
	}
	for _, rows := range [][]int{{0, 64}, {64, 0}, {0, 64, 0, 64}} {
		e, err := open(rows...)
		if err != nil {
			t.Fatal(rows, err)
		}
		if got := e.Info().PromptRows; got != 64 {
			t.Errorf("%v: the target states %d rows", rows, got)
		}
		q, err := e.NewSequence(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		step := &engine.Step{Groups: []engine.Group{{Sequence: q, Rows: 70, Kind: engine.KindPrompt, Commit: true}}}
		for i := range int32(70) {
			step.Rows = append(step.Rows, engine.Row{Token: i % 7, Position: i, Parent: i - 1, Mask: -1})
		}
		if err := e.Step(t.Context(), step, &engine.StepResult{}); err != nil {
			t.Errorf("%v: %v", rows, err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := open(64, 32); !errors.Is(err, rpcerr.AnyInvalidArgument) {
		t.Errorf("two contracts: %v", err)
	}
}

// stopped is a stage whose next step begins after its caller has gone, if stop is set.
type stopped struct {
	engine.Target
	stop context.CancelFunc
	// dropped counts steps without rows, which drop what is pending.
	dropped int
}

func (s *stopped) Step(ctx context.Context, step *engine.Step, result *engine.StepResult) error {
	if len(step.Rows) == 0 {
		s.dropped++
	}
	if s.stop != nil {
		s.stop()
		s.stop = nil
	}
	return s.Target.Step(ctx, step, result)
}

// TestCancelledBetweenStages: a step whose caller goes when it is in any stage commits its path in all of them, holds
// no pages in any, and the sequence goes on with the tokens of one that was never disturbed.
func TestCancelledBetweenStages(t *testing.T) {
	const prompt = 63 // a page less the row of the path, so that the cancelled row takes a page
	row := func(at int, want uint32) engine.Row {
		return engine.Row{Token: int32(at % 7), Position: int32(at), Parent: -1, Mask: -1, Want: want}
	}
	for stage := range 3 {
		var all []*stopped
		var stages []staged.Stage
		for range 3 {
			stages = append(stages, staged.Stage{Layers: 1 + len(stages)/2, Open: func(ctx context.Context,
				o engine.OpenOptions, p engine.Progress) (engine.Target, error) {
				e, err := enginefake.New(enginefake.Options{}).OpenTarget(ctx, o, p)
				all = append(all, &stopped{Target: e})
				return all[len(all)-1], err
			}})
		}
		e, err := staged.Open(stages, engine.HiddenF32)(t.Context(), enginetest.TargetOptions(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		var r engine.StepResult
		run := func(ctx context.Context, g engine.Group, rows ...engine.Row) error {
			g.Rows = len(rows)
			return e.Step(ctx, &engine.Step{Groups: []engine.Group{g}, Rows: rows}, &r)
		}
		begin := func() engine.Sequence {
			q, err := e.NewSequence(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for at := range prompt {
				if err := run(t.Context(), engine.Group{Sequence: q, Commit: true}, row(at, 0)); err != nil {
					t.Fatal(err)
				}
			}
			if err := run(t.Context(), engine.Group{Sequence: q}, row(prompt, 0), row(prompt, 0)); err != nil {
				t.Fatal(err)
			}
			return q
		}
		free := func() (out []uint64) {
			for _, s := range all {
				stats, err := s.Stats(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, v := range stats {
					if v.Name == "kv_pages_free" {
						out = append(out, v.Value)
					}
				}
			}
			return out
		}
		q := begin()
		before := free()
		ctx, cancel := context.WithCancel(t.Context())
		all[stage].stop = cancel
		if err := run(ctx, engine.Group{Sequence: q, Path: []int32{1}}, row(prompt+1, engine.WantToken)); !errors.Is(err,
			context.Canceled) {
			t.Fatalf("stage %d: %v", stage, err)
		}
		if n, err := e.SequenceLength(t.Context(), q); n != prompt+1 || err != nil {
			t.Errorf("stage %d: %d positions, %v", stage, n, err)
		}
		for k := range stage { // their engines may hold memory for rows that are pending
			if all[k].dropped != 1 {
				t.Errorf("cancelled in stage %d: stage %d dropped its rows %d times", stage, k, all[k].dropped)
			}
		}
		for k, n := range free() {
			if n != before[k] {
				t.Errorf("cancelled in stage %d: stage %d has %d free pages, had %d", stage, k, n, before[k])
			}
		}
		if err := run(t.Context(), engine.Group{Sequence: q, Commit: true}, row(prompt+1, engine.WantToken)); err != nil {
			t.Fatalf("cancelled in stage %d, the next step: %v", stage, err)
		}
		got := r.Tokens[0]
		whole := begin()
		err = run(t.Context(), engine.Group{Sequence: whole, Path: []int32{1}, Commit: true}, row(prompt+1, engine.WantToken))
		if err != nil || got != r.Tokens[0] {
			t.Errorf("cancelled in stage %d: token %d, want %d: %v", stage, got, r.Tokens[0], err)
		}
	}
}

// faulty is a stage that refuses to make sequences, if full is set.
type faulty struct {
	engine.Target
	full bool
}

func (f *faulty) NewSequence(ctx context.Context) (engine.Sequence, error) {
	if f.full {
		return 0, rpcerr.ResourceExhausted("sequences: there is no room")
	}
	return f.Target.NewSequence(ctx)
}

// TestSequenceMadeInPart: a sequence that a later stage cannot make is released in those before.
func TestSequenceMadeInPart(t *testing.T) {
	for stage := range 3 {
		var all []*faulty
		var stages []staged.Stage
		for range 3 {
			stages = append(stages, staged.Stage{Layers: 1 + len(stages)/2, Open: func(ctx context.Context,
				o engine.OpenOptions, p engine.Progress) (engine.Target, error) {
				e, err := enginefake.New(enginefake.Options{}).OpenTarget(ctx, o, p)
				all = append(all, &faulty{Target: e})
				return all[len(all)-1], err
			}})
		}
		e, err := staged.Open(stages, engine.HiddenF32)(t.Context(), enginetest.TargetOptions(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		all[stage].full = true
		if _, err := e.NewSequence(t.Context()); !errors.Is(err, rpcerr.AnyResourceExhausted) {
			t.Fatalf("stage %d is full: %v", stage, err)
		}
		for k, f := range all {
			handles, err := f.Handles(t.Context())
			if err != nil || len(handles.Sequences) > 0 {
				t.Errorf("stage %d is full: stage %d holds %v, %v", stage, k, handles.Sequences, err)
			}
		}
	}
}
