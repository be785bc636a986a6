// Package bodybudget limits the memory that the bodies of all requests at work take together once they are read, which
// for some is a hundred times their size.
//
// Among bodies that are being read and do not fit together, the one that was begun last is refused, so that the others
// can go on: bodies that each hold a part and wait for the rest would block each other for ever. A body that was read
// completely is at work and keeps its memory.
package bodybudget

import (
	"io"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
)

const (
	// free is what each request has outside of the budget, so that small ones pass when large ones fill it.
	free = 2 << 20
	// step is how much is reserved at once.
	step = 1 << 20
	// peak of reserved memory from which it is given back to the system when its requests are done.
	peak = 128 << 20
)

// Budget is the memory that bodies may take together, by estimate. A nil Budget has no bound.
type Budget struct {
	max int64
	// free gives memory back; replaced by tests.
	free func()

	mu         sync.Mutex // guards the rest, and of a Share what its comment says
	used, most int64      // now, and the most since memory was given back
	// reading are the bodies that are being read, in the order in which they were begun.
	reading []*Share
	// changed is closed, and replaced, when memory came back or a body has to give way.
	changed chan struct{}
}

// New returns a budget of max bytes.
func New(max int64) *Budget {
	return &Budget{max: max, changed: make(chan struct{}), free: func() {
		// Pools give up what they hold at the second collection.
		debug.FreeOSMemory()
		debug.FreeOSMemory()
	}}
}

// Used returns the bytes that are reserved.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// Share is what one request holds of a budget. It is for one goroutine at a time.
type Share struct {
	b    *Budget
	seen int64

	// Guarded by the budget's lock.
	taken int64
	// gone says that the body has to give way; abort ends Reads that wait for the client soon.
	gone  bool
	abort func()
}

// Share begins a request, which ends with Release.
func (b *Budget) Share() *Share { return &Share{b: b} }

// Add counts more of the request's memory. The error is the answer to a request for which there is no room: now, or
// ever. While its body is being read, bodies that were begun later make room for it.
func (s *Share) Add(cost int64) error {
	if s.b == nil {
		return nil
	}
	s.seen += cost
	if s.seen-free > s.b.max {
		return reqerr.BodyTooLarge(s.b.max)
	}
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	for {
		need := s.seen - free - s.taken
		if s.gone {
			return reqerr.BodiesFull(s.b.max)
		}
		if need <= 0 {
			return nil
		}
		need = min((need+step-1)/step*step, s.b.max-s.taken)
		if lack := s.b.used + need - s.b.max; lack > 0 {
			if !s.b.evict(s, lack) {
				return reqerr.BodiesFull(s.b.max)
			}
			changed := s.b.changed
			s.b.mu.Unlock()
			<-changed
			s.b.mu.Lock()
			continue
		}
		s.b.used += need
		s.b.most = max(s.b.most, s.b.used)
		s.taken += need
		return nil
	}
}

// evict makes the last of the bodies that were begun after that of s give way, until those that do hold the bytes that
// lack. It does nothing and returns false if all of them hold less.
func (b *Budget) evict(s *Share, lack int64) bool {
	at := slices.Index(b.reading, s)
	if at < 0 {
		return false
	}
	later := b.reading[at+1:]
	first := len(later)
	for ; first > 0 && lack > 0; first-- {
		lack -= later[first-1].taken
	}
	if lack > 0 {
		return false
	}
	for _, o := range later[first:] {
		if !o.gone && o.taken > 0 {
			o.gone = true
			o.abort()
			b.wake()
		}
	}
	return true
}

// wake lets everybody who waits look again.
func (b *Budget) wake() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// Release gives back what the request held. After a peak the memory goes back to the system: the runtime itself would
// keep it, because a gateway that idles hardly ever collects.
func (s *Share) Release() {
	if s.b == nil {
		return
	}
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.b.unlist(s)
	if s.taken == 0 {
		return
	}
	s.b.used -= s.taken
	s.taken = 0
	s.b.wake()
	if s.b.used == 0 && s.b.most >= peak {
		s.b.most = 0
		go s.b.free()
	}
}

func (b *Budget) unlist(s *Share) {
	b.reading = slices.DeleteFunc(b.reading, func(o *Share) bool { return o == s })
}

// Reader counts what is read of a body of JSON; its errors of the budget come in the place of data. A body whose length
// is known has room for its bytes before any is read: the error says that there is none. The length is -1 for others.
// abort makes Reads of r that wait for the client end soon, from another goroutine; it is not called after Release.
func (s *Share) Reader(r io.ReadCloser, length int64, abort func()) (io.ReadCloser, error) {
	if s.b == nil {
		return r, nil
	}
	s.b.mu.Lock()
	s.abort = abort
	s.b.reading = append(s.b.reading, s)
	s.b.mu.Unlock()
	if err := s.Add(max(length, 0) * PerByte); err != nil {
		return nil, err
	}
	return &reader{ReadCloser: r, share: s, known: length >= 0}, nil
}

// read ends the reading of a body. The error is the answer if it had to give way.
func (s *Share) read() error {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.b.unlist(s)
	if s.gone {
		return reqerr.BodiesFull(s.b.max)
	}
	return nil
}

type reader struct {
	io.ReadCloser
	share *Share
	scan  scan
	known bool // the bytes were counted before
}

// Read implements io.Reader.
func (r *reader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	cost := r.scan.add(p[:n])
	if r.known {
		cost -= int64(n) * PerByte
	}
	if over := r.share.Add(cost); over != nil {
		return 0, over
	}
	if err != nil {
		if over := r.share.read(); over != nil {
			return 0, over
		}
	}
	return n, err
}
