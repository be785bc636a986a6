package server

import (
	"slices"
	"strings"
	"testing"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"google.golang.org/grpc/codes"
)

// TestPrefixCache: what a request leaves the next takes, unless it is off or kept apart; answers and heartbeats say so.
func TestPrefixCache(t *testing.T) {
	r := newRig(t, rigOptions{target: enginefake.Options{PromptRows: 64}})
	ask := func(use *tandemv1.CacheUse) answer {
		t.Helper()
		return r.must(&tandemv1.DecodeRequest{PromptTokens: prompt(1300, 1), MaxTokens: 5, TopLogprobs: -1, Cache: use})
	}
	expect := func(what string, a answer, cached, saved int32) {
		t.Helper()
		if p := a.prefill; p.Tokens != 1300 || p.CachedTokens != cached || p.SavedTokens != saved {
			t.Errorf("%s: %v, want %d cached and %d saved", what, p, cached, saved)
		}
	}
	cold := ask(&tandemv1.CacheUse{Off: true})
	expect("off", cold, 0, 0)
	expect("the first", ask(nil), 0, 1024)
	hit := ask(nil)
	expect("the second", hit, 1024, 0)
	if !slices.Equal(cold.tokens, hit.tokens) || hit.finished.Timings.RestoreMs <= 0 ||
		cold.finished.Timings.RestoreMs != 0 {
		t.Errorf("%v after %v ms of restoring, cold %v", hit.tokens, hit.finished.Timings.RestoreMs, cold.tokens)
	}
	expect("off again", ask(&tandemv1.CacheUse{Off: true}), 0, 0)
	apart := &tandemv1.CacheUse{Isolation: "key-1", Hints: []int32{600}}
	expect("apart", ask(apart), 0, 1024)
	expect("apart again", ask(apart), 1024, 0)
	a := r.must(&tandemv1.DecodeRequest{PromptTokens: append(prompt(600, 1), prompt(200, 9)...), MaxTokens: 5,
		TopLogprobs: -1, Cache: apart})
	if a.prefill.CachedTokens != 512 {
		t.Errorf("a branch at the hint takes %d tokens", a.prefill.CachedTokens)
	}
	r.idle()
	var h tandemv1.Heartbeat
	r.server.Heartbeat(&h)
	for name, want := range map[string]float64{
		"prefix_cache_lookups": 5, "prefix_cache_hits": 3, "prefix_cache_tokens": 1024 + 1024 + 512,
		"prefix_cache_evictions": 0,
		"prefix_cache_failures":  0, "prefix_cache_refusals": 0, "prompt_tokens": 4*1300 + 276 + 276 + 288,
	} {
		if got := h.Counters[name]; got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if h.Counters["prefix_cache_entries"] < 3 || h.Counters["prefix_cache_bytes"] <= 0 {
		t.Errorf("%v", h.Counters)
	}
}

// TestPrefixCacheChecks: errors name the field.
func TestPrefixCacheChecks(t *testing.T) {
	r := newRig(t, rigOptions{})
	for field, use := range map[string]*tandemv1.CacheUse{
		"cache.isolation: has 129": {Isolation: strings.Repeat("k", 129)}, "cache.isolation: must be": {Isolation: "a b"},
		"cache.hints: has 17": {Hints: make([]int32, 17)}, "cache.hints: position 0 at 1": {Hints: []int32{30, 0}},
		"cache.hints: position 31 at 0": {Hints: []int32{31}},
	} {
		_, err := r.decode(t.Context(), &tandemv1.DecodeRequest{PromptTokens: prompt(30, 1), MaxTokens: 5, TopLogprobs: -1,
			Cache: use}, nil)
		if rpcerr.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), field) {
			t.Errorf("want an error of %s, got %v", field, err)
		}
	}
}

// TestPrefixCacheDiesWithItsEngine: a new engine begins with an empty cache, and a request that failed over is cold and
// exact.
func TestPrefixCacheDiesWithItsEngine(t *testing.T) {
	r := newRig(t, rigOptions{})
	m := &tandemv1.DecodeRequest{PromptTokens: prompt(900, 1), MaxTokens: 5, TopLogprobs: -1}
	r.must(m)
	want := r.must(m)
	named := func() int {
		var h tandemv1.Heartbeat
		r.server.Heartbeat(&h)
		return len(h.Prefixes.GetStates())
	}
	if named() == 0 {
		t.Error("heartbeats name no states")
	}
	r.opener.Opened()[0].Crash()
	r.until("another engine is open", func() bool {
		e, err := r.keeper.Engine()
		return err == nil && len(r.opener.Opened()) == 2 && e != nil
	})
	if n := named(); n != 0 {
		t.Errorf("heartbeats name %d states of an engine that is no more", n)
	}
	got := r.must(m)
	if got.prefill.CachedTokens != 0 || !slices.Equal(got.tokens, want.tokens) || want.prefill.CachedTokens == 0 {
		t.Errorf("%d tokens were cached before and %d after the engine died", want.prefill.CachedTokens,
			got.prefill.CachedTokens)
	}
	if got := r.must(m); got.prefill.CachedTokens == 0 {
		t.Error("the new engine's cache stays empty")
	}
}
