package engine

import (
	"encoding/binary"

	"go.opentelemetry.io/otel/trace"
)

// TraceOf returns the name of a span for work in the engine.
func TraceOf(c trace.SpanContext) Trace {
	id, span := c.TraceID(), c.SpanID()
	return Trace{High: binary.BigEndian.Uint64(id[:8]), Low: binary.BigEndian.Uint64(id[8:]),
		Span: binary.BigEndian.Uint64(span[:]), Sampled: c.IsSampled()}
}

// SpanContext returns the context that t names, as that of a span of another process.
func (t *Trace) SpanContext() trace.SpanContext {
	var cfg trace.SpanContextConfig
	binary.BigEndian.PutUint64(cfg.TraceID[:8], t.High)
	binary.BigEndian.PutUint64(cfg.TraceID[8:], t.Low)
	binary.BigEndian.PutUint64(cfg.SpanID[:], t.Span)
	cfg.TraceFlags, cfg.Remote = trace.TraceFlags(0).WithSampled(t.Sampled), true
	return trace.NewSpanContext(cfg)
}
