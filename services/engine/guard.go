package engine

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/tandem-inference/tandem/services/procwatch"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// GuardConfig sets up a Guard; zero values mean the defaults.
type GuardConfig struct {
	// Every is the pause between two comparisons of the engine's handles with those of requests, default 1 s.
	Every time.Duration
	// Grace is how long a handle must have belonged to nobody before it is freed, default 3 s.
	Grace time.Duration
	// OwnerGrace is how long a sequence may outlive the context that it was made with, default 1 min.
	OwnerGrace time.Duration
	// CallTimeout bounds every call that makes or frees a handle, default 2 min: such calls wait for steps of others.
	CallTimeout time.Duration
	// Frees is how often freeing a handle is tried before the engine is given up, default 5.
	Frees int
	// HangLimit is procwatch's limit: a call that has not come back after StuckFactor times as long, or 30 times what such
	// calls took so far, whichever is longer, loses the engine. 0 = procwatch.DefaultLimit, negative = never.
	HangLimit time.Duration
	// OnOrphans is told the handles that belong to nobody, once each, before they are freed; nil = not wanted.
	OnOrphans func(Handles)
}

// StuckFactor is how many limits long a call may take in an engine that shows signs of life.
const StuckFactor = 20

func (c GuardConfig) withDefaults() GuardConfig {
	if c.HangLimit == 0 {
		c.HangLimit = procwatch.DefaultLimit
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&c.Every, time.Second)
	def(&c.Grace, 3*time.Second)
	def(&c.OwnerGrace, time.Minute)
	def(&c.CallTimeout, 2*time.Minute)
	if c.Frees <= 0 {
		c.Frees = 5
	}
	return c
}

// HandleCounts are the sequences of a guarded engine.
type HandleCounts struct {
	Sequences int    // in the engine, at the newest comparison
	Orphans   int    // of them, those that belong to no request
	Freed     uint64 // orphans freed since the engine was opened
}

// Guard is an Engine that loses no handle of another one, whatever becomes of the callers. Sequences and snapshots are made
// and freed to the end although the caller's context is over. What could not be freed is tried again. Once in a while the
// handles in the engine are compared with those that requests hold, and what belongs to nobody is freed. An engine that does
// not free a handle in the end is given up, so that its supervisor opens another.
//
// A Guard is the only user of its engine.
type Guard struct {
	Engine
	cfg       GuardConfig
	sequences ledger[Sequence]
	snapshots ledger[Snapshot]
	clock     callClock

	countsMu sync.Mutex // guards counts
	counts   HandleCounts

	lifeMu sync.Mutex // guards lost
	lost   error
	ended  sync.Once // closes done
	done   chan struct{}

	stop  context.CancelFunc
	group sync.WaitGroup // of watch and watchCalls
	once  sync.Once      // for Close
	err   error          // of Close
}

// killer is an engine that can be ended at once, without its help.
type killer interface{ Kill(cause error) }

// NewGuard guards engine until Close.
func NewGuard(engine Engine, cfg GuardConfig) *Guard {
	ctx, stop := context.WithCancel(context.Background())
	g := &Guard{
		Engine: engine, cfg: cfg.withDefaults(), done: make(chan struct{}), stop: stop,
		sequences: newLedger("sequence", engine.FreeSequence), snapshots: newLedger("snapshot", engine.FreeSnapshot),
	}
	g.clock.floor = max(0, StuckFactor*g.cfg.HangLimit)
	g.group.Go(func() { g.watch(ctx) })
	g.group.Go(func() { g.watchCalls(ctx) })
	return g
}

// Counts returns the newest comparison.
func (g *Guard) Counts() HandleCounts {
	g.countsMu.Lock()
	defer g.countsMu.Unlock()
	return g.counts
}

// NewSequence implements Engine. A sequence that came too late for its caller is freed before NewSequence returns. When the
// engine has no sequence left, those that belong to nobody are freed first.
func (g *Guard) NewSequence(ctx context.Context) (Sequence, error) {
	return g.sequence(ctx, g.Engine.NewSequence)
}

// Fork implements Engine, like NewSequence.
func (g *Guard) Fork(ctx context.Context, from Sequence) (Sequence, error) {
	return g.sequence(ctx, func(ctx context.Context) (Sequence, error) { return g.Engine.Fork(ctx, from) })
}

func (g *Guard) sequence(ctx context.Context, call func(context.Context) (Sequence, error)) (Sequence, error) {
	s, err := create(ctx, g, &g.sequences, call)
	if rpcerr.Code(err) == codes.ResourceExhausted && ctx.Err() == nil && g.sweep(ctx) {
		s, err = create(ctx, g, &g.sequences, call)
	}
	return s, err
}

// FreeSequence implements Engine. It happens although ctx has ended, and again later when it fails. Only the request that
// made the sequence may free it with a context that has ended.
func (g *Guard) FreeSequence(ctx context.Context, s Sequence) error {
	return release(ctx, g, &g.sequences, s)
}

// NewSnapshot implements Engine, like NewSequence.
func (g *Guard) NewSnapshot(ctx context.Context, s Sequence) (Snapshot, error) {
	return create(ctx, g, &g.snapshots, func(ctx context.Context) (Snapshot, error) { return g.Engine.NewSnapshot(ctx, s) })
}

// FreeSnapshot implements Engine, like FreeSequence.
func (g *Guard) FreeSnapshot(ctx context.Context, p Snapshot) error {
	return release(ctx, g, &g.snapshots, p)
}

// create makes a handle and learns its fate, whatever becomes of ctx: a call that is given up may still be carried out.
func create[H handle](ctx context.Context, g *Guard, l *ledger[H], call func(context.Context) (H, error)) (H, error) {
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

func release[H handle](ctx context.Context, g *Guard, l *ledger[H], h H) error {
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

// watch compares handles until ctx ends.
func (g *Guard) watch(ctx context.Context) {
	var lost <-chan struct{}
	if m, ok := g.Engine.(Mortal); ok {
		lost = m.Done()
	}
	ticker := time.NewTicker(g.cfg.Every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			g.compare(ctx)
		case <-lost:
			g.lose(g.Engine.(Mortal).Err())
			return
		case <-ctx.Done():
			return
		}
	}
}

// watchCalls gives up an engine whose calls do not come back.
func (g *Guard) watchCalls(ctx context.Context) {
	if g.clock.floor == 0 {
		return
	}
	period := min(time.Second, g.clock.floor/10)
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for last := time.Now(); ; {
		select {
		case <-ticker.C:
		case <-g.done:
			return
		case <-ctx.Done():
			return
		}
		now := time.Now()
		passed := min(now.Sub(last), 2*period)
		last = now
		if still := g.clock.tick(passed); still > 0 {
			g.giveUp(rpcerr.EngineLost.With("the engine is stuck: it has finished nothing for %v", still.Round(100*time.Millisecond)))
			return
		}
	}
}

// compare looks for handles that belong to nobody.
func (g *Guard) compare(ctx context.Context) {
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

func (g *Guard) list(ctx context.Context) (Handles, error) {
	ctx, cancel := context.WithTimeout(ctx, g.cfg.CallTimeout)
	defer cancel()
	return g.Engine.Handles(ctx)
}

// sweep frees all handles that belong to nobody, and reports whether a sequence is free for it. Nobody can make a handle
// meanwhile.
func (g *Guard) sweep(ctx context.Context) bool {
	g.sequences.gate.Lock()
	defer g.sequences.gate.Unlock()
	g.snapshots.gate.Lock()
	defer g.snapshots.gate.Unlock()
	sequences, snapshots := g.sequences.known(), g.snapshots.known()
	h, err := g.list(ctx)
	if err != nil {
		return false
	}
	strays := Handles{Sequences: adopt(&g.sequences, h.Sequences, sequences), Snapshots: adopt(&g.snapshots, h.Snapshots, snapshots)}
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

func (g *Guard) report(h Handles) {
	if len(h.Sequences)+len(h.Snapshots) > 0 && g.cfg.OnOrphans != nil {
		g.cfg.OnOrphans(h)
	}
}

// giveUp loses the engine: it is of less use than a new one.
func (g *Guard) giveUp(cause error) {
	// The reason comes first: with the engine its calls end, and they state it. Done comes last: a supervisor that opens
	// another engine then does not meet the memory of this one.
	g.blame(cause)
	if k, ok := g.Engine.(killer); ok {
		k.Kill(cause)
	}
	g.lose(cause)
}

// blame sets the reason of the engine's end, if there is none yet.
func (g *Guard) blame(err error) {
	g.lifeMu.Lock()
	defer g.lifeMu.Unlock()
	if g.lost == nil {
		g.lost = err
	}
}

func (g *Guard) lose(err error) {
	g.blame(err)
	g.ended.Do(func() { close(g.done) })
}

// Done implements Mortal.
func (g *Guard) Done() <-chan struct{} { return g.done }

// Err implements Mortal.
func (g *Guard) Err() error {
	g.lifeMu.Lock()
	defer g.lifeMu.Unlock()
	if g.lost != nil {
		return g.lost
	}
	if m, ok := g.Engine.(Mortal); ok {
		return m.Err()
	}
	return nil
}

// Stderr returns the last lines of the engine's process, if it is one.
func (g *Guard) Stderr() []string {
	if p, ok := g.Engine.(interface{ Stderr() []string }); ok {
		return p.Stderr()
	}
	return nil
}

// Close implements Engine.
func (g *Guard) Close() error {
	g.once.Do(func() {
		g.stop()
		g.group.Wait()
		g.err = g.Engine.Close()
		g.lose(rpcerr.FailedPrecondition("the engine is closed"))
	})
	return g.err
}
