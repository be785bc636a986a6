package prefix

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/worker-target/internal/disk"
)

// Kept is a state that is kept outside of the engine: in files, or by another worker.
type Kept interface {
	// Length is the number of its tokens.
	Length() int
	// Load makes a snapshot of it. It shares the whole pages of a snapshot `base` of its first baseLength tokens, 0 =
	// there is none. RESOURCE_EXHAUSTED: it may be called again once there is room.
	Load(ctx context.Context, e disk.Engine, base engine.Snapshot, baseLength int) (engine.Snapshot, *disk.Rows, error)
	Close()
}

// load makes an entry of a state that is kept elsewhere, pinned. It is nil with an error, or where there is no room.
func (c *Cache) load(ctx context.Context, state Kept, best *Entry, space string, tokens []int32) (*Entry, error) {
	base, shared := engine.Snapshot(0), 0
	if best != nil {
		base, shared = best.snapshot, best.length
	}
	c.mu.Lock()
	use := c.engine
	if use == nil || c.closed || best != nil && best.engine != use {
		c.mu.Unlock()
		return nil, nil
	}
	// The rows of features are not known yet; put counts them.
	if need := c.state + uint64(len(tokens)-shared)*c.perKV; need > c.cfg.Bytes || !c.shrink(need, 1, sparesNone) {
		c.stats.Refusals++
		c.mu.Unlock()
		return nil, nil
	}
	c.making++
	c.mu.Unlock()
	snapshot, rows, err := state.Load(ctx, use, base, shared)
	for rpcerr.Code(err) == codes.ResourceExhausted && (c.Relieve(use) || c.giveUp(sparesNone)) {
		snapshot, rows, err = state.Load(ctx, use, base, shared)
	}
	if err != nil {
		c.refused()
		return nil, err
	}
	e, made := c.put(&Entry{
		space: space, engine: use, snapshot: snapshot, length: len(tokens), rows: loaded(rows, len(tokens)), pins: 1,
	}, tokens, sparesNone)
	if made {
		return e, nil
	}
	_ = use.FreeSnapshot(c.ctx, snapshot) // the guard tries again
	c.mu.Lock()
	defer c.mu.Unlock()
	if e == nil || !c.keeps(e) {
		return nil, nil
	}
	e.pins++
	return e, nil
}

// ErrEvicted means that an entry can no longer be read.
var ErrEvicted = errors.New("the entry was evicted, or is about to be")

// read reads something of an entry's snapshot, which is not evicted meanwhile.
func (c *Cache) read(e *Entry, call func() error) error {
	c.mu.Lock()
	if !c.keeps(e) || e.awaited > 0 {
		c.mu.Unlock()
		return ErrEvicted
	}
	e.pins++
	c.reading[e]++
	c.mu.Unlock()
	err := call()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reading[e]--; c.reading[e] == 0 {
		delete(c.reading, e)
	}
	c.unpin(e)
	c.freed.Broadcast()
	return err
}

// awaitReading waits until the reading of one entry ends, except of those that leftOut selects. It reports whether
// there was one. The caller holds mu.
func (c *Cache) awaitReading(leftOut func(*Entry) bool) bool {
	for e := range c.reading {
		if leftOut(e) {
			continue
		}
		e.awaited++
		for c.reading[e] > 0 {
			c.freed.Wait()
		}
		e.awaited--
		return true
	}
	return false
}
