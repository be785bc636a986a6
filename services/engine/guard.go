package engine

import (
	"context"
	"sync"
	"time"

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

// Guard is the part of a guarded engine that all roles have: it gives up an engine whose calls do not come back. It is
// the only user of its engine.
type Guard struct {
	Engine
	cfg   GuardConfig
	clock callClock

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

// newGuard guards an engine until Close; its caller starts watch.
func newGuard(e Engine, cfg GuardConfig) *Guard {
	g := &Guard{Engine: e, cfg: cfg.withDefaults(), done: make(chan struct{})}
	g.clock.floor = max(0, StuckFactor*g.cfg.HangLimit)
	return g
}

// start watches the engine and its calls. compare is called once in a while; nil = there are no handles.
func (g *Guard) start(compare func(context.Context)) {
	ctx, stop := context.WithCancel(context.Background())
	g.stop = stop
	g.group.Go(func() { g.watch(ctx, compare) })
	g.group.Go(func() { g.watchCalls(ctx) })
}

// watch waits for the engine's end and has handles compared until ctx ends.
func (g *Guard) watch(ctx context.Context, compare func(context.Context)) {
	var lost <-chan struct{}
	if m, ok := g.Engine.(Mortal); ok {
		lost = m.Done()
	}
	var due <-chan time.Time
	if compare != nil {
		ticker := time.NewTicker(g.cfg.Every)
		defer ticker.Stop()
		due = ticker.C
	}
	for {
		select {
		case <-due:
			compare(ctx)
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
			g.giveUp(rpcerr.EngineLost.With("the engine is stuck: it has finished nothing for %v",
				still.Round(100*time.Millisecond)))
			return
		}
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
