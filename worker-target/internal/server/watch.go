package server

import (
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/worker-target/internal/watch"
)

const (
	// watchEvery is the pause between two looks for events: those of a pause go out together, since waking up a stream's
	// goroutine, and its reader's, costs more than an event does. A page shows them so much later.
	watchEvery = 250 * time.Millisecond
	// mostEvents bounds the events of a message: a backlog of 1 KB each stays far below the limit of messages.
	mostEvents = 64
)

// WatchRounds implements TargetService.
func (s *Server) WatchRounds(m *tandemv1.WatchRoundsRequest, stream tandemv1.TargetService_WatchRoundsServer) error {
	most := int(m.GetMaxEvents())
	if most < 0 || most > mostEvents {
		return rpcerr.InvalidArgument("max_events", "must be in 0..%d, got %d", mostEvents, most)
	}
	w, err := s.feed.Watch(int(m.GetMaxPerSecond()))
	if err != nil {
		return err
	}
	defer w.Close()
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-ticker.C:
		}
		for {
			message, open := next(w, max(1, most))
			if message != nil {
				if err := stream.Send(message); err != nil {
					return rpcerr.FromRPC(err)
				}
			}
			if !open {
				return rpcerr.Draining
			}
			if message == nil {
				break
			}
		}
	}
}

// next is a message of the events that wait, at most so many; nil when none does. open is false once no more will come.
func next(w *watch.Watch, most int) (m *tandemv1.WatchRoundsResponse, open bool) {
	for n := 0; n < most; n++ {
		select {
		case e, ok := <-w.Events():
			switch {
			case !ok:
				return m, false
			case m == nil:
				m = &tandemv1.WatchRoundsResponse{Event: e, Dropped: w.Dropped()}
			default:
				m.More = append(m.More, e)
			}
		default:
			return m, true
		}
	}
	return m, true
}
