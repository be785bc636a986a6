package server

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// TestAheadIsIdleWork: prompts are read ahead while there is no request, the newest first; a request stops the reading
// and waits until it has let go; what it stopped goes on afterwards.
func TestAheadIsIdleWork(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		var log []string
		release := make(chan struct{})
		a := &ahead{}
		a.read = func(ctx context.Context, p *aheadPrompt) bool {
			log = append(log, p.id)
			select {
			case <-release:
			case <-ctx.Done():
				time.Sleep(time.Millisecond) // the layer that runs
				log = append(log, p.id+" stopped")
			}
			return true
		}
		add := func(id string, tokens ...int32) {
			if !a.add(&aheadPrompt{id: id, tokens: tokens}) {
				t.Errorf("%s is not accepted", id)
			}
		}
		a.begin("", []int32{9})
		add("a", 1)
		add("b", 2)
		add("c", 2, 3) // b goes on
		synctest.Wait()
		if len(log) != 0 {
			t.Fatalf("beside a request: %v", log)
		}
		a.end()
		synctest.Wait()
		start := time.Now()
		a.begin("", []int32{1, 5}) // a's conversation
		a.begin("another", []int32{2, 3, 4})
		if time.Since(start) != time.Millisecond || !slices.Equal(log, []string{"c", "c stopped"}) {
			t.Fatalf("%v after %v", log, time.Since(start))
		}
		a.end()
		synctest.Wait()
		if len(log) != 2 {
			t.Fatalf("beside the second request: %v", log)
		}
		a.end()
		release <- struct{}{}
		synctest.Wait()
		if !slices.Equal(log, []string{"c", "c stopped", "c"}) || a.stopCount() != 1 {
			t.Fatalf("%v, %d stops", log, a.stopCount())
		}
		a.begin("", []int32{9})
		for i := range int32(mostAhead + 1) {
			add("many", 100+i)
		}
		if first := a.waiting[0].tokens[0]; len(a.waiting) != mostAhead || first != 101 {
			t.Errorf("%d wait, the first is %d", len(a.waiting), first)
		}
		a.end()
		synctest.Wait()
		a.close()
		if a.add(&aheadPrompt{}) {
			t.Error("it is accepted after the end")
		}
		if n := len(log); n != 5 {
			t.Errorf("after the end: %v", log)
		}
	})
}

// TestReadAhead: the next turn reads what is new in it alone, and heartbeats say what was read for it.
func TestReadAhead(t *testing.T) {
	r := newRig(t, rigOptions{target: enginefake.Options{PromptRows: 64}})
	turn1 := prompt(600, 1)
	r.must(&tandemv1.DecodeRequest{PromptTokens: turn1, MaxTokens: 5, TopLogprobs: -1})
	next := slices.Concat(turn1, prompt(1000, 4))
	got, err := r.client.ReadAhead(t.Context(), &tandemv1.ReadAheadRequest{PromptTokens: next})
	if err != nil || !got.Accepted {
		t.Fatalf("%v, %v", got, err)
	}
	counter := func(name string) float64 {
		var h tandemv1.Heartbeat
		r.server.Heartbeat(&h)
		return h.Counters[name]
	}
	r.until("all is read", func() bool { return counter("read_ahead_tokens") == 1536-512 })
	a := r.must(&tandemv1.DecodeRequest{PromptTokens: append(next, 7, 8, 9), MaxTokens: 5, TopLogprobs: -1})
	if a.prefill.CachedTokens != 1536 {
		t.Errorf("the next turn takes %d tokens", a.prefill.CachedTokens)
	}
	r.idle()
	if counter("read_ahead_hits") != 1 || counter("read_ahead_used_tokens") != 1024 ||
		counter("read_ahead_wasted_tokens") != 0 {
		t.Errorf("%v hits, %v tokens of use", counter("read_ahead_hits"), counter("read_ahead_used_tokens"))
	}
	// Another isolation has none of it.
	a = r.must(&tandemv1.DecodeRequest{PromptTokens: append(next, 7, 8, 9), MaxTokens: 5, TopLogprobs: -1,
		Cache: &tandemv1.CacheUse{Isolation: "other"}})
	if a.prefill.CachedTokens != 0 {
		t.Errorf("another isolation takes %d tokens", a.prefill.CachedTokens)
	}
	for field, m := range map[string]*tandemv1.ReadAheadRequest{
		"prompt_tokens: is empty": {}, "prompt_tokens: token 64 at 1": {PromptTokens: []int32{3, 64}},
		"prompt_tokens: 4097":       {PromptTokens: make([]int32, 4097)},
		"isolation: must be":        {PromptTokens: []int32{3}, Isolation: "a b"},
		"isolation: has 129 bytes,": {PromptTokens: []int32{3}, Isolation: strings.Repeat("k", 129)},
	} {
		if _, err := r.client.ReadAhead(t.Context(), m); err == nil || !strings.Contains(rpcerr.FromRPC(err).Error(), field) {
			t.Errorf("want an error of %s, got %v", field, err)
		}
	}
	r.server.Drain()
	got, err = r.client.ReadAhead(t.Context(), &tandemv1.ReadAheadRequest{PromptTokens: next})
	if err != nil || got.Accepted {
		t.Errorf("a worker that drains: %v, %v", got, err)
	}
}

// TestRequestStopsReadingAhead: with one sequence in the engine a request waits for no more than a step of the reading.
func TestRequestStopsReadingAhead(t *testing.T) {
	const step = 30 * time.Millisecond
	r := newRig(t, rigOptions{target: enginefake.Options{PromptRows: 64, StepDelay: step}, slots: 1})
	want := r.must(&tandemv1.DecodeRequest{PromptTokens: prompt(40, 3), MaxTokens: 3, TopLogprobs: -1})
	if _, err := r.client.ReadAhead(t.Context(), &tandemv1.ReadAheadRequest{PromptTokens: prompt(4000, 2)}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		time.Sleep(step) // somewhere in the reading
		got := r.must(&tandemv1.DecodeRequest{PromptTokens: prompt(40, 3), MaxTokens: 3, TopLogprobs: -1})
		if !slices.Equal(got.tokens, want.tokens) {
			t.Errorf("beside the reading %v, alone %v", got.tokens, want.tokens)
		}
	}
	counter := func(name string) float64 {
		var h tandemv1.Heartbeat
		r.server.Heartbeat(&h)
		return h.Counters[name]
	}
	if counter("read_ahead_stops") == 0 {
		t.Error("no request met the reading")
	}
	a := func() answer {
		return r.must(&tandemv1.DecodeRequest{PromptTokens: append(prompt(4000, 2), 1), MaxTokens: 1, TopLogprobs: -1})
	}
	r.until("all is read in the pauses", func() bool { return counter("read_ahead_tokens") >= 3584 })
	if got := a(); got.prefill.CachedTokens != 3584 {
		t.Errorf("%d tokens are taken", got.prefill.CachedTokens)
	}
}
