package host

import (
	"context"
	"io"
	"slices"
	"sync"

	"google.golang.org/grpc"

	enginev1 "github.com/tandem-inference/tandem/proto/tandem/engine/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/wire"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/shmstream"
	"github.com/tandem-inference/tandem/services/tensorwire"
)

// Server serves one engine of any Opener as EngineService. It is what the engine program registers with go-plugin. The
// gRPC server needs ServerOptions.
type Server struct {
	enginev1.UnimplementedEngineServiceServer
	opener engine.Opener

	mu      sync.Mutex // guards engine and opening
	engine  engine.Engine
	opening bool

	runMu   sync.Mutex // guards the fields below, which connect Run and Interrupt
	streams int
	running map[uint64]context.CancelFunc // requests of the Run streams in progress
	// early are the newest requests that are to be cancelled and did not run when that was said: they may be on their way.
	early   [64]uint64
	earlyAt int
}

// moreStreams is how many Run streams there may be beyond the lines of one client: each keeps memory for its requests.
const moreStreams = 8

// NewServer returns a Server that opens its engine with opener when it is asked to.
func NewServer(opener engine.Opener) *Server {
	return &Server{opener: opener, running: map[uint64]context.CancelFunc{}}
}

// ServerOptions are the gRPC options that a Server needs. onPanic may be nil.
func ServerOptions(onPanic rpcerr.PanicHandler) []grpc.ServerOption {
	options := append(tensorwire.ServerOptions(), rpcerr.ServerOptions(onPanic)...)
	return append(options, grpc.ChainStreamInterceptor(shmstream.ServerInterceptor(tensorwire.MaxMessageBytes, enginev1.EngineService_Run_FullMethodName)))
}

// DialOptions are the gRPC options of its clients, without credentials.
func DialOptions() []grpc.DialOption {
	options := append(tensorwire.DialOptions(), rpcerr.DialOptions()...)
	return append(options, grpc.WithChainStreamInterceptor(shmstream.ClientInterceptor(enginev1.EngineService_Run_FullMethodName)))
}

// Shutdown closes the engine when one is open.
func (s *Server) Shutdown() error {
	s.mu.Lock()
	e := s.engine
	s.engine = nil
	s.mu.Unlock()
	if e == nil {
		return nil
	}
	return e.Close()
}

func (s *Server) open() (engine.Engine, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.engine == nil {
		return nil, rpcerr.FailedPrecondition("no engine is open")
	}
	return s.engine, nil
}

// Open implements enginev1.EngineServiceServer.
func (s *Server) Open(req *enginev1.OpenRequest, stream grpc.ServerStreamingServer[enginev1.OpenResponse]) error {
	s.mu.Lock()
	busy := s.engine != nil || s.opening
	s.opening = s.opening || !busy
	s.mu.Unlock()
	if busy {
		return rpcerr.FailedPrecondition("an engine is open already")
	}
	e, err := s.opener.Open(stream.Context(), optionsFromProto(req), func(done, total uint64) {
		// A client that is gone shows in the context.
		_ = stream.Send(&enginev1.OpenResponse{DoneBytes: done, TotalBytes: total})
	})
	s.mu.Lock()
	s.opening, s.engine = false, e
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return stream.Send(&enginev1.OpenResponse{Info: infoToProto(e.Info())})
}

// Close implements enginev1.EngineServiceServer.
func (s *Server) Close(context.Context, *enginev1.CloseRequest) (*enginev1.CloseResponse, error) {
	return &enginev1.CloseResponse{}, s.Shutdown()
}

// Run implements enginev1.EngineServiceServer.
func (s *Server) Run(stream grpc.BidiStreamingServer[enginev1.RunRequest, enginev1.RunResponse]) error {
	if err := s.attach(); err != nil {
		return err
	}
	defer s.detach()
	var (
		req    wire.RunRequest
		resp   wire.RunResponse
		step   engine.StepResult
		draft  engine.DraftResult
		ctx    context.Context
		cancel context.CancelFunc = func() {}
	)
	defer func() { cancel() }()
	for {
		if err := stream.RecvMsg(&req); err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
		// One context serves all requests until it is cancelled, so that a step costs none.
		if ctx == nil || ctx.Err() != nil {
			cancel()
			ctx, cancel = context.WithCancel(stream.Context())
		}
		s.begin(req.ID, cancel)
		resp.ID, resp.Kind, resp.Nanos, resp.Failure = req.ID, 0, 0, nil
		err := s.work(ctx, &req, &step, &draft)
		s.finish(req.ID)
		switch {
		case err != nil:
			resp.Failure = wire.FailureOf(err)
		case req.Kind == wire.WorkStep:
			resp.Kind, resp.Step, resp.Nanos = wire.OutputStep, &step, step.EngineNanos
		default:
			resp.Kind, resp.Propose, resp.Nanos = wire.OutputPropose, &draft, draft.EngineNanos
		}
		// The client answers for nothing until it has read this message, so its payload may be overwritten by the next step.
		if err := stream.SendMsg(&resp); err != nil {
			return err
		}
	}
}

func (s *Server) work(ctx context.Context, req *wire.RunRequest, step *engine.StepResult, draft *engine.DraftResult) error {
	e, err := s.open()
	if err != nil {
		return err
	}
	switch req.Kind {
	case wire.WorkStep:
		return e.Step(ctx, req.Step, step)
	case wire.WorkPropose:
		return e.Propose(ctx, req.Propose.Features, req.Propose.Requests, draft)
	}
	return rpcerr.InvalidArgument("work", "is missing")
}

func (s *Server) attach() error {
	most := runLines + moreStreams
	if e, err := s.open(); err == nil {
		i := e.Info()
		most = mostLines(&i) + moreStreams
	}
	s.runMu.Lock()
	defer s.runMu.Unlock()
	if s.streams >= most {
		return rpcerr.FailedPrecondition("%d Run streams are open, there can be no more", most)
	}
	if s.streams == 0 { // another client counts from 1 again
		clear(s.early[:])
	}
	s.streams++
	return nil
}

func (s *Server) detach() {
	s.runMu.Lock()
	defer s.runMu.Unlock()
	s.streams--
}

func (s *Server) begin(id uint64, cancel context.CancelFunc) {
	s.runMu.Lock()
	defer s.runMu.Unlock()
	s.running[id] = cancel
	if id != 0 && slices.Contains(s.early[:], id) {
		cancel()
	}
}

func (s *Server) finish(id uint64) {
	s.runMu.Lock()
	defer s.runMu.Unlock()
	delete(s.running, id)
}

// Interrupt implements enginev1.EngineServiceServer. It may overtake the request that it is meant for.
func (s *Server) Interrupt(_ context.Context, req *enginev1.InterruptRequest) (*enginev1.InterruptResponse, error) {
	s.runMu.Lock()
	defer s.runMu.Unlock()
	if cancel := s.running[req.Id]; cancel != nil {
		cancel()
		return &enginev1.InterruptResponse{}, nil
	}
	s.early[s.earlyAt] = req.Id
	s.earlyAt = (s.earlyAt + 1) % len(s.early)
	return &enginev1.InterruptResponse{}, nil
}
