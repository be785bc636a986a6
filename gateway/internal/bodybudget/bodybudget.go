// Package bodybudget bounds the memory of request bodies: what all of those at work may take together once they are
// read, which for some is a hundred times their size.
package bodybudget

import (
	"io"
	"runtime/debug"
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

	mu         sync.Mutex // guards the rest
	used, most int64      // now, and the most since memory was given back
}

// New returns a budget of max bytes.
func New(max int64) *Budget {
	return &Budget{max: max, free: func() {
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
	b           *Budget
	scan        scan
	seen, taken int64
}

// Share begins a request, which ends with Release.
func (b *Budget) Share() *Share { return &Share{b: b} }

// Add counts more of the request's memory. The error is the answer to a request for which there is no room: now, or
// ever.
func (s *Share) Add(cost int64) error {
	if s.b == nil {
		return nil
	}
	s.seen += cost
	need := s.seen - free - s.taken
	if need <= 0 {
		return nil
	}
	if s.seen-free > s.b.max {
		return reqerr.BodyTooLarge(s.b.max)
	}
	need = min((need+step-1)/step*step, s.b.max-s.taken)
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if s.b.used+need > s.b.max {
		return reqerr.BodiesFull(s.b.max)
	}
	s.b.used += need
	s.b.most = max(s.b.most, s.b.used)
	s.taken += need
	return nil
}

// Release gives back what the request held. After a peak the memory goes back to the system: the runtime itself would
// keep it, because a gateway that idles hardly ever collects.
func (s *Share) Release() {
	if s.b == nil || s.taken == 0 {
		return
	}
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.b.used -= s.taken
	s.taken = 0
	if s.b.used == 0 && s.b.most >= peak {
		s.b.most = 0
		go s.b.free()
	}
}

// Reader counts what is read of a body of JSON; its errors of the budget come in the place of data.
func (s *Share) Reader(r io.ReadCloser) io.ReadCloser { return &reader{r, s} }

type reader struct {
	io.ReadCloser
	share *Share
}

// Read implements io.Reader.
func (r *reader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if over := r.share.Add(r.share.scan.add(p[:n])); over != nil {
		return 0, over
	}
	return n, err
}
