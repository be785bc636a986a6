package server

import (
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// WatchRounds implements TargetService.
func (s *Server) WatchRounds(m *tandemv1.WatchRoundsRequest, stream tandemv1.TargetService_WatchRoundsServer) error {
	w, err := s.feed.Watch(int(m.GetMaxPerSecond()))
	if err != nil {
		return err
	}
	defer w.Close()
	for {
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case e, ok := <-w.Events():
			if !ok {
				return rpcerr.Draining
			}
			err := stream.Send(&tandemv1.WatchRoundsResponse{Event: e, Dropped: w.Dropped()})
			if err != nil {
				return rpcerr.FromRPC(err)
			}
		}
	}
}
