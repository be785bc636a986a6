package engine

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/services/testwait"
)

// TestWhileRunning: what an interrupt does to a call it cannot do to the one behind it.
func TestWhileRunning(t *testing.T) {
	entered, left := make(chan struct{}), make(chan struct{})
	var over, late atomic.Bool
	var w *CallWatch
	w = NewCallWatch(func(id uint64) {
		defer close(left)
		w.WhileRunning(id, func() {
			close(entered)
			time.Sleep(10 * time.Millisecond) // for an End that does not wait
			late.Store(over.Load())
		})
	})
	ctx, cancel := context.WithCancel(t.Context())
	if err := w.Begin(ctx, 1); err != nil {
		t.Fatal(err)
	}
	cancel()
	testwait.For(t, entered, "the call is interrupted")
	w.End()
	over.Store(true)
	if testwait.For(t, left, "the interruption ends"); late.Load() {
		t.Error("the call ended while it was interrupted")
	}
	if err := w.Begin(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if w.WhileRunning(1, func() { t.Error("call 1 was over") }) || !w.WhileRunning(2, func() {}) {
		t.Error("which call runs?")
	}
	w.End()
	w.Close()
}
