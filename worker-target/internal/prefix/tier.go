package prefix

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/worker-target/internal/disk"
)

// Disk configures which states are kept in files.
type Disk struct {
	Store     *disk.Store // closed with the cache
	MinTokens int         // shorter states are not written; one is read if it is longer than that in memory by so many
	Interval  int         // tokens between two checkpoints of a long prompt, 0 = none
	ColdMax   int         // most tokens of a state that no earlier request has read; longer ones wait for a hit
}

const (
	// queued is how many entries wait to be written; others are left out and counted.
	queued = 64
	// mostPause bounds the pause after each read of the engine, which is as long as the read.
	mostPause = 20 * time.Millisecond
	// diskRate is the assumed rate of a disk before a state was read, in bytes per second.
	diskRate = 300e6
	// flush is how long closing the cache waits for queued writes.
	flush = 5 * time.Second
)

// tier writes entries to disk, one at a time in the background, and reads them back.
type tier struct {
	cache  *Cache
	disk   Disk
	ctx    context.Context // of writes
	cancel context.CancelFunc
	queue  chan *Entry   // sent to with Cache.mu held, while the cache is not closed
	hurry  chan struct{} // closed when the cache ends: no pauses any more
	group  sync.WaitGroup

	mu      sync.Mutex                // guards the fields below; never held with Cache.mu
	loading map[disk.ID]chan struct{} // closed when the state was read, or could not be
	token   time.Duration             // of a state that is read, 0 = none was
}

func newTier(c *Cache, d *Disk) *tier {
	t := &tier{
		cache: c, disk: *d, queue: make(chan *Entry, queued), hurry: make(chan struct{}),
		loading: map[disk.ID]chan struct{}{},
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.group.Go(func() {
		for e := range t.queue {
			t.write(e)
		}
	})
	return t
}

// close writes the queued entries, as far as the time for it allows, and ends the tier. The cache is closed: nothing is
// queued any more.
func (t *tier) close() {
	close(t.queue)
	close(t.hurry)
	timer := time.AfterFunc(flush, t.cancel)
	t.group.Wait()
	timer.Stop()
	t.cancel()
	t.disk.Store.Close()
}

// Interval is the number of tokens between two checkpoints of a long prompt, 0 = none are asked for.
func (c *Cache) Interval() int {
	if c == nil || c.tier == nil {
		return 0
	}
	return c.tier.disk.Interval
}

// DiskStats returns the counters of the files, and whether there are any.
func (c *Cache) DiskStats() (disk.Stats, bool) {
	if c == nil || c.tier == nil {
		return disk.Stats{}, false
	}
	return c.tier.disk.Store.Stats(), true
}

// Persist has an entry written to disk in the background. fresh is how many of its tokens no earlier request has read,
// 0 to write it in any case.
func (c *Cache) Persist(e *Entry, fresh int) {
	if c == nil || e == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.persist(e, fresh)
}

// persist is Persist for callers that hold mu.
func (c *Cache) persist(e *Entry, fresh int) {
	t := c.tier
	if t == nil || c.closed || e.queued || !c.keeps(e) || e.length < t.disk.MinTokens || fresh > t.disk.ColdMax {
		return
	}
	select {
	case t.queue <- e:
		e.queued = true
	default:
		c.stats.Unwritten++
	}
}

// write writes an entry unless it is there. One that is evicted meanwhile is not written.
func (t *tier) write(e *Entry) {
	c := t.cache
	c.mu.Lock()
	e.queued = false
	if !c.keeps(e) {
		c.mu.Unlock()
		return
	}
	d := &disk.Draft{Space: e.space, Tokens: e.node.tokens(), Number: e.digest, Rows: e.rows.stored()}
	c.mu.Unlock()
	if t.disk.Store.Has(t.ctx, d.Space, d.Tokens) {
		return
	}
	if t.read(e, func() (err error) {
		d.Layout, err = e.engine.DescribeSnapshot(t.ctx, e.snapshot)
		return err
	}) != nil {
		return
	}
	d.Read = func(at engine.Part, data []byte) (crc uint32, err error) {
		err = t.read(e, func() (err error) {
			crc, err = e.engine.ReadSnapshot(t.ctx, e.snapshot, at, data)
			return err
		})
		return crc, err
	}
	_ = t.disk.Store.Write(t.ctx, d) // counted there; the state is in memory still
}

// read reads something of an entry's snapshot. Afterwards it pauses for as long as the read took, so that steps
// come first.
func (t *tier) read(e *Entry, call func() error) error {
	start := time.Now()
	err := t.cache.read(e, call)
	timer := time.NewTimer(min(time.Since(start), mostPause))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.hurry:
	}
	return err
}

// extend returns an entry of a state on disk that is worth reading instead of best, which may be nil, else best. Both
// are pinned; the one that is not returned is let go.
func (t *tier) extend(
	ctx context.Context, best *Entry, space string, tokens []int32, fits func(length int) bool,
) *Entry {
	c := t.cache
	for ctx.Err() == nil {
		least := t.disk.MinTokens - 1
		if best != nil {
			least += best.length
		}
		state := t.disk.Store.Find(ctx, space, tokens, least, fits)
		if state == nil {
			return best
		}
		wait, lead := t.lead(state.ID())
		if !lead { // another request reads it
			select {
			case <-wait:
			case <-ctx.Done():
			}
		}
		// States that others have read meanwhile count.
		c.mu.Lock()
		if best != nil {
			c.unpin(best)
		}
		best = c.find(space, tokens, fits)
		c.mu.Unlock()
		if done := best != nil && best.length >= state.Length(); done || !lead {
			if lead {
				t.follow(state.ID())
			}
			state.Close()
			if done {
				return best
			}
			continue
		}
		start := time.Now()
		e, err := c.load(ctx, state, best, space, tokens[:state.Length()])
		t.follow(state.ID())
		state.Close()
		if e != nil {
			from := 0
			c.mu.Lock()
			if best != nil {
				from = best.length
				c.unpin(best)
			}
			c.mu.Unlock()
			t.loaded(e.length-from, time.Since(start))
			return e
		}
		if !errors.Is(err, disk.ErrDamaged) {
			return best
		}
	}
	return best
}

// lead reports whether the caller is the one to read a state; others wait.
func (t *tier) lead(id disk.ID) (wait <-chan struct{}, lead bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if done := t.loading[id]; done != nil {
		return done, false
	}
	t.loading[id] = make(chan struct{})
	return nil, true
}

// loaded notes how long it took to read so many tokens of a state.
func (t *tier) loaded(tokens int, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	one := took / time.Duration(max(tokens, 1))
	if t.token > 0 {
		one = (7*t.token + 3*one) / 10
	}
	t.token = one
}

// perToken is how long a token of a state takes to read, of so many bytes where none was read yet.
func (t *tier) perToken(bytes uint64) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.token > 0 {
		return t.token
	}
	return time.Duration(float64(bytes) / diskRate * float64(time.Second))
}

// follow ends what lead began.
func (t *tier) follow(id disk.ID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.loading[id])
	delete(t.loading, id)
}
