package preempt

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Stats of a pool since it was made.
type Stats struct {
	Preemptions uint64 // members that parked because memory was short
	Restored    uint64 // parked members that came back from a snapshot
	Recomputed  uint64 // parked members that read their text again
	Away        uint64 // members that parked because their client did not read
	Parked      int    // members that are parked or away now
}

// Pool holds the requests of one engine. It is safe for concurrent use.
type Pool struct {
	mu      sync.Mutex // guards the fields below and those of members
	members map[*Member]struct{}
	arrived uint64
	askers  int           // members that wait for another one to park
	trying  *Member       // comes back now
	room    bool          // memory became free since a parked member found none
	given   uint64        // times that a member gave up its memory
	changed chan struct{} // closed when something changes that a member may wait for
	move    float64       // seconds a position that parking in memory and coming back takes; 0 = not known
	stats   Stats
}

// New returns an empty pool.
func New() *Pool {
	return &Pool{members: map[*Member]struct{}{}, changed: make(chan struct{})}
}

// state of a member.
type state uint8

const (
	outside state = iota
	running
	parked
	trying
	away // parked, and not to come back yet
)

// Member is a request. Its methods belong to the request's goroutine.
type Member struct {
	pool     *Pool
	priority int
	arrived  uint64
	state    state
	asked    atomic.Bool // to park
	// demote moves the pages that only the member's snapshot holds to host memory; nil = it has none.
	demote  func(context.Context)
	demoted uint64 // Pool.given when demote ran last
	seen    uint64 // Pool.given when the member began to try what may be refused
}

// Join adds a request that arrives now.
func (p *Pool) Join(priority int) *Member {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.arrived++
	m := &Member{pool: p, priority: priority, arrived: p.arrived}
	p.members[m] = struct{}{}
	return m
}

// before orders members by rank.
func (m *Member) before(o *Member) bool {
	return cmp.Or(cmp.Compare(o.priority, m.priority), cmp.Compare(m.arrived, o.arrived)) < 0
}

// change wakes all who wait. The caller holds mu.
func (p *Pool) change() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// wait waits for a change. The caller holds mu, also after an error, which is that of ctx.
func (p *Pool) wait(ctx context.Context) error {
	changed := p.changed
	p.mu.Unlock()
	defer p.mu.Lock()
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// uses reports whether a member may hold memory of the engine.
func (m *Member) uses() bool { return m.state == running || m.state == trying }

// others reports whether another member may hold memory. The caller holds mu.
func (p *Pool) others(m *Member) bool {
	for o := range p.members {
		if o != m && o.uses() {
			return true
		}
	}
	return false
}

// Enter lets the member run: at once, or after the parked ones of a better rank.
func (m *Member) Enter(ctx context.Context) error {
	p := m.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if best := p.best(); best == nil || m.before(best) {
		m.state, m.seen = running, p.given
		return nil
	}
	m.state = parked
	if err := m.await(ctx); err != nil {
		return err
	}
	p.resumed(m)
	return nil
}

// best returns the parked member of the best rank, nil if there is none. The caller holds mu.
func (p *Pool) best() (best *Member) {
	for m := range p.members {
		if m.state == parked && (best == nil || m.before(best)) {
			best = m
		}
	}
	return best
}

// Asked reports whether the member is to park before its next step.
func (m *Member) Asked() bool { return m.asked.Load() }

// Verdict is what a member does after the engine refused it memory.
type Verdict uint8

// Verdicts.
const (
	Retry Verdict = iota // memory was given up: it tries again
	Park                 // it parks, or if it was coming back drops what it has, and waits
	Alone                // nobody else has memory: the refusal stands
)

// Want asks for memory after a refusal. It waits until another member has given up its own, or says that this one is to
// park.
func (m *Member) Want(ctx context.Context) (Verdict, error) {
	p := m.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	// Memory that was given up before this is there for the next try.
	defer func() { m.seen = p.given }()
	if !p.others(m) && m.seen == p.given {
		return Alone, nil
	}
	if m.state == trying || m.asked.Load() {
		p.retreat(m)
		return Park, nil
	}
	if !p.others(m) { // who refused it memory is gone since
		return Retry, nil
	}
	p.room = false
	victim := m
	for o := range p.members {
		if o.uses() && victim.before(o) {
			victim = o
		}
	}
	if victim == m {
		return Park, nil
	}
	victim.asked.Store(true)
	p.change() // it may wait for another one itself
	p.askers++
	defer p.asksNoMore()
	for given := p.given; p.given == given; {
		if err := p.wait(ctx); err != nil {
			return Park, err
		}
		if m.asked.Load() {
			return Park, nil
		}
	}
	return Retry, nil
}

// Demote moves pages to host memory that only snapshots of parked members hold, those that were shared with members
// which gave up their memory since. It reports whether there were such snapshots.
func (p *Pool) Demote(ctx context.Context) bool {
	p.mu.Lock()
	var list []func(context.Context)
	for m := range p.members {
		if m.demote != nil && m.demoted != p.given {
			m.demoted = p.given
			list = append(list, m.demote)
		}
	}
	p.mu.Unlock()
	for _, demote := range list {
		demote(ctx)
	}
	return len(list) > 0
}

// retreat puts a member that was coming back into the queue again. The caller holds mu.
func (p *Pool) retreat(m *Member) {
	if m.state != trying {
		return
	}
	given := m.seen != p.given // since the refusal, or just before it
	p.vacate(m, parked)
	p.room = given
}

// asksNoMore ends the wait of an asker. Who was asked in vain goes on. The caller holds mu.
func (p *Pool) asksNoMore() {
	if p.askers--; p.askers > 0 {
		return
	}
	for m := range p.members {
		m.asked.Store(false)
	}
	p.change()
}

// Park notes that a running member has given up its memory because it was asked to, or found none. demote moves to host
// memory what only its snapshot holds; nil = it has no snapshot.
func (m *Member) Park(demote func(context.Context)) {
	p := m.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.Preemptions++
	p.vacate(m, parked)
	m.demote, m.demoted = demote, p.given
}

// Away notes that a running member has given up its memory, as Park does, because it has no use for it at present. It
// comes back by Wait.
func (m *Member) Away(demote func(context.Context)) {
	p := m.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.Away++
	p.vacate(m, away)
	p.room = true
	m.demote, m.demoted = demote, p.given
}

// vacate takes a member out of those that have memory. The caller holds mu.
func (p *Pool) vacate(m *Member, to state) {
	if m.uses() {
		p.given++
	}
	m.state = to
	m.asked.Store(false)
	if p.trying == m {
		p.trying = nil
	}
	p.change()
}

// Wait waits until a member that is parked or away may try to come back. It calls Resumed when it has, Want when it is
// refused memory.
func (m *Member) Wait(ctx context.Context) error {
	p := m.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	m.state = parked
	return m.await(ctx)
}

// await waits for the member's turn. The caller holds mu.
func (m *Member) await(ctx context.Context) error {
	p := m.pool
	for {
		if p.trying == nil && p.askers == 0 && p.best() == m && (p.room || !p.others(m)) {
			m.state, m.seen, p.trying = trying, p.given, m
			return nil
		}
		if err := p.wait(ctx); err != nil {
			m.state = outside
			p.change()
			return err
		}
	}
}

// Resumed notes that a member has come back: from a snapshot, or by reading its text again.
func (m *Member) Resumed(snapshot bool) {
	p := m.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if snapshot {
		p.stats.Restored++
	} else {
		p.stats.Recomputed++
	}
	p.resumed(m)
}

// resumed makes a member run that was coming back. The caller holds mu.
func (p *Pool) resumed(m *Member) {
	m.state, m.demote = running, nil
	p.trying = nil
	p.change()
}

// Leave ends the member's request, whose memory is free by now.
func (m *Member) Leave() {
	p := m.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	p.room = p.room || m.uses()
	p.vacate(m, outside)
	delete(p.members, m)
}

// Stats returns the counters.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	for m := range p.members {
		if m.state == parked || m.state == away || m.state == trying {
			s.Parked++
		}
	}
	return s
}

const (
	// follow is the weight of a new measurement in the mean.
	follow = 0.25
	// forget is taken off the measured cost of moving with every decision against it, so that it is tried again.
	forget = 0.1
)

// Moves reports whether a member of so many positions is better parked in host memory than read again, which takes the
// given time; 0 = not known.
func (p *Pool) Moves(positions int, again time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.move == 0 || again == 0 || p.move*float64(positions) <= again.Seconds() {
		return true
	}
	p.move -= forget * p.move
	return false
}

// Moved learns how long it took to park so many positions in host memory and to bring them back.
func (p *Pool) Moved(positions int, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := took.Seconds() / float64(max(positions, 1))
	if p.move == 0 {
		p.move = a
	}
	p.move += follow * (a - p.move)
}
