package drafts

import (
	"context"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/tensorwire"
)

// outstanding messages of a stream: gRPC borrows a payload until it is written, so the sender needs a second one to
// fill meanwhile; more than a few only hide that the draft is slow.
const outstanding = 3

// outgoing is a message with its memory.
type outgoing struct {
	request tandemv1.SpeculateRequest
	ask     tandemv1.Propose
	lent    tensorwire.Lent
}

func (m *outgoing) propose(a Ask) {
	m.ask.Anchor, m.ask.Position = a.Anchor, int32(a.Position)
	m.ask.Budget, m.ask.Block, m.ask.Mode = int32(a.Budget), int32(a.Block), a.Mode
	m.ask.DeadlineUs, m.ask.Span = int32(a.Deadline.Microseconds()), a.Span
	m.request.Propose = &m.ask
}

// outbox hands out the messages of one stream.
type outbox struct {
	free chan *outgoing
}

func newOutbox(capture *Capture, id string) *outbox {
	o := &outbox{free: make(chan *outgoing, outstanding)}
	for range outstanding {
		m := &outgoing{}
		m.request.SessionId, m.request.FeatureEncoding = id, capture.Encoding
		m.lent.Message = &m.request
		m.lent.Released = func() { o.free <- m } // never blocks: there is room for all
		o.free <- m
	}
	return o
}

// take waits for a message whose last payload was written.
func (o *outbox) take(ctx context.Context) (*outgoing, error) {
	select {
	case m := <-o.free:
		return m, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// put gives a message back that was not sent.
func (o *outbox) put(m *outgoing) { o.free <- m }
