package cluster

import (
	"sync"
	"time"
)

// StallAfter is how long a client may leave output unread before its request's slot is offered to others. Less offers
// slots of clients that pause for a moment.
const StallAfter = 2 * time.Second

// stall watches one slot's client. Its lock is taken before Pool.mu.
type stall struct {
	mu      sync.Mutex // guards waiting and stalled
	timer   *time.Timer
	waiting bool // for the client
	stalled bool // for so long that the slot counts as stalled
}

// Hand runs f, which hands output to the client. While f waits for a client that does not read, the slot counts as
// stalled. Its worker may give the slot to others then: whether it has says the number of its busy slots in
// heartbeats. When the client reads on, the worker makes the request wait for a slot again. Calls for one slot come
// one after the other.
func (l *Slot) Hand(f func() error) error {
	s := &l.stall
	s.mu.Lock()
	s.waiting = true
	if s.timer == nil {
		s.timer = time.AfterFunc(StallAfter, l.stalls)
	} else {
		s.timer.Reset(StallAfter)
	}
	s.mu.Unlock()
	err := f()
	s.timer.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = false
	if s.stalled {
		s.stalled = false
		l.pool.stalled(l, -1)
	}
	return err
}

// stalls marks the slot while its client is still waited for.
func (l *Slot) stalls() {
	s := &l.stall
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting && !s.stalled {
		s.stalled = true
		l.pool.stalled(l, 1)
	}
}

// stalled adds n slots like l to those that are stalled.
func (p *Pool) stalled(l *Slot, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.w.stalled += n
	l.w.stalledTokens += n * l.tokens
	p.dispatch(time.Now())
}

// away is how many of a worker's slots are stalled and free at the worker, as its newest heartbeat says.
func (w *worker) away() int {
	return max(0, min(w.stalled, w.busy-int(w.info.Heartbeat.GetLanesBusy())))
}

// used is the number of slots that a worker has in use.
func (w *worker) used() int { return w.busy - w.away() }

// reserved is the number of tokens that a worker's requests may hold. Those of stalled ones count until all of them
// have given up their slots.
func (w *worker) reserved() int {
	if w.away() < w.stalled {
		return w.held
	}
	return w.held - w.stalledTokens
}
