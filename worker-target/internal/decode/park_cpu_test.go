package decode

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"github.com/tandem-inference/tandem/worker-target/internal/piece"
	"github.com/tandem-inference/tandem/worker-target/internal/preempt"
	"github.com/tandem-inference/tandem/worker-target/internal/schedule"
)

// TestPreemptedCPU runs requests of the demonstration model on a pool that a few of them fill: every one gives the
// tokens that it gives alone, whether states are kept in host memory or read again.
func TestPreemptedCPU(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a quarter of a minute")
	}
	const requests = 6
	for name, host := range map[string]uint64{"kept": 0, "read again": 1} {
		t.Run(name, func(t *testing.T) {
			e, words := newCPU(t, engine.OpenOptions{
				MaxSequences: requests, MaxContext: 512, KVPositions: 512, MaxTreeRows: 8, HostCapBytes: host,
			})
			model, pool := auto.New(), preempt.New()
			joint := schedule.New(e, schedule.Options{Costs: model})
			list, alone := make([]Request, requests), make([][]int32, requests)
			run := func(r Request, pool *preempt.Pool) ([]int32, Stats, error) {
				slot := NewSlot(Config{Markers: piece.MarkersOf(words), Members: pool}, model, nil)
				var stats Stats
				var out recording
				r.Arrived = time.Now()
				view := joint.For(schedule.Request{Prompt: len(r.Prompt)})
				_, err := slot.Run(t.Context(), view, &r, &out, &stats)
				return out.tokens, stats, err
			}
			for i := range list {
				list[i] = Request{
					Prompt:  conversation(words, 200+40*i, 90, rand.New(rand.NewPCG(uint64(i), 2)))[:200+40*i],
					Sampler: engine.DefaultSampler(), Max: 90, TopLogprobs: -1,
					Mode: []tandemv1.SpeculationMode{
						tandemv1.SpeculationMode_SPECULATION_MODE_OFF, tandemv1.SpeculationMode_SPECULATION_MODE_LOOKUP,
					}[i%2],
				}
				if i >= 3 {
					list[i].Sampler.Temperature, list[i].Sampler.Seed = 0.8, uint64(i)
				}
				var err error
				if alone[i], _, err = run(list[i], preempt.New()); err != nil {
					t.Fatal(err)
				}
			}
			var group sync.WaitGroup
			for i := range list {
				group.Go(func() {
					tokens, stats, err := run(list[i], pool)
					if err != nil || !slices.Equal(tokens, alone[i]) {
						t.Errorf("request %d after %d preemptions: %v, %v, alone %v", i, stats.Preemptions, err, tokens, alone[i])
					}
				})
			}
			group.Wait()
			s := pool.Stats()
			t.Logf("%+v", s)
			if s.Preemptions == 0 || (s.Restored > 0) != (host == 0) {
				t.Errorf("%+v", s)
			}
		})
	}
}
