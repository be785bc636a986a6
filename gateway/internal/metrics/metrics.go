// Package metrics holds the gateway's instruments. Names map to Prometheus as docs/style.md §10 says: "tandem.ttft"
// with unit s is tandem_ttft_seconds. Labels are bounded sets; nothing of a request's content is one.
package metrics

import (
	"context"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/cluster"
	"github.com/tandem-inference/tandem/services/registry"
	"github.com/tandem-inference/tandem/services/shared"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// Outcomes of requests.
const (
	OutcomeOK          = "ok"
	OutcomeClientError = "client_error"
	OutcomeServerError = "server_error"
	OutcomeCancelled   = "cancelled"
)

// Bounds of the histograms. Times reach from a fast token to a long agent turn; rates from a laptop to a batch
// of cards.
var (
	secondsBounds   = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}
	intervalBounds  = []float64{.0005, .001, .002, .004, .008, .015, .03, .06, .12, .25, .5, 1, 5}
	tokenRateBounds = []float64{1, 5, 10, 20, 30, 50, 75, 100, 150, 200, 300, 500, 1000, 2000, 5000, 10000, 50000}
	acceptBounds    = []float64{1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 16}
)

// Set is all instruments of the gateway.
type Set struct {
	requests, promptTokens, generated, drafted, accepted, verifySteps                metric.Int64Counter
	pflashRequests, pflashInput, pflashKept, retries, contractChanges, thinkingClose metric.Int64Counter
	toolCalls, toolErrors, violations                                                metric.Int64Counter
	running                                                                          metric.Int64UpDownCounter
	queue, ttft, interToken, tokenGap, request                                       metric.Float64Histogram
	prefillRate, decodeRate, acceptLength                                            metric.Float64Histogram
	genRequest, genTTFT, genPerToken                                                 metric.Float64Histogram
}

// Sources are read when metrics are collected.
type Sources struct {
	QueueDepth func() int
	Workers    func() []registry.Worker
	// Busy gives slots in use and in all of a worker.
	Busy func(id string) (busy, slots int, ok bool)
	// Tokens gives tokens of context reserved and in all of a worker.
	Tokens func(id string) (used, total int, ok bool)
	// Routed counts how requests found their targets.
	Routed func() cluster.Routed
	// Store is the way to what gateways share; nil = this one is alone.
	Store *shared.Link
}

// New makes the instruments. Instruments of a no-op provider cost nothing.
func New(provider metric.MeterProvider, src Sources) (*Set, error) {
	m := provider.Meter("tandem")
	b := &builder{m: m}
	s := &Set{
		requests:     b.counter("tandem.requests", "Finished requests."),
		promptTokens: b.counter("tandem.prompt.tokens", "Prompt tokens, before compression."),
		generated:    b.counter("tandem.generated.tokens", "Generated tokens."),
		drafted:      b.counter("tandem.draft.tokens", "Draft tokens proposed, by what proposed them."),
		accepted:     b.counter("tandem.accepted.tokens", "Draft tokens accepted, by what proposed them."),
		verifySteps: b.counter("tandem.verify.steps",
			"Steps of the target that commit tokens, by mode: speculative for requests for which anything was "+
				"proposed, else plain."),
		pflashRequests: b.counter("tandem.pflash.requests", "Requests that asked for prompt compression, by result."),
		pflashInput:    b.counter("tandem.pflash.input.tokens", "Prompt tokens before compression, of compressed requests."),
		pflashKept:     b.counter("tandem.pflash.kept.tokens", "Prompt tokens after compression, of compressed requests."),
		retries:        b.counter("tandem.retries", "Generations moved to another or the restarted worker."),
		contractChanges: b.counter("tandem.contract.changes",
			"Generations moved to a worker with another contract id (--failover-any): other bits."),
		thinkingClose: b.counter("tandem.thinking.close", "How reasoning ended."),
		toolCalls:     b.counter("tandem.tool.calls", "Tool calls of models, by the format in which they were written."),
		toolErrors:    b.counter("tandem.tool.parse.errors", "Choices with markup of calls that could not be read."),
		violations: b.counter("tandem.worker.violations",
			"Answers of workers that cannot be, by role and field; the worker is not used for that request any more."),
		queue:      b.hist("tandem.queue", "s", "Wait for the first slot.", secondsBounds),
		ttft:       b.hist("tandem.ttft", "s", "From arrival to the first token.", secondsBounds),
		interToken: b.hist("tandem.inter_token", "s", "Mean time between tokens of a request.", intervalBounds),
		tokenGap: b.hist("tandem.token_gap", "s", "Time between two messages of a stream's tokens, as a worker sent them.",
			intervalBounds),
		request:     b.hist("tandem.request", "s", "From arrival to the end of the answer.", secondsBounds),
		prefillRate: b.hist("tandem.prefill.tokens_per_second", "", "Prefill speed of a request.", tokenRateBounds),
		decodeRate:  b.hist("tandem.decode.tokens_per_second", "", "Decode speed of a request.", tokenRateBounds),
		genRequest:  b.hist(telemetry.GenAIRequestDuration, "s", "Duration of a generation.", secondsBounds),
		genTTFT:     b.hist(telemetry.GenAITimeToFirstToken, "s", "Time to the first token.", secondsBounds),
		genPerToken: b.hist(telemetry.GenAITimePerOutputToken, "s", "Time per token after the first.", intervalBounds),
		acceptLength: b.hist("tandem.accept_length", "", "Tokens committed per verify step, mean of a request.",
			acceptBounds),
	}
	var err error
	if s.running, err = m.Int64UpDownCounter("tandem.requests.running",
		metric.WithDescription("Requests being served.")); err != nil {
		b.err = err
	}
	b.observe(src)
	return s, b.err
}

// builder collects the first error of making instruments.
type builder struct {
	m   metric.Meter
	err error
}

func (b *builder) counter(name, help string) metric.Int64Counter {
	c, err := b.m.Int64Counter(name, metric.WithDescription(help))
	if err != nil {
		b.err = err
	}
	return c
}

func (b *builder) hist(name, unit, help string, bounds []float64) metric.Float64Histogram {
	h, err := b.m.Float64Histogram(name, metric.WithDescription(help), metric.WithUnit(unit),
		metric.WithExplicitBucketBoundaries(bounds...))
	if err != nil {
		b.err = err
	}
	return h
}

func (b *builder) gauge(name, help string) metric.Int64ObservableGauge {
	g, err := b.m.Int64ObservableGauge(name, metric.WithDescription(help))
	if err != nil {
		b.err = err
	}
	return g
}

func (b *builder) total(name, help string) metric.Int64ObservableCounter {
	c, err := b.m.Int64ObservableCounter(name, metric.WithDescription(help))
	if err != nil {
		b.err = err
	}
	return c
}

// observe registers what is read at collection time.
func (b *builder) observe(src Sources) {
	depth := b.gauge("tandem.queue.depth", "Requests that wait for a worker.")
	workers := b.workers()
	routed := b.total("tandem.routed", "Requests by how they found their target: prefix, peer, session, load.")
	prefixes := b.total("tandem.routed.prefix.tokens",
		"Prompt tokens that targets were believed to hold (expected), and those of them that they had (hit).")
	named := b.total("tandem.routed.peers",
		"Requests whose target was told of another one that held clearly more of the prompt.")
	away := b.gauge("tandem.gateways.store.away", "1 while the store that gateways share does not answer.")
	failures := b.total("tandem.gateways.store.failures",
		"Calls of the store that gateways share that got no answer or were not made while it was away.")
	gone := &dead{now: time.Now, seen: map[string]presence{}}
	_, err := b.m.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		if src.QueueDepth != nil {
			o.ObserveInt64(depth, int64(src.QueueDepth()))
		}
		if src.Routed != nil {
			r := src.Routed()
			count := func(c metric.Int64Observable, label, value string, n uint64) {
				o.ObserveInt64(c, int64(n), metric.WithAttributes(attribute.String(label, value)))
			}
			count(routed, "by", "prefix", r.Prefix)
			count(routed, "by", "peer", r.Peer)
			count(routed, "by", "session", r.Session)
			count(routed, "by", "load", r.Load)
			count(prefixes, "kind", "expected", r.Expected)
			count(prefixes, "kind", "hit", r.Hit)
			o.ObserveInt64(named, int64(r.Named))
		}
		if src.Store != nil {
			_, why := src.Store.Away()
			o.ObserveInt64(away, int64(map[bool]int{true: 1}[why != nil]))
			o.ObserveInt64(failures, int64(src.Store.Failures()))
		}
		if src.Workers != nil {
			workers.observe(ctx, o, &src, gone)
		}
		return nil
	}, append(workers.all(), depth, routed, prefixes, named, away, failures)...)
	if err != nil {
		b.err = err
	}
}

// Start counts a request as running until the returned function is called with its outcome. key is the name of the API
// key that it came with, empty for one without a name.
func (s *Set) Start(ctx context.Context, endpoint, key string) (end func(outcome string)) {
	began := time.Now()
	s.running.Add(ctx, 1)
	return func(outcome string) {
		ctx := context.WithoutCancel(ctx)
		s.running.Add(ctx, -1)
		labels := []attribute.KeyValue{attribute.String("endpoint", endpoint), attribute.String("outcome", outcome)}
		if key != "" {
			labels = append(labels, attribute.String("key", key))
		}
		s.requests.Add(ctx, 1, metric.WithAttributes(labels...))
		s.request.Record(ctx, time.Since(began).Seconds())
	}
}

// ToolCall counts a call by its format.
func (s *Set) ToolCall(ctx context.Context, format string) {
	s.toolCalls.Add(context.WithoutCancel(ctx), 1, metric.WithAttributes(attribute.String("format", format)))
}

// ToolParseError counts a choice whose markup of calls could not be read.
func (s *Set) ToolParseError(ctx context.Context) { s.toolErrors.Add(context.WithoutCancel(ctx), 1) }

// Generation is what is known of a finished request.
type Generation struct {
	PromptTokens, ContentTokens, ReasoningTokens int
	// PrefilledTokens of the prompt were read by the target: not dropped by compression, not restored from a cache.
	PrefilledTokens int
	// ToolTokens are those of ContentTokens that are markup of calls.
	ToolTokens                     int
	Drafted, Accepted, VerifySteps int64
	// LookupDrafted and LookupAccepted are those of Drafted and Accepted that lookup proposed.
	LookupDrafted, LookupAccepted       int64
	Queue, TTFT, Prefill, Decode, Total time.Duration
	CloseKind                           string // empty: no reasoning
}

// genAI labels the measurements of the conventions' family.
var genAI = metric.WithAttributes(attribute.String(telemetry.GenAIOperation, "chat"),
	attribute.String(telemetry.GenAIProvider, telemetry.GenAIProviderTandem))

// What proposed draft tokens.
var (
	fromDraft  = metric.WithAttributes(attribute.String("source", "draft"))
	fromLookup = metric.WithAttributes(attribute.String("source", "lookup"))
)

// mode labels verify steps by whether anything was drafted.
func mode(drafted int64) string {
	if drafted > 0 {
		return "speculative"
	}
	return "plain"
}

// Generated records a finished request.
func (s *Set) Generated(ctx context.Context, g Generation) {
	ctx = context.WithoutCancel(ctx)
	s.promptTokens.Add(ctx, int64(g.PromptTokens))
	s.generated.Add(ctx, int64(g.ContentTokens-g.ToolTokens), metric.WithAttributes(attribute.String("kind", "content")))
	s.generated.Add(ctx, int64(g.ToolTokens), metric.WithAttributes(attribute.String("kind", "tool")))
	s.generated.Add(ctx, int64(g.ReasoningTokens), metric.WithAttributes(attribute.String("kind", "reasoning")))
	s.drafted.Add(ctx, g.Drafted-g.LookupDrafted, fromDraft)
	s.accepted.Add(ctx, g.Accepted-g.LookupAccepted, fromDraft)
	s.drafted.Add(ctx, g.LookupDrafted, fromLookup)
	s.accepted.Add(ctx, g.LookupAccepted, fromLookup)
	s.verifySteps.Add(ctx, g.VerifySteps, metric.WithAttributes(attribute.String("mode", mode(g.Drafted))))
	s.queue.Record(ctx, g.Queue.Seconds())
	n := g.ContentTokens + g.ReasoningTokens
	s.genRequest.Record(ctx, g.Total.Seconds(), genAI)
	if n > 0 {
		s.ttft.Record(ctx, g.TTFT.Seconds())
		s.genTTFT.Record(ctx, g.TTFT.Seconds(), genAI)
	}
	if d := g.Decode.Seconds(); d > 0 && n > 1 {
		s.interToken.Record(ctx, d/float64(n-1))
		s.genPerToken.Record(ctx, d/float64(n-1), genAI)
		s.decodeRate.Record(ctx, float64(n)/d)
	}
	if d := g.Prefill.Seconds(); d > 0 {
		s.prefillRate.Record(ctx, float64(g.PrefilledTokens)/d)
	}
	if g.VerifySteps > 0 {
		s.acceptLength.Record(ctx, float64(n)/float64(g.VerifySteps))
	}
	if g.CloseKind != "" {
		s.thinkingClose.Add(ctx, 1, metric.WithAttributes(attribute.String("kind", g.CloseKind)))
	}
}

// TokenGap records the time between two messages with tokens of a choice.
func (s *Set) TokenGap(gap time.Duration) { s.tokenGap.Record(context.Background(), gap.Seconds()) }

// ContractChange counts a generation that went on at a worker with another contract id.
func (s *Set) ContractChange(ctx context.Context) {
	s.contractChanges.Add(context.WithoutCancel(ctx), 1)
}

// Retry counts a generation that moved to another worker.
func (s *Set) Retry(ctx context.Context) { s.retries.Add(context.WithoutCancel(ctx), 1) }

// Violation counts an answer of a worker of a role that cannot be; field is the field of its message.
func (s *Set) Violation(ctx context.Context, role, field string) {
	s.violations.Add(context.WithoutCancel(ctx), 1,
		metric.WithAttributes(attribute.String("role", role), attribute.String("field", field)))
}

// Compressed counts a request that asked for compression; tokens are 0 when it was not applied.
func (s *Set) Compressed(ctx context.Context, result string, input, kept int) {
	s.pflashRequests.Add(ctx, 1, metric.WithAttributes(attribute.String("result", result)))
	s.pflashInput.Add(ctx, int64(input))
	s.pflashKept.Add(ctx, int64(kept))
}
