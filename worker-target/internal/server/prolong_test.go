package server

import (
	"slices"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/worker-target/internal/decode"
)

// TestIdentityOfProlonged runs in virtual time, in which wide steps cost nothing: lookup goes on behind the proposals
// of a draft that is nearly always right, and the text is that of plain decoding, whatever chooses it.
func TestIdentityOfProlonged(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		ctx, d, _ := calibrated(t, repeating(0.98), time.Millisecond, 10*time.Millisecond)
		sampled := engine.DefaultSampler()
		sampled.Temperature, sampled.TopK, sampled.Seed = 1.3, 20, 42
		for name, sampler := range map[string]engine.Sampler{"greedy": engine.DefaultSampler(), "sampled": sampled} {
			run := func(mode tandemv1.SpeculationMode) ([]int32, decode.Stats) {
				t.Helper()
				var stats decode.Stats
				c := &collect{}
				_, err := d.slot.Run(ctx, d.engine, &decode.Request{
					Prompt: prompt(200, 3), Sampler: sampler, Max: 400, Mode: mode, TopLogprobs: -1, Arrived: time.Now(),
				}, c, &stats)
				if err != nil {
					t.Fatal(err)
				}
				return c.tokens, stats
			}
			want, _ := run(tandemv1.SpeculationMode_SPECULATION_MODE_OFF)
			for range 4 {
				got, stats := run(tandemv1.SpeculationMode_SPECULATION_MODE_AUTO)
				if !slices.Equal(got, want) {
					t.Fatalf("%s: %v, want %v", name, got, want)
				}
				if fromDraft := stats.Drafted - stats.LookDrafted; name == "greedy" && (stats.LookAccepted == 0 || fromDraft == 0) {
					t.Errorf("%s: %+v", name, stats)
				}
			}
		}
	})
}
