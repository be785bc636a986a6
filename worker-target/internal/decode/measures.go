package decode

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/metric"
)

// Measures are the histograms of a worker's requests and rounds. Nil measures nothing.
type Measures struct {
	wait, restore, prefill   metric.Float64Histogram
	round, verify, draftWait metric.Float64Histogram
	acceptLength             metric.Float64Histogram
}

// Bounds of histograms, in seconds but for the last.
var (
	// A round of a small model takes a millisecond, a plain step of a large one on processors a second.
	roundBounds = []float64{.0005, .001, .002, .003, .005, .0075, .01, .015, .02, .03, .05, .075, .1, .15, .2, .3, .5, 1,
		2.5}
	// From a short prompt on a card to the longest on processors.
	phaseBounds = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}
	// A round commits at most a tree's depth and one.
	lengthBounds = []float64{1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32}
)

// NewMeasures makes the instruments.
func NewMeasures(p metric.MeterProvider) (*Measures, error) {
	meter := p.Meter("github.com/tandem-inference/tandem/worker-target")
	m := &Measures{}
	for _, h := range []struct {
		at         *metric.Float64Histogram
		name, unit string
		help       string
		bounds     []float64
	}{
		{&m.wait, "tandem.target.wait", "s", "Wait of a request for others that read the same prompt, or for memory.",
			phaseBounds},
		{&m.restore, "tandem.target.restore", "s", "Time to restore a stored state of a prompt, where there was one.",
			phaseBounds},
		{&m.prefill, "tandem.target.prefill", "s", "Time in which a prompt was read.", phaseBounds},
		{&m.round, "tandem.target.round", "s",
			"Time of a round, from the question to the draft to the tokens: the gap between a stream's tokens.", roundBounds},
		{&m.verify, "tandem.target.verify", "s", "Time of the step that verifies a round's tree, other requests' included.",
			roundBounds},
		{&m.draftWait, "tandem.target.draft_wait", "s", "Wait of a round for the proposal that it asked for.", roundBounds},
		{&m.acceptLength, "tandem.target.accept_length", "", "Tokens that a round committed.", lengthBounds},
	} {
		var err error
		*h.at, err = meter.Float64Histogram(h.name, metric.WithUnit(h.unit), metric.WithDescription(h.help),
			metric.WithExplicitBucketBoundaries(h.bounds...))
		if err != nil {
			return nil, err
		}
	}
	return m, nil
}

// request measures the phases of a request before its first token.
func (m *Measures) request(ctx context.Context, s *Stats) {
	if m == nil {
		return
	}
	m.wait.Record(ctx, s.Wait.Seconds())
	if s.CachedTokens > 0 {
		m.restore.Record(ctx, s.Restore.Seconds())
	}
	m.prefill.Record(ctx, s.Prefill.Seconds())
}

// measure measures a round that is over. Only one with a span leaves exemplars: they cost memory.
func (s *Slot) measure(ctx context.Context, verify, draft time.Duration, committed int) {
	if s.measures == nil {
		return
	}
	if s.trace.step == nil {
		ctx = context.Background()
	}
	s.measures.record(ctx, time.Since(s.roundBegan), verify, draft, committed)
}

func (m *Measures) record(ctx context.Context, round, verify, draft time.Duration, committed int) {
	m.round.Record(ctx, round.Seconds())
	m.verify.Record(ctx, verify.Seconds())
	if draft > 0 {
		m.draftWait.Record(ctx, draft.Seconds())
	}
	m.acceptLength.Record(ctx, float64(committed))
}
