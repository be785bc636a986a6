package telemetry

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-inference/tandem/services/racetest"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// counter counts the spans that it gets.
type counter struct {
	spans         atomic.Int64
	flushed, shut int64
}

func (c *counter) OnStart(context.Context, sdktrace.ReadWriteSpan) {}
func (c *counter) OnEnd(sdktrace.ReadOnlySpan)                     { c.spans.Add(1) }
func (c *counter) Shutdown(context.Context) error                  { c.shut = c.spans.Load(); return nil }
func (c *counter) ForceFlush(context.Context) error                { c.flushed = c.spans.Load(); return nil }

// TestGather: spans wait for each other, but not for long, and none is left behind.
func TestGather(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		c := &counter{}
		g := newGather(c)
		end := func(spans int) {
			for range spans {
				g.OnEnd(nil)
			}
			synctest.Wait()
		}
		passes := func(d time.Duration, want int64) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if got := c.spans.Load(); got != want {
				t.Errorf("%d spans were handed on, want %d", got, want)
			}
		}
		for round := range 2 { // the timer of the first is used again
			had := c.spans.Load()
			end(3)
			passes(gatherFor-time.Millisecond, had)
			passes(time.Millisecond, had+3)
			if round == 0 {
				passes(time.Hour, had+3)
			}
		}
		end(1)
		passes(gatherFor/2, 6)
		end(gatherSpans - 1)
		passes(0, 6+gatherSpans)
		// The next ones wait as long as any.
		end(1)
		passes(gatherFor-time.Millisecond, 6+gatherSpans)
		passes(time.Millisecond, 7+gatherSpans)
		end(2)
		if err := g.ForceFlush(t.Context()); err != nil || c.flushed != 9+gatherSpans {
			t.Errorf("%d spans came before the flush: %v", c.flushed, err)
		}
		end(2)
		if err := g.Shutdown(t.Context()); err != nil || c.shut != 11+gatherSpans {
			t.Errorf("%d spans came before the end: %v", c.shut, err)
		}
	})
}
