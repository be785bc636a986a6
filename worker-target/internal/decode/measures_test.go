package decode

import (
	"testing"
	"time"

	"github.com/tandem-inference/tandem/services/telemetry"
)

// TestMeasuresAllocateNothing: a round that has no span is measured without memory.
func TestMeasuresAllocateNothing(t *testing.T) {
	p, err := telemetry.NewPrometheus("test", "v")
	if err != nil {
		t.Fatal(err)
	}
	m, err := NewMeasures(p.MeterProvider())
	if err != nil {
		t.Fatal(err)
	}
	s := &Slot{measures: m}
	if n := testing.AllocsPerRun(100, func() {
		s.measure(t.Context(), time.Millisecond, time.Millisecond, 3)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestChosen: every request has spans of its first rounds, and few of the others.
func TestChosen(t *testing.T) {
	n := 0
	for i := 1; i <= 100_000; i++ {
		if chosen(i) {
			n++
		}
	}
	if !chosen(1) || !chosen(allSteps) || chosen(allSteps+1) || !chosen(1024) || n != 21 {
		t.Errorf("%d rounds of 100000 are chosen", n)
	}
}

// BenchmarkRoundTelemetry is what a round costs more: measured only, as every round is, and with a span.
func BenchmarkRoundTelemetry(b *testing.B) {
	p, err := telemetry.NewPrometheus("test", "v")
	if err != nil {
		b.Fatal(err)
	}
	m, err := NewMeasures(p.MeterProvider())
	if err != nil {
		b.Fatal(err)
	}
	traces, err := telemetry.OpenTraces(b.Context(), telemetry.Process{Service: "test", Version: "v"},
		&telemetry.TraceFlags{})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("measured", func(b *testing.B) {
		s := &Slot{measures: m}
		for b.Loop() {
			s.measure(b.Context(), time.Millisecond, time.Millisecond, 3)
		}
	})
	b.Run("traced", func(b *testing.B) {
		ctx, span := traces.TracerProvider().Tracer("test").Start(b.Context(), "request")
		defer span.End()
		s := &Slot{measures: m, trace: newTracing(traces.TracerProvider())}
		s.trace.start(ctx)
		s.trace.begin("decode")
		for b.Loop() {
			s.trace.rounds = 0
			s.trace.round()
			s.measure(b.Context(), time.Millisecond, time.Millisecond, 3)
			s.trace.endStep(nil)
		}
	})
}
