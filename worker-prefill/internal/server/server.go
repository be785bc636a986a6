// Package server is the scorer's gRPC service: it scores prompts and answers which parts to keep.
package server

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/worker-prefill/internal/pflash"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
)

// Engines yields the engine; *workernode.Keeper[engine.Scorer] implements it.
type Engines interface {
	// Use returns the engine for a request, which calls done at its end; it waits for an engine that is parked.
	Use(ctx context.Context) (e engine.Scorer, done func(), err error)
	Report(engine engine.Engine, err error)
}

// Server implements PrefillService. The engine scores one prompt at a time; others wait for it, as many as there
// are slots.
type Server struct {
	tandemv1.UnimplementedPrefillServiceServer
	engines  Engines
	measure  metric.Float64Histogram // of scoring; nil = nobody
	log      *zap.Logger
	slots    chan struct{}
	draining atomic.Bool

	mu       sync.Mutex
	counters counters
}

type counters struct {
	requests, failed, tokens, kept, seconds float64
}

// scoreBounds are in seconds, from a short prompt on a card to the longest on processors.
var scoreBounds = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}

// NewMeasure makes the histogram of New.
func NewMeasure(p metric.MeterProvider) (metric.Float64Histogram, error) {
	return p.Meter("github.com/tandem-inference/tandem/worker-prefill").Float64Histogram("tandem.prefill.score",
		metric.WithUnit("s"), metric.WithExplicitBucketBoundaries(scoreBounds...),
		metric.WithDescription("Time to score a prompt."))
}

// New returns a server that takes so many requests at a time.
func New(engines Engines, slots int, measure metric.Float64Histogram, log *zap.Logger) *Server {
	if log == nil {
		log = zap.NewNop()
	}
	return &Server{engines: engines, measure: measure, log: log, slots: make(chan struct{}, slots)}
}

// Drain makes the server refuse new requests.
func (s *Server) Drain() { s.draining.Store(true) }

// Compress implements PrefillService.
func (s *Server) Compress(ctx context.Context,
	m *tandemv1.CompressRequest) (reply *tandemv1.CompressResponse, err error) {
	spent := spent{began: time.Now()}
	defer func() { s.logRequest(ctx, m, reply, &spent, err) }()
	if s.draining.Load() {
		return nil, rpcerr.Draining
	}
	engine, done, err := s.engines.Use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	spent.wait = time.Since(spent.began)
	info := engine.Info()
	if err := check(m, info); err != nil {
		return nil, err
	}
	trace.SpanFromContext(ctx).SetAttributes(attribute.String(telemetry.AttrRequestID, m.GetRequestId()),
		attribute.Int(telemetry.AttrTokens, len(m.GetTokens())))
	select {
	case s.slots <- struct{}{}:
	default:
		return nil, rpcerr.NoSlot.With("all %d slots of the scorer are taken", cap(s.slots)).WithRetryAfter(time.Second)
	}
	defer func() { <-s.slots }()

	count := int(m.QueryTokens)
	if count == 0 {
		count = pflash.DefaultQuery
	}
	query := span(m.Query)
	start := time.Now()
	var scores []float32
	counted := 0.0
	if scoring(m) {
		if scores, err = s.score(ctx, engine, m, pflash.QueryRows(len(m.Tokens), query, count), &counted); err != nil {
			spent.score = time.Since(start)
			s.account(m, nil, counted, spent.score, err)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			s.engines.Report(engine, err)
			return nil, err
		}
	}
	elapsed := time.Since(start)
	spent.score = elapsed
	if s.measure != nil && scores != nil {
		s.measure.Record(ctx, elapsed.Seconds())
	}
	if query.Len() <= 0 {
		query = pflash.Span{First: 0, Last: len(m.Tokens)}
	}
	reply = &tandemv1.CompressResponse{ScoreMs: float64(elapsed.Microseconds()) / 1000}
	for _, seg := range m.Segments {
		kept := pflash.Select(m.Tokens, scores, pflash.Segment{
			Span: span(seg.Span), KeepRatio: float32(seg.KeepRatio), MinChunks: int(seg.MinChunks),
		}, query, pflash.Options{Chunk: int(m.ChunkTokens), Pool: int(m.PoolTokens)})
		out := &tandemv1.KeptSegment{}
		for _, k := range kept {
			out.Kept = append(out.Kept, &tandemv1.Span{First: int32(k.First), Last: int32(k.Last)})
		}
		reply.Segments = append(reply.Segments, out)
	}
	s.account(m, reply, counted, elapsed, nil)
	return reply, nil
}

// score scores a request's prompt. Its tokens count in the heartbeats while the engine works, each by the share of the
// layers that it has passed: counted is how many did.
func (s *Server) score(ctx context.Context, e engine.Scorer, m *tandemv1.CompressRequest, rows []int32,
	counted *float64) ([]float32, error) {
	all, err := e.Score(ctx, []engine.Prompt{{IDs: m.Tokens, QueryRows: rows}}, m.Rotated, func(done, total uint64) {
		s.mu.Lock()
		defer s.mu.Unlock()
		read := float64(len(m.Tokens)) * float64(done) / float64(max(total, 1))
		s.counters.tokens += read - *counted
		*counted = read
	})
	if err != nil {
		return nil, err
	}
	if len(all) != 1 || len(all[0]) != len(m.Tokens) {
		return nil, rpcerr.Internal("engine returned scores of %d prompts, not of one of %d tokens", len(all), len(m.Tokens))
	}
	return all[0], nil
}

// spent is where the time of a request went.
type spent struct {
	began       time.Time
	wait, score time.Duration // for the engine, in it
}

// logRequest writes the line of a request that is over: at warn when the scorer failed, else at info.
func (s *Server) logRequest(ctx context.Context, m *tandemv1.CompressRequest, reply *tandemv1.CompressResponse,
	t *spent, err error) {
	kept := 0
	for _, seg := range reply.GetSegments() {
		for _, k := range seg.GetKept() {
			kept += int(k.GetLast() - k.GetFirst())
		}
	}
	level, outcome := zap.InfoLevel, "ok"
	switch {
	case ctx.Err() != nil:
		outcome = "cancelled"
	case rpcerr.Code(err) == codes.InvalidArgument, rpcerr.Code(err) == codes.ResourceExhausted:
		outcome = "refused"
	case err != nil:
		level, outcome = zap.WarnLevel, "failed"
	}
	id := m.GetRequestId()
	fields := []zap.Field{
		zap.String(telemetry.KeyRequestID, id[:min(len(id), mostID)]), telemetry.TraceField(ctx),
		zap.String(telemetry.KeyOutcome, outcome), zap.Int(telemetry.KeyPrompt, len(m.GetTokens())),
		zap.Int(telemetry.KeyTokens, kept), zap.Int64(telemetry.KeyWaitMS, t.wait.Milliseconds()),
		zap.Int64(telemetry.KeyScoreMS, t.score.Milliseconds()),
		zap.Int64(telemetry.KeyDurationMS, time.Since(t.began).Milliseconds()),
	}
	if err != nil && outcome != "cancelled" {
		fields = append(fields, zap.NamedError(telemetry.KeyErr, err))
	}
	s.log.Log(level, "request ended", fields...)
}

// scoring reports whether any segment is long enough to need scores.
func scoring(m *tandemv1.CompressRequest) bool {
	for _, seg := range m.Segments {
		if pflash.NeedsScores(span(seg.Span)) {
			return true
		}
	}
	return false
}

func span(s *tandemv1.Span) pflash.Span {
	return pflash.Span{First: int(s.GetFirst()), Last: int(s.GetLast())}
}

const (
	// mostID bounds a request's id, which is for logs, in bytes.
	mostID = 256
	// mostQuery bounds the rows that ask: each of them looks at the whole prompt.
	mostQuery = 1024
)

// check says which field of a request cannot work.
func check(m *tandemv1.CompressRequest, info engine.Info) error {
	n := len(m.Tokens)
	switch {
	case n == 0:
		return rpcerr.InvalidArgument("tokens", "is empty")
	case n > info.MaxContext:
		return rpcerr.ResourceExhausted("tokens: the prompt has %d tokens, the scorer takes %d", n, info.MaxContext)
	case len(m.RequestId) > mostID:
		return rpcerr.InvalidArgument("request_id", "has %d bytes, at most %d are allowed", len(m.RequestId), mostID)
	case m.QueryTokens < 0 || m.QueryTokens > mostQuery:
		return rpcerr.InvalidArgument("query_tokens", "must be in 0..%d, got %d", mostQuery, m.QueryTokens)
	case m.ChunkTokens < 0:
		return rpcerr.InvalidArgument("chunk_tokens", "must be >= 0, got %d", m.ChunkTokens)
	case m.PoolTokens < 0:
		return rpcerr.InvalidArgument("pool_tokens", "must be >= 0, got %d", m.PoolTokens)
	}
	if q := m.Query; q != nil && (q.First < 0 || q.Last < q.First || int(q.Last) > n) {
		return rpcerr.InvalidArgument("query", "[%d, %d) is not within the %d tokens", q.First, q.Last, n)
	}
	for i, t := range m.Tokens {
		if t < 0 || int(t) >= info.Vocab {
			return rpcerr.InvalidArgument("tokens", "token %d at %d is outside the vocabulary of %d", t, i, info.Vocab)
		}
	}
	end := int32(0)
	for i, seg := range m.Segments {
		first, last := seg.GetSpan().GetFirst(), seg.GetSpan().GetLast()
		switch {
		case first < end || last <= first || int(last) > n:
			return rpcerr.InvalidArgument("segments",
				"segment %d is [%d, %d): segments are ascending, disjoint, not empty, within %d tokens", i, first, last, n)
		case !(seg.KeepRatio > 0) || seg.KeepRatio > 1 || math.IsNaN(seg.KeepRatio):
			return rpcerr.InvalidArgument("segments.keep_ratio", "segment %d: must be in (0, 1], got %v", i, seg.KeepRatio)
		case seg.MinChunks < 0:
			return rpcerr.InvalidArgument("segments.min_chunks", "segment %d: must be >= 0, got %d", i, seg.MinChunks)
		}
		end = last
	}
	return nil
}

// account counts a request that is over; counted of its tokens are counted already.
func (s *Server) account(
	m *tandemv1.CompressRequest, reply *tandemv1.CompressResponse, counted float64, d time.Duration,
	err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &s.counters
	c.requests++
	c.tokens += float64(len(m.Tokens)) - counted
	c.seconds += d.Seconds()
	if err != nil {
		c.failed++
	}
	for _, seg := range reply.GetSegments() {
		for _, k := range seg.Kept {
			c.kept += float64(k.Last - k.First)
		}
	}
}

// Heartbeat fills in slots and counters.
func (s *Server) Heartbeat(h *tandemv1.Heartbeat) {
	s.mu.Lock()
	c := s.counters
	s.mu.Unlock()
	h.LanesBusy = int32(len(s.slots))
	h.Counters = map[string]float64{
		"requests": c.requests, "requests_failed": c.failed, "scored_tokens": c.tokens, "kept_tokens": c.kept,
		"score_seconds": c.seconds,
	}
}
