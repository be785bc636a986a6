package schedule

import (
	"context"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/testwait"
)

// tightly is an engine that holds its first step until it is let go, and refuses some later ones.
type tightly struct {
	engine.Target
	first  chan struct{} // closed when the first step has come
	goOn   chan struct{}
	steps  int
	refuse []int // steps, counted from 1
}

func (e *tightly) Step(ctx context.Context, step *engine.Step, result *engine.StepResult) error {
	if e.steps++; e.steps == 1 {
		close(e.first)
		<-e.goOn
	}
	if slices.Contains(e.refuse, e.steps) {
		return rpcerr.MemoryCap
	}
	return e.Target.Step(ctx, step, result)
}

// TestRefusedOnTheWay: a piece that is refused for want of memory after its first cut goes on with the others when it
// comes again, also in another sequence in the same state, and its result is that of one step.
func TestRefusedOnTheWay(t *testing.T) {
	for _, move := range []bool{false, true} {
		inner := &tightly{
			Target: fake(t, enginefake.Options{}), first: make(chan struct{}), goOn: make(chan struct{}), refuse: []int{3, 4},
		}
		e := with(inner, free)
		sequence := func() engine.Sequence {
			s, err := e.NewSequence(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		piece := func(s engine.Sequence, rows int) *engine.Step {
			step := &engine.Step{Groups: []engine.Group{{Sequence: s, Rows: rows, Commit: true}}}
			for i := range rows {
				step.Rows = append(step.Rows, engine.Row{
					Token: int32(i * 7 % vocab), Position: int32(i), Parent: int32(i - 1), Want: engine.WantToken, Mask: -1,
				})
			}
			return step
		}
		submit := func(step *engine.Step, view engine.Target, result *engine.StepResult) <-chan error {
			c := make(chan error, 1)
			go func() { c <- view.Step(t.Context(), step, result) }()
			return c
		}
		queued := func(n int) {
			testwait.Until(t, "the queue", func() bool {
				e.mu.Lock()
				defer e.mu.Unlock()
				return len(e.queue.Waiting) == n
			})
		}
		var results [3]engine.StepResult
		held := submit(&engine.Step{Groups: []engine.Group{{Sequence: sequence()}}}, e.For(Request{}), &results[0])
		<-inner.first
		short := submit(piece(sequence(), 40), e.For(Request{}), &results[1])
		view, step := e.For(Request{}), piece(sequence(), 60)
		long := submit(step, view, &results[2])
		queued(2)
		close(inner.goOn)
		if err := <-held; err != nil {
			t.Fatal(err)
		}
		if err := <-short; err != nil {
			t.Fatal(err)
		}
		if err := <-long; rpcerr.Code(err) != codes.ResourceExhausted {
			t.Fatalf("%v", err)
		}
		if n, err := e.SequenceLength(t.Context(), step.Groups[0].Sequence); n != 24 || err != nil {
			t.Fatalf("%d rows ran before the refusal, %v", n, err)
		}
		if move {
			fork, err := e.Fork(t.Context(), step.Groups[0].Sequence)
			if err != nil {
				t.Fatal(err)
			}
			step.Groups[0].Sequence = fork
		}
		if err := view.Step(t.Context(), step, &results[2]); rpcerr.Code(err) != codes.ResourceExhausted {
			t.Fatalf("a second refusal: %v", err)
		}
		if err := view.Step(t.Context(), step, &results[2]); err != nil {
			t.Fatal(err)
		}
		var want engine.StepResult
		if err := inner.Target.Step(t.Context(), piece(sequence(), 60), &want); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(results[2].Tokens, want.Tokens) || !slices.Equal(results[2].Logprobs, want.Logprobs) {
			t.Errorf("%v, in one step %v", results[2].Tokens, want.Tokens)
		}
		// Another piece of the same request begins at its first row.
		next := piece(sequence(), 60)
		if err := view.Step(t.Context(), next, &results[2]); err != nil {
			t.Fatal(err)
		}
	}
}
