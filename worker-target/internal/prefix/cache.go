package prefix

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/prefixhash"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/worker-target/internal/eviction"
)

// Config of a cache.
type Config struct {
	Bytes uint64 // of all entries, 0 = off
	Slots int    // entries, 0 = off
	Disk  *Disk  // keeps states in files as well; nil = none
}

// Stats of a cache. Lookups to Failures count since the worker's start, across engines.
type Stats struct {
	Lookups   uint64
	Hits      uint64
	Tokens    uint64 // that hits did not read again
	Evictions uint64
	Refusals  uint64 // entries that the engine or the budget had no room for
	Failures  uint64 // hits that could not be restored
	Unwritten uint64 // entries that were left out because too many waited to be written to disk
	Ahead     AheadStats
	Entries   int
	Bytes     uint64
}

// Entry is a stored state.
type Entry struct {
	node     *node
	space    string // namespace
	engine   engine.Target
	snapshot engine.Snapshot
	length   int
	rows     *Rows
	hits     int
	used     time.Time
	pins     int
	awaited  int    // callers that wait until it is no longer read, to evict it
	gone     bool   // removed while it was pinned: the last unpin frees it
	demoted  bool   // its pages have left the engine's pool, as far as no sequence held them
	frees    uint64 // Cache.frees at that time
	queued   bool   // to be written to disk
	digest   uint64 // of its tokens, services/prefixhash
	ahead    int    // tokens that were read ahead for it and that no request has used
}

// Length is the number of tokens of the state.
func (e *Entry) Length() int { return e.length }

// Rows returns the entry's rows of features, nil if it has none.
func (e *Entry) Rows() *Rows { return e.rows }

// Cache stores states of prompts. It is safe for concurrent use. A nil Cache stores nothing.
type Cache struct {
	cfg    Config
	ctx    context.Context // of calls that make and free snapshots: they outlive the request
	cancel context.CancelFunc
	group  sync.WaitGroup // calls that free evicted snapshots, at most Slots
	tier   *tier          // nil = none

	mu      sync.Mutex // guards the fields below and everything in the trees
	engine  engine.Target
	perKV   uint64 // bytes of a token of an edge
	state   uint64 // bytes of a snapshot beside its K/V rows
	roots   map[string]*node
	entries map[*Entry]struct{}
	bytes   uint64
	making  int            // entries whose snapshot is being made
	freeing int            // snapshots that are being freed beside the request that evicted them
	reading map[*Entry]int // entries that are being read for the disk or for other workers, and how often
	freed   sync.Cond      // freeing has fallen, or reading has changed
	frees   uint64         // sequences that were freed
	closed  bool
	version uint64 // rises when an entry comes or goes
	report  *tandemv1.Prefixes
	stats   Stats
}

// New returns an empty cache; nil when cfg keeps nothing.
func New(cfg Config) *Cache {
	if cfg.Bytes == 0 || cfg.Slots <= 0 {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &Cache{
		cfg: cfg, ctx: ctx, cancel: cancel, roots: map[string]*node{}, entries: map[*Entry]struct{}{},
		reading: map[*Entry]int{},
	}
	c.freed.L = &c.mu
	if cfg.Disk != nil {
		c.tier = newTier(c, cfg.Disk)
	}
	return c
}

// tokenBytes are the bytes that the tree itself takes for a token of an edge.
const tokenBytes = 4

// Use binds the cache to an engine. Entries of another engine are dropped.
func (c *Cache) Use(e engine.Target) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.engine == e || c.closed {
		return
	}
	info := e.Info()
	c.engine, c.perKV, c.state = e, info.KVBytesPerToken+tokenBytes, info.StateBytesPerSequence
	c.forget()
}

// Forget drops the entries of an engine that has ended.
func (c *Cache) Forget() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.engine = nil
	c.forget()
}

// forget drops all entries, whose snapshots are gone with their engine. The caller holds mu.
func (c *Cache) forget() {
	for old := range c.entries {
		c.waste(old)
	}
	c.version++
	clear(c.roots)
	clear(c.entries)
	c.bytes = 0
}

// Stats returns the counters.
func (c *Cache) Stats() Stats {
	if c == nil {
		return Stats{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Entries, s.Bytes = len(c.entries), c.bytes
	return s
}

// Find returns the longest entry that tokens begin with and that fits, nil if there is none. A longer state on disk is
// read first. The caller restores the entry by Restore, which unpins it.
func (c *Cache) Find(ctx context.Context, space string, tokens []int32, fits func(length int) bool) *Entry {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	c.stats.Lookups++
	best := c.find(space, tokens, fits)
	c.mu.Unlock()
	if c.tier == nil {
		return best
	}
	return c.tier.extend(ctx, best, space, tokens, fits)
}

// longest returns the longest entry in memory, nil if there is none. The caller holds mu.
func (c *Cache) longest(space string, tokens []int32, fits func(length int) bool) (best *Entry) {
	if root := c.roots[space]; root != nil {
		root.match(tokens, func(e *Entry) {
			if fits(e.length) {
				best = e
			}
		})
	}
	return best
}

// find returns the longest entry in memory, pinned. The caller holds mu.
func (c *Cache) find(space string, tokens []int32, fits func(length int) bool) *Entry {
	best := c.longest(space, tokens, fits)
	if best != nil {
		best.pins++
	}
	return best
}

// Longest returns the length of the entry that Find would return, from memory or disk, 0 if there is none. It does not
// count as a look-up.
func (c *Cache) Longest(space string, tokens []int32, fits func(length int) bool) int {
	if c == nil {
		return 0
	}
	length := 0
	c.mu.Lock()
	if e := c.longest(space, tokens, fits); e != nil {
		length = e.length
	}
	c.mu.Unlock()
	if c.tier != nil {
		length = max(length, c.tier.disk.Store.Longest(space, tokens, length+c.tier.disk.MinTokens-1, fits))
	}
	return length
}

// unpin removes one pin of an entry. The caller holds mu.
func (c *Cache) unpin(e *Entry) {
	if e.pins--; e.pins == 0 && e.gone {
		c.free(e)
	}
}

// Restore restores an entry that Find returned into a sequence. After an error the sequence must not be used, and the
// entry is removed unless the engine had no room for it.
func (c *Cache) Restore(ctx context.Context, e *Entry, s engine.Sequence) error {
	err := e.engine.RestoreSnapshot(ctx, e.snapshot, s)
	for rpcerr.Code(err) == codes.ResourceExhausted && c.Relieve(e.engine) {
		err = e.engine.RestoreSnapshot(ctx, e.snapshot, s)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.unpin(e)
	switch {
	case err == nil:
		c.persist(e, 0)
		c.stats.Hits++
		c.stats.Tokens += uint64(e.length)
		c.reward(e)
		e.hits++
		e.used = time.Now()
		e.demoted = false
	case ctx.Err() == nil:
		c.stats.Failures++
		if c.keeps(e) && rpcerr.Code(err) != codes.ResourceExhausted { // the entry is intact, there is only no room for it
			c.discard(e)
		}
	}
	return err
}

// Save stores the state of a sequence, which holds tokens and nothing pending, with the rows of features that source
// has. It returns the entry that is there then, nil if there is no room. made reports that it is new.
func (c *Cache) Save(space string, tokens []int32, s engine.Sequence, f Features) (e *Entry, made bool) {
	return c.save(space, tokens, s, f, nil)
}

// save is Save, for a request where ahead is nil.
func (c *Cache) save(space string, tokens []int32, s engine.Sequence, f Features, ahead *Ahead) (e *Entry, made bool) {
	if c == nil {
		return nil, false
	}
	c.mu.Lock()
	use, known, base, added := c.engine, (*Entry)(nil), (*Rows)(nil), len(tokens)
	if root := c.roots[space]; root != nil {
		known, base, added = root.nearest(tokens)
	}
	if known != nil {
		known.used = time.Now()
	}
	off := c.closed || use == nil
	c.mu.Unlock()
	if known != nil || off {
		return known, false
	}
	rows := collect(f, len(tokens), base)
	c.mu.Lock()
	need := c.state + uint64(added)*c.perKV + rows.fresh()
	room := need <= c.cfg.Bytes && c.shrink(need, 1, ahead.spares)
	if room {
		c.making++
	} else {
		c.stats.Refusals++
	}
	c.mu.Unlock()
	if !room {
		return nil, false
	}
	snapshot, err := use.NewSnapshot(c.ctx, s)
	for rpcerr.Code(err) == codes.ResourceExhausted && c.giveUp(ahead.spares) {
		snapshot, err = use.NewSnapshot(c.ctx, s)
	}
	if err != nil {
		c.refused()
		return nil, false
	}
	e = &Entry{space: space, engine: use, snapshot: snapshot, length: len(tokens), rows: rows, ahead: ahead.tokens()}
	e, made = c.put(e, tokens, ahead.spares)
	if !made {
		_ = use.FreeSnapshot(c.ctx, snapshot) // the guard tries again
	}
	return e, made
}

// refused notes that no snapshot could be made for an entry.
func (c *Cache) refused() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.making--
	c.stats.Refusals++
}

// put adds the entry of a snapshot that was made and evicts others for it, except spared ones. The caller frees a
// snapshot that made no entry.
func (c *Cache) put(e *Entry, tokens []int32, spares func(*Entry) bool) (*Entry, bool) {
	e.digest = prefixhash.Of(isolationOf(e.space), tokens)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.making--
	if c.closed || c.engine != e.engine {
		return nil, false
	}
	root := c.roots[e.space]
	if root == nil {
		root = &node{}
		c.roots[e.space] = root
	}
	at, added := root.insert(tokens)
	if at.entry != nil { // another request was faster
		return at.entry, false
	}
	e.used = time.Now()
	e.node, at.entry = at, e
	c.entries[e] = struct{}{}
	c.version++
	c.bytes += c.state + uint64(added)*c.perKV + e.rows.hold()
	if !c.shrink(0, 0, func(o *Entry) bool { return o == e || spares(o) }) {
		c.remove(e)
		c.stats.Refusals++
		return nil, false
	}
	return e, true
}

// Drop removes an entry that has not been used yet.
func (c *Cache) Drop(e *Entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.keeps(e) && e.hits == 0 && e.pins == c.reading[e] {
		e.ahead = 0 // what was read for it is part of the next one
		c.discard(e)
	}
}

// base returns the engine that a request's view of it belongs to (schedule.Engine.For).
func base(e engine.Target) engine.Target {
	if view, ok := e.(interface{ Base() engine.Target }); ok {
		return view.Base()
	}
	return e
}

// Freed notes that a sequence was freed: pages that only stored states hold now can be moved to host memory.
func (c *Cache) Freed() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frees++
}

// Relieve makes room in the pages of an engine that refused a call for want of them. It waits until what was evicted is
// freed. Else it moves pages to host memory: those that a sequence held when their entries were moved, once one was
// freed; else those of the entry of the least value. An entry that cannot be moved is evicted. It reports whether it
// made room: then the call may be tried again.
func (c *Cache) Relieve(use engine.Target) bool {
	if c == nil {
		return false
	}
	if c.waitFreed() {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.engine != base(use) || c.closed {
		return false
	}
	frees, some := c.frees, false
	settled := func(e *Entry) bool { return !e.demoted || e.frees >= frees }
	for e := c.least(settled); e != nil; e = c.least(settled) {
		some = true
		if !c.demote(e) {
			break
		}
	}
	if some {
		return true
	}
	if e := c.least(func(e *Entry) bool { return e.demoted }); e != nil {
		c.demote(e)
		return true
	}
	return c.awaitReading(func(e *Entry) bool { return e.demoted && e.frees == c.frees })
}

// demote moves the pages of an entry to host memory, but for those that a sequence holds. An entry that cannot be moved
// is evicted, unless others use it; then it returns false. The caller holds mu, which is released meanwhile.
func (c *Cache) demote(e *Entry) bool {
	e.demoted, e.frees = true, c.frees
	e.pins++ // so that it is not evicted meanwhile
	c.mu.Unlock()
	err := e.engine.DemoteSnapshot(c.ctx, e.snapshot)
	c.mu.Lock()
	c.unpin(e)
	if err == nil {
		return true
	}
	if c.keeps(e) && e.pins == 0 {
		c.evict(e)
		c.mu.Unlock()
		c.freeNow(e)
		c.mu.Lock()
	}
	return false
}

// giveUp makes room for a snapshot that its engine refused: it waits until what was evicted is freed, else it evicts
// the entry of the least value that is not spared. It reports whether it made room.
func (c *Cache) giveUp(spares func(*Entry) bool) bool {
	if c.waitFreed() {
		return true
	}
	c.mu.Lock()
	e := c.least(spares)
	if e == nil {
		waited := c.awaitReading(spares)
		c.mu.Unlock()
		return waited
	}
	c.evict(e)
	c.mu.Unlock()
	c.freeNow(e)
	return true
}

// waitFreed waits until evicted snapshots are freed. It reports whether there were any.
func (c *Cache) waitFreed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	some := c.freeing > 0
	for c.freeing > 0 {
		c.freed.Wait()
	}
	return some
}

// Close frees everything and waits for it, and for what is being written to disk. Nothing is stored from then on. It
// may be called again.
func (c *Cache) Close() {
	if c == nil {
		return
	}
	c.mu.Lock()
	first := !c.closed
	c.closed = true
	c.mu.Unlock()
	if c.tier != nil && first {
		c.tier.close()
	}
	c.mu.Lock()
	for e := range c.entries {
		c.discard(e)
	}
	c.mu.Unlock()
	c.group.Wait()
	c.cancel()
}

// keeps reports whether an entry is still stored. The caller holds mu.
func (c *Cache) keeps(e *Entry) bool {
	_, ok := c.entries[e]
	return ok
}

// remove takes an entry out of the tree. The caller holds mu and frees its snapshot.
func (c *Cache) remove(e *Entry) {
	c.waste(e)
	c.version++
	delete(c.entries, e)
	e.node.entry = nil
	c.bytes -= c.state + uint64(e.node.prune())*c.perKV + e.rows.release()
	if root := c.roots[e.space]; len(root.children) == 0 && root.entry == nil {
		delete(c.roots, e.space)
	}
}

// evict removes an entry for want of room. The caller holds mu and frees its snapshot.
func (c *Cache) evict(e *Entry) {
	c.remove(e)
	c.stats.Evictions++
}

// discard removes an entry and frees its snapshot once it is no longer used. The caller holds mu.
func (c *Cache) discard(e *Entry) {
	c.remove(e)
	if e.gone = e.pins > 0; !e.gone {
		c.free(e)
	}
}

// free frees an entry's snapshot beside the caller, who holds mu.
func (c *Cache) free(e *Entry) {
	c.freeing++
	c.group.Go(func() {
		c.freeNow(e)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.freeing--
		c.freed.Broadcast()
	})
}

// freeNow frees an entry's snapshot. The caller does not hold mu.
func (c *Cache) freeNow(e *Entry) { _ = e.engine.FreeSnapshot(c.ctx, e.snapshot) } // the guard tries again

// shrink evicts entries, except spared ones, until so many more bytes and entries fit. It reports whether they do. The
// caller holds mu.
func (c *Cache) shrink(bytes uint64, entries int, spares func(*Entry) bool) bool {
	for c.bytes+bytes > c.cfg.Bytes || len(c.entries)+c.making+entries > c.cfg.Slots {
		e := c.least(spares)
		if e == nil {
			return false
		}
		c.evict(e)
		c.free(e)
	}
	return true
}

// least returns the entry of the least value that is not in use and not left out. The caller holds mu.
func (c *Cache) least(leftOut func(*Entry) bool) *Entry {
	worst := eviction.NewLeast[*Entry]()
	for e := range c.entries {
		if e.pins > 0 || leftOut(e) {
			continue
		}
		worst.Offer(e, eviction.State{Gain: e.length - e.node.before(), Used: e.used})
	}
	return worst.Worst()
}
