package server

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/services/tensorwire"
	"github.com/tandem-inference/tandem/services/transfer"
	"github.com/tandem-inference/tandem/worker-draft/internal/joint"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// Engine yields the engine while it is open; *workernode.Keeper[engine.Draft] implements it.
type Engine interface {
	Run(ctx context.Context) error
	Wait(ctx context.Context) (engine.Draft, error)
	Next(ctx context.Context, after uint64) (engine.Draft, uint64, error)
	// TryUse returns the engine for a stream, which calls done at its end; it has a parked engine opened, but does not
	// wait.
	TryUse() (e engine.Draft, done func(), err error)
	// Parked is what an engine said of itself that was closed because nobody used it.
	Parked() (engine.Info, bool)
	// Ready reports whether streams are taken: there is an engine, or it is parked.
	Ready() bool
	Report(engine engine.Engine, err error)
	Heartbeat(h *tandemv1.Heartbeat)
}

// Assets are the draft's files; *assets.Store implements it.
type Assets interface {
	Cached(ctx context.Context, digest string) (path string, ok bool)
	Receive(ctx context.Context, digest string, totalBytes int64, next func() ([]byte, error)) (string, error)
	Fuse() (path, digest string, err error)
}

// Shape is what the draft model needs of a target.
type Shape struct {
	Digest          string
	TokenizerDigest string // "" = the file holds no tokenizer
	Hidden          int
	Vocab           int // 0 = the file does not say
	CaptureLayers   []int32
}

// Config of a server.
type Config struct {
	WorkerID string
	Shape    Shape
	Assets   Assets
	// Open makes the keeper of an engine on the tables at path.
	Open func(tablesPath string) Engine
	// TablesPath and TablesDigest of a local file, "" = a target hands them over.
	TablesPath, TablesDigest string
	Log                      *zap.Logger
	// Tracer gets spans of proposals; nil = none.
	Tracer trace.TracerProvider
	// Measure gets the time of proposals in the engine; nil = nobody.
	Measure metric.Float64Histogram
}

// proposeBounds are in seconds: a block of a small draft on a card, and of a large one on processors.
var proposeBounds = []float64{.0005, .001, .002, .003, .005, .0075, .01, .015, .02, .03, .05, .075, .1, .2, .5, 1}

// NewMeasure makes Config.Measure.
func NewMeasure(p metric.MeterProvider) (metric.Float64Histogram, error) {
	return p.Meter("github.com/tandem-inference/tandem/worker-draft").Float64Histogram("tandem.draft.propose",
		metric.WithUnit("s"), metric.WithExplicitBucketBoundaries(proposeBounds...),
		metric.WithDescription("Time of a proposal in the engine, features included."))
}

// Server implements DraftService.
type Server struct {
	tandemv1.UnimplementedDraftServiceServer
	cfg      Config
	draining atomic.Bool
	readers  sync.WaitGroup
	tables   chan string   // path of the tables, once
	opening  chan struct{} // closed when engine is set

	mu       sync.Mutex
	digest   string // of the tables that the engine is opened with, "" = none yet
	engine   Engine
	joint    *joint.Engine // of the engine that was used last, nil = none yet
	slots    chan struct{} // as many as slotsOf has sequences, full when all are taken; nil before the first stream
	slotsOf  engine.Draft
	counters counters
}

// New returns a server; Run opens the engine when there are tables.
func New(cfg Config) *Server {
	if cfg.Log == nil {
		cfg.Log = zap.NewNop()
	}
	s := &Server{cfg: cfg, opening: make(chan struct{}), tables: make(chan string, 1)}
	if cfg.TablesPath != "" {
		s.adopt(cfg.TablesPath, cfg.TablesDigest)
	}
	return s
}

// adopt makes the tables at path those of the engine. Only the first ones are: the engine stays open on them.
func (s *Server) adopt(path, digest string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.digest == "" {
		s.digest = digest
		s.tables <- path
	}
}

// Register adds the service.
func (s *Server) Register(g *grpc.Server) { tandemv1.RegisterDraftServiceServer(g, s) }

// Run opens the engine when there are tables and keeps it open until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	defer s.readers.Wait()
	select {
	case path := <-s.tables:
		e := s.cfg.Open(path)
		s.mu.Lock()
		s.engine = e
		s.mu.Unlock()
		close(s.opening)
		return e.Run(ctx)
	case <-ctx.Done():
		return nil
	}
}

// Next waits for an engine that was opened after the generation `after`, 0 = any, and returns it with its own.
func (s *Server) Next(ctx context.Context, after uint64) (engine.Draft, uint64, error) {
	select {
	case <-s.opening:
	case <-ctx.Done():
		return nil, 0, rpcerr.From(ctx.Err())
	}
	s.mu.Lock()
	e := s.engine
	s.mu.Unlock()
	return e.Next(ctx, after)
}

// keeper returns what keeps the engine open.
func (s *Server) keeper() (Engine, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.engine == nil {
		return nil, rpcerr.Unavailable("the draft has no tables of a target yet").WithRetryAfter(time.Second)
	}
	return s.engine, nil
}

// use returns the engine for a stream, which calls done at its end. A parked engine is opened, but not waited for:
// targets go on without a draft until it is there.
func (s *Server) use() (e *joint.Engine, keeper Engine, done func(), err error) {
	if keeper, err = s.keeper(); err != nil {
		return nil, nil, nil, err
	}
	open, done, err := keeper.TryUse()
	if err != nil {
		return nil, nil, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.joint == nil || s.joint.Draft != open {
		s.counters.passes += float64(s.joint.Counts().Passes)
		s.joint = joint.New(open)
	}
	return s.joint, keeper, done, nil
}

// Ready reports whether the worker takes part: it waits for tables as well as for work.
func (s *Server) Ready() bool {
	s.mu.Lock()
	waiting := s.digest == ""
	s.mu.Unlock()
	if waiting {
		return true
	}
	k, err := s.keeper()
	return err == nil && k.Ready()
}

// Drain makes the server refuse new streams.
func (s *Server) Drain() { s.draining.Store(true) }

// Lease has nothing to say to a draft.
func (s *Server) Lease(*tandemv1.Lease) {}

// openWait is how long GetDraft waits for an engine that is being opened.
const openWait = 5 * time.Second

// GetDraft implements DraftService.
func (s *Server) GetDraft(ctx context.Context, m *tandemv1.GetDraftRequest) (*tandemv1.GetDraftResponse, error) {
	if s.draining.Load() {
		return nil, rpcerr.Draining
	}
	shape := &s.cfg.Shape
	switch {
	case int(m.TargetHidden) != shape.Hidden:
		return nil, rpcerr.ModelMismatch.With("the draft is for a target of width %d, this one has %d",
			shape.Hidden, m.TargetHidden)
	case shape.Vocab > 0 && int(m.TargetVocab) != shape.Vocab:
		return nil, rpcerr.ModelMismatch.With("the draft is for a vocabulary of %d, the target has %d",
			shape.Vocab, m.TargetVocab)
	case shape.TokenizerDigest != "" && m.TokenizerDigest != "" && m.TokenizerDigest != shape.TokenizerDigest:
		return nil, rpcerr.ModelMismatch.With("the draft's tokenizer is %.12s, the target's %.12s",
			shape.TokenizerDigest, m.TokenizerDigest)
	}
	for _, layer := range shape.CaptureLayers {
		if layer >= m.TargetLayers {
			return nil, rpcerr.ModelMismatch.With("the draft reads layer %d, the target has %d layers", layer, m.TargetLayers)
		}
	}
	s.mu.Lock()
	digest := s.digest
	s.mu.Unlock()
	if digest == "" {
		path, ok := s.cfg.Assets.Cached(ctx, m.TablesDigest)
		if !ok {
			return &tandemv1.GetDraftResponse{WorkerId: s.cfg.WorkerID, NeedsTables: true, DraftDigest: shape.Digest}, nil
		}
		s.adopt(path, m.TablesDigest)
		s.mu.Lock()
		digest = s.digest
		s.mu.Unlock()
	}
	if digest != m.TablesDigest {
		return nil, rpcerr.ModelMismatch.With("the draft works with the embedding and head %.12s, the target's are %.12s",
			digest, m.TablesDigest)
	}
	return s.describe(ctx)
}

func (s *Server) describe(ctx context.Context) (*tandemv1.GetDraftResponse, error) {
	info, err := s.info(ctx)
	if err != nil {
		return nil, err
	}
	_, fuse, err := s.cfg.Assets.Fuse()
	if err != nil {
		s.cfg.Log.Warn("no projection to hand out", zap.NamedError(telemetry.KeyErr, err))
	}
	return &tandemv1.GetDraftResponse{
		WorkerId: s.cfg.WorkerID, Ready: true, CaptureLayers: info.CaptureLayers, BlockSize: int32(info.BlockSize),
		MaskToken: info.MaskToken, FusedWidth: int32(info.FeatureFused), FuseDigest: fuse, DraftDigest: s.cfg.Shape.Digest,
		MaxContext: int32(info.MaxContext),
	}, nil
}

// info is what the engine says of itself. A parked one is not opened for that; one that is being opened gets some time.
func (s *Server) info(ctx context.Context) (engine.Info, error) {
	ctx, cancel := context.WithTimeout(ctx, openWait)
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		k, err := s.keeper()
		if err == nil {
			if info, parked := k.Parked(); parked {
				return info, nil
			}
			var e engine.Draft
			var done func()
			if e, done, err = k.TryUse(); err == nil {
				defer done()
				return e.Info(), nil
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return engine.Info{}, err
		}
	}
}

// PutTables implements DraftService.
func (s *Server) PutTables(stream grpc.ClientStreamingServer[tandemv1.PutTablesRequest, tandemv1.PutTablesResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return rpcerr.FromRPC(err)
	}
	pending := first
	path, err := s.cfg.Assets.Receive(stream.Context(), first.Digest, first.TotalBytes, func() ([]byte, error) {
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
	s.adopt(path, first.Digest)
	return stream.SendAndClose(&tandemv1.PutTablesResponse{})
}

// GetFuse implements DraftService.
func (s *Server) GetFuse(_ *tandemv1.GetFuseRequest,
	stream grpc.ServerStreamingServer[tandemv1.GetFuseResponse]) error {
	path, digest, err := s.cfg.Assets.Fuse()
	if err != nil {
		return rpcerr.FailedPrecondition("the draft has no projection: %v", err)
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	stat, err := f.Stat()
	if err != nil {
		return err
	}
	m := &tandemv1.GetFuseResponse{Digest: digest, TotalBytes: stat.Size()}
	return transfer.Send(f, tensorwire.ChunkBytes, func(piece []byte) error {
		m.Chunk = piece
		err := stream.Send(m)
		m = &tandemv1.GetFuseResponse{}
		if err != nil {
			return rpcerr.FromRPC(err)
		}
		return nil
	})
}
