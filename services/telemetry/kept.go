package telemetry

import (
	"container/list"
	"context"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Bounds of what is kept of finished spans, of about 1 KB each.
const (
	mostTraces     = 256  // the least recently used goes first
	mostSpans      = 8192 // of all traces
	mostTraceSpans = 1024 // of one; then its oldest go, whose parents are still to come
)

// kept keeps the newest spans of a process by trace and hands on what is to be exported.
type kept struct {
	next sdktrace.SpanProcessor // nil = nothing is exported
	// Requests that take so long are exported, and onSlow is told; nil = none is.
	slow   time.Duration
	onSlow func(trace.TraceID)

	mu       sync.Mutex // guards the fields below
	traces   map[trace.TraceID]*list.Element
	order    *list.List // of *keptTrace, least recently used first
	requests map[string]trace.TraceID
	spans    int
}

type keptTrace struct {
	id       trace.TraceID
	requests []string
	spans    []sdktrace.ReadOnlySpan
	chosen   bool // exported although it was not sampled
}

func newKept() *kept {
	return &kept{traces: map[trace.TraceID]*list.Element{}, order: list.New(), requests: map[string]trace.TraceID{}}
}

// OnStart implements sdktrace.SpanProcessor, as do the methods below.
func (k *kept) OnStart(ctx context.Context, s sdktrace.ReadWriteSpan) {
	if k.next != nil {
		k.next.OnStart(ctx, s)
	}
}

// OnEnd keeps a span.
func (k *kept) OnEnd(s sdktrace.ReadOnlySpan) {
	chosen := k.keep(s)
	switch {
	case k.next == nil:
	case s.SpanContext().IsSampled():
		k.next.OnEnd(s)
	case chosen:
		k.next.OnEnd(sampled{s})
	case k.isSlow(s):
		k.choose(s.SpanContext().TraceID())
		k.onSlow(s.SpanContext().TraceID())
	}
}

// isSlow reports whether a span is that of a whole request that took long or failed.
func (k *kept) isSlow(s sdktrace.ReadOnlySpan) bool {
	if k.onSlow == nil || s.SpanKind() != trace.SpanKindServer || s.Parent().IsValid() && !s.Parent().IsRemote() {
		return false
	}
	return s.EndTime().Sub(s.StartTime()) >= k.slow || s.Status().Code == codes.Error
}

func (k *kept) keep(s sdktrace.ReadOnlySpan) (chosen bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.trace(s.SpanContext().TraceID())
	if len(t.spans) == mostTraceSpans {
		t.spans = slices.Delete(t.spans, 0, 1)
		k.spans--
	}
	t.spans = append(t.spans, s)
	k.spans++
	for _, kv := range s.Attributes() {
		if kv.Key == AttrRequestID {
			id := kv.Value.AsString()
			if k.requests[id] != t.id {
				t.requests = append(t.requests, id)
				k.requests[id] = t.id
			}
		}
	}
	for k.spans > mostSpans || k.order.Len() > mostTraces {
		k.drop(k.order.Front())
	}
	return t.chosen
}

// trace returns what is kept of a trace, which is now the one used last. The caller holds mu.
func (k *kept) trace(id trace.TraceID) *keptTrace {
	e := k.traces[id]
	if e == nil {
		e = k.order.PushBack(&keptTrace{id: id})
		k.traces[id] = e
	}
	k.order.MoveToBack(e)
	return e.Value.(*keptTrace)
}

// drop forgets a trace. The caller holds mu.
func (k *kept) drop(e *list.Element) {
	t := k.order.Remove(e).(*keptTrace)
	delete(k.traces, t.id)
	k.spans -= len(t.spans)
	for _, id := range t.requests {
		if k.requests[id] == t.id {
			delete(k.requests, id)
		}
	}
}

// find returns the spans of a trace; the request names it where id is zero.
func (k *kept) find(id trace.TraceID, request string) []sdktrace.ReadOnlySpan {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !id.IsValid() {
		id = k.requests[request]
	}
	if e := k.traces[id]; e != nil {
		return slices.Clone(e.Value.(*keptTrace).spans)
	}
	return nil
}

// choose exports a trace that was not sampled: what is kept of it, and what ends later.
func (k *kept) choose(id trace.TraceID) {
	if k.next == nil {
		return
	}
	k.mu.Lock()
	t := k.trace(id)
	before := t.chosen
	t.chosen = true
	spans := slices.Clone(t.spans)
	k.mu.Unlock()
	if before {
		return
	}
	for _, s := range spans {
		if !s.SpanContext().IsSampled() {
			k.next.OnEnd(sampled{s})
		}
	}
}

// Shutdown sends what is left.
func (k *kept) Shutdown(ctx context.Context) error {
	if k.next == nil {
		return nil
	}
	return k.next.Shutdown(ctx)
}

// ForceFlush sends what waits.
func (k *kept) ForceFlush(ctx context.Context) error {
	if k.next == nil {
		return nil
	}
	return k.next.ForceFlush(ctx)
}

// sampled is a span as if it had been sampled.
type sampled struct{ sdktrace.ReadOnlySpan }

// SpanContext implements sdktrace.ReadOnlySpan.
func (s sampled) SpanContext() trace.SpanContext {
	c := s.ReadOnlySpan.SpanContext()
	return c.WithTraceFlags(c.TraceFlags().WithSampled(true))
}
