package server

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/worker-target/internal/decode"
	"github.com/tandem-inference/tandem/worker-target/internal/decode/speculate"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// TestRequestLine: the line of a finished request says how it speculated and where its time went.
func TestRequestLine(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	s := &Server{deps: Deps{Log: zap.New(core)}}
	stats := &decode.Stats{CachedTokens: 1, PrefillTokens: 2, Emitted: 3, Steps: 4, Prefill: 5 * time.Millisecond,
		Verify: 6 * time.Millisecond, Wait: 12 * time.Millisecond, Restore: 13 * time.Millisecond,
		FirstToken: 14 * time.Millisecond, Decode: 15 * time.Millisecond,
		Stats: speculate.Stats{Drafted: 8, Accepted: 9, LookDrafted: 10, Late: 11, Degraded: true,
			DraftWait: 7 * time.Millisecond}}
	req := &decode.Request{ID: "r", Mode: tandemv1.SpeculationMode_SPECULATION_MODE_AUTO, Arrived: time.Now()}
	s.log(t.Context(), req, stats, decode.Result{Reason: tandemv1.FinishReason_FINISH_REASON_STOP}, nil)
	got := logs.All()[0].ContextMap()
	delete(got, "duration_ms")
	want := map[string]any{"request_id": "r", "outcome": "FINISH_REASON_STOP", "mode": "auto", "cached_tokens": int64(1),
		"prompt_tokens": int64(2), "tokens": int64(3), "rounds": int64(4), "prefill_ms": int64(5), "verify_ms": int64(6),
		"draft_wait_ms": int64(7), "drafted": int64(8), "accepted": int64(9), "looked_up": int64(10), "late": int64(11),
		"degraded": true, "wait_ms": int64(12), "restore_ms": int64(13), "ttft_ms": int64(14), "decode_ms": int64(15)}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// TestRefusedRequestsAreLogged: a request that never reached a slot leaves a line, too.
func TestRefusedRequestsAreLogged(t *testing.T) {
	r := newRig(t, rigOptions{})
	core, logs := observer.New(zap.InfoLevel)
	r.server.deps.Log = zap.New(core)
	for id, m := range map[string]*tandemv1.DecodeRequest{
		"no prompt": {}, "outside": {PromptTokens: []int32{1, 2, 1 << 30}, MaxTokens: 1},
	} {
		m.RequestId = id
		stream, err := r.client.Decode(t.Context(), m)
		for err == nil {
			_, err = stream.Recv()
		}
		lines := logs.TakeAll()
		if len(lines) != 1 || lines[0].Level != zap.InfoLevel {
			t.Fatalf("%s: %v", id, lines)
		}
		got := lines[0].ContextMap()
		if got["duration_ms"] == nil || got["err"] == nil {
			t.Errorf("%s: %v", id, got)
		}
		want := map[string]any{"request_id": id, "outcome": "refused", "prompt_tokens": int64(len(m.PromptTokens))}
		if d := cmp.Diff(want, got, cmpopts.IgnoreMapEntries(func(key string, _ any) bool {
			return key == "duration_ms" || key == "err"
		})); d != "" {
			t.Errorf("%s: %s", id, d)
		}
	}
}
