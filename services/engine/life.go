package engine

import (
	"context"
	"sync"
)

// Mortal is an engine that can die on its own, such as a process or a fake that is told to.
type Mortal interface {
	// Done is closed when the engine is of no more use: its process died, a device fault poisoned it, or it was closed.
	Done() <-chan struct{}
	// Err says why; nil while the engine lives.
	Err() error
}

// CallWatch ends running calls when their context ends. Unlike context.AfterFunc per call it costs nothing as long as
// calls come with the same context, as they do in a decode loop. One call at a time.
type CallWatch struct {
	interrupt func(id uint64)

	mu      sync.Mutex // guards the fields below
	done    <-chan struct{}
	stop    func() bool
	running bool
	id      uint64
}

// NewCallWatch returns a watch that calls interrupt, on a goroutine of its own, when the context of the running call
// ends. The call may be over by then, or not have reached the point where it can be interrupted: WhileRunning tells.
func NewCallWatch(interrupt func(id uint64)) *CallWatch { return &CallWatch{interrupt: interrupt} }

// Begin starts call id. When it returns an error the context had ended and End must not be called.
func (w *CallWatch) Begin(ctx context.Context, id uint64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	w.mu.Lock()
	if done := ctx.Done(); done != w.done {
		if w.stop != nil {
			w.stop()
			w.stop = nil
		}
		if w.done = done; done != nil {
			w.stop = context.AfterFunc(ctx, func() { w.fire(done) })
		}
	}
	w.running, w.id = true, id
	w.mu.Unlock()
	// The context may have ended between the check above and running = true.
	if err := ctx.Err(); err != nil {
		w.End()
		return err
	}
	return nil
}

func (w *CallWatch) fire(done <-chan struct{}) {
	w.mu.Lock()
	hit, id := w.running && w.done == done, w.id
	w.mu.Unlock()
	if hit {
		w.interrupt(id)
	}
}

// WhileRunning calls f and returns true unless call id has ended. The call cannot end before f returns, so what f does
// to the running call it does to that one and to none behind it.
func (w *CallWatch) WhileRunning(id uint64, f func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.running || w.id != id {
		return false
	}
	f()
	return true
}

// End ends the running call.
func (w *CallWatch) End() {
	w.mu.Lock()
	w.running = false
	w.mu.Unlock()
}

// Close forgets the last context.
func (w *CallWatch) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stop != nil {
		w.stop()
		w.stop = nil
	}
	w.done = nil
}
