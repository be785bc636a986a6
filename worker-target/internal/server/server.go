// Package server is the target worker's gRPC service: it checks requests, gives them slots and reports on them.
package server

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"github.com/tandem-inference/tandem/worker-target/internal/constraint"
	"github.com/tandem-inference/tandem/worker-target/internal/decode"
	"github.com/tandem-inference/tandem/worker-target/internal/decode/output"
	"github.com/tandem-inference/tandem/worker-target/internal/drafts"
	"github.com/tandem-inference/tandem/worker-target/internal/inflight"
	"github.com/tandem-inference/tandem/worker-target/internal/peers"
	"github.com/tandem-inference/tandem/worker-target/internal/preempt"
	"github.com/tandem-inference/tandem/worker-target/internal/prefix"
	"github.com/tandem-inference/tandem/worker-target/internal/schedule"
	"github.com/tandem-inference/tandem/worker-target/internal/watch"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// Engines yields the engine; *workernode.Keeper[engine.Target] implements it.
type Engines interface {
	Engine() (engine.Target, error)
	// Use is Engine for a request, which calls done at its end; it waits for an engine that is parked.
	Use(ctx context.Context) (e engine.Target, done func(), err error)
	Report(engine engine.Engine, err error)
}

// Deps of a server.
type Deps struct {
	Engines     Engines
	Drafts      *drafts.Manager // nil = no speculation
	Constraints *constraint.Factory
	Model       *auto.Model
	// MaxTokenGap is how long a stream may wait between two tokens while prompts are read; 0 = schedule.Options says.
	MaxTokenGap time.Duration
	// Prefixes keeps the states of prompts; nil = none is kept.
	Prefixes *prefix.Cache
	// Peers fetches states of prompts from other workers; nil = none is fetched, and none is sent to them.
	Peers *peers.Client
	// Contract returns the contract id of an engine; nil = requests are not told.
	Contract func(engine.Info) string
	Log      *zap.Logger
}

// Server implements TargetService.
type Server struct {
	tandemv1.UnimplementedTargetServiceServer
	workerID string
	deps     Deps
	newSlot  func() *decode.Slot
	members  *preempt.Pool // the requests that run
	feed     *watch.Feed   // of those who watch them
	draining atomic.Bool
	ahead    ahead
	sender   *peers.Server // nil = no states are sent
	// aheadSlot reads ahead.
	aheadSlot *decode.Slot

	mu       sync.Mutex
	counters counters
	// What the engine counts; behind mu, too.
	engineTotals engine.Totals
	held         bool          // the last heartbeat found the draft held back
	engine       engine.Target // the one that schedule was made for
	schedule     *schedule.Engine
	slots        *slots        // of the sequences of one engine, nil before the first request
	slotsOf      engine.Target // that engine
}

// managed adapts the manager's links to what slots use.
type managed struct{ *drafts.Manager }

func (m managed) Open(ctx context.Context, id string, ring *drafts.Ring, capture *drafts.Capture, vocab int,
	held bool) decode.Drafter {
	return m.Manager.Open(ctx, id, ring, capture, vocab, held)
}

// New returns a server for as many requests at a time as the engine has sequences.
func New(workerID string, cfg decode.Config, deps Deps) *Server {
	if deps.Log == nil {
		deps.Log = zap.NewNop()
	}
	s := &Server{workerID: workerID, deps: deps, members: preempt.New(), feed: watch.New()}
	cfg.Members, cfg.Watch = s.members, s.feed
	var d decode.Drafts
	if deps.Drafts != nil {
		d = managed{deps.Drafts}
	}
	if deps.Prefixes != nil {
		cfg.Prefixes, cfg.Readings = deps.Prefixes, inflight.New()
	}
	s.ahead.read, s.aheadSlot = s.readAhead, decode.NewSlot(cfg, deps.Model, d)
	s.newSlot = func() *decode.Slot { return decode.NewSlot(cfg, deps.Model, d) }
	if deps.Peers != nil {
		s.sender = peers.NewServer(peers.Deps{
			Prefixes: deps.Prefixes, Engine: s.sending, Busy: func() bool { return s.Busy() > 0 }, Isolation: checkIsolation,
		})
	}
	return s
}

// scheduled returns the engine as the slot of a request uses it: with the steps of all requests composed, where that
// gains anything.
func (s *Server) scheduled(engine engine.Target, r schedule.Request) engine.Target {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.engine != engine {
		s.engine, s.schedule = engine, nil
		if engine.Info().Concurrent {
			s.deps.Prefixes.Use(engine)
		} else {
			s.schedule = schedule.New(engine, schedule.Options{Costs: s.deps.Model, MaxTokenGap: s.deps.MaxTokenGap})
			s.deps.Prefixes.Use(s.schedule)
		}
	}
	if s.schedule == nil {
		return engine
	}
	return s.schedule.For(r)
}

// forgetLost forgets the states of an engine that was parked or lost, so that no heartbeat names them.
func (s *Server) forgetLost() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.engine == nil {
		return
	}
	// An engine that is not the present one will never be it again.
	if now, err := s.deps.Engines.Engine(); err != nil || now != s.engine {
		s.engine, s.schedule = nil, nil
		s.deps.Prefixes.Forget()
	}
}

// contract is the contract id of an engine, empty when requests are not told.
func (s *Server) contract(e engine.Target) string {
	if s.deps.Contract == nil {
		return ""
	}
	return s.deps.Contract(e.Info())
}

// sending returns the engine whose states are sent to peers, and its contract id.
func (s *Server) sending() (info engine.Info, contract string, err error) {
	if s.draining.Load() {
		return info, "", rpcerr.Draining
	}
	e, err := s.deps.Engines.Engine()
	if err != nil {
		return info, "", err
	}
	return e.Info(), s.contract(e), nil
}

// Register adds the services.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	tandemv1.RegisterTargetServiceServer(r, s)
	if s.sender != nil {
		tandemv1.RegisterPeerServiceServer(r, s.sender)
	}
}

// space is the namespace of states in the prefix cache.
func (s *Server) space(e engine.Target, isolation string) string {
	return prefix.Space(s.contract(e), isolation)
}

// Drain makes the server refuse new requests. Watches end: they would last longer than the last request.
func (s *Server) Drain() {
	s.draining.Store(true)
	s.feed.Close()
}

// places returns the slots of an engine. One that was opened again has slots of its own, perhaps of another number:
// requests of the engine before end with it.
func (s *Server) places(e engine.Target) (*slots, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slotsOf == e {
		return s.slots, nil
	}
	// A request may come here late, with an engine that is lost.
	if now, err := s.deps.Engines.Engine(); err != nil || now != e {
		return nil, rpcerr.EngineLost.With("the engine was lost before the request got a slot").WithRetryAfter(time.Second)
	}
	s.slots, s.slotsOf = newSlots(e.Info().MaxSequences, s.newSlot), e
	return s.slots, nil
}

// Busy is the number of slots in use.
func (s *Server) Busy() int {
	s.mu.Lock()
	slots := s.slots
	s.mu.Unlock()
	if slots == nil {
		return 0
	}
	return slots.busy()
}

// Decode implements TargetService.
func (s *Server) Decode(m *tandemv1.DecodeRequest, stream tandemv1.TargetService_DecodeServer) (err error) {
	arrived := time.Now()
	ran := false
	defer func() {
		if !ran {
			s.logRefused(stream.Context(), m, arrived, err)
		}
	}()
	if s.draining.Load() {
		return rpcerr.Draining
	}
	engine, done, err := s.deps.Engines.Use(stream.Context())
	if err != nil {
		return err
	}
	defer done()
	req, err := check(m, engine.Info())
	if err != nil {
		return err
	}
	if req.Constraint, err = s.deps.Constraints.New(m.Guide, constraint.Options{Vocab: engine.Info().Vocab, Max: req.Max,
		Stop: req.Stop}); err != nil {
		return err
	}
	req.Arrived = arrived
	slots, err := s.places(engine)
	if err != nil {
		return err
	}
	place := slots.take()
	if place == nil {
		return rpcerr.NoSlot.With("all %d slots are taken", slots.total).WithRetryAfter(100 * time.Millisecond)
	}
	// The slot goes back before the caller sees the end, who then finds it free, and before one that does not read
	// holds it up.
	defer place.end()
	req.Place = place
	out := &sink{stream: stream}
	s.ahead.begin(m.GetCache().GetIsolation(), m.PromptTokens)
	defer s.ahead.end()
	admitted := &tandemv1.Admitted{WorkerId: s.workerID, Contract: s.contract(engine)}
	req.Reuse.Space = s.space(engine, m.GetCache().GetIsolation())
	req.Reuse.Peer = s.deps.Peers.At(m.GetPeer(), admitted.Contract, m.GetCache().GetIsolation())
	if err := out.send(
		&tandemv1.DecodeResponse{Event: &tandemv1.DecodeResponse_Admitted{Admitted: admitted}}); err != nil {
		return err
	}
	ctx := stream.Context()
	trace.SpanFromContext(ctx).SetAttributes(attribute.String(telemetry.AttrRequestID, req.ID),
		attribute.Int(telemetry.AttrTokens, len(req.Prompt)))
	var stats decode.Stats
	ran = true
	result, err := place.slot.Run(ctx, s.scheduled(engine, schedule.Request{
		Key: m.FairnessKey, Priority: int(m.Priority), Prompt: len(m.PromptTokens) + len(m.CommittedTokens),
		Replay: len(m.CommittedTokens) > 0,
	}), req, out, &stats)
	place.end()
	s.account(&stats, err)
	s.log(ctx, req, &stats, result, err)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.deps.Engines.Report(engine, err)
		if now, _ := s.deps.Engines.Engine(); now != engine && rpcerr.Code(err) != codes.Internal {
			// Another request's fault ended the engine, or it died: this one may be run again elsewhere.
			return rpcerr.EngineLost.WithCause(err)
		}
		return err
	}
	end := &tandemv1.Finished{Reason: result.Reason, CloseKind: result.CloseKind, Timings: stats.Timings(arrived)}
	if result.StopToken >= 0 {
		end.StopToken = &result.StopToken
	}
	return out.send(&tandemv1.DecodeResponse{Event: &tandemv1.DecodeResponse_Finished{Finished: end}})
}

// log writes the one line of a finished request.
func (s *Server) log(ctx context.Context, req *decode.Request, stats *decode.Stats, result decode.Result, err error) {
	outcome := result.Reason.String()
	level := zap.InfoLevel
	switch {
	case ctx.Err() != nil:
		outcome = "cancelled"
	case err != nil:
		outcome = "failed"
		level = zap.WarnLevel
	}
	fields := []zap.Field{
		zap.String(telemetry.KeyRequestID, req.ID), telemetry.TraceField(ctx), zap.String(telemetry.KeyOutcome, outcome),
		zap.String(telemetry.KeyMode, strings.ToLower(strings.TrimPrefix(req.Mode.String(), "SPECULATION_MODE_"))),
		zap.Int(telemetry.KeyPrompt, stats.PrefillTokens), zap.Int(telemetry.KeyCached, stats.CachedTokens),
		zap.Int(telemetry.KeyTokens, stats.Emitted), zap.Int(telemetry.KeyRounds, stats.Steps),
		zap.Int(telemetry.KeyDrafted, stats.Drafted), zap.Int(telemetry.KeyAccepted, stats.Accepted),
		zap.Int(telemetry.KeyLookedUp, stats.LookDrafted), zap.Int(telemetry.KeyLate, stats.Late),
		zap.Bool(telemetry.KeyDegraded, stats.Degraded),
		zap.Int64(telemetry.KeyWaitMS, stats.Wait.Milliseconds()),
		zap.Int64(telemetry.KeyRestoreMS, stats.Restore.Milliseconds()),
		zap.Int64(telemetry.KeyPrefillMS, stats.Prefill.Milliseconds()),
		zap.Int64(telemetry.KeyTTFTMS, stats.FirstToken.Milliseconds()),
		zap.Int64(telemetry.KeyDecodeMS, stats.Decode.Milliseconds()),
		zap.Int64(telemetry.KeyVerifyMS, stats.Verify.Milliseconds()),
		zap.Int64(telemetry.KeyDraftWaitMS, stats.DraftWait.Milliseconds()),
		zap.Int64(telemetry.KeyDurationMS, time.Since(req.Arrived).Milliseconds()),
	}
	if stats.Preemptions > 0 {
		fields = append(fields, zap.Int(telemetry.KeyPreemptions, stats.Preemptions),
			zap.Int(telemetry.KeyReadAgain, stats.ReadAgain))
	}
	if err != nil && !errors.Is(err, context.Canceled) && ctx.Err() == nil {
		fields = append(fields, zap.NamedError(telemetry.KeyErr, err))
	}
	s.deps.Log.Log(level, "request ended", fields...)
}

// mostID bounds the id of a request in a log, in bytes.
const mostID = 256

// logRefused writes the line of a request that did not reach a slot: at warn when the worker is at fault.
func (s *Server) logRefused(ctx context.Context, m *tandemv1.DecodeRequest, arrived time.Time, err error) {
	level, outcome := zap.InfoLevel, "refused"
	switch {
	case ctx.Err() != nil:
		outcome = "cancelled"
	case rpcerr.Code(err) == codes.Internal:
		level, outcome = zap.WarnLevel, "failed"
	}
	id := m.GetRequestId()
	s.deps.Log.Log(level, "request ended", zap.String(telemetry.KeyRequestID, id[:min(len(id), mostID)]),
		telemetry.TraceField(ctx), zap.String(telemetry.KeyOutcome, outcome),
		zap.Int(telemetry.KeyPrompt, len(m.GetPromptTokens())),
		zap.Int64(telemetry.KeyDurationMS, time.Since(arrived).Milliseconds()), zap.NamedError(telemetry.KeyErr, err))
}

// sink sends events; its messages are used again, Send is done with them when it returns.
type sink struct {
	stream    tandemv1.TargetService_DecodeServer
	committed tandemv1.Committed
	event     tandemv1.DecodeResponse_Committed
	response  tandemv1.DecodeResponse
}

func (s *sink) send(m *tandemv1.DecodeResponse) error { return rpcerr.FromRPC(s.stream.Send(m)) }

func (s *sink) Prefilled(p output.Prefill) error {
	return s.send(&tandemv1.DecodeResponse{Event: &tandemv1.DecodeResponse_Prefilled{Prefilled: &tandemv1.Prefilled{
		Tokens: int32(p.Tokens), CachedTokens: int32(p.Cached), SavedTokens: int32(p.Saved), Logprobs: p.Logprobs,
	}}})
}

func (s *sink) Committed(tokens []int32, logprobs []*tandemv1.PositionLogprobs, closed tandemv1.CloseKind) error {
	s.committed.Tokens, s.committed.Logprobs, s.committed.CloseKind = tokens, logprobs, closed
	s.event.Committed = &s.committed
	s.response.Event = &s.event
	return s.send(&s.response)
}
