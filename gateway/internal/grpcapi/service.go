// Package grpcapi serves tandem.v1.InferenceService on the public gRPC port, with the same core as the HTTP endpoints.
package grpcapi

import (
	"context"
	"slices"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/apikey"
	"github.com/tandem-inference/tandem/gateway/internal/bodybudget"
	"github.com/tandem-inference/tandem/gateway/internal/metrics"
	"github.com/tandem-inference/tandem/gateway/internal/model"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/registry"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/tokenizer"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

// Config of the service.
type Config struct {
	StrictModel    bool
	RequestTimeout time.Duration
}

// Deps of the service.
type Deps struct {
	Turn    *turn.Service
	Cluster Cluster
	Targets Targets
	Metrics *metrics.Set // nil = none
	// Keys that callers must present; without any the service is open.
	Keys   *apikey.Ring
	Logger *zap.Logger // nil = none
	// Bodies bounds the memory of requests; nil = no bound.
	Bodies *bodybudget.Budget
	// Draining tells whether the gateway is shutting down.
	Draining func() bool
	// ScorerReady tells whether prompt compression can run.
	ScorerReady func() bool
}

// Cluster lists the workers.
type Cluster interface {
	Workers() []registry.Worker
}

// Targets are the workers that generate.
type Targets interface {
	// MaxContext is the longest context in tokens that they offer, 0 = unknown.
	MaxContext() int
	// Busy returns the slots in use and the slots in all of a worker; ok is false for one that does not generate.
	Busy(id string) (busy, slots int, ok bool)
}

// Service implements tandemv1.InferenceServiceServer.
type Service struct {
	tandemv1.UnimplementedInferenceServiceServer
	cfg         Config
	turn        *turn.Service
	cluster     Cluster
	targets     Targets
	metrics     *metrics.Set
	keys        *apikey.Ring
	log         *zap.Logger
	bodies      *bodybudget.Budget
	draining    func() bool
	scorerReady func() bool
}

// New returns the service.
func New(cfg Config, deps Deps) *Service {
	if deps.Logger == nil {
		deps.Logger = zap.NewNop()
	}
	return &Service{
		cfg: cfg, turn: deps.Turn, cluster: deps.Cluster, targets: deps.Targets, metrics: deps.Metrics, keys: deps.Keys,
		log: deps.Logger, bodies: deps.Bodies, draining: deps.Draining, scorerReady: deps.ScorerReady,
	}
}

// served returns the model a request names.
func (s *Service) served(ctx context.Context, name string) (*model.Model, error) {
	m, err := s.turn.Await(ctx)
	if err != nil {
		return nil, toRPC(err)
	}
	if s.cfg.StrictModel && name != "" && name != m.Name {
		return nil, rpcerr.UnknownModel.With("the model %q is not served here", name)
	}
	return m, nil
}

// Tokenize implements the service.
func (s *Service) Tokenize(ctx context.Context, req *tandemv1.TokenizeRequest) (*tandemv1.TokenizeResponse, error) {
	m, err := s.served(ctx, req.GetModel())
	if err != nil {
		return nil, err
	}
	if err := warnUnread(ctx, req); err != nil {
		return nil, err
	}
	if req.GetChat() != nil {
		t := &turn.Request{}
		if err := s.chat(req.GetChat(), nil, t); err != nil {
			return nil, err
		}
		r, err := s.turn.Render(m, t)
		if err != nil {
			return nil, toRPC(err)
		}
		return &tandemv1.TokenizeResponse{Ids: r.Tokens}, nil
	}
	if n := len(req.GetText()); n > turn.MaxTokenize {
		return nil, rpcerr.InvalidArgument("text", "has %d bytes, at most %d are tokenised at a time", n, turn.MaxTokenize)
	}
	return &tandemv1.TokenizeResponse{Ids: m.Tokenizer.Encode(req.GetText(), tokenizer.Options{ParseSpecial: true})}, nil
}

// Detokenize implements the service.
func (s *Service) Detokenize(ctx context.Context, req *tandemv1.DetokenizeRequest) (*tandemv1.DetokenizeResponse,
	error) {
	m, err := s.served(ctx, req.GetModel())
	if err != nil {
		return nil, err
	}
	if n := len(req.GetIds()); n > turn.MaxTokenize {
		return nil, rpcerr.InvalidArgument("ids", "has %d tokens, at most %d are detokenised at a time", n, turn.MaxTokenize)
	}
	if err := warnUnread(ctx, req); err != nil {
		return nil, err
	}
	if err := checkTokens("ids", req.GetIds(), m.Tokenizer.VocabSize()); err != nil {
		return nil, err
	}
	return &tandemv1.DetokenizeResponse{Text: m.Tokenizer.Decode(req.GetIds(), true)}, nil
}

func checkTokens(field string, ids []int32, vocab int) error {
	for _, id := range ids {
		if id < 0 || int(id) >= vocab {
			return rpcerr.InvalidArgument(field, "%d is not a token id below %d", id, vocab)
		}
	}
	return nil
}

// warnUnread tells the caller of fields that nothing reads.
func warnUnread(ctx context.Context, req proto.Message) error {
	if paths := unread(req); len(paths) > 0 {
		return grpc.SetHeader(ctx, metadata.Pairs("x-tandem-warning", turn.FieldsIgnored(paths)))
	}
	return nil
}

// ListModels implements the service.
func (s *Service) ListModels(context.Context, *tandemv1.ListModelsRequest) (*tandemv1.ListModelsResponse, error) {
	out := &tandemv1.ListModelsResponse{}
	if m, err := s.turn.Model(); err == nil {
		n := m.Limit(s.targets.MaxContext())
		speculative := false
		for _, w := range s.cluster.Workers() {
			speculative = speculative || (w.State == registry.StateReady && len(w.Heartbeat.GetAttached()) > 0)
		}
		out.Models = append(out.Models,
			&tandemv1.Model{Id: m.Name, Arch: m.Arch, MaxContext: int32(n), CreatedUnix: m.Created,
				Speculative: speculative, Compression: s.scorerReady != nil && s.scorerReady()})
	}
	return out, nil
}

// GetCluster implements the service.
func (s *Service) GetCluster(context.Context, *tandemv1.GetClusterRequest) (*tandemv1.GetClusterResponse, error) {
	out := &tandemv1.GetClusterResponse{}
	for _, w := range s.cluster.Workers() {
		reg := w.Registration
		e := &tandemv1.Worker{
			Id: w.ID, Role: reg.GetRole(), Address: reg.GetAddress(), Backend: reg.GetBackend(), Device: reg.GetDevice(),
			Model: reg.GetModel().GetName(), State: w.State, MaxContext: reg.GetLimits().GetMaxContext(),
			Lanes: reg.GetLimits().GetLanes(), LanesBusy: w.Heartbeat.GetLanesBusy(),
			LastHeartbeatMs: time.Since(w.LastHeartbeat).Milliseconds(), RttMs: w.Heartbeat.GetRttMs(),
			Version: reg.GetVersion(), Drafts: w.Drafts, Contract: reg.GetContract(), RemoteAddress: reg.GetRemoteAddress(),
		}
		if busy, _, ok := s.targets.Busy(w.ID); ok {
			e.LanesBusy = int32(busy)
		}
		out.Workers = append(out.Workers, e)
	}
	return out, nil
}

// requestID takes the caller's x-request-id if it has the right form, else makes one.
func requestID(ctx context.Context) string {
	id := ""
	if v := metadata.ValueFromIncomingContext(ctx, "x-request-id"); len(v) > 0 {
		id = v[0]
	}
	return turn.RequestID(id)
}

// public are the reasons that callers see as they are.
var public = []error{rpcerr.ContextLength, rpcerr.UnknownModel, rpcerr.QueueFull, rpcerr.NoWorker, rpcerr.Draining}

// toRPC returns what callers are told of an error: without causes, and without the reasons that only HTTP shows.
func toRPC(err error) error {
	e := reqerr.From(err)
	if slices.ContainsFunc(public, e.Is) {
		return e.WithCause(nil)
	}
	field, text := "", e.Message()
	if v := e.Violations(); len(v) > 0 {
		field, text = v[0].Field, v[0].Message
	}
	switch e.Code() {
	case codes.Canceled:
		return context.Canceled
	case codes.DeadlineExceeded:
		return context.DeadlineExceeded
	case codes.Unavailable: // no worker became free in time
		return rpcerr.NoWorker.With("%s", text).WithRetryAfter(e.RetryAfter())
	case codes.NotFound:
		return rpcerr.NotFound("%s", text)
	case codes.InvalidArgument:
		return rpcerr.InvalidArgument(field, "%s", text)
	}
	return rpcerr.Internal("%s", text)
}
