package joint

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// scripted is a draft whose passes take a while and are recorded.
type scripted struct {
	engine.Draft
	pass time.Duration

	mu      sync.Mutex
	lengths map[engine.Sequence]int
	calls   [][]engine.Sequence // those that asked, by call
	refuse  map[engine.Sequence]error
	after   bool // the refusal comes after features were appended
	lost    error
}

func newScripted(pass time.Duration) *scripted {
	return &scripted{pass: pass, lengths: map[engine.Sequence]int{}, refuse: map[engine.Sequence]error{}}
}

func (s *scripted) Info() engine.Info { return engine.Info{MaxBatchRows: 64} }

func (s *scripted) FreeSequence(context.Context, engine.Sequence) error { return nil }

func (s *scripted) SequenceLength(_ context.Context, q engine.Sequence) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lengths[q], nil
}

func (s *scripted) Propose(ctx context.Context, features []engine.FeatureRows, requests []engine.DraftRequest,
	result *engine.DraftResult) error {
	select {
	case <-time.After(s.pass):
	case <-ctx.Done():
		return rpcerr.From(ctx.Err())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var asked []engine.Sequence
	for i := range requests {
		asked = append(asked, requests[i].Sequence)
	}
	s.calls = append(s.calls, asked)
	if s.lost != nil {
		return s.lost
	}
	refusal := func() error {
		for i := range requests {
			if err := s.refuse[requests[i].Sequence]; err != nil {
				return err
			}
		}
		return nil
	}
	if err := refusal(); err != nil && !s.after {
		return err
	}
	for i := range features {
		if int(features[i].Position) != s.lengths[features[i].Sequence] {
			return rpcerr.FailedPrecondition("rows at %d of sequence %d, which has %d", features[i].Position,
				features[i].Sequence, s.lengths[features[i].Sequence])
		}
	}
	for i := range features {
		s.lengths[features[i].Sequence] += int(features[i].Rows)
	}
	if err := refusal(); err != nil {
		return err
	}
	result.Positions, result.Stride, result.IDs, result.Logprobs = 2, 1, result.IDs[:0], result.Logprobs[:0]
	for i := range requests {
		for p := range int32(2) {
			result.IDs = append(result.IDs, 10*requests[i].Token+p)
			result.Logprobs = append(result.Logprobs, -float32(p))
		}
	}
	result.EngineNanos = int64(s.pass)
	return nil
}

// ask appends a row to a sequence and asks for a proposal, which must be the sequence's own.
func ask(t *testing.T, ctx context.Context, e engine.Draft, q engine.Sequence, position int) error {
	t.Helper()
	var result engine.DraftResult
	err := e.Propose(ctx, []engine.FeatureRows{{Sequence: q, Position: int32(position), Rows: 1}},
		[]engine.DraftRequest{{Sequence: q, Token: int32(q), Position: int32(position + 1)}}, &result)
	if err != nil {
		return err
	}
	if want := []int32{10 * int32(q), 10*int32(q) + 1}; !slices.Equal(result.IDs, want) || result.Positions != 2 {
		t.Errorf("sequence %d got %v, want %v", q, result.IDs, want)
	}
	return nil
}

// TestJoins holds that sequences that ask at nearly the same time share passes, also when the first one comes a little
// earlier, and that one that asks alone never waits for those that have left.
func TestJoins(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		s := newScripted(4 * time.Millisecond)
		e := New(s)
		const rounds, n = 5, 4
		began := time.Now()
		for round := range rounds {
			var group sync.WaitGroup
			for q := range engine.Sequence(n) {
				group.Go(func() {
					time.Sleep(time.Duration(q) * 100 * time.Microsecond)
					if err := ask(t, t.Context(), e, q, round); err != nil {
						t.Error(err)
					}
				})
			}
			group.Wait()
		}
		// The first round takes two passes: nobody knew of the others. Later ones wait 0.3 ms and take one.
		if got, want := time.Since(began), 8*time.Millisecond+(rounds-1)*4300*time.Microsecond; got != want {
			t.Errorf("the rounds took %v, want %v; passes: %v", got, want, s.calls)
		}
		if got, want := e.Counts(), (Counts{Passes: rounds + 1, Proposals: rounds * n}); got != want {
			t.Errorf("counted %+v, want %+v", got, want)
		}
		for q := range engine.Sequence(n - 1) {
			if err := e.FreeSequence(t.Context(), q); err != nil {
				t.Fatal(err)
			}
		}
		began = time.Now()
		if err := ask(t, t.Context(), e, n-1, rounds); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != s.pass {
			t.Errorf("a lone question took %v, want %v", took, s.pass)
		}
	})
}

// TestWaitsThatDoNotPay holds that sequences that never ask together soon stop to wait for each other.
func TestWaitsThatDoNotPay(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		s := newScripted(4 * time.Millisecond)
		e := New(s)
		var waited []bool
		for round := range 30 {
			for q := range engine.Sequence(2) {
				began := time.Now()
				if err := ask(t, t.Context(), e, q, round); err != nil {
					t.Fatal(err)
				}
				waited = append(waited, time.Since(began) > s.pass)
			}
		}
		if !waited[1] || slices.Index(waited[1:], false) > 8 {
			t.Errorf("waits %v: want some at first, none soon", waited)
		}
		n := 0
		for _, w := range waited[10:] {
			if w {
				n++
			}
		}
		if n > 2 {
			t.Errorf("%d of the last %d questions waited for others, want 2 at most", n, len(waited)-10)
		}
	})
}

// TestRefused holds that a refusal of one part of a pass, before or after the features were appended, reaches that part
// alone, and that nothing is appended twice.
func TestRefused(t *testing.T) {
	for _, after := range []bool{false, true} {
		racetest.Bubble(t, func(t *testing.T) {
			s := newScripted(time.Millisecond)
			s.refuse[1], s.after = rpcerr.ResourceExhausted("no pages"), after
			e := New(s)
			var group sync.WaitGroup
			errs := make([]error, 3)
			group.Go(func() { errs[0] = ask(t, t.Context(), e, 0, 0) })
			synctest.Wait()
			for q := range engine.Sequence(2) {
				group.Go(func() { errs[q+1] = ask(t, t.Context(), e, q+1, 0) })
			}
			group.Wait()
			if errs[0] != nil || errs[2] != nil || !errors.Is(errs[1], rpcerr.AnyResourceExhausted) {
				t.Errorf("after=%v: errors are %v", after, errs)
			}
			if want := [][]engine.Sequence{{0}, {1, 2}, {1}, {2}}; !cmp.Equal(s.calls, want) && // the two may come
				!cmp.Equal(s.calls, [][]engine.Sequence{{0}, {2, 1}, {2}, {1}}) { // in either order
				t.Errorf("after=%v: passes were %v", after, s.calls)
			}
			if s.lengths[2] != 1 {
				t.Errorf("after=%v: sequence 2 has %d rows, want 1", after, s.lengths[2])
			}
		})
	}
}

// TestLost holds that the end of an engine reaches all parts of a pass.
func TestLost(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		s := newScripted(time.Millisecond)
		s.lost = rpcerr.EngineLost.With("gone")
		e := New(s)
		var group sync.WaitGroup
		for q := range engine.Sequence(3) {
			group.Go(func() {
				if err := ask(t, t.Context(), e, q, 0); !errors.Is(err, rpcerr.EngineLost) {
					t.Errorf("sequence %d got %v", q, err)
				}
			})
		}
		group.Wait()
		if len(s.calls) != 2 {
			t.Errorf("passes were %v, want two", s.calls)
		}
	})
}

// TestLeaves holds that a call that is cancelled while it waits changes nothing, and that one that is cancelled in a
// joint pass does not disturb the others.
func TestLeaves(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		s := newScripted(4 * time.Millisecond)
		e := New(s)
		var group sync.WaitGroup
		start := func(q engine.Sequence, want error) context.CancelFunc {
			ctx, cancel := context.WithCancel(t.Context())
			group.Go(func() {
				if err := ask(t, ctx, e, q, 0); !errors.Is(err, want) {
					t.Errorf("sequence %d got %v, want %v", q, err, want)
				}
			})
			synctest.Wait()
			return cancel
		}
		defer start(0, nil)()
		gone := start(1, context.Canceled) // waits
		leader := start(2, nil)
		defer start(3, nil)()
		gone()
		time.Sleep(5 * time.Millisecond) // 2 and 3 are in their pass
		leader()
		group.Wait()
		if want := [][]engine.Sequence{{0}, {2, 3}}; !cmp.Equal(s.calls, want) {
			t.Errorf("passes were %v, want %v", s.calls, want)
		}
		if s.lengths[1] != 0 {
			t.Error("a call that left has appended rows")
		}
	})
}

// TestCatchingUp holds that rows without a question take a pass of their own, in their turn.
func TestCatchingUp(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		s := newScripted(4 * time.Millisecond)
		e := New(s)
		var group sync.WaitGroup
		run := func(f func() error) {
			group.Go(func() {
				if err := f(); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		run(func() error { return ask(t, t.Context(), e, 0, 0) })
		run(func() error {
			var result engine.DraftResult
			return e.Propose(t.Context(), []engine.FeatureRows{{Sequence: 9, Rows: 60}}, nil, &result)
		})
		run(func() error { return ask(t, t.Context(), e, 1, 0) })
		run(func() error { return ask(t, t.Context(), e, 2, 0) })
		group.Wait()
		if want := [][]engine.Sequence{{0}, nil, {1, 2}}; !cmp.Equal(s.calls, want) {
			t.Errorf("passes were %v, want %v", s.calls, want)
		}
	})
}

// TestSameAsAlone compares proposals of many sequences that ask at random moments with those of an engine that nobody
// shares.
func TestSameAsAlone(t *testing.T) {
	open := func() engine.Draft {
		e, err := enginefake.New(enginefake.Options{ProposeDelay: 50 * time.Microsecond}).OpenDraft(t.Context(),
			engine.OpenOptions{ModelPath: "d", TablesPath: "t", MaxSequences: 8, MaxContext: 256}, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = e.Close() })
		return e
	}
	alone, shared := open(), New(open())
	width := alone.Info().FeatureFused
	var group sync.WaitGroup
	for seed := range uint64(8) {
		want, err := alone.NewSequence(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got, err := shared.NewSequence(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		group.Go(func() {
			random := rand.New(rand.NewPCG(seed, 1))
			var a, b engine.DraftResult
			for length := 0; length < 200; {
				rows := 1 + random.IntN(9)
				data := make([]byte, 2*width*rows)
				for i := range data {
					data[i] = byte(random.Uint32())
				}
				f := engine.FeatureRows{Position: int32(length), Rows: int32(rows), Encoding: engine.FeatureFusedBF16, Data: data}
				length += rows
				q := engine.DraftRequest{Token: int32(random.IntN(64)), Position: int32(length), Block: int32(2 + random.IntN(7)),
					TopK: 4, Temperature: 1}
				for _, of := range []struct {
					e engine.Draft
					s engine.Sequence
					r *engine.DraftResult
				}{{alone, want, &a}, {shared, got, &b}} {
					f.Sequence, q.Sequence = of.s, of.s
					if err := of.e.Propose(t.Context(), []engine.FeatureRows{f}, []engine.DraftRequest{q}, of.r); err != nil {
						t.Error(err)
						return
					}
				}
				if !slices.Equal(a.IDs, b.IDs) || !slices.Equal(a.Logprobs, b.Logprobs) || a.Stride != b.Stride {
					t.Errorf("seed %d at %d: proposals differ", seed, length)
					return
				}
			}
		})
	}
	group.Wait()
	if c := shared.Counts(); c.Passes >= c.Proposals {
		t.Errorf("%d proposals took %d passes, want fewer", c.Proposals, c.Passes)
	}
}
