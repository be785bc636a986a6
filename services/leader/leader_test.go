package leader

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-inference/tandem/services/racetest"
)

// call waits for a server that serves several at once.
type call struct {
	Place
	number, served int
}

type server struct {
	mu      sync.Mutex
	queue   Queue[call, *call]
	running atomic.Int32
	served  []int   // the numbers of calls in the order in which they were served
	groups  []int   // how many each leader served
	took    func()  // of serving a group
	clashes int     // leaders beside another
	calls   []*call // places that were in use
}

func newServer(took func()) *server {
	s := &server{took: took}
	s.queue = New[call](&s.mu)
	return s
}

// call returns what the leader gave it, or the context's error.
func (s *server) call(ctx context.Context, number int) (int, error) {
	s.mu.Lock()
	c := s.queue.Take()
	if c.number != 0 || c.served != 0 || c.Queued {
		panic("a place that is in use")
	}
	c.number = number
	s.calls = append(s.calls, c)
	s.queue.Enter(c)
	lead := s.queue.Lead(c)
	s.mu.Unlock()
	defer s.queue.Return(c)
	if !lead {
		var left bool
		if lead, left = s.queue.Wait(ctx, c); left {
			return 0, ctx.Err()
		}
	}
	if lead {
		s.lead(c)
	}
	return c.served, nil
}

// lead serves all that wait.
func (s *server) lead(own *call) {
	s.mu.Lock()
	group := s.queue.Waiting
	s.queue.Waiting = nil
	for _, c := range group {
		c.Queued = false
	}
	s.mu.Unlock()
	if s.running.Add(1) > 1 {
		s.clashes++
	}
	s.took()
	s.running.Add(-1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.groups = append(s.groups, len(group))
	for _, c := range group {
		c.served = c.number
		s.served = append(s.served, c.number)
		if c != own {
			s.queue.End(c)
		}
	}
	s.queue.Next()
}

// TestLeadIsHandedOn: calls that come while one is served are served together by the first of them, in order, and the
// places of the first are used again.
func TestLeadIsHandedOn(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		s := newServer(func() { time.Sleep(time.Second) })
		var done sync.WaitGroup
		start := func(number int) {
			done.Go(func() {
				if got, err := s.call(t.Context(), number); got != number || err != nil {
					t.Errorf("call %d: served as %d, %v", number, got, err)
				}
			})
			synctest.Wait()
		}
		for number := 1; number <= 4; number++ {
			start(number)
		}
		if len(s.queue.Arrived) != 1 {
			t.Error("the leader does not see that somebody came")
		}
		done.Wait()
		if want := []int{1, 3}; len(s.groups) != 2 || s.groups[0] != want[0] || s.groups[1] != want[1] || s.clashes > 0 {
			t.Errorf("leaders served %v calls, want %v; %d led beside another", s.groups, want, s.clashes)
		}
		for i, number := range s.served {
			if number != i+1 {
				t.Errorf("served %v", s.served)
			}
		}
		first := s.calls[:4]
		start(5)
		done.Wait()
		if s.calls[4] != first[0] && s.calls[4] != first[1] && s.calls[4] != first[2] && s.calls[4] != first[3] {
			t.Error("a new place, though four are free")
		}
	})
}

// TestLeave: a call whose context ends leaves the queue; one that somebody has in work waits for its end.
func TestLeave(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		s := newServer(func() { time.Sleep(time.Second) })
		var done sync.WaitGroup
		call := func(ctx context.Context, number, want int) {
			done.Go(func() {
				if got, _ := s.call(ctx, number); got != want {
					t.Errorf("call %d: served as %d, want %d", number, got, want)
				}
			})
			synctest.Wait()
		}
		early, stopEarly := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer stopEarly()
		late, stopLate := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer stopLate()
		call(t.Context(), 1, 1)
		call(early, 2, 0)
		call(t.Context(), 3, 3)
		call(late, 4, 4) // in work when its context ends
		done.Wait()
		if len(s.queue.Waiting) != 0 || s.queue.led {
			t.Errorf("%d still wait, led: %v", len(s.queue.Waiting), s.queue.led)
		}
	})
}

// TestMany: many callers at once, some of whom leave, are each served as themselves or not at all, by one leader at a
// time.
func TestMany(t *testing.T) {
	s := newServer(func() {})
	var done sync.WaitGroup
	for caller := range 16 {
		done.Go(func() {
			for i := range 200 {
				number := caller*1000 + i + 1
				ctx, stop := context.WithCancel(t.Context())
				if i%3 == 0 {
					stop()
				}
				if got, err := s.call(ctx, number); err == nil && got != number || err != nil && i%3 != 0 {
					t.Errorf("call %d: served as %d, %v", number, got, err)
				}
				stop()
			}
		})
	}
	done.Wait()
	if s.clashes > 0 || s.queue.led || len(s.queue.Waiting) > 0 {
		t.Errorf("%d led beside another, led at the end: %v, %d still wait", s.clashes, s.queue.led, len(s.queue.Waiting))
	}
}

// TestRemove: a place in work stays when its caller would leave, and goes when it is removed.
func TestRemove(t *testing.T) {
	s := newServer(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	a, b := s.queue.Take(), s.queue.Take()
	s.queue.Enter(a)
	s.queue.Enter(b)
	a.Queued = false
	if s.queue.Leave(a) || !s.queue.Leave(b) || s.queue.Leave(b) {
		t.Error("one in work leaves, or one that waits does not")
	}
	if !s.queue.Remove(a) || s.queue.Remove(a) || len(s.queue.Waiting) != 0 {
		t.Errorf("%d wait", len(s.queue.Waiting))
	}
}
