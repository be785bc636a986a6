package telemetry

import (
	"context"
	"slices"
	"sync"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

const (
	// gatherFor is how long a span may wait for others. A longer wait costs less and shows traces later.
	gatherFor = time.Second
	// gatherSpans is how many wait at most, far below what the processor behind has room for.
	gatherSpans = 64
)

// gather hands spans to the batch processor many at a time. That one's goroutine wakes up for each span that it gets
// while it has nothing to do, which costs a process that waits for its engine several times what the span does.
type gather struct {
	sdktrace.SpanProcessor

	mu    sync.Mutex // guards the fields below
	spans []sdktrace.ReadOnlySpan
	timer *time.Timer // runs while spans wait
}

func newGather(next sdktrace.SpanProcessor) *gather { return &gather{SpanProcessor: next} }

// OnEnd implements sdktrace.SpanProcessor.
func (g *gather) OnEnd(s sdktrace.ReadOnlySpan) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.spans = append(g.spans, s)
	switch {
	case len(g.spans) == gatherSpans:
		g.hand()
	case len(g.spans) > 1:
	case g.timer == nil:
		g.timer = time.AfterFunc(gatherFor, g.flush)
	default:
		g.timer.Reset(gatherFor)
	}
}

func (g *gather) flush() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hand()
}

// hand hands over what waits. The caller holds mu.
func (g *gather) hand() {
	if g.timer != nil {
		g.timer.Stop()
	}
	for _, s := range g.spans {
		g.SpanProcessor.OnEnd(s)
	}
	g.spans = slices.Delete(g.spans, 0, len(g.spans)) // clears them for the collector of garbage
}

// Shutdown implements sdktrace.SpanProcessor.
func (g *gather) Shutdown(ctx context.Context) error {
	g.flush()
	return g.SpanProcessor.Shutdown(ctx)
}

// ForceFlush implements sdktrace.SpanProcessor.
func (g *gather) ForceFlush(ctx context.Context) error {
	g.flush()
	return g.SpanProcessor.ForceFlush(ctx)
}
