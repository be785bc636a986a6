package stagenet

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/bounds"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/border"
	"github.com/tandem-inference/tandem/services/engine/host"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/services/transfer"
)

// ServerConfig of a stage.
type ServerConfig struct {
	Description Description
	Open        engine.Open[engine.Target]
	// Options of the engine that are the stage's own: file, device, threads, memory. The head says the others.
	Options engine.OpenOptions
	// Dir keeps files that heads hand over.
	Dir string
	// Dial makes a connection to another stage; nil = hidden rows go to the head only.
	Dial func(address string) (*grpc.ClientConn, error)
	// HangLimit is how long a head may be silent; as in host.HostConfig.
	HangLimit time.Duration
	Log       *zap.Logger
}

// Server serves a stage to one head at a time. The gRPC server needs Options.
type Server struct {
	tandemv1.UnimplementedStageServiceServer
	cfg ServerConfig

	mu       sync.Mutex // guards the fields below
	holder   *session   // nil = the stage is free
	draining bool
}

// NewServer returns a Server; nothing is opened before a head asks for it.
func NewServer(cfg ServerConfig) *Server { return &Server{cfg: cfg} }

// Options are those that the gRPC server of a stage needs beside those of every worker's.
func Options(mostBytes int) []grpc.ServerOption {
	return []grpc.ServerOption{grpc.StatsHandler(tagger{}), host.LoopOption(mostBytes)}
}

// Register adds the stage's service, and those of the engine for the connection that holds the stage.
func (s *Server) Register(g grpc.ServiceRegistrar) {
	tandemv1.RegisterStageServiceServer(g, s)
	host.NewServer(nil).Register(routes{g})
}

// connection is what calls of one connection have in common.
type connection struct {
	mu      sync.Mutex // guards session
	session *session   // nil = it does not hold the stage
}

type connectionKey struct{}

// tagger gives every connection a value, which the contexts of its calls have.
type tagger struct{}

// TagConn implements stats.Handler, as do the methods below.
func (tagger) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return context.WithValue(ctx, connectionKey{}, &connection{})
}

func (tagger) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }
func (tagger) HandleRPC(context.Context, stats.RPCStats)                       {}
func (tagger) HandleConn(context.Context, stats.ConnStats)                     {}

// holding returns the session of a call's connection.
func holding(ctx context.Context) (*session, error) {
	c, _ := ctx.Value(connectionKey{}).(*connection)
	if c == nil {
		return nil, rpcerr.Internal("the server lacks the options of package stagenet")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session == nil {
		return nil, rpcerr.FailedPrecondition("the connection does not hold the stage")
	}
	return c.session, nil
}

// engineOf returns the session of a call to the engine. A connection that holds the stage no more, because it was
// broken and made again or the stage was started again, has lost its engine, which is no fault of the call.
func engineOf(ctx context.Context) (*session, error) {
	x, err := holding(ctx)
	if errors.Is(err, rpcerr.AnyFailedPrecondition) {
		return nil, rpcerr.EngineLost.With("%v", err)
	}
	return x, err
}

// routes registers services whose calls go to the engine of their connection's session.
type routes struct{ to grpc.ServiceRegistrar }

// RegisterService implements grpc.ServiceRegistrar.
func (r routes) RegisterService(desc *grpc.ServiceDesc, _ any) {
	d := *desc
	d.Methods, d.Streams = slices.Clone(desc.Methods), slices.Clone(desc.Streams)
	for i := range d.Methods {
		handle := d.Methods[i].Handler
		d.Methods[i].Handler = func(_ any, ctx context.Context, decode func(any) error,
			interceptor grpc.UnaryServerInterceptor) (any, error) {
			x, err := engineOf(ctx)
			if err != nil {
				return nil, rpcerr.ToStatus(err)
			}
			return handle(x.engines, ctx, decode, interceptor)
		}
	}
	for i := range d.Streams {
		handle := d.Streams[i].Handler
		d.Streams[i].Handler = func(_ any, stream grpc.ServerStream) error {
			x, err := engineOf(stream.Context())
			if err != nil {
				return rpcerr.ToStatus(err)
			}
			return handle(x.engines, stream)
		}
	}
	r.to.RegisterService(&d, nil)
}

// session is a connection's hold on the stage.
type session struct {
	s       *Server
	head    string
	engines *host.Server
	ctx     context.Context // ends with the hold
	cancel  context.CancelCauseFunc
	ended   chan struct{} // closed when its engine is

	opening  sync.Mutex // held while an engine opens; guards the fields below, but for watchers
	engine   engine.Target
	in       *incoming // nil = the engine gets no hidden rows
	out      *pool     // nil = it makes none
	link     *outgoing // nil = they go to the head
	roomy    bool      // in and out are what they are to be
	watchers sync.WaitGroup
}

// inPool is memory for the hidden rows that the engine gets.
func (x *session) inPool() *pool {
	if x.in == nil {
		return nil
	}
	return x.in.pool
}

// errGivesWay ends a session whose head has another connection.
var errGivesWay = rpcerr.EngineLost.With("the head has another connection")

// take makes a connection the holder of the stage. An earlier connection of the same head gives way at once; another
// head's has the time in which its loss would be noticed.
func (s *Server) take(ctx context.Context, head string) (*session, error) {
	patience := s.patience()
	late := time.NewTimer(patience + patience/2)
	defer late.Stop()
	for {
		s.mu.Lock()
		before := s.holder
		if s.draining {
			s.mu.Unlock()
			return nil, rpcerr.Draining
		}
		if before == nil {
			x := &session{s: s, head: head, ended: make(chan struct{})}
			x.ctx, x.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
			x.engines = host.NewServer(x)
			s.holder = x
			s.mu.Unlock()
			return x, nil
		}
		s.mu.Unlock()
		if before.head == head {
			before.cancel(errGivesWay)
		}
		select {
		case <-before.ended:
		case <-late.C:
			return nil, rpcerr.ResourceExhausted("another head holds the stage")
		case <-ctx.Done():
			return nil, rpcerr.From(ctx.Err())
		}
	}
}

// end closes the session's engine and frees the stage.
func (x *session) end(cause error) {
	x.cancel(cause)
	x.opening.Lock()
	e := x.engine
	x.opening.Unlock()
	if e != nil {
		if err := e.Close(); err != nil {
			x.s.cfg.Log.Warn("closing the engine", zap.NamedError(telemetry.KeyErr, err))
		}
	}
	x.watchers.Wait()
	_ = x.engines.Shutdown() // the engine is closed: this unmaps what the head shares
	x.in.close()
	x.inPool().close()
	x.out.close()
	x.s.mu.Lock()
	x.s.holder = nil
	x.s.mu.Unlock()
	close(x.ended)
}

// Drain ends the hold and refuses others.
func (s *Server) Drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
	if s.holder != nil {
		s.holder.cancel(rpcerr.Draining)
	}
}

// Hold implements tandemv1.StageServiceServer.
func (s *Server) Hold(stream grpc.BidiStreamingServer[tandemv1.HoldRequest, tandemv1.HoldResponse]) error {
	c, _ := stream.Context().Value(connectionKey{}).(*connection)
	if c == nil {
		return rpcerr.Internal("the server lacks the options of package stagenet")
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if err := bounds.Check(first); err != nil {
		return rpcerr.InvalidArgument("", "%v", err)
	}
	d := &s.cfg.Description
	if first.EngineVersion != engineVersion {
		return rpcerr.ProtocolMismatch.With("the stage (version %s) speaks version %d of the engine's protocol, the head "+
			"version %d: run the same release on both", d.Version, engineVersion, first.EngineVersion)
	}
	x, err := s.take(stream.Context(), first.HeadId)
	if err != nil {
		return err
	}
	c.mu.Lock()
	busy := c.session != nil
	if !busy {
		c.session = x
	}
	c.mu.Unlock()
	if busy {
		x.end(nil)
		return rpcerr.FailedPrecondition("the connection holds the stage already")
	}
	s.cfg.Log.Info("a head holds the stage", zap.String("head", first.HeadId))
	err = s.attend(stream, x)
	c.mu.Lock()
	c.session = nil
	c.mu.Unlock()
	x.end(err)
	s.cfg.Log.Info("the stage is free", zap.NamedError(telemetry.KeyErr, err))
	return err
}

// attend exchanges messages with the head until one of them is gone, and returns why.
func (s *Server) attend(stream grpc.BidiStreamingServer[tandemv1.HoldRequest, tandemv1.HoldResponse],
	x *session) error {
	if err := stream.Send(s.cfg.Description.toProto()); err != nil {
		return err
	}
	var h heard
	go func() { // ends with the stream, that is, soon after Hold returned
		for {
			_, err := stream.Recv()
			if err != nil {
				if errors.Is(err, io.EOF) {
					err = rpcerr.FromCode(codes.Canceled, "the head let go")
				}
				x.cancel(err)
				return
			}
			h.n.Add(1)
		}
	}()
	err := exchange(x.ctx, s.cfg.HangLimit, func() error { return stream.Send(&tandemv1.HoldResponse{}) }, &h)
	if x.ctx.Err() == nil {
		err = rpcerr.EngineLost.With("the head is gone").WithCause(err)
	}
	return err
}

// OpenTarget implements engine.Opener for the session's services: one engine, with the stage's layers and files.
func (x *session) OpenTarget(ctx context.Context, o engine.OpenOptions, p engine.Progress) (engine.Target, error) {
	d, own := &x.s.cfg.Description, &x.s.cfg.Options
	if o.LayerFirst != d.First || o.LayerLast != d.Last {
		return nil, rpcerr.InvalidArgument("layer_first", "layers %d to %d are asked for, the stage has %d to %d",
			o.LayerFirst, o.LayerLast-1, d.First, d.Last-1)
	}
	o.ModelPath, o.TablesPath, o.Device, o.Threads = own.ModelPath, "", own.Device, own.Threads
	o.MemoryCapBytes, o.HostCapBytes = own.MemoryCapBytes, own.HostCapBytes
	x.opening.Lock()
	defer x.opening.Unlock()
	if x.ctx.Err() != nil || x.engine != nil {
		return nil, rpcerr.FailedPrecondition("the connection has had its engine")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(x.ctx, cancel)()
	e, err := x.s.cfg.Open(ctx, o, p)
	if err != nil {
		return nil, err
	}
	x.engine = e
	if m, ok := e.(engine.Mortal); ok {
		x.watchers.Go(func() {
			<-m.Done()
			x.cancel(m.Err())
		})
	}
	return &served{e, x, e.Info().Hidden}, nil
}

// makeRoom makes memory for the hidden rows that the engine gets and makes, where in and out of the head are not to be
// it, and lets the engine see all that. The first call counts, which holds opening.
func (x *session) makeRoom(ctx context.Context, in, out *border.Region) {
	if x.roomy || x.engine == nil || x.ctx.Err() != nil {
		return
	}
	x.roomy = true
	i := x.engine.Info()
	sharer, shares := x.engine.(border.Sharer)
	room := engine.HiddenF32.Bytes() * i.MaxBatchRows * i.Hidden
	var own []*border.Region
	if i.LayerFirst > 0 {
		p := newPool(room, shares && in == nil)
		x.in = newIncoming(p, lateFactor*x.s.patience())
		if p.region != nil {
			in, own = p.region, append(own, p.region)
		}
	}
	if i.LayerLast < i.Layers {
		x.out = newPool(room, shares && out == nil)
		if r := x.out.region; r != nil {
			out, own = r, append(own, r)
		}
	}
	if shares && (in != nil || out != nil) {
		_ = sharer.ShareRows(ctx, in, out) // without: rows are sent to the engine
	}
	for _, r := range own {
		r.Hide()
	}
}

// OpenDraft implements engine.Opener, as does OpenScorer: a stage is of a target.
func (x *session) OpenDraft(context.Context, engine.OpenOptions, engine.Progress) (engine.Draft, error) {
	return nil, rpcerr.InvalidArgument("role", "a stage runs targets only")
}

// OpenScorer refuses.
func (x *session) OpenScorer(context.Context, engine.OpenOptions, engine.Progress) (engine.Scorer, error) {
	return nil, rpcerr.InvalidArgument("role", "a stage runs targets only")
}

// LoadFuse loads a file that PutFuse has brought. NOT_FOUND: it has not.
func (e *served) LoadFuse(ctx context.Context, digest string) error {
	path, err := e.x.s.fusePath(digest)
	if err != nil {
		return err
	}
	if _, err := os.Stat(path); err != nil {
		return rpcerr.NotFound("path: no fuse with digest %.12s is here", digest)
	}
	return e.Target.LoadFuse(ctx, path)
}

// fusePath is where the fuse with a digest lies.
func (s *Server) fusePath(digest string) (string, error) {
	if raw, err := hex.DecodeString(digest); err != nil || len(raw) != 32 || hex.EncodeToString(raw) != digest {
		return "", rpcerr.InvalidArgument("digest", "is not a SHA-256 in lower-case hex")
	}
	return filepath.Join(s.cfg.Dir, "stage-fuse-"+digest+".gguf"), nil
}

// mostFuseBytes bounds a file with fc and norm: f32 of 16 layers of 16,384 values and more.
const mostFuseBytes = 20 << 30

// PutFuse implements tandemv1.StageServiceServer.
func (s *Server) PutFuse(stream grpc.ClientStreamingServer[tandemv1.PutFuseRequest, tandemv1.PutFuseResponse]) error {
	if _, err := holding(stream.Context()); err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	path, err := s.fusePath(first.Digest)
	if err != nil {
		return err
	}
	pending := first
	got, err := transfer.Receive(stream.Context(), s.cfg.Dir, "stage-fuse-*.part",
		transfer.Limits{Total: first.TotalBytes, Most: mostFuseBytes, Digest: first.Digest}, func() ([]byte, error) {
			if m := pending; m != nil {
				pending = nil
				return m.Chunk, nil
			}
			m, err := stream.Recv()
			if err != nil {
				return nil, rpcerr.FromRPC(err)
			}
			return m.Chunk, nil
		})
	if err != nil {
		return err
	}
	if err := os.Rename(got, path); err != nil {
		os.Remove(got)
		return err
	}
	return stream.SendAndClose(&tandemv1.PutFuseResponse{})
}
