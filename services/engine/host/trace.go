package host

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/telemetry"
)

// Trace has the server make a span for every group and every proposal that names one. Without it, and for those that
// name none, a step costs nothing more.
func (s *Server) Trace(p trace.TracerProvider) {
	s.tracer = p.Tracer("github.com/tandem-inference/tandem/services/engine/host")
}

// traced reports whether a step has a group that is traced.
func (s *Server) traced(step *engine.Step) bool {
	if s.tracer == nil {
		return false
	}
	for i := range step.Groups {
		if step.Groups[i].Trace.On() {
			return true
		}
	}
	return false
}

// traceStep makes the spans of a step that is over.
func (s *Server) traceStep(step *engine.Step, result *engine.StepResult, began time.Time, err error) {
	for i := range step.Groups {
		g := &step.Groups[i]
		if !g.Trace.On() {
			continue
		}
		s.span("engine.step", &g.Trace, began, err, attribute.Int(telemetry.AttrRows, g.Rows),
			attribute.Int(telemetry.AttrBatchRows, len(step.Rows)), engineMS(telemetry.AttrEngineMS, result.EngineNanos))
	}
}

// tracedProposal is traced for a pass of a draft.
func (s *Server) tracedProposal(requests []engine.DraftRequest) bool {
	if s.tracer == nil {
		return false
	}
	for i := range requests {
		if requests[i].Trace.On() {
			return true
		}
	}
	return false
}

// traceProposals makes the spans of a draft's pass that is over.
func (s *Server) traceProposals(features []engine.FeatureRows, requests []engine.DraftRequest,
	result *engine.DraftResult, began time.Time, err error) {
	appended := 0
	for i := range features {
		appended += int(features[i].Rows)
	}
	for i := range requests {
		r := &requests[i]
		if !r.Trace.On() {
			continue
		}
		s.span("engine.propose", &r.Trace, began, err, attribute.Int(telemetry.AttrRows, int(r.Block)),
			attribute.Int(telemetry.AttrFeatureRows, appended), attribute.Int(telemetry.AttrBatchRequests, len(requests)),
			engineMS(telemetry.AttrEngineMS, result.EngineNanos), engineMS(telemetry.AttrAppendMS, result.AppendNanos))
	}
}

// span makes the span of work that began at a time and is over now.
func (s *Server) span(name string, t *engine.Trace, began time.Time, err error, attributes ...attribute.KeyValue) {
	ctx := trace.ContextWithRemoteSpanContext(context.Background(), t.SpanContext())
	_, span := s.tracer.Start(ctx, name, trace.WithTimestamp(began), trace.WithAttributes(attributes...))
	telemetry.EndSpan(span, err)
}

func engineMS(key string, nanos int64) attribute.KeyValue {
	return attribute.Float64(key, float64(nanos/1000)/1000)
}
