package server

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/worker-target/internal/drafttest"
)

// TestMemoryIsShort: requests that need several times the memory of the engine, of mixed lengths, modes, seeds and
// priorities, with and without a draft, all end with the tokens that they give alone. Who gives up its memory goes on
// from a state in host memory, or reads its text again where host memory has no room.
func TestMemoryIsShort(t *testing.T) {
	for name, host := range map[string]uint64{"states are kept": 0, "no room for states": 1} {
		for _, promptRows := range []int{0, 64} {
			t.Run(fmt.Sprintf("%s, %d prompt rows", name, promptRows), func(t *testing.T) {
				testMemoryIsShort(t, host, promptRows)
			})
		}
	}
}

func testMemoryIsShort(t *testing.T, host uint64, promptRows int) {
	const requests = 12
	o := enginefake.Options{PromptRows: promptRows, StepDelay: 200 * time.Microsecond}
	r := newRig(t, rigOptions{
		target: o, draft: drafttest.New(t, o, 0), slots: requests,
		open: engine.OpenOptions{MaxContext: 1024, KVPositions: 1024, MaxTreeRows: 48, HostCapBytes: host},
	})
	list := modes()
	messages, alone := make([]*tandemv1.DecodeRequest, requests), make([]answer, requests)
	for i := range messages {
		temperature, seed := []float64{0, 0.9}[i%2], int64(i)
		messages[i] = &tandemv1.DecodeRequest{
			RequestId: fmt.Sprint("request ", i), PromptTokens: prompt([]int{5, 200, 500, 700}[i%4], int32(i)),
			MaxTokens: int32(120 + 10*i), TopLogprobs: -1, Priority: int32(i % 3), FairnessKey: uint64(i % 2),
			Sampling: &tandemv1.Sampling{Temperature: &temperature, Seed: &seed}, Speculation: list[i%len(list)].spec,
			Cache: &tandemv1.CacheUse{Off: i%5 == 0},
		}
		if i == 3 {
			messages[i].CommittedTokens = prompt(70, 9)
		}
		alone[i] = r.must(messages[i])
	}
	before := r.counters()
	var group sync.WaitGroup
	for i, m := range messages {
		group.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			a, err := r.decode(ctx, m, nil)
			if err != nil {
				t.Errorf("request %d: %v", i, err)
			} else if !slices.Equal(a.tokens, alone[i].tokens) {
				t.Errorf("request %d: %v, alone %v", i, a.tokens, alone[i].tokens)
			}
		})
	}
	group.Wait()
	r.idle()
	after := r.counters()
	got := func(name string) float64 { return after[name] - before[name] }
	t.Logf("%v preemptions, %v from memory, %v by reading %v tokens", got("preemptions"), got("resumed_from_memory"),
		got("resumed_by_reading"), got("tokens_read_again"))
	if got("preemptions") == 0 || got("preemptions") != got("resumed_from_memory")+got("resumed_by_reading") ||
		after["requests_parked"] != 0 {
		t.Errorf("%v", after)
	}
	if host == 0 && got("resumed_from_memory") == 0 ||
		host == 1 && (got("resumed_from_memory") > 0 || got("tokens_read_again") == 0) {
		t.Errorf("%v", after)
	}
}

// counters returns those of a heartbeat.
func (r *rig) counters() map[string]float64 {
	var h tandemv1.Heartbeat
	r.server.Heartbeat(&h)
	return h.Counters
}
