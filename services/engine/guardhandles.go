package engine

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/tandem-inference/tandem/services/rpcerr"
)

// guardedSequences are the Sequences of a guarded engine. It loses no handle, whatever becomes of the callers:
// sequences and snapshots are made and freed to the end although the caller's context is over, and what could not be
// freed is tried again. Once in a while the handles in the engine are compared with those that requests hold, and what
// belongs to nobody is freed. An engine that does not free a handle in the end is given up, so that its supervisor
// opens another.
type guardedSequences struct {
	*Guard
	inner     Sequences
	sequences ledger[Sequence]
	snapshots ledger[Snapshot]

	countsMu sync.Mutex // guards counts
	counts   HandleCounts
}

// init guards the handles of an engine.
func (g *guardedSequences) init(e Sequences, cfg GuardConfig) {
	g.Guard, g.inner = newGuard(e, cfg), e
	g.sequences = newLedger("sequence", e.FreeSequence)
	g.snapshots = newLedger("snapshot", e.FreeSnapshot)
	g.start(g.compare)
}

// Counts returns the newest comparison.
func (g *guardedSequences) Counts() HandleCounts {
	g.countsMu.Lock()
	defer g.countsMu.Unlock()
	return g.counts
}

// NewSequence implements Sequences. A sequence that came too late for its caller is freed before NewSequence returns.
// When the engine has no sequence left, those that belong to nobody are freed first.
func (g *guardedSequences) NewSequence(ctx context.Context) (Sequence, error) {
	return g.sequence(ctx, g.inner.NewSequence)
}

// Fork implements Sequences, like NewSequence.
func (g *guardedSequences) Fork(ctx context.Context, from Sequence) (Sequence, error) {
	return g.sequence(ctx, func(ctx context.Context) (Sequence, error) { return g.inner.Fork(ctx, from) })
}

func (g *guardedSequences) sequence(ctx context.Context,
	call func(context.Context) (Sequence, error)) (Sequence, error) {
	s, err := create(ctx, g, &g.sequences, call)
	if rpcerr.Code(err) == codes.ResourceExhausted && ctx.Err() == nil && g.sweep(ctx) {
		s, err = create(ctx, g, &g.sequences, call)
	}
	return s, err
}

// FreeSequence implements Sequences. It happens although ctx has ended, and again later when it fails. Only the request
// that made the sequence may free it with a context that has ended.
func (g *guardedSequences) FreeSequence(ctx context.Context, s Sequence) error {
	return release(ctx, g, &g.sequences, s)
}

// NewSnapshot implements Sequences, like NewSequence.
func (g *guardedSequences) NewSnapshot(ctx context.Context, s Sequence) (Snapshot, error) {
	return create(ctx, g, &g.snapshots, func(ctx context.Context) (Snapshot, error) { return g.inner.NewSnapshot(ctx, s) })
}

// FreeSnapshot implements Sequences, like FreeSequence.
func (g *guardedSequences) FreeSnapshot(ctx context.Context, p Snapshot) error {
	return release(ctx, g, &g.snapshots, p)
}

// create makes a handle and learns its fate, whatever becomes of ctx: a call that is given up may still be carried out.
func create[H handle](ctx context.Context, g *guardedSequences, l *ledger[H],
	call func(context.Context) (H, error)) (H, error) {
	l.gate.RLock()
	defer l.gate.RUnlock()
	if err := ctx.Err(); err != nil {
		return 0, rpcerr.From(err)
	}
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.cfg.CallTimeout)
	i := g.clock.begin(callControl, 1)
	h, err := call(own)
	g.clock.end(i, err)
	late := own.Err() != nil
	cancel()
	switch {
	case err != nil && late:
		return 0, rpcerr.Unavailable("the engine was busy for %v", g.cfg.CallTimeout).WithCause(err)
	case err != nil:
		return 0, err
	}
	l.add(h, ctx)
	if err := ctx.Err(); err != nil {
		_ = release(ctx, g, l, h) // what fails is tried again
		return 0, rpcerr.From(err)
	}
	return h, nil
}

func release[H handle](ctx context.Context, g *guardedSequences, l *ledger[H], h H) error {
	e := l.claim(ctx, h)
	if e == nil {
		return rpcerr.NotFound("%s: %d does not exist", l.noun, h)
	}
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.cfg.CallTimeout)
	defer cancel()
	err := g.timed(func() error { return l.free(own, h) })
	if l.freed(h, e, err) >= g.cfg.Frees {
		g.giveUp(rpcerr.EngineLost.With("the engine did not free a handle in %d tries", g.cfg.Frees).WithCause(err))
	}
	return err
}

// compare looks for handles that belong to nobody.
func (g *guardedSequences) compare(ctx context.Context) {
	sequences, snapshots := g.sequences.known(), g.snapshots.known()
	h, err := g.list(ctx)
	if err != nil {
		return // the engine is gone, or will be found hanging
	}
	now := time.Now()
	abandoned := g.sequences.abandon(now, g.cfg.OwnerGrace)
	g.report(Handles{Sequences: abandoned})
	strays, lasting := g.sequences.stray(h.Sequences, sequences, now, g.cfg.Grace)
	_, stale := g.snapshots.stray(h.Snapshots, snapshots, now, g.cfg.Grace)
	owing := len(g.sequences.owing())
	g.countsMu.Lock()
	g.counts.Sequences, g.counts.Orphans = len(h.Sequences), owing+strays
	g.countsMu.Unlock()
	if lasting || stale || owing+len(g.snapshots.owing()) > 0 {
		g.sweep(ctx)
	}
}

func (g *guardedSequences) list(ctx context.Context) (Handles, error) {
	ctx, cancel := context.WithTimeout(ctx, g.cfg.CallTimeout)
	defer cancel()
	return g.Engine.Handles(ctx)
}

// sweep frees all handles that belong to nobody, and reports whether a sequence is free for it. Nobody can make a
// handle meanwhile.
func (g *guardedSequences) sweep(ctx context.Context) bool {
	g.sequences.gate.Lock()
	defer g.sequences.gate.Unlock()
	g.snapshots.gate.Lock()
	defer g.snapshots.gate.Unlock()
	sequences, snapshots := g.sequences.known(), g.snapshots.known()
	h, err := g.list(ctx)
	if err != nil {
		return false
	}
	strays := Handles{Sequences: adopt(&g.sequences, h.Sequences, sequences),
		Snapshots: adopt(&g.snapshots, h.Snapshots, snapshots)}
	g.report(strays)
	freed := uint64(0)
	for _, s := range g.sequences.owing() {
		if ctx.Err() == nil && release(ctx, g, &g.sequences, s) == nil {
			freed++
		}
	}
	for _, p := range g.snapshots.owing() {
		if ctx.Err() == nil {
			_ = release(ctx, g, &g.snapshots, p)
		}
	}
	g.countsMu.Lock()
	g.counts.Freed += freed
	g.counts.Orphans = len(g.sequences.owing())
	g.countsMu.Unlock()
	return freed > 0
}

// adopt gives handles that are not known an entry, so that they are freed. The caller holds the gate.
func adopt[H handle](l *ledger[H], list []H, known map[H]bool) []H {
	var strays []H
	for _, h := range list {
		if !known[h] {
			l.add(h, nil)
			strays = append(strays, h)
		}
	}
	return strays
}

func (g *guardedSequences) report(h Handles) {
	if len(h.Sequences)+len(h.Snapshots) > 0 && g.cfg.OnOrphans != nil {
		g.cfg.OnOrphans(h)
	}
}
