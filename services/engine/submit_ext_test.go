package engine_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/racetest"
)

// TestSubmitterServesInOrder: callers get their turn in the order in which they began to wait, those that give up get
// none.
func TestSubmitterServesInOrder(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		s := engine.NewSubmitter()
		if err := s.Acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		const callers = 20
		impatient, giveUp := context.WithCancel(t.Context())
		var order, want []int // order is written by the caller whose turn it is
		for i := range callers {
			ctx := t.Context()
			if i%5 == 3 {
				ctx = impatient
			} else {
				want = append(want, i)
			}
			go func() {
				if err := s.Acquire(ctx); err != nil {
					return
				}
				order = append(order, i)
				s.Release()
			}()
			synctest.Wait() // it waits for its turn
		}
		giveUp()
		synctest.Wait()
		s.Release()
		synctest.Wait()
		if !slices.Equal(order, want) {
			t.Errorf("served in the order %v, want %v", order, want)
		}
	})
}

// TestSubmitterOfEndedContexts: a context that has ended takes no turn, free or not, and a turn allocates nothing.
func TestSubmitterOfEndedContexts(t *testing.T) {
	s := engine.NewSubmitter()
	if err := s.Acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Acquire(ended); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	s.Release()
	if err := s.Acquire(ended); err == nil {
		t.Fatal("an ended context takes a free turn")
	}
	if n := testing.AllocsPerRun(100, func() {
		_ = s.Acquire(t.Context())
		s.Release()
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
