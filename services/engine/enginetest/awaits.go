package enginetest

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/tandem-inference/tandem/services/engine"
)

// Awaits cancels a request at one of the moments at which it waits: the beginning and the end of every call of engines that
// Wrap has wrapped, and whatever else a test reports by Reach, such as events of a stream. A test runs the same request with
// the 1st, 2nd, 3rd … of them until one is not reached. It is safe for concurrent use.
type Awaits struct {
	// Hold is how long a call stands still after the cancel at most, so that the cancel arrives where it can; 0 = 20 ms.
	// Tests in which every cancel arrives set it to how long they wait for anything.
	Hold time.Duration

	mu     sync.Mutex // guards the fields below
	left   int        // moments until cancel is called
	cancel context.CancelFunc
	seen   int
	last   string
}

const defaultHold = 20 * time.Millisecond

// Arm makes the k-th moment from now, counted from 1, call cancel.
func (a *Awaits) Arm(k int, cancel context.CancelFunc) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.left, a.cancel, a.seen, a.last = k, cancel, 0, ""
}

// Disarm ends the count and returns the name of the moment that was cancelled at; "" = it was not reached.
func (a *Awaits) Disarm() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cancel = nil
	return a.last
}

// Reach reports a moment. ctx is what is waited with there.
func (a *Awaits) Reach(ctx context.Context, name string) {
	a.mu.Lock()
	if a.cancel == nil {
		a.mu.Unlock()
		return
	}
	a.left--
	var cancel context.CancelFunc
	if a.left == 0 {
		cancel, a.cancel, a.last = a.cancel, nil, name
	}
	a.mu.Unlock()
	if cancel == nil {
		return
	}
	cancel()
	select {
	case <-ctx.Done():
	case <-time.After(cmp.Or(a.Hold, defaultHold)):
	}
}

// Wrap returns an opener of engines whose calls are moments; name tells them from those of other openers.
func (a *Awaits) Wrap(opener engine.Opener, name string) engine.Opener {
	return awaitedOpener{a, opener, name + "."}
}

type awaitedOpener struct {
	awaits *Awaits
	engine.Opener
	name string
}

// Open implements engine.Opener.
func (o awaitedOpener) Open(ctx context.Context, options engine.OpenOptions, progress engine.Progress) (engine.Engine, error) {
	e, err := o.Opener.Open(ctx, options, progress)
	if err != nil {
		return nil, err
	}
	return &awaited{e, o.awaits, o.name}, nil
}

// awaited reports the calls of requests. Calls that requests do not make (Info, Stats, Memory, Handles, Close) are no moments.
type awaited struct {
	engine.Engine
	awaits *Awaits
	name   string
}

func (e *awaited) call(ctx context.Context, name string, call func() error) error {
	e.awaits.Reach(ctx, e.name+name+" begins")
	err := call()
	e.awaits.Reach(ctx, e.name+name+" ends")
	return err
}

func (e *awaited) NewSequence(ctx context.Context) (s engine.Sequence, err error) {
	err = e.call(ctx, "NewSequence", func() error { s, err = e.Engine.NewSequence(ctx); return err })
	return s, err
}

func (e *awaited) Fork(ctx context.Context, from engine.Sequence) (s engine.Sequence, err error) {
	err = e.call(ctx, "Fork", func() error { s, err = e.Engine.Fork(ctx, from); return err })
	return s, err
}

func (e *awaited) FreeSequence(ctx context.Context, s engine.Sequence) error {
	return e.call(ctx, "FreeSequence", func() error { return e.Engine.FreeSequence(ctx, s) })
}

func (e *awaited) SequenceLength(ctx context.Context, s engine.Sequence) (n int, err error) {
	err = e.call(ctx, "SequenceLength", func() error { n, err = e.Engine.SequenceLength(ctx, s); return err })
	return n, err
}

func (e *awaited) Truncate(ctx context.Context, s engine.Sequence, length int) error {
	return e.call(ctx, "Truncate", func() error { return e.Engine.Truncate(ctx, s, length) })
}

func (e *awaited) SetSampler(ctx context.Context, s engine.Sequence, sampler engine.Sampler) error {
	return e.call(ctx, "SetSampler", func() error { return e.Engine.SetSampler(ctx, s, sampler) })
}

func (e *awaited) NewSnapshot(ctx context.Context, s engine.Sequence) (p engine.Snapshot, err error) {
	err = e.call(ctx, "NewSnapshot", func() error { p, err = e.Engine.NewSnapshot(ctx, s); return err })
	return p, err
}

func (e *awaited) RestoreSnapshot(ctx context.Context, p engine.Snapshot, s engine.Sequence) error {
	return e.call(ctx, "RestoreSnapshot", func() error { return e.Engine.RestoreSnapshot(ctx, p, s) })
}

func (e *awaited) DemoteSnapshot(ctx context.Context, p engine.Snapshot) error {
	return e.call(ctx, "DemoteSnapshot", func() error { return e.Engine.DemoteSnapshot(ctx, p) })
}

func (e *awaited) FreeSnapshot(ctx context.Context, p engine.Snapshot) error {
	return e.call(ctx, "FreeSnapshot", func() error { return e.Engine.FreeSnapshot(ctx, p) })
}

func (e *awaited) Step(ctx context.Context, step *engine.Step, result *engine.StepResult) error {
	return e.call(ctx, "Step", func() error { return e.Engine.Step(ctx, step, result) })
}

func (e *awaited) Propose(ctx context.Context, f []engine.FeatureRows, q []engine.DraftRequest, r *engine.DraftResult) error {
	return e.call(ctx, "Propose", func() error { return e.Engine.Propose(ctx, f, q, r) })
}

func (e *awaited) Score(ctx context.Context, ids, rows []int32, rotated bool) (scores []float32, err error) {
	err = e.call(ctx, "Score", func() error { scores, err = e.Engine.Score(ctx, ids, rows, rotated); return err })
	return scores, err
}

// Done and Err implement engine.Mortal for engines that do.
func (e *awaited) Done() <-chan struct{} {
	if m, ok := e.Engine.(engine.Mortal); ok {
		return m.Done()
	}
	return nil
}

func (e *awaited) Err() error {
	if m, ok := e.Engine.(engine.Mortal); ok {
		return m.Err()
	}
	return nil
}
