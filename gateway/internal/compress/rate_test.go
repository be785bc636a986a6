package compress_test

import (
	"regexp"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
)

// TestPrefillRateCountsWhatWasRead: tokens that compression dropped were not read.
func TestPrefillRateCountsWhatWasRead(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("ok", 1)})
	script, _ := rig.Scorer(t, "raven")
	r.Scorer(script)
	v := r.Post("/v1/chat/completions",
		`{"messages":`+rig.ChatOf("user", rig.Haystack(150, 60), "assistant", "I read it.", "user",
			"What is it?")+`,"pflash":{"mode":"always"}}`).JSON(t)
	read := float64(len(w.Requests()[0].GetPromptTokens()))
	if rig.At(v, "usage", "pflash", "kept_tokens") != read || rig.At(v, "usage", "prompt_tokens").(float64) < 2*read {
		t.Fatalf("usage %v", v["usage"])
	}
	m := regexp.MustCompile(`(?m)^tandem_prefill_tokens_per_second_sum(?:\{.*\})? (\S+)$`).FindSubmatch(r.Do("GET",
		"/metrics", "").Body)
	if m == nil {
		t.Fatal("no rate")
	}
	got, err := strconv.ParseFloat(string(m[1]), 64)
	// The script says that it read for 2 ms.
	if d := cmp.Diff(read/0.002, got); err != nil || d != "" {
		t.Errorf("%v %s", err, d)
	}
}
