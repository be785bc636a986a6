package host

import (
	"context"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	enginev1 "github.com/tandem-inference/tandem/proto/tandem/engine/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/wire"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/shmstream"
	"github.com/tandem-inference/tandem/services/tensorwire"
)

// Server serves one engine of any Opener. It is what the engine program registers with go-plugin. The gRPC server needs
// ServerOptions.
type Server struct {
	enginev1.UnimplementedEngineServiceServer
	enginev1.UnimplementedSequenceServiceServer
	enginev1.UnimplementedTargetServiceServer
	enginev1.UnimplementedDraftServiceServer
	enginev1.UnimplementedScoreServiceServer
	opener engine.Opener
	tracer trace.Tracer // nil = steps are not traced

	mu      sync.Mutex // guards engine and opening
	engine  engine.Engine
	opening bool

	shared  atomic.Pointer[sharedRows] // nil = none are
	runMu   sync.Mutex                 // guards the fields below, which connect decode loops and Interrupt
	streams int
	running map[uint64]context.CancelFunc // requests of the streams in progress
	// early are the newest requests that are to be cancelled and did not run when that was said: they may be on their way.
	early   [64]uint64
	earlyAt int
}

// moreStreams is how many streams of a decode loop there may be beyond the lines of one client: each keeps memory for
// its requests.
const moreStreams = 8

// NewServer returns a Server that opens its engine with opener when it is asked to.
func NewServer(opener engine.Opener) *Server {
	return &Server{opener: opener, running: map[uint64]context.CancelFunc{}}
}

// Register adds the services of all roles; calls of another role than the engine's are refused.
func (s *Server) Register(g grpc.ServiceRegistrar) {
	enginev1.RegisterEngineServiceServer(g, s)
	enginev1.RegisterSequenceServiceServer(g, s)
	enginev1.RegisterTargetServiceServer(g, s)
	enginev1.RegisterDraftServiceServer(g, s)
	enginev1.RegisterScoreServiceServer(g, s)
}

// ServerOptions are the gRPC options that a Server needs. onPanic may be nil.
func ServerOptions(onPanic rpcerr.PanicHandler) []grpc.ServerOption {
	options := append(tensorwire.ServerOptions(), rpcerr.ServerOptions(onPanic)...)
	return append(options, LoopOption(tensorwire.MaxMessageBytes))
}

// LoopOption lets the decode loops of clients on this host go through shared memory, in messages of at most so many
// bytes. It is part of ServerOptions, for servers that have options of their own.
func LoopOption(mostBytes int) grpc.ServerOption {
	return grpc.ChainStreamInterceptor(shmstream.ServerInterceptor(mostBytes, loopMethods...))
}

// DialOptions are the gRPC options of its clients, without credentials.
func DialOptions() []grpc.DialOption {
	options := append(tensorwire.DialOptions(), rpcerr.DialOptions()...)
	return append(options, LoopDialOption())
}

// LoopDialOption is the client's side of LoopOption.
func LoopDialOption() grpc.DialOption {
	return grpc.WithChainStreamInterceptor(shmstream.ClientInterceptor(loopMethods...))
}

// loopMethods are the calls whose streams go through shared memory.
var loopMethods = []string{enginev1.TargetService_Step_FullMethodName, enginev1.DraftService_Propose_FullMethodName}

// Shutdown closes the engine when one is open.
func (s *Server) Shutdown() error {
	s.mu.Lock()
	e := s.engine
	s.engine = nil
	s.mu.Unlock()
	if e == nil {
		return nil
	}
	err := e.Close()
	s.shared.Swap(nil).close()
	return err
}

func (s *Server) open() (engine.Engine, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.engine == nil {
		return nil, rpcerr.FailedPrecondition("no engine is open")
	}
	return s.engine, nil
}

// as returns the open engine for a call of a role.
func as[E engine.Engine](s *Server) (E, error) {
	e, err := s.open()
	if err != nil {
		var none E
		return none, err
	}
	r, ok := e.(E)
	if !ok {
		return r, rpcerr.FailedPrecondition("role: the engine is a %s, which does not have this call",
			roleNames[e.Info().Role])
	}
	return r, nil
}

var roleNames = map[engine.Role]string{
	engine.RoleTarget: "target", engine.RoleDraft: "draft", engine.RoleScore: "scorer",
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
	e, err := s.openAs(stream.Context(), engine.Role(req.Role), optionsFromProto(req), func(done, total uint64) {
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

func (s *Server) openAs(ctx context.Context, role engine.Role, o engine.OpenOptions,
	p engine.Progress) (engine.Engine, error) {
	switch role {
	case engine.RoleTarget:
		return s.opener.OpenTarget(ctx, o, p)
	case engine.RoleDraft:
		return s.opener.OpenDraft(ctx, o, p)
	case engine.RoleScore:
		return s.opener.OpenScorer(ctx, o, p)
	}
	return nil, rpcerr.InvalidArgument("role", "%d must be 1 (target), 2 (draft) or 3 (score)", role)
}

// Close implements enginev1.EngineServiceServer.
func (s *Server) Close(context.Context, *enginev1.CloseRequest) (*enginev1.CloseResponse, error) {
	return &enginev1.CloseResponse{}, s.Shutdown()
}

// Step implements enginev1.TargetServiceServer.
func (s *Server) Step(stream grpc.BidiStreamingServer[enginev1.StepRequest, enginev1.StepResponse]) error {
	var (
		req            wire.StepRequest
		resp           wire.StepResponse
		step           engine.Step
		result, failed engine.StepResult
	)
	req.Step = &step
	room, answer := newRoom(&resp)
	defer room.done()
	return s.serve(stream, &req, answer, &req.Request, &resp.Response, func(ctx context.Context) error {
		resp.Result, resp.SharedBytes = &failed, 0
		traced, began := s.traced(&step), time.Time{}
		if traced {
			began = time.Now()
		}
		e, err := as[engine.Target](s)
		if _, linked := e.(Roomer); err == nil && !linked && step.RowsFrom|step.RowsTo != 0 {
			err = rpcerr.InvalidArgument("rows_from", "the engine is not linked with others")
		}
		if err == nil {
			room.take(e, &result)
			resp.SharedBytes, err = s.shared.Load().step(ctx, e, &req, &step, &result)
		}
		if traced {
			s.traceStep(&step, &result, began, err)
		}
		room.next(&step)
		if err != nil {
			return err
		}
		resp.Result, resp.Nanos = &result, result.EngineNanos
		return nil
	})
}

// Propose implements enginev1.DraftServiceServer.
func (s *Server) Propose(stream grpc.BidiStreamingServer[enginev1.ProposeRequest, enginev1.ProposeResponse]) error {
	var (
		req            wire.ProposeRequest
		resp           wire.ProposeResponse
		result, failed engine.DraftResult
	)
	return s.serve(stream, &req, &resp, &req.Request, &resp.Response, func(ctx context.Context) error {
		resp.Result = &failed
		traced, began := s.tracedProposal(req.Requests), time.Time{}
		if traced {
			began = time.Now()
		}
		e, err := as[engine.Draft](s)
		if err == nil {
			err = e.Propose(ctx, req.Features, req.Requests, &result)
		}
		if traced {
			s.traceProposals(req.Features, req.Requests, &result, began, err)
		}
		if err != nil {
			return err
		}
		resp.Result, resp.Nanos = &result, result.EngineNanos
		return nil
	})
}

// serve answers the requests of a stream of a decode loop by work. ask and answer are parts of req and resp.
func (s *Server) serve(stream grpc.ServerStream, req, resp any, ask *wire.Request, answer *wire.Response,
	work func(context.Context) error) error {
	if err := s.attach(); err != nil {
		return err
	}
	defer s.detach()
	var ctx context.Context
	cancel := func() {}
	defer func() { cancel() }()
	for {
		if err := stream.RecvMsg(req); err != nil {
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
		s.begin(ask.ID, cancel)
		*answer = wire.Response{ID: ask.ID}
		err := work(ctx)
		s.finish(ask.ID)
		if err != nil {
			answer.Failure = wire.FailureOf(err)
		}
		// The client answers for nothing until it has read this message, so its payload may be overwritten by the next step.
		if err := stream.SendMsg(resp); err != nil {
			return err
		}
	}
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
		return rpcerr.FailedPrecondition("%d streams are open, there can be no more", most)
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
