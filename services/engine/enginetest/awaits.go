package enginetest

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/tandem-inference/tandem/services/engine"
)

// Awaits cancels a request at one of the moments at which it waits: the beginning and the end of every call of engines
// that Wrap has wrapped, and whatever else a test reports by Reach, such as events of a stream. A test runs the same
// request with the 1st, 2nd, 3rd … of them until one is not reached. It is safe for concurrent use.
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

// OpenTarget implements engine.Opener, as do the methods below.
func (o awaitedOpener) OpenTarget(ctx context.Context, options engine.OpenOptions,
	p engine.Progress) (engine.Target, error) {
	e, err := o.Opener.OpenTarget(ctx, options, p)
	if err != nil {
		return nil, err
	}
	return &awaitedTarget{awaitedSequences{awaited{e, o.awaits, o.name}, e}, e, e}, nil
}

// OpenDraft opens a draft.
func (o awaitedOpener) OpenDraft(ctx context.Context, options engine.OpenOptions,
	p engine.Progress) (engine.Draft, error) {
	e, err := o.Opener.OpenDraft(ctx, options, p)
	if err != nil {
		return nil, err
	}
	return &awaitedDraft{awaitedSequences{awaited{e, o.awaits, o.name}, e}, e}, nil
}

// OpenScorer opens a scorer.
func (o awaitedOpener) OpenScorer(ctx context.Context, options engine.OpenOptions,
	p engine.Progress) (engine.Scorer, error) {
	e, err := o.Opener.OpenScorer(ctx, options, p)
	if err != nil {
		return nil, err
	}
	return &awaitedScorer{awaited{e, o.awaits, o.name}, e}, nil
}

// awaited reports the calls of requests. Calls that requests do not make (Info, Stats, Memory, Handles, Close) are no
// moments, nor are those of the disk tier (SnapshotParts).
type awaited struct {
	engine.Engine
	awaits *Awaits
	name   string
}

type awaitedSequences struct {
	awaited
	inner engine.Sequences
}

type awaitedTarget struct {
	awaitedSequences
	engine.SnapshotParts
	target engine.Target
}

type awaitedDraft struct {
	awaitedSequences
	draft engine.Draft
}

type awaitedScorer struct {
	awaited
	scorer engine.Scorer
}

func (e *awaited) call(ctx context.Context, name string, call func() error) error {
	e.awaits.Reach(ctx, e.name+name+" begins")
	err := call()
	e.awaits.Reach(ctx, e.name+name+" ends")
	return err
}

func (e *awaitedSequences) NewSequence(ctx context.Context) (s engine.Sequence, err error) {
	err = e.call(ctx, "NewSequence", func() error { s, err = e.inner.NewSequence(ctx); return err })
	return s, err
}

func (e *awaitedSequences) Fork(ctx context.Context, from engine.Sequence) (s engine.Sequence, err error) {
	err = e.call(ctx, "Fork", func() error { s, err = e.inner.Fork(ctx, from); return err })
	return s, err
}

func (e *awaitedSequences) FreeSequence(ctx context.Context, s engine.Sequence) error {
	return e.call(ctx, "FreeSequence", func() error { return e.inner.FreeSequence(ctx, s) })
}

func (e *awaitedSequences) SequenceLength(ctx context.Context, s engine.Sequence) (n int, err error) {
	err = e.call(ctx, "SequenceLength", func() error { n, err = e.inner.SequenceLength(ctx, s); return err })
	return n, err
}

func (e *awaitedSequences) Truncate(ctx context.Context, s engine.Sequence, length int) error {
	return e.call(ctx, "Truncate", func() error { return e.inner.Truncate(ctx, s, length) })
}

func (e *awaitedTarget) SetSampler(ctx context.Context, s engine.Sequence, sampler engine.Sampler) error {
	return e.call(ctx, "SetSampler", func() error { return e.target.SetSampler(ctx, s, sampler) })
}

func (e *awaitedSequences) NewSnapshot(ctx context.Context, s engine.Sequence) (p engine.Snapshot, err error) {
	err = e.call(ctx, "NewSnapshot", func() error { p, err = e.inner.NewSnapshot(ctx, s); return err })
	return p, err
}

func (e *awaitedSequences) RestoreSnapshot(ctx context.Context, p engine.Snapshot, s engine.Sequence) error {
	return e.call(ctx, "RestoreSnapshot", func() error { return e.inner.RestoreSnapshot(ctx, p, s) })
}

func (e *awaitedSequences) DemoteSnapshot(ctx context.Context, p engine.Snapshot) error {
	return e.call(ctx, "DemoteSnapshot", func() error { return e.inner.DemoteSnapshot(ctx, p) })
}

func (e *awaitedSequences) FreeSnapshot(ctx context.Context, p engine.Snapshot) error {
	return e.call(ctx, "FreeSnapshot", func() error { return e.inner.FreeSnapshot(ctx, p) })
}

func (e *awaitedTarget) Step(ctx context.Context, step *engine.Step, result *engine.StepResult) error {
	return e.call(ctx, "Step", func() error { return e.target.Step(ctx, step, result) })
}

func (e *awaitedDraft) Propose(ctx context.Context, f []engine.FeatureRows, q []engine.DraftRequest,
	r *engine.DraftResult) error {
	return e.call(ctx, "Propose", func() error { return e.draft.Propose(ctx, f, q, r) })
}

func (e *awaitedScorer) Score(ctx context.Context, q []engine.Prompt, rotated bool,
	p engine.Progress) (scores [][]float32, err error) {
	err = e.call(ctx, "Score", func() error { scores, err = e.scorer.Score(ctx, q, rotated, p); return err })
	return scores, err
}

func (e *awaitedSequences) Export(ctx context.Context, s engine.Sequence) (state []byte, err error) {
	err = e.call(ctx, "Export", func() error { state, err = e.inner.Export(ctx, s); return err })
	return state, err
}

func (e *awaitedSequences) Import(ctx context.Context, s engine.Sequence, state []byte) error {
	return e.call(ctx, "Import", func() error { return e.inner.Import(ctx, s, state) })
}

// SetCapture and LoadFuse are no calls of requests.
func (e *awaitedTarget) SetCapture(ctx context.Context, layers []int32) error {
	return e.target.SetCapture(ctx, layers)
}

func (e *awaitedTarget) LoadFuse(ctx context.Context, path string) error {
	return e.target.LoadFuse(ctx, path)
}

func (e *awaitedTarget) Fuse(ctx context.Context, raw engine.RawFeatures,
	f engine.FeatureEncoding) (fused []byte, err error) {
	err = e.call(ctx, "Fuse", func() error { fused, err = e.target.Fuse(ctx, raw, f); return err })
	return fused, err
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
