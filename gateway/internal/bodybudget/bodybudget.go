// Package bodybudget bounds the memory of request bodies: how many bytes of them may be at work at a time, over
// all requests.
package bodybudget

import (
	"io"
	"runtime/debug"
	"sync"

	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
)

const (
	// step is how much is reserved at once. A request's first step is free, so that small ones pass when large ones fill
	// the budget.
	step = 64 << 10
	// peak of bytes at work from which memory is given back to the system when they are done.
	peak = 32 << 20
)

// Budget is the number of bytes that bodies may have together. A nil Budget has no bound.
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
	seen, taken int64
}

// Share begins a request, which ends with Release.
func (b *Budget) Share() *Share { return &Share{b: b} }

// Add counts n bytes more of the request's body. The error is the answer to a request for which there is no room.
func (s *Share) Add(n int) error {
	if s.b == nil {
		return nil
	}
	s.seen += int64(n)
	need := s.seen - step - s.taken
	if need <= 0 {
		return nil
	}
	need = (need + step - 1) / step * step
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

// Reader counts what is read of a body; its errors of the budget come in the place of data.
func (s *Share) Reader(r io.ReadCloser) io.ReadCloser { return &reader{r, s} }

type reader struct {
	io.ReadCloser
	share *Share
}

// Read implements io.Reader.
func (r *reader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if over := r.share.Add(n); over != nil {
		return 0, over
	}
	return n, err
}
