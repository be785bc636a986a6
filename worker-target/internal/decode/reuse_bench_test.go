package decode

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"github.com/tandem-inference/tandem/worker-target/internal/piece"
	"github.com/tandem-inference/tandem/worker-target/internal/prefix"
)

// saving is an engine that times its snapshots.
type saving struct {
	engine.Target
	longest, sum time.Duration
	saves        int
}

func (s *saving) NewSnapshot(ctx context.Context, q engine.Sequence) (engine.Snapshot, error) {
	start := time.Now()
	p, err := s.Target.NewSnapshot(ctx, q)
	d := time.Since(start)
	s.longest, s.sum, s.saves = max(s.longest, d), s.sum+d, s.saves+1
	return p, err
}

// BenchmarkSecondTurn measures the second turn of a conversation of 8192 tokens on the demonstration target: the time
// to its first token, that of the first turn, which is cold, and what saving states takes.
func BenchmarkSecondTurn(b *testing.B) {
	guard, words := newCPU(b, engine.OpenOptions{MaxSequences: 1, MaxContext: 10240})
	e := &saving{Target: guard}
	markers := piece.MarkersOf(words)
	cache := prefix.New(prefix.Config{Bytes: 1 << 33, Slots: 256})
	cache.Use(e)
	b.Cleanup(cache.Close)
	slot := NewSlot(Config{Markers: markers, Prefixes: cache}, auto.New(), nil)
	c := chats{random: rand.New(rand.NewPCG(1, 2)), markers: markers, vocab: e.Info().Vocab}
	run := func(prompt []int32) (Stats, []int32) {
		var stats Stats
		var sink prefilled
		if _, err := slot.Run(b.Context(), e, &Request{
			Prompt: prompt, Sampler: engine.DefaultSampler(), Max: 16, TopLogprobs: -1, Arrived: time.Now(),
			Mode: tandemv1.SpeculationMode_SPECULATION_MODE_OFF,
		}, &sink, &stats); err != nil {
			b.Fatal(err)
		}
		return stats, sink.tokens
	}
	var cold, warm time.Duration
	read := 0
	for b.Loop() {
		list := []message{c.message(1000)}
		for len(c.prompt(list)) < 8192 {
			list = append(list, c.message(250))
		}
		first, answer := run(c.prompt(list))
		list = append(list, slices.Concat(markers.Headers[:1], []int32{5}, answer, markers.Ends[:1]), c.message(40))
		second, _ := run(c.prompt(list))
		cold, warm, read = cold+first.FirstToken, warm+second.FirstToken, read+second.PrefillTokens
	}
	n := float64(b.N)
	b.ReportMetric(float64(cold.Milliseconds())/n, "cold-ms")
	b.ReportMetric(float64(warm.Microseconds())/1000/n, "turn2-ms")
	b.ReportMetric(100*float64(warm)/float64(cold), "turn2-%")
	b.ReportMetric(float64(read)/n, "turn2-tokens")
	b.ReportMetric(float64(e.longest.Microseconds())/1000, "longest-save-ms")
	b.ReportMetric(float64(e.sum.Microseconds())/1000/float64(e.saves), "save-ms")
	b.ReportMetric(float64(e.saves)/n, "saves")
}
