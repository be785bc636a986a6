package server

import (
	"context"
	"encoding/binary"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// tracing makes a span for every proposal whose question names a span of the target: the target chooses which rounds
// are traced, and the others cost nothing.
type tracing struct {
	tracer trace.Tracer      // nil = nothing is traced
	parent trace.SpanContext // of the stream
	span   trace.Span        // of the proposal at work, nil = it has none
	// ctx leads what is measured of the last proposal to its span, if it had one.
	ctx context.Context
}

func newTracing(ctx context.Context, p trace.TracerProvider) tracing {
	c := trace.SpanContextFromContext(ctx)
	if p == nil || !c.IsValid() {
		return tracing{}
	}
	return tracing{tracer: p.Tracer("github.com/tandem-inference/tandem/worker-draft"), parent: c}
}

// start starts the span of a question that arrived at a time.
func (t *tracing) start(ask *tandemv1.Propose, at time.Time) {
	t.span, t.ctx = nil, context.Background()
	if t.tracer == nil || ask.GetSpan() == 0 {
		return
	}
	var id trace.SpanID
	binary.BigEndian.PutUint64(id[:], ask.GetSpan())
	round := t.parent.WithSpanID(id).WithRemote(true)
	t.ctx, t.span = t.tracer.Start(trace.ContextWithRemoteSpanContext(context.Background(), round), "propose",
		trace.WithTimestamp(at))
}

// work names the span for the engine.
func (t *tracing) work() engine.Trace {
	if t.span == nil {
		return engine.Trace{}
	}
	return engine.TraceOf(t.span.SpanContext())
}

// end ends it.
func (t *tracing) end(w *work, rows int, err error) {
	if t.span == nil {
		return
	}
	outcome := "proposed"
	if w.skipped {
		outcome = "skipped" // out of date before it was at work
	}
	t.span.SetAttributes(attribute.String(telemetry.AttrOutcome, outcome),
		attribute.Int(telemetry.AttrNodes, w.tree.Nodes()), attribute.Int(telemetry.AttrFeatureRows, rows),
		attribute.Float64(telemetry.AttrAppendMS, float64(w.appended.Microseconds())/1000),
		attribute.Float64(telemetry.AttrEngineMS, float64((w.appended+w.forward).Microseconds())/1000))
	telemetry.EndSpan(t.span, err)
	t.span = nil
}
