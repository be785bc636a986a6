package decode

import (
	"context"
	"time"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// tracing makes the spans of a slot's request: of its phases (wait, restore, prefill, replay, decode), and below them
// of chosen steps of the prompt and chosen rounds. Engine and draft make theirs below those of steps and rounds.
// A request without a recorded span costs nothing, and neither does a step that is not chosen.
type tracing struct {
	tracer trace.Tracer // nil = no request is traced

	ctx            context.Context // with the request's span; nil = it is not traced
	phase          trace.Span      // nil = none is running
	phaseCtx       context.Context // with phase
	step           trace.Span      // of the step or round at work; nil = it is not chosen
	pieces, rounds int
}

func newTracing(p trace.TracerProvider) tracing {
	if p == nil {
		return tracing{}
	}
	return tracing{tracer: p.Tracer("github.com/tandem-inference/tandem/worker-target")}
}

// allSteps is how many steps of a prompt, and rounds, have a span before only every 2^k-th has one: a request of
// 100,000 rounds has 21 spans of rounds, and with each one of the engine and one of the draft: most of what the trace
// of a short answer costs.
const allSteps = 8

// chosen reports whether the n-th step or round, from 1, has a span.
func chosen(n int) bool { return n <= allSteps || n&(n-1) == 0 }

// start begins a request.
func (t *tracing) start(ctx context.Context) {
	*t = tracing{tracer: t.tracer}
	if t.tracer != nil && trace.SpanFromContext(ctx).IsRecording() {
		t.ctx = ctx
	}
}

// on reports whether the request is traced.
func (t *tracing) on() bool { return t.ctx != nil }

// begin starts a phase and ends the one before.
func (t *tracing) begin(name string) {
	if !t.on() {
		return
	}
	t.endPhase(nil)
	t.phaseCtx, t.phase = t.tracer.Start(t.ctx, name)
}

// within returns the context of calls that are part of the phase.
func (t *tracing) within(ctx context.Context) context.Context {
	if t.phase == nil {
		return ctx
	}
	return trace.ContextWithSpan(ctx, t.phase)
}

// endPhase ends what runs.
func (t *tracing) endPhase(err error, attributes ...attribute.KeyValue) {
	t.endStep(err)
	if t.phase != nil {
		t.phase.SetAttributes(attributes...)
		telemetry.EndSpan(t.phase, err)
		t.phase, t.phaseCtx = nil, nil
	}
}

// over records a phase that is over, if it took long enough to be seen.
func (t *tracing) over(name string, began time.Time) {
	if !t.on() || time.Since(began) < time.Millisecond {
		return
	}
	_, span := t.tracer.Start(t.ctx, name, trace.WithTimestamp(began))
	span.End()
}

// piece starts the span of the next step of the prompt, at a position, if it is chosen.
func (t *tracing) piece(at int) {
	t.step = t.streamed(at)
}

// streamed is piece for steps that follow each other without waiting: the caller ends the span.
func (t *tracing) streamed(at int) trace.Span {
	if t.phase == nil {
		return nil
	}
	if t.pieces++; !chosen(t.pieces) {
		return nil
	}
	_, span := t.tracer.Start(t.phaseCtx, "piece", trace.WithAttributes(attribute.Int(telemetry.AttrPosition, at)))
	return span
}

// round starts the span of the next round, if it is chosen: before the draft is asked.
func (t *tracing) round() {
	if t.phase == nil {
		return
	}
	if t.rounds++; chosen(t.rounds) {
		_, t.step = t.tracer.Start(t.phaseCtx, "round", trace.WithAttributes(attribute.Int(telemetry.AttrRound, t.rounds)))
	}
}

// endStep ends the span of the step or round at work.
func (t *tracing) endStep(err error, attributes ...attribute.KeyValue) {
	if t.step != nil {
		t.step.SetAttributes(attributes...)
		telemetry.EndSpan(t.step, err)
		t.step = nil
	}
}

// work names the span of the step or round at work.
func (t *tracing) work() engine.Trace { return traceOf(t.step) }

// traceOf names a span for the engine; the zero value for nil.
func traceOf(span trace.Span) engine.Trace {
	if span == nil {
		return engine.Trace{}
	}
	return engine.TraceOf(span.SpanContext())
}

// endRound ends the span of a round whose step has run; committed is how many tokens it chose. It comes before the
// speculation learns from the round, which forgets its plan.
func (s *Slot) endRound(rows, accepted, committed int) {
	if s.trace.step == nil {
		return
	}
	result := s.seq.Result()
	verify, wall := result.Times()
	s.trace.endStep(nil, attribute.String(telemetry.AttrProposer, s.spec.Proposer()),
		attribute.Int(telemetry.AttrRows, rows), attribute.Int(telemetry.AttrDrafted, rows-1),
		attribute.Int(telemetry.AttrAccepted, accepted), attribute.Int(telemetry.AttrTokens, committed),
		attribute.Float64(telemetry.AttrDraftWaitMS, milliseconds(s.spec.Waited())),
		attribute.Float64(telemetry.AttrVerifyMS, milliseconds(wall)),
		attribute.Float64(telemetry.AttrEngineMS, milliseconds(verify)),
		attribute.Int(telemetry.AttrBatchRows, rows+result.Others()+result.Beside()))
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
