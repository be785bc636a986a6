package server

import (
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// watchEvery is the pause between two looks for events: those of a pause go out together, since waking up a stream's
// goroutine, and its reader's, costs more than an event does. A page shows them so much later.
const watchEvery = 100 * time.Millisecond

// WatchRounds implements TargetService.
func (s *Server) WatchRounds(m *tandemv1.WatchRoundsRequest, stream tandemv1.TargetService_WatchRoundsServer) error {
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
		for waiting := true; waiting; {
			select {
			case e, ok := <-w.Events():
				if !ok {
					return rpcerr.Draining
				}
				if err := stream.Send(&tandemv1.WatchRoundsResponse{Event: e, Dropped: w.Dropped()}); err != nil {
					return rpcerr.FromRPC(err)
				}
			default:
				waiting = false
			}
		}
	}
}
