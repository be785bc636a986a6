// Package watch describes the rounds and prompt steps of a worker to those who watch them.
//
// Each slot has a Recorder, which asks the worker's Feed once a round whether anybody watches: an atomic load. Only
// then does it copy anything. Events of one request are at least Feed's interval apart, which is as many times that of
// the watchers as there are requests at work: what nobody will be shown is not described. Tokens of rounds between two
// events come with the later one, so that no token lacks its origin, and so does the number of those rounds.
package watch

import (
	"sync"
	"sync/atomic"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

const (
	// DefaultRate is how many events a second are described when a watcher does not say; a page cannot show more.
	DefaultRate = 30
	// MostRate bounds what a watcher may ask for, events a second.
	MostRate = 1000
	// mostWatches bounds the watchers: gateways, and people who look for themselves.
	mostWatches = 16
	// room is how many events wait for a watcher, which takes them a few times a second: more seconds without a loss, and
	// more memory, about 1 KB each.
	room = 1024
)

// Feed hands the events of a worker to its watchers. A nil Feed has none.
type Feed struct {
	every  atomic.Int64 // nanoseconds between two described events, 0 = nobody watches
	atWork atomic.Int64 // requests that share them

	mu      sync.Mutex // guards the fields below
	watches map[*Watch]struct{}
	closed  bool
}

// New returns a feed that nobody watches.
func New() *Feed { return &Feed{watches: map[*Watch]struct{}{}} }

// Watch is one watcher.
type Watch struct {
	feed    *Feed
	every   time.Duration
	events  chan *tandemv1.WatchEvent
	dropped atomic.Uint64
}

// Watch adds a watcher that wants at most so many events a second, 0 = DefaultRate. The caller closes it.
func (f *Feed) Watch(perSecond int) (*Watch, error) {
	if perSecond == 0 {
		perSecond = DefaultRate
	}
	if perSecond < 1 || perSecond > MostRate {
		return nil, rpcerr.InvalidArgument("max_per_second", "must be in 1..%d, got %d", MostRate, perSecond)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.closed:
		return nil, rpcerr.Draining
	case len(f.watches) >= mostWatches:
		return nil, rpcerr.ResourceExhausted("%d watch the worker's rounds already", mostWatches)
	}
	w := &Watch{feed: f, every: time.Second / time.Duration(perSecond), events: make(chan *tandemv1.WatchEvent, room)}
	f.watches[w] = struct{}{}
	f.pace()
	return w, nil
}

// Events are what the worker does; the channel is closed when the feed is.
func (w *Watch) Events() <-chan *tandemv1.WatchEvent { return w.events }

// Dropped is the number of events that found no room.
func (w *Watch) Dropped() uint64 { return w.dropped.Load() }

// Close ends the watch.
func (w *Watch) Close() {
	w.feed.mu.Lock()
	defer w.feed.mu.Unlock()
	if _, ok := w.feed.watches[w]; ok {
		delete(w.feed.watches, w)
		w.feed.pace()
	}
}

// Close ends all watches, and refuses further ones.
func (f *Feed) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for w := range f.watches {
		close(w.events)
	}
	clear(f.watches)
	f.pace()
}

// pace sets the interval to that of the fastest watcher. The caller holds mu.
func (f *Feed) pace() {
	every := time.Duration(0)
	for w := range f.watches {
		if every == 0 || w.every < every {
			every = w.every
		}
	}
	f.every.Store(int64(every))
}

// interval is the time between two described events of a request, 0 = nobody watches.
func (f *Feed) interval() time.Duration {
	if f == nil {
		return 0
	}
	return time.Duration(f.every.Load() * max(1, f.atWork.Load()))
}

// send hands an event, which nobody changes from now on, to all watchers.
func (f *Feed) send(e *tandemv1.WatchEvent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for w := range f.watches {
		select {
		case w.events <- e:
		default:
			w.dropped.Add(1)
		}
	}
}

// Watchers is their number.
func (f *Feed) Watchers() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.watches)
}
