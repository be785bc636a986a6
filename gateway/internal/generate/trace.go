package generate

import (
	"context"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/apierror"
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

// request starts the span of a request at its arrival.
func (t tracing) request(ctx context.Context, req *Request) (context.Context, trace.Span) {
	return t.tracer.Start(ctx, "chat "+req.Served, trace.WithTimestamp(req.Arrived), trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(
			attribute.String(telemetry.GenAIOperation, "chat"), attribute.String(telemetry.GenAIProvider, telemetry.GenAIProviderTandem),
			attribute.String(telemetry.GenAIRequestModel, req.ModelName), attribute.String(telemetry.GenAIResponseModel, req.Served),
			attribute.String("request_id", req.ID),
		))
}

// phase records a phase that is over; phases that took no time are left out.
func (t tracing) phase(ctx context.Context, name string, from time.Time, took time.Duration, attributes ...attribute.KeyValue) {
	if took <= 0 || !trace.SpanFromContext(ctx).IsRecording() {
		return
	}
	_, span := t.tracer.Start(ctx, name, trace.WithTimestamp(from), trace.WithAttributes(attributes...))
	span.End(trace.WithTimestamp(from.Add(took)))
}

// choice records the phases of a choice: reading the prompt until the first token, then decoding.
func (t tracing) choice(ctx context.Context, s *stream, admitted time.Time) {
	if s.first.IsZero() {
		return
	}
	t.phase(ctx, "prefill", admitted, s.first.Sub(admitted), attribute.Int("tokens", len(s.job.prompt)))
	t.phase(ctx, "decode", s.first, s.last.Sub(s.first), attribute.Int("tokens", len(s.committed)),
		attribute.Int64("verify_steps", s.steps), attribute.Int64("drafted", s.drafted), attribute.Int64("accepted", s.accepted))
}

// end ends the span of a request with its account.
func (t tracing) end(span trace.Span, u *Usage, finishes []string, err error) {
	if span.IsRecording() {
		span.SetAttributes(
			attribute.Int(telemetry.GenAIInputTokens, u.PromptTokens), attribute.Int(telemetry.GenAICachedTokens, u.CachedTokens),
			attribute.Int(telemetry.GenAIOutputTokens, u.CompletionTokens), attribute.Int(telemetry.GenAIReasoningTokens, u.ReasoningTokens),
			attribute.StringSlice(telemetry.GenAIFinishReasons, finishes),
		)
		if err != nil {
			kind := apierror.From(err).Type
			span.SetAttributes(attribute.String("error.type", kind))
			span.SetStatus(codes.Error, kind)
		}
	}
	span.End()
}
