package schedule

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/engine/staged"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/testwait"
)

// stages is a fake engine in stages, each of which runs its steps through before, if that is not nil.
func stages(t testing.TB, o enginefake.Options, options engine.OpenOptions,
	before func(stage int, step *engine.Step)) engine.Target {
	t.Helper()
	o.Vocab, o.PromptRows, o.Context = vocab, promptRows, 1<<15
	var all []staged.Stage
	for k, layers := range []int{1, 2, 1} {
		open := func(ctx context.Context, options engine.OpenOptions, p engine.Progress) (engine.Target, error) {
			e, err := enginefake.New(o).OpenTarget(ctx, options, p)
			return &shown{e, func(step *engine.Step) {
				if before != nil {
					before(k, step)
				}
			}}, err
		}
		all = append(all, staged.Stage{Open: open, Layers: layers})
	}
	options.ModelPath, options.MaxTreeRows, options.MaxBatchRows, options.MaxTopK = "m", treeRows, widePieces, 8
	if options.MaxContext == 0 {
		options.MaxContext = 1 << 15
	}
	if options.MaxSequences == 0 {
		options.MaxSequences = 40
	}
	e, err := staged.Open(all, engine.HiddenF32)(t.Context(), options, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	if err := e.SetCapture(t.Context(), []int32{1, 3}); err != nil {
		t.Fatal(err)
	}
	return e
}

// shown shows its steps before they run.
type shown struct {
	engine.Target
	before func(*engine.Step)
}

func (w *shown) Step(ctx context.Context, s *engine.Step, r *engine.StepResult) error {
	w.before(s)
	return w.Target.Step(ctx, s, r)
}

// soon is testwait.Until for the goroutine of a stage.
func soon(t testing.TB, what string, ok func() bool) {
	for end := time.Now().Add(testwait.Limit); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Errorf("nothing within %v: %s", testwait.Limit, what)
			return
		}
	}
}

// TestAlikeInStages: steps that follow each other through stages give each request what it gets alone, also while
// others are cancelled wherever their steps are.
func TestAlikeInStages(t *testing.T) {
	const requests, rounds = 6, 40
	prompt := func(r *rand.Rand) int { return 3 + r.IntN(400) }
	course := func(e engine.Target, i int) *course {
		return &course{e: e, random: rand.New(rand.NewPCG(11, uint64(i))), prompt: prompt}
	}
	alone := make([][]string, requests)
	for i := range requests {
		r := course(stages(t, enginefake.Options{}, engine.OpenOptions{}, nil), i)
		if err := r.run(t.Context(), rounds); err != nil {
			t.Fatal(err)
		}
		alone[i] = r.record
	}
	slow := stages(t, enginefake.Options{StepDelay: 100 * time.Microsecond}, engine.OpenOptions{}, nil)
	guard := engine.GuardTarget(slow,
		engine.GuardConfig{Every: 10 * time.Millisecond}) // whoever is cancelled cannot free its sequence
	defer guard.Close()
	line := with(guard, free)
	left, leave := context.WithCancel(t.Context())
	var wait, others sync.WaitGroup
	for i := range 3 {
		others.Go(func() {
			for n := uint64(0); left.Err() == nil; n++ {
				random := rand.New(rand.NewPCG(uint64(i), n))
				ctx, cancel := context.WithTimeout(left, time.Duration(random.IntN(5_000))*time.Microsecond)
				if err := course(line, 100+i).run(ctx, rounds); err != nil && ctx.Err() == nil {
					t.Errorf("a request that was not cancelled: %v", err)
				}
				cancel()
			}
		})
	}
	for i := range requests {
		wait.Go(func() {
			r := course(line, i)
			if err := r.run(t.Context(), rounds); err != nil {
				t.Errorf("request %d after %d steps: %v", i, len(r.record), err)
				return
			}
			if !slices.Equal(r.record, alone[i]) {
				at := 0
				for at < min(len(r.record), len(alone[i])) && r.record[at] == alone[i][at] {
					at++
				}
				t.Errorf("request %d differs at entry %d", i, at)
			}
		})
	}
	wait.Wait()
	leave()
	others.Wait()
	testwait.Until(t, "all sequences are freed", func() bool {
		h, err := guard.Handles(t.Context())
		return err == nil && len(h.Sequences) == 0
	})
	if err := guard.Err(); err != nil {
		t.Errorf("the engine was given up: %v", err)
	}
}

// pieces of a prompt of so many rows each, which want features of all rows and a token of the last one.
func pieces(seq engine.Sequence, rows ...int) []*engine.Step {
	var steps []*engine.Step
	at := 0
	for i, n := range rows {
		s := &engine.Step{Groups: []engine.Group{{Sequence: seq, Rows: n, Kind: engine.KindPrompt, Commit: true}},
			Features: engine.FeatureRawBF16}
		for k := range n {
			s.Rows = append(s.Rows, engine.Row{Token: int32((at + k) % vocab), Position: int32(at + k), Parent: int32(k - 1),
				Mask: -1, Want: engine.WantFeatures})
		}
		if i == len(rows)-1 {
			s.Rows[n-1].Want |= engine.WantToken
		}
		at += n
		steps = append(steps, s)
	}
	return steps
}

// TestPiecesFollow: pieces of one prompt are in all stages at the same time, before the first of them has ended, and
// give what they give one after the other.
func TestPiecesFollow(t *testing.T) {
	rows := []int{64, 64, 40, 64, 30}
	plain := with(fake(t, enginefake.Options{}), free)
	read := func(e engine.Target) (out []string) {
		seq, err := e.NewSequence(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range pieces(seq, rows...) {
			var r engine.StepResult
			if err := e.Step(t.Context(), s, &r); err != nil {
				t.Fatal(err)
			}
			out = append(out, fmt.Sprint(r.Tokens, r.Features))
		}
		return out
	}
	want := read(plain)

	var began [3]atomic.Int32
	line := with(stages(t, enginefake.Options{}, engine.OpenOptions{}, func(stage int, s *engine.Step) {
		if began[stage].Add(1) == 1 && stage == 2 { // the first piece does not end before others have begun
			soon(t, "the stages before work on the next pieces", func() bool {
				return began[1].Load() >= 2 && began[0].Load() >= 3
			})
		}
	}), free)
	view := line.For(Request{}).(interface {
		Submit(context.Context, *engine.Step, *engine.StepResult) func() (int, error)
	})
	seq, err := line.NewSequence(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	results := make([]engine.StepResult, len(rows))
	var waits []func() (int, error)
	for i, s := range pieces(seq, rows...) {
		waits = append(waits, view.Submit(t.Context(), s, &results[i]))
	}
	for i, wait := range waits {
		if n, err := wait(); n != rows[i] || err != nil {
			t.Fatalf("piece %d: %d rows, %v", i, n, err)
		}
		if got := fmt.Sprint(results[i].Tokens, results[i].Features); got != want[i] {
			t.Errorf("piece %d is %s, want %s", i, got, want[i])
		}
	}
}

// TestStreamsShareStages: two streams run in steps of their own, which are in different stages.
func TestStreamsShareStages(t *testing.T) {
	var began [3]atomic.Int32
	line := with(stages(t, enginefake.Options{}, engine.OpenOptions{}, func(stage int, s *engine.Step) {
		if len(s.Rows) == 0 {
			return
		}
		if began[stage].Add(1) == 1 && stage == 1 {
			soon(t, "the other stream is in the first stage", func() bool { return began[0].Load() >= 2 })
		}
		if len(s.Groups) > 1 {
			t.Errorf("%d streams share a step of three stages", len(s.Groups))
		}
	}), free)
	var sequences [2]engine.Sequence // both before the first step, which making one would wait for
	for i := range sequences {
		var err error
		if sequences[i], err = line.NewSequence(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var wait sync.WaitGroup
	for _, seq := range sequences {
		wait.Go(func() {
			for i := range 20 {
				step := &engine.Step{
					Groups: []engine.Group{{Sequence: seq, Rows: 1, Commit: true}},
					Rows:   []engine.Row{{Position: int32(i), Parent: -1, Mask: -1, Want: engine.WantToken}},
				}
				if err := line.Step(t.Context(), step, &engine.StepResult{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
}

// TestRefusedPiece: a piece that finds no pages ends with those behind it, and says how far it came; the sequence is as
// long as that, whole, and the rest runs when there is room.
func TestRefusedPiece(t *testing.T) {
	const pool = 512
	line := with(stages(t, enginefake.Options{}, engine.OpenOptions{MaxContext: pool, KVPositions: pool, MaxSequences: 4},
		nil), free)
	hold, err := line.NewSequence(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range pieces(hold, 250, 250) { // the pool has room for pending rows and for pages begun besides
		if err := line.Step(t.Context(), s, &engine.StepResult{}); err != nil {
			t.Fatal(err)
		}
	}
	seq, err := line.NewSequence(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	view := line.For(Request{}).(interface {
		Submit(context.Context, *engine.Step, *engine.StepResult) func() (int, error)
	})
	steps := pieces(seq, 64, 64, 64, 64, 64, 64, 64, 60)
	results := make([]engine.StepResult, len(steps))
	var waits []func() (int, error)
	for i, s := range steps {
		waits = append(waits, view.Submit(t.Context(), s, &results[i]))
	}
	read, failed := 0, -1
	for i, wait := range waits {
		n, err := wait()
		read += n
		switch {
		case err != nil && rpcerr.Code(err) != codes.ResourceExhausted:
			t.Fatalf("piece %d: %v", i, err)
		case err != nil && failed < 0:
			failed = i
		case err == nil && failed >= 0 || n > 0 && failed >= 0 && failed != i:
			t.Fatalf("piece %d ran behind the refused piece %d", i, failed)
		}
	}
	if failed < 0 || read == 0 {
		t.Fatalf("of %d rows none were refused, or all", read)
	}
	if n, err := line.SequenceLength(t.Context(), seq); n != read || err != nil {
		t.Fatalf("the sequence has %d positions, want %d: %v", n, read, err)
	}
	if err := line.FreeSequence(t.Context(), hold); err != nil {
		t.Fatal(err)
	}
	for i := failed; i < len(steps); i++ {
		if err := line.Step(t.Context(), steps[i], &results[i]); err != nil {
			t.Fatalf("piece %d with room: %v", i, err)
		}
	}
}

// TestCancelledPieces: the pieces of a request that is cancelled end with it, wherever they are, and leave the engine
// to others.
func TestCancelledPieces(t *testing.T) {
	line := with(stages(t, enginefake.Options{StepDelay: time.Millisecond}, engine.OpenOptions{}, nil), free)
	for i := range 20 {
		seq, err := line.NewSequence(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		view := line.For(Request{}).(interface {
			Submit(context.Context, *engine.Step, *engine.StepResult) func() (int, error)
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*500*time.Microsecond)
		steps := pieces(seq, 64, 64, 64, 64, 64, 64)
		results := make([]engine.StepResult, len(steps))
		var waits []func() (int, error)
		for k, s := range steps {
			waits = append(waits, view.Submit(ctx, s, &results[k]))
		}
		for k, wait := range waits {
			if _, err := wait(); err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
				t.Fatalf("piece %d: %v", k, err)
			}
		}
		cancel()
		if err := line.FreeSequence(t.Context(), seq); err != nil {
			t.Fatal(err)
		}
	}
	r := &course{e: line, random: rand.New(rand.NewPCG(3, 4))}
	if err := r.run(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
}
