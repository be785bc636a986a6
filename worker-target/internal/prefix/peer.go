package prefix

import (
	"context"
	"time"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/worker-target/internal/disk"
)

// Peer is another worker that may hold a longer state of a prompt.
type Peer interface {
	// Find returns the longest state there that tokens begin with, that is longer than least and fits; nil if there is
	// none, or when reading the tokens is expected to take less time.
	Find(ctx context.Context, info engine.Info, tokens []int32, least int, fits func(length int) bool) Kept
}

// Fetch returns an entry of a state that a peer holds and that is longer than best, which may be nil, else best. Both
// are pinned; the one that is not returned is unpinned.
func (c *Cache) Fetch(
	ctx context.Context, best *Entry, space string, tokens []int32, fits func(length int) bool, p Peer,
) *Entry {
	c.mu.Lock()
	use, least := c.engine, 0
	c.mu.Unlock()
	if use == nil {
		return best
	}
	if best != nil {
		least = best.length
	}
	state := p.Find(ctx, use.Info(), tokens, least, fits)
	if state == nil {
		return best
	}
	defer state.Close()
	e, err := c.load(ctx, state, best, space, tokens[:state.Length()])
	if err != nil || e == nil {
		return best
	}
	if best != nil {
		c.Release(best)
	}
	return e
}

// Loan is a state that another worker reads, in memory or on disk.
type Loan struct {
	cache *Cache
	entry *Entry      // nil = it is on disk
	state *disk.State // nil = it is in memory
}

// Lend returns the longest state that tokens begin with, that is longer than least and fits; nil if there is none. It
// is no look-up, and the state may be evicted while it is sent.
func (c *Cache) Lend(
	ctx context.Context, space string, tokens []int32, least int, fits func(length int) bool,
) *Loan {
	if c == nil {
		return nil
	}
	l := &Loan{cache: c}
	c.mu.Lock()
	if e := c.longest(space, tokens, fits); e != nil && e.length > least && !c.closed {
		l.entry, least = e, e.length
	}
	c.mu.Unlock()
	if c.tier != nil {
		if state := c.tier.disk.Store.Find(ctx, space, tokens, least, fits); state != nil {
			l.entry, l.state = nil, state
		}
	}
	if l.entry == nil && l.state == nil {
		return nil
	}
	return l
}

// Send writes the state to a receiver like an engine, which already has the pages below shared, and returns its rows of
// features. pause is called after every read of the worker's own engine, with the time that it took.
func (l *Loan) Send(
	ctx context.Context, to disk.Engine, shared int, pause func(ctx context.Context, took time.Duration),
) (*disk.Rows, error) {
	if l.state != nil {
		_, rows, err := l.state.Load(ctx, to, 0, shared*PageRows)
		return rows, err
	}
	e := l.entry
	read := func(call func() error) error {
		start := time.Now()
		err := l.cache.read(e, call)
		pause(ctx, min(time.Since(start), mostPause))
		return err
	}
	var layout engine.SnapshotLayout
	if err := read(func() (err error) {
		layout, err = e.engine.DescribeSnapshot(ctx, e.snapshot)
		return err
	}); err != nil {
		return nil, err
	}
	p, err := to.BeginSnapshot(ctx, layout, 0, shared)
	if err != nil {
		return nil, err
	}
	for _, r := range disk.Ranges(layout, shared) {
		var crc uint32
		data := make([]byte, r.Bytes) // owned by the receiver from here on
		if err := read(func() (err error) {
			crc, err = e.engine.ReadSnapshot(ctx, e.snapshot, r.At, data)
			return err
		}); err != nil {
			return nil, err
		}
		if err := to.WriteSnapshot(ctx, p, r.At, data, crc); err != nil {
			return nil, err
		}
	}
	return e.rows.stored(), to.FinishSnapshot(ctx, p)
}

// Close ends the use of the state.
func (l *Loan) Close() {
	if l.state != nil {
		l.state.Close()
	}
}
