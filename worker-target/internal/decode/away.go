package decode

import (
	"context"
	"time"

	"github.com/tandem-inference/tandem/services/rpcerr"
)

// DefaultSlowReader is how long a client may leave a round's output unread before its request is parked. Lowering it
// parks requests whose clients pause for a moment; raising it lets them hold slots and memory.
const DefaultSlowReader = 2 * time.Second

// Place is the slot that a request holds of its worker.
type Place interface {
	// Leave releases it while the client does not read. It reports whether others may use it.
	Leave() bool
	// Return waits for one again.
	Return(ctx context.Context) error
}

// reader watches the client of the request in work. While the request's goroutine is in output.Flush, leave may run
// on another one; between the two the timer decides: a flush that it interrupted waits for leave to end.
type reader struct {
	limit time.Duration // 0 = clients may take any time
	timer *time.Timer   // runs leave
	ctx   context.Context
	gone  chan error // from leave
	left  bool       // the request has given up its place
}

// flush hands the round's output to the client. A request whose client does not read gives up its memory, and its place
// for others; it resumes when the client has read.
func (s *Slot) flush(ctx context.Context) error {
	if s.reader.limit <= 0 || s.req.Place == nil {
		return s.out.Flush()
	}
	s.reader.ctx = ctx
	s.reader.timer.Reset(s.reader.limit)
	err := s.out.Flush()
	if s.reader.timer.Stop() {
		return err
	}
	if lost := <-s.reader.gone; err == nil {
		err = lost
	}
	if err != nil {
		return err
	}
	if s.reader.left {
		if err := s.req.Place.Return(ctx); err != nil {
			return rpcerr.From(err)
		}
	}
	s.reader.left = false
	return s.comeBack(ctx)
}

// leave parks the request because its client does not read.
func (s *Slot) leave() {
	err := s.park(s.reader.ctx)
	if err == nil {
		s.member.Away(s.demotion())
		s.reader.left = s.req.Place.Leave()
	}
	s.reader.gone <- err
}
