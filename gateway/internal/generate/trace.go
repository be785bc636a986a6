package generate

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/compress"
	"github.com/tandem-inference/tandem/gateway/internal/metrics"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
)

// tracing makes the spans of generations: one for the request, below it one per phase. Content is never part of them.
type tracing struct{ tracer trace.Tracer }

func newTracing(p trace.TracerProvider) tracing {
	if p == nil {
		p = tracenoop.NewTracerProvider()
	}
	return tracing{p.Tracer("github.com/tandem-inference/tandem/gateway")}
}

// request describes the generation in the span of its request, which the border made; without a border it makes one.
// end ends what request began.
func (t tracing) request(ctx context.Context, req *Request) (_ context.Context, span trace.Span, own bool) {
	operation := cmp.Or(req.Operation, telemetry.GenAIChat)
	if span = trace.SpanFromContext(ctx); !span.SpanContext().IsValid() || span.SpanContext().IsRemote() {
		ctx, span = t.tracer.Start(ctx, operation, trace.WithTimestamp(req.Arrived), trace.WithSpanKind(trace.SpanKindServer))
		own = true
	}
	if !span.IsRecording() {
		return ctx, span, own
	}
	span.SetName(operation + " " + req.Model.Name)
	span.SetAttributes(
		attribute.String(telemetry.GenAIOperation, operation),
		attribute.String(telemetry.GenAIProvider, telemetry.GenAIProviderTandem),
		attribute.String(telemetry.GenAIRequestModel, req.ModelName),
		attribute.String(telemetry.GenAIResponseModel, req.Model.Name),
		attribute.String(telemetry.AttrRequestID, req.ID),
	)
	if req.MaxTokensGiven {
		span.SetAttributes(attribute.Int(telemetry.GenAIRequestMaxTokens, req.MaxTokens))
	}
	if s := req.Sampling; s != nil && s.Temperature != nil {
		span.SetAttributes(attribute.Float64(telemetry.GenAIRequestTemperature, s.GetTemperature()))
	}
	return ctx, span, own
}

// phase records a phase that is over; phases that took no time are left out.
func (t tracing) phase(ctx context.Context, name string, from time.Time, took time.Duration,
	attributes ...attribute.KeyValue) {
	if took <= 0 || !trace.SpanFromContext(ctx).IsRecording() {
		return
	}
	_, span := t.tracer.Start(ctx, name, trace.WithTimestamp(from), trace.WithAttributes(attributes...))
	span.End(trace.WithTimestamp(from.Add(took)))
}

// prepared records how the prompts of a request came about.
func (t tracing) prepared(ctx context.Context, req *Request) {
	for i := range req.Prompts {
		r := &req.Prompts[i].Rendering
		t.phase(ctx, "render", r.Began, r.Template)
		t.phase(ctx, "tokenize", r.Began.Add(r.Template), r.Tokenize,
			attribute.Int(telemetry.AttrTokens, len(req.Prompts[i].Tokens)))
	}
}

// choice records the phases of a choice: reading the prompt until the first token, then decoding.
func (t tracing) choice(ctx context.Context, s *stream, admitted time.Time) {
	if s.first.IsZero() {
		return
	}
	t.phase(ctx, "prefill", admitted, s.first.Sub(admitted), attribute.Int(telemetry.AttrTokens, len(s.job.prompt)))
	t.phase(ctx, "decode", s.first, s.last.Sub(s.first), attribute.Int(telemetry.AttrTokens, len(s.committed)),
		attribute.Int64(telemetry.AttrVerifySteps, s.steps), attribute.Int64(telemetry.AttrDrafted, s.drafted),
		attribute.Int64(telemetry.AttrAccepted, s.accepted))
}

// compress starts the span of a compression.
func (t tracing) compress(ctx context.Context) (context.Context, trace.Span) {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return ctx, tracenoop.Span{}
	}
	return t.tracer.Start(ctx, "compress")
}

// compressed ends it; a compression that was to run and did not is an error.
func (t tracing) compressed(span trace.Span, c *compress.Report) {
	span.SetAttributes(attribute.Int(telemetry.AttrTokens, c.OriginalTokens))
	if c.Applied {
		span.SetAttributes(attribute.Int(telemetry.AttrKept, c.KeptTokens))
	} else {
		span.SetAttributes(attribute.String(telemetry.AttrReason, c.Reason))
	}
	if c.Failed {
		span.SetAttributes(attribute.String("error.type", c.Reason))
		span.SetStatus(codes.Error, c.Reason)
	}
	span.End()
}

// end adds the account, and ends the span if request began it. A client that left is no error.
func (t tracing) end(span trace.Span, own bool, u *Usage, finishes []string, err error) {
	if span.IsRecording() {
		span.SetAttributes(
			attribute.Int(telemetry.GenAIInputTokens, u.PromptTokens),
			attribute.Int(telemetry.GenAICachedTokens, u.CachedTokens),
			attribute.Int(telemetry.GenAIOutputTokens, u.CompletionTokens),
			attribute.Int(telemetry.GenAIReasoningTokens, u.ReasoningTokens),
			attribute.StringSlice(telemetry.GenAIFinishReasons, finishes),
		)
		if err != nil {
			outcome, kind := metrics.OutcomeOf(err), strings.ToLower(rpcerr.Reason(err))
			if outcome == metrics.OutcomeCancelled {
				span.SetAttributes(attribute.String(telemetry.AttrOutcome, outcome))
			} else {
				span.SetAttributes(attribute.String("error.type", kind))
			}
			if own && outcome == metrics.OutcomeServerError {
				span.SetStatus(codes.Error, kind)
			}
		}
	}
	if own {
		span.End()
	}
}
