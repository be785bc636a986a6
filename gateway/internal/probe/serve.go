package probe

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	"github.com/tandem-inference/tandem/gateway/internal/placement"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/identity"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/tensorwire"
	"github.com/tandem-inference/tandem/services/workernode"
)

// Server gives hosts that plan the figures of this one, and answers what they send to time the link.
type Server struct {
	tandemv1.UnimplementedProbeServiceServer
	turn     chan struct{} // holds a value while a link is timed: two at once would share it
	measured chan struct{} // closed when the fields below are set
	once     sync.Once
	host     string
	failed   error
}

// NewServer returns a server whose callers wait for Measured.
func NewServer() *Server {
	return &Server{turn: make(chan struct{}, 1), measured: make(chan struct{})}
}

// Measured gives the figures of the host, or why there are none. Later calls do nothing.
func (s *Server) Measured(h *placement.Host, err error) {
	s.once.Do(func() {
		text, jerr := json.Marshal(h)
		s.host, s.failed = string(text), errors.Join(err, jerr)
		close(s.measured)
	})
}

// GRPC returns a server for s, with the options that a stage's has.
func (s *Server) GRPC(transport identity.Transport, log *zap.Logger) *grpc.Server {
	options := append(workernode.ServerOptions(log), grpc.Creds(transport.Server()))
	g := grpc.NewServer(append(options, identity.ServerOptions(log)...)...)
	tandemv1.RegisterProbeServiceServer(g, s)
	healthv1.RegisterHealthServer(g, health.NewServer())
	reflection.Register(g)
	return g
}

// GetHost implements tandemv1.ProbeServiceServer.
func (s *Server) GetHost(ctx context.Context, _ *tandemv1.GetHostRequest) (*tandemv1.GetHostResponse, error) {
	select {
	case <-s.measured:
	case <-ctx.Done():
		return nil, rpcerr.From(ctx.Err())
	}
	if s.failed != nil {
		return nil, rpcerr.FailedPrecondition("the devices could not be measured: %v", s.failed)
	}
	return &tandemv1.GetHostResponse{Host: s.host}, nil
}

// nothing is what payloads consist of.
var nothing = make([]byte, tensorwire.ChunkBytes)

// Echo implements tandemv1.ProbeServiceServer. Who sends nothing has no turn to wait for: it asks whether it may call.
func (s *Server) Echo(stream grpc.BidiStreamingServer[tandemv1.EchoRequest, tandemv1.EchoResponse]) error {
	m, err := stream.Recv()
	if err == nil {
		select {
		case s.turn <- struct{}{}:
		case <-stream.Context().Done():
			return rpcerr.From(stream.Context().Err())
		}
		defer func() { <-s.turn }()
	}
	for ; err == nil; m, err = stream.Recv() {
		n := m.GetAnswerBytes()
		if n < 0 || n > int64(len(nothing)) {
			return rpcerr.InvalidArgument("answer_bytes", "is %d, must be in 0..%d", n, len(nothing))
		}
		if err := stream.Send(&tandemv1.EchoResponse{Payload: nothing[:n]}); err != nil {
			return err
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
