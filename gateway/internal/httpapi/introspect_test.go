package httpapi_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
)

func TestModelsAndHealth(t *testing.T) {
	r := rig.Start(t, nil)
	r.Target(gatewaytest.WorkerOptions{MaxContext: 4096, Decode: r.Reply("ok", 1)})
	v := r.Do("GET", "/v1/models", "").JSON(t)
	if rig.At(v, "data", 0, "id") != "tiny" || rig.At(v, "data", 0, "context_length") != 4096.0 ||
		rig.At(v, "data", 0, "owned_by") != "tandem" {
		t.Errorf("models %v", v)
	}
	if a := r.Do("GET", "/models/tiny", ""); a.Status != 200 {
		t.Errorf("one model: %d", a.Status)
	}
	if a := r.Do("GET", "/v1/models/other", ""); a.Status != 404 || rig.At(a.JSON(t), "error",
		"code") != "model_not_found" {
		t.Errorf("other model: %d %s", a.Status, a.Body)
	}
	for _, path := range []string{"/", "/health", "/health/live", "/health/ready"} {
		if a := r.Do("GET", path, ""); a.Status != 200 || rig.At(a.JSON(t), "status") != "ok" {
			t.Errorf("%s: %d %s", path, a.Status, a.Body)
		}
	}
	v = r.Do("GET", "/cluster", "").JSON(t)
	if rig.At(v, "workers", 0, "id") != "t1" || rig.At(v, "workers", 0, "role") != "target" ||
		rig.At(v, "workers", 0, "state") != "ready" || rig.At(v, "groups", 0, "target") != "t1" {
		t.Errorf("cluster %v", v)
	}
}

// TestClusterShowsCounters: what a worker's heartbeat counts is in /cluster, also how often its engine replayed graphs.
func TestClusterShowsCounters(t *testing.T) {
	r := rig.Start(t, nil)
	counted := map[string]float64{"graph_runs": 70, "graph_captures": 5, "list_runs": 9}
	r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("ok", 1), Counters: counted})
	shown := rig.At(r.Do("GET", "/cluster", "").JSON(t), "workers", 0, "counters")
	for name, want := range counted {
		if got := rig.At(shown, name); got != want {
			t.Errorf("%s is %v in /cluster, want %v", name, got, want)
		}
	}
	// No JSON has a number for NaN, which the worker sends of its prefill_seconds.
	if rig.At(shown, "verify_steps") != 3.0 || rig.At(shown, "prefill_seconds") != nil {
		t.Errorf("counters %v", shown)
	}
}

// TestClusterShowsStages: so are the stages of a target, with the way of their hidden rows.
func TestClusterShowsStages(t *testing.T) {
	r := rig.Start(t, nil)
	r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("ok", 1), Stages: []*tandemv1.StagePlace{
		{Device: "one", LayerLast: 5}, {Device: "two", LayerFirst: 5, LayerLast: 8, Rows: "direct"}}})
	shown := rig.At(r.Do("GET", "/cluster", "").JSON(t), "workers", 0, "stages")
	want := []any{map[string]any{"device": "one", "layer_first": 0.0, "layer_last": 5.0},
		map[string]any{"device": "two", "layer_first": 5.0, "layer_last": 8.0, "rows": "direct"}}
	if d := cmp.Diff(want, shown); d != "" {
		t.Error(d)
	}
}

func TestTokenEndpoints(t *testing.T) {
	r := rig.Start(t, nil)
	r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("ok", 1)})
	ids := r.Encode("Hello 日本")
	v := r.Post("/tokenize", `{"content":"Hello 日本"}`).JSON(t)
	if rig.At(v, "count") != float64(len(ids)) {
		t.Errorf("tokenize %v, want %v", v, ids)
	}
	back := r.Post("/detokenize", `{"tokens":`+string(rig.JSON(ids))+`}`).JSON(t)
	if rig.At(back, "content") != "Hello 日本" {
		t.Errorf("detokenize %v", back)
	}
	p := r.Post("/tokenize", `{"content":"日","with_pieces":true}`).JSON(t)
	if rig.At(p, "tokens", 0, "id") == nil || (rig.At(p, "tokens", 0, "piece") == nil && rig.At(p, "tokens", 0,
		"bytes") == nil) {
		t.Errorf("pieces %v", p)
	}
	// The count of a chat equals the usage of the same chat.
	count := r.Post("/tokenize", rig.ChatBody(`"enable_thinking":true`)).JSON(t)
	used := r.Post("/v1/chat/completions", rig.ChatBody(`"enable_thinking":true`)).JSON(t)
	if rig.At(count, "count") != rig.At(used, "usage", "prompt_tokens") {
		t.Errorf("count %v, usage %v", rig.At(count, "count"), rig.At(used, "usage", "prompt_tokens"))
	}
	a := r.Post("/apply-template", rig.ChatBody(`"enable_thinking":true`)).JSON(t)
	want := map[string]any{"prompt": "<|im_start|>user\nSay hello.<|im_end|>\n<|im_start|>assistant\n<think>\n",
		"started_in_thinking": true}
	if d := cmp.Diff(want, a); d != "" {
		t.Error(d)
	}
}

// TestStrictModelOfTokens: the endpoints that only read a prompt refuse another model's name like those that generate.
func TestStrictModelOfTokens(t *testing.T) {
	r := rig.Start(t, func(c *app.Config) { c.StrictModel = true })
	r.Target(gatewaytest.WorkerOptions{})
	for path, body := range map[string]string{
		"/tokenize": `{"content":"a"`, "/detokenize": `{"tokens":[5]`,
		"/apply-template": strings.TrimSuffix(rig.ChatBody(""), "}"),
	} {
		if a := r.Post(path, body+`,"model":"other"}`); a.Status != 404 ||
			rig.At(a.JSON(t), "error", "code") != "model_not_found" {
			t.Errorf("%s: %d %s", path, a.Status, a.Body)
		}
		if a := r.Post(path, body+`,"model":"tiny"}`); a.Status != 200 || a.Header.Get("X-Tandem-Warning") != "" {
			t.Errorf("%s: %d %s, warning %q", path, a.Status, a.Body, a.Header.Get("X-Tandem-Warning"))
		}
	}
}
