package cluster

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/registry"
	"google.golang.org/grpc"
)

// How long a worker gets no requests after it reported that it has no slot (the gateway's count was ahead of the
// worker's, as right after a cancelled request), and after it failed without the registry noticing.
const (
	fullPause    = 20 * time.Millisecond
	suspectPause = time.Second
)

// PoolConfig bounds the waiting of one pool.
type PoolConfig struct {
	// MaxQueue is how many requests may wait, 0 = none.
	MaxQueue int
	// QueueTimeout is the longest wait for a first slot; 0 = no limit.
	QueueTimeout time.Duration
	// Grace is how long new requests still wait after the last ready worker went away, in the hope that it restarts, and
	// after the start, in the hope that workers join.
	Grace time.Duration
	// Absence is how long requests wait for a first slot while no worker is there, not even one that starts; 0 = as long
	// as for a slot.
	Absence time.Duration
	// ByPrefix sends a request to where the least is left to read of its prompt and to wait for; else the load decides.
	ByPrefix bool
}

// Pool gives out the slots of the workers of one role. It is safe for concurrent use.
type Pool struct {
	cfg PoolConfig

	mu        sync.Mutex // guards all below and the members of entries and tickets
	workers   map[string]*worker
	queue     []*Ticket // in order of arrival
	shares    map[string]*share
	grants    uint64
	seq       uint64
	lastReady time.Time   // that of the start while no worker was ready yet
	known     bool        // a worker was ready
	absent    time.Time   // since when no worker is there; zero while there is one
	absence   *time.Timer // ends the waiting of requests then
	lastCtx   int         // longest context while a worker was ready
	draining  bool
	routes    routes
	wake      *time.Timer // dispatches requests when a pause ends
}

// worker is one connection; guarded by Pool.mu.
type worker struct {
	info   registry.Worker
	conn   *grpc.ClientConn
	slots  int
	maxCtx int
	kv     int // tokens that all its sequences hold together, 0 = as many as its slots take
	busy   int
	held   int // tokens reserved for requests that run
	// running are the slots in use.
	running map[*Slot]struct{}
	// Of busy and held, what requests have whose clients do not read.
	stalled, stalledTokens int
	lease                  chan struct{} // closed when its lease ends
	gone                   bool          // no longer in the table; conn is closed when busy reaches 0
	pause                  time.Time     // no new slots before
	suspect                time.Time     // failed then; a heartbeat after it clears
	trips                  trips
	routed                 Routed // requests that it got
	pace                   pace
	backlog                int // prompt tokens of running requests that are still to be read
	sending                int // requests elsewhere that are expected to fetch a state from it
}

// Demand says what a request needs.
type Demand struct {
	// Slots is the number of choices.
	Slots int
	// Tokens is prompt plus output of a choice; workers with a shorter context are passed over, and as many are reserved
	// of a worker's memory for the life of the slot, so that a request that runs never lacks it.
	Tokens int
	// Share is the key or client that asks: slots go to the share that has the fewest.
	Share string
	// Priority 0…9, higher first.
	Priority int
	// Avoid are ids of workers that get no part of this request.
	Avoid map[string]bool
	// Takeover is set for requests that already ran and lost their worker: they go to the front, are not counted against
	// the queue's limit, and wait for a worker to come back.
	Takeover bool
	// Contract is the contract id of the worker that was lost, for a takeover of what was generated already. Only workers
	// with the same id are considered; with AnyContract the others, too, while none of the same id has a free slot. nil =
	// all are alike.
	Contract    *string
	AnyContract bool
	// Prompt is what is to be read, in the isolation of the prefix cache; nil = it does not matter. Session names the
	// conversation, empty = nobody does.
	Prompt             []int32
	Isolation, Session string

	known known // of Prompt
}

// Ticket is a request's place in the queue and its claim on slots.
type Ticket struct {
	pool   *Pool
	demand Demand
	seq    uint64
	left   int        // slots still to be granted
	slots  chan *Slot // capacity demand.Slots
	fail   chan error // capacity 1
	timer  *time.Timer
	first  bool // the first slot was granted
	closed bool // gave up, or was told that it gets nothing
}

// Slot is the right to run one generation on a worker.
type Slot struct {
	// Worker is the worker's id.
	Worker string
	// Contract is the worker's contract id, empty when it states none.
	Contract string
	// Conn is its connection.
	Conn *grpc.ClientConn
	// Peer is another worker that holds clearly more of the prompt, nil if nobody does.
	Peer *tandemv1.PeerHint

	pool   *Pool
	w      *worker
	share  string
	tokens int
	once   sync.Once
	unread int     // of the prompt, in the worker's backlog
	sender *worker // from which the worker is expected to fetch; nil = none, or no more
	hoped  int     // tokens that the worker was believed to hold
	stall  stall
	moved  chan struct{}
	asked  bool // moved is closed
}

// NewPool returns a pool without workers.
func NewPool(cfg PoolConfig) *Pool {
	return &Pool{cfg: cfg, workers: map[string]*worker{}, shares: map[string]*share{}}
}

// ready reports whether w takes new work at all.
func (w *worker) ready() bool { return !w.gone && w.info.State == registry.StateReady }

// usable reports whether w may get a slot now for a request of that many tokens, memory aside.
func (w *worker) usable(tokens int, now time.Time) bool {
	return w.ready() && w.used() < w.slots && (w.maxCtx == 0 || tokens <= w.maxCtx) && !now.Before(w.pause) &&
		(w.suspect.IsZero() || w.info.LastHeartbeat.After(w.suspect))
}

// room reports whether w has memory for that many tokens.
func (w *worker) room(tokens int) bool { return w.kv == 0 || w.reserved()+tokens <= w.kv }

// Check reports, without waiting, whether a request could be queued now.
func (p *Pool) Check() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.check(time.Now())
}

func (p *Pool) check(now time.Time) error {
	if p.draining {
		return reqerr.Draining()
	}
	if !p.anyReady() && (now.Sub(p.lastReady) >= p.cfg.Grace || p.gaveUp(now)) {
		return reqerr.NoWorker("no worker is ready")
	}
	if p.full() {
		return reqerr.QueueFull(p.cfg.MaxQueue)
	}
	return nil
}

// gaveUp reports whether no worker has been there for so long that nobody waits for one any more.
func (p *Pool) gaveUp(now time.Time) bool {
	return p.cfg.Absence > 0 && !p.absent.IsZero() && now.Sub(p.absent) >= p.cfg.Absence
}

// attend notes whether a worker is there and ends the waiting of requests some time after the last one went away. The
// caller holds mu.
func (p *Pool) attend(now time.Time) {
	for _, w := range p.workers {
		if w.ready() || !w.gone && w.info.State == registry.StateStarting {
			p.absent = time.Time{}
			if p.absence != nil {
				p.absence.Stop()
			}
			return
		}
	}
	if !p.absent.IsZero() || p.cfg.Absence == 0 {
		return
	}
	p.absent = now
	p.absence = time.AfterFunc(p.cfg.Absence, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.gaveUp(time.Now()) {
			return
		}
		for _, t := range slices.Clone(p.queue) {
			if !t.first && !t.demand.Takeover {
				p.end(t, reqerr.NoWorker(fmt.Sprintf("no worker is there, and none came within %v", p.cfg.Absence)))
			}
		}
	})
}

// full: requests that can start at once do not count as waiting, so a limit of 0 still lets them through.
func (p *Pool) full() bool {
	waiting := 0
	for _, t := range p.queue {
		if !t.first && !t.demand.Takeover {
			waiting++
		}
	}
	return waiting > 0 && waiting >= p.cfg.MaxQueue || waiting == 0 && p.cfg.MaxQueue == 0 && p.free() == 0
}

func (p *Pool) free() int {
	n := 0
	for _, w := range p.workers {
		if w.ready() {
			n += max(0, w.slots-w.used())
		}
	}
	return n
}

func (p *Pool) anyReady() bool {
	for _, w := range p.workers {
		if w.ready() {
			return true
		}
	}
	return false
}

// Submit puts a request into the queue. The caller must Close the ticket.
func (p *Pool) Submit(d Demand) (*Ticket, error) {
	d.Slots = max(1, d.Slots)
	digests := p.digests(&d)
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.know(&d, digests, now)
	if !d.Takeover {
		if err := p.check(now); err != nil {
			return nil, err
		}
	}
	p.seq++
	t := &Ticket{pool: p, demand: d, seq: p.seq, left: d.Slots, slots: make(chan *Slot, d.Slots),
		fail: make(chan error, 1)}
	p.queue = append(p.queue, t)
	p.dispatch(now)
	if !t.first && p.cfg.QueueTimeout > 0 && !d.Takeover {
		t.timer = time.AfterFunc(p.cfg.QueueTimeout, func() { p.expire(t) })
	}
	return t, nil
}

// Await waits, in the queue, until a worker has been ready for the first time: before, nobody knows how long prompts
// may be, nor perhaps what the model is.
func (p *Pool) Await(ctx context.Context, d Demand) error {
	p.mu.Lock()
	known := p.known
	p.mu.Unlock()
	if known {
		return p.Check()
	}
	ticket, err := p.Submit(Demand{Share: d.Share, Priority: d.Priority})
	if err != nil {
		return err
	}
	defer ticket.Close()
	slot, err := ticket.Slot(ctx)
	if err == nil {
		slot.Release()
	}
	return err
}

// expire ends the wait of a request that got no slot in time.
func (p *Pool) expire(t *Ticket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.first || t.closed {
		return
	}
	p.end(t, reqerr.QueueTimeout())
}

// end tells a waiting ticket that it gets nothing; the caller holds mu. A ticket is told once.
func (p *Pool) end(t *Ticket, err error) {
	p.drop(t)
	t.closed = true
	t.fail <- err
}

// drop takes a ticket out of the queue.
func (p *Pool) drop(t *Ticket) {
	p.queue = slices.DeleteFunc(p.queue, func(o *Ticket) bool { return o == t })
}

// wakeLater dispatches again when the first pause ends.
func (p *Pool) wakeLater(now time.Time) {
	var next time.Time
	for _, w := range p.workers {
		if w.ready() && now.Before(w.pause) && (next.IsZero() || w.pause.Before(next)) {
			next = w.pause
		}
	}
	if next.IsZero() {
		return
	}
	if p.wake != nil {
		p.wake.Stop()
	}
	p.wake = time.AfterFunc(next.Sub(now), func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.dispatch(time.Now())
	})
}

// Slot waits for the next slot of the request.
func (t *Ticket) Slot(ctx context.Context) (*Slot, error) {
	select {
	case l := <-t.slots:
		return l, nil
	default:
	}
	select {
	case l := <-t.slots:
		return l, nil
	case err := <-t.fail:
		return nil, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Close gives up what the ticket still waits for, and slots that nobody took.
func (t *Ticket) Close() {
	p := t.pool
	p.mu.Lock()
	t.closed = true
	p.drop(t)
	if t.timer != nil {
		t.timer.Stop()
	}
	p.mu.Unlock()
	for {
		select {
		case l := <-t.slots:
			l.Release()
		default:
			return
		}
	}
}

// Release gives the slot back. Further calls do nothing.
func (l *Slot) Release() { l.end(func(time.Time) {}) }

// Full gives the slot back after the worker said that it has none.
func (l *Slot) Full() {
	l.end(func(now time.Time) { l.w.pause = now.Add(fullPause) })
}

// Failed gives the slot back after the worker failed: others are preferred until it shows signs of life.
func (l *Slot) Failed() {
	l.end(func(now time.Time) { l.w.suspect, l.w.pause = now, now.Add(suspectPause) })
}

func (l *Slot) end(mark func(now time.Time)) {
	l.once.Do(func() {
		p := l.pool
		p.mu.Lock()
		defer p.mu.Unlock()
		now := time.Now()
		l.w.busy--
		delete(l.w.running, l)
		l.w.held -= l.tokens
		l.begun()
		p.returned(l.share)
		mark(now)
		if l.w.gone && l.w.busy == 0 {
			_ = l.w.conn.Close()
		}
		p.dispatch(now)
	})
}

// Drain refuses new requests and those that wait for a first slot.
func (p *Pool) Drain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.draining = true
	for _, t := range slices.Clone(p.queue) {
		if !t.first && !t.demand.Takeover {
			p.end(t, reqerr.Draining())
		}
	}
}

// Queued is the number of requests that wait for a first slot.
func (p *Pool) Queued() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, t := range p.queue {
		if !t.first {
			n++
		}
	}
	return n
}

// MaxContext is the longest context of the ready workers, or, while there is none, of the last ones, so that a request
// that waits for one to come back will fit. It is 0 if there never was one, or none reported it.
func (p *Pool) MaxContext() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.anyReady() {
		return p.lastCtx
	}
	return p.longest()
}

// longest context of the ready workers; the caller holds mu.
func (p *Pool) longest() int {
	n := 0
	for _, w := range p.workers {
		if w.ready() {
			n = max(n, w.maxCtx)
		}
	}
	return n
}

// Others reports whether a worker takes work that is none of avoid.
func (p *Pool) Others(avoid map[string]bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, w := range p.workers {
		if w.ready() && !avoid[id] {
			return true
		}
	}
	return false
}

// Ready reports whether a worker takes work.
func (p *Pool) Ready() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.anyReady()
}

// Tokens returns the tokens that are reserved of a worker's memory and those in all; ok is false for workers that do
// not say.
func (p *Pool) Tokens(id string) (used, total int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.workers[id]
	if w == nil || w.kv == 0 {
		return 0, 0, false
	}
	return w.held, w.kv, true
}

// Busy returns slots in use and slots in all of a worker; ok is false for unknown workers.
func (p *Pool) Busy(id string) (busy, slots int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.workers[id]
	if w == nil {
		return 0, 0, false
	}
	return w.busy, w.slots, true
}
