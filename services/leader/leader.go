// Package leader lets many goroutines share a resource that serves one call at a time, such as an engine, and serves
// several callers in one call. There is no coordinating goroutine: a caller that finds the resource free leads. It
// takes along the calls that are waiting, hands out the results, and makes the first caller that still waits the
// next leader.
package leader

import (
	"context"
	"slices"
	"sync"
)

// Place is a caller's place in a Queue. It is embedded in what waits there, and made by Queue.Take.
type Place struct {
	turn chan bool // true: lead; false: over
	// Queued reports that nobody has it in work: its caller may leave.
	Queued bool
}

func (p *Place) place() *Place { return p }

// placed is a pointer to a type that embeds Place.
type placed[T any] interface {
	*T
	place() *Place
}

// Queue holds those who wait, and whether somebody leads. The owner's lock guards it; methods that do not lock it say
// so. The zero Queue is not usable.
type Queue[T any, P placed[T]] struct {
	// Waiting are the places in order of arrival. Who takes one out of it, or into work, clears Place.Queued.
	Waiting []P
	// Arrived has a value when somebody came since the leader received from it last.
	Arrived chan struct{}

	lock sync.Locker
	free []P
	led  bool
}

// New returns a queue that the lock guards.
func New[T any, P placed[T]](lock sync.Locker) Queue[T, P] {
	return Queue[T, P]{Arrived: make(chan struct{}, 1), lock: lock}
}

// Take returns a place that is not in use, zero but for what Place needs. The caller holds the lock.
func (q *Queue[T, P]) Take() P {
	if n := len(q.free); n > 0 {
		p := q.free[n-1]
		q.free = q.free[:n-1]
		return p
	}
	p := P(new(T))
	*p.place() = Place{turn: make(chan bool, 1)}
	return p
}

// Return takes back a place that is over or has left. It locks.
func (q *Queue[T, P]) Return(p P) {
	q.lock.Lock()
	defer q.lock.Unlock()
	turn := p.place().turn
	*p = *new(T)
	p.place().turn = turn
	q.free = append(q.free, p)
}

// Enter appends a place. The caller holds the lock.
func (q *Queue[T, P]) Enter(p P) {
	p.place().Queued = true
	q.Waiting = append(q.Waiting, p)
}

// Lead makes a place the leader, and reports whether nobody else was. The caller holds the lock.
func (q *Queue[T, P]) Lead(p P) bool {
	if q.led {
		return false
	}
	q.led, p.place().Queued = true, false
	return true
}

// Wait waits until a place that does not lead is over, or leads. left reports that the context ended first and the
// place left the queue. It locks.
func (q *Queue[T, P]) Wait(ctx context.Context, p P) (lead, left bool) {
	select {
	case q.Arrived <- struct{}{}:
	default:
	}
	select {
	case lead = <-p.place().turn:
		return lead, false
	case <-ctx.Done():
	}
	q.lock.Lock()
	left = q.Leave(p)
	q.lock.Unlock()
	if left {
		return false, true
	}
	return <-p.place().turn, false // somebody has it in work, or made it the leader just now
}

// Turn receives a value when a place is over (false) or leads (true), for an owner that waits by itself.
func (q *Queue[T, P]) Turn(p P) <-chan bool { return p.place().turn }

// Leave takes a place out of the queue, and reports whether it was there and nobody had it in work. The caller holds
// the lock.
func (q *Queue[T, P]) Leave(p P) bool {
	return p.place().Queued && q.Remove(p)
}

// Remove takes a place out of the queue, also one in work, and reports whether it was there. The caller holds the lock.
func (q *Queue[T, P]) Remove(p P) bool {
	i := slices.Index(q.Waiting, p)
	if i < 0 {
		return false
	}
	q.Waiting = slices.Delete(q.Waiting, i, i+1)
	return true
}

// End ends the wait of a place that does not lead. The caller holds the lock.
func (q *Queue[T, P]) End(p P) { p.place().turn <- false }

// Next makes the first place that waits the leader, which no longer is the caller; without one nobody leads. The caller
// holds the lock. From then on what belongs to the leader is the next one's.
func (q *Queue[T, P]) Next() {
	if len(q.Waiting) == 0 {
		q.led = false
		return
	}
	next := q.Waiting[0].place()
	next.Queued = false
	next.turn <- true
}
