package decode

import (
	"context"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"github.com/tandem-inference/tandem/worker-target/internal/watch"
)

// BenchmarkRound measures what the decode loop itself costs a round: engine and draft answer at once. Nobody watches.
func BenchmarkRound(b *testing.B) { benchmarkRound(b, watch.New()) }

// BenchmarkWatchedRound describes every round to a watcher: 30 a second are described by default, this is the most.
func BenchmarkWatchedRound(b *testing.B) {
	feed := watch.New()
	w, err := feed.Watch(watch.MostRate)
	if err != nil {
		b.Fatal(err)
	}
	defer feed.Close()
	go func() {
		for range w.Events() { //nolint:revive // the watcher reads as fast as it can
		}
	}()
	benchmarkRound(b, feed)
}

func benchmarkRound(b *testing.B, feed *watch.Feed) {
	for name, mode := range map[string]tandemv1.SpeculationMode{
		"off": tandemv1.SpeculationMode_SPECULATION_MODE_OFF, "chain": tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN,
		"tree": tandemv1.SpeculationMode_SPECULATION_MODE_TREE, "auto": tandemv1.SpeculationMode_SPECULATION_MODE_AUTO,
		"lookup": tandemv1.SpeculationMode_SPECULATION_MODE_LOOKUP,
	} {
		b.Run(name, func(b *testing.B) {
			slot := NewSlot(Config{RingRows: 256, Watch: feed}, auto.New(), &knowing{})
			request := &Request{
				Prompt: []int32{1, 2, 3}, Sampler: engine.DefaultSampler(), Mode: mode, TopLogprobs: -1, Max: 20000,
				Watch: 1,
			}
			rounds := 0
			b.ReportAllocs()
			for b.Loop() {
				var stats Stats
				var out discard
				request.Arrived = time.Now()
				if _, err := slot.Run(context.Background(), &counting{}, request, &out, &stats); err != nil {
					b.Fatal(err)
				}
				rounds += stats.Steps
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(rounds), "ns/round")
		})
	}
}
