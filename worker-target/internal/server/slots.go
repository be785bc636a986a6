package server

import (
	"context"
	"slices"
	"sync"

	"github.com/tandem-inference/tandem/worker-target/internal/decode"
)

// slots are the server's places for requests. A request whose client does not read gives its place back and takes one
// again later, before all requests that arrive. At most as many are away as there are places: what they leave in host
// memory is bounded.
type slots struct {
	total int
	make  func() *decode.Slot

	mu      sync.Mutex // guards the fields below
	free    int        // places; none while somebody waits
	away    int        // requests that have given their place back
	waiting []*place   // of them, those that want one again, in order
	idle    []*decode.Slot
}

func newSlots(total int, make func() *decode.Slot) *slots {
	return &slots{total: total, make: make, free: total}
}

// place is what one request has of the server.
type place struct {
	slots *slots
	slot  *decode.Slot
	held  bool          // guarded by slots.mu
	ended bool          // guarded by slots.mu
	again chan struct{} // closed when a request that waits has a place again
}

// take returns a place, nil when there is none.
func (s *slots) take() *place {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.free == 0 {
		return nil
	}
	s.free--
	p := &place{slots: s, held: true}
	if n := len(s.idle); n > 0 {
		p.slot, s.idle = s.idle[n-1], s.idle[:n-1]
	} else {
		p.slot = s.make()
	}
	return p
}

// release gives a place to who waits, or to all. The caller holds mu.
func (s *slots) release() {
	if len(s.waiting) == 0 {
		s.free++
		return
	}
	p := s.waiting[0]
	s.waiting = slices.Delete(s.waiting, 0, 1)
	s.away--
	p.held = true
	close(p.again)
}

// Leave implements decode.Place.
func (p *place) Leave() bool {
	s := p.slots
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away >= s.total {
		return false
	}
	s.away++
	p.held = false
	s.release()
	return true
}

// Return implements decode.Place.
func (p *place) Return(ctx context.Context) error {
	s := p.slots
	s.mu.Lock()
	if s.free > 0 {
		s.free--
		s.away--
		p.held = true
		s.mu.Unlock()
		return nil
	}
	p.again = make(chan struct{})
	s.waiting = append(s.waiting, p)
	s.mu.Unlock()
	select {
	case <-p.again:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// end gives the place back for good, or the claim to one. A second call does nothing.
func (p *place) end() {
	s := p.slots
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.ended {
		return
	}
	p.ended = true
	if len(s.idle) < s.total {
		s.idle = append(s.idle, p.slot)
	}
	if p.held {
		p.held = false
		s.release()
		return
	}
	s.away--
	s.waiting = slices.DeleteFunc(s.waiting, func(o *place) bool { return o == p })
}

// busy is the number of places in use.
func (s *slots) busy() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total - s.free
}
