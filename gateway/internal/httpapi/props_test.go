package httpapi_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
)

// specKeys are the keys that docs/spec/http-api.md §15.3 demands, dotted: name{key,key[],inner{…}}.
func specKeys(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "spec", "http-api.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\n15.3 ")
	rest, _, ok := strings.Cut(rest, "\nAdding keys does not")
	if !ok {
		t.Fatal("§15.3 is not where it was")
	}
	_, rest, _ = strings.Cut(rest, "Required top-level keys")
	var out []string
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(rest, -1) {
		var under []string
		for _, token := range regexp.MustCompile(`[a-z0-9_-]+|[{}]`).FindAllString(m[1], -1) {
			switch token {
			case "{":
				under = append(under, out[len(out)-1])
			case "}":
				under = under[:len(under)-1]
			default:
				if len(under) > 0 {
					token = under[len(under)-1] + "." + token
				}
				out = append(out, token)
			}
		}
	}
	return out
}

// TestPropsHaveEveryKey: those of the specification, nested ones too; a feature that is not there may be null as
// a whole.
func TestPropsHaveEveryKey(t *testing.T) {
	r := rig.Start(t, nil)
	r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("ok", 1)})
	v := r.Do("GET", "/props", "").JSON(t)
	// Words in the text of the section that are no keys.
	words := map[string]bool{"draft": true, "lookup": true}
	absent := map[string]bool{"full_cache": true, "prefix_cache": true}
	checked := 0
	for _, key := range specKeys(t) {
		path := strings.Split(key, ".")
		if words[key] || strings.HasPrefix(key, "sampling.capabilities.") || key == "server.2" { // the value of props_schema
			continue
		}
		checked++
		at := any(v)
		for i, p := range path {
			if at == nil && i > 0 && absent[path[0]] {
				break
			}
			m, ok := at.(map[string]any)
			if !ok {
				t.Errorf("%s: %s is %v", key, strings.Join(path[:i], "."), at)
				break
			}
			if at, ok = m[p]; !ok {
				t.Errorf("props lack %s", key)
				break
			}
		}
	}
	if checked < 70 {
		t.Errorf("only %d keys were found in the specification", checked)
	}
}

// TestPropsTellWhatRuns compares values with flags, workers and what was generated.
func TestPropsTellWhatRuns(t *testing.T) {
	card := filepath.Join(t.TempDir(), "card.json")
	if err := os.WriteFile(card, []byte(`{"name":"C","source":"http://x.example","verified_at":"2026-01-01","max_tokens":8000,"hard_limit_reply_budget":500,
		"sampling":{"temperature":0.7,"top_p":0.9,"top_k":20,"min_p":0.1,"repetition_penalty":1.1}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	r := rig.Start(t, func(c *app.Config) {
		c.ModelCard, c.PrefillCompression, c.PrefillThreshold, c.PrefillKeepRatio, c.MaxQueue, c.DefaultThinking = card,
			"auto", 5000, 0.1, 7, true
		c.APIKey = append(c.APIKey, "key")
	})
	r.Target(gatewaytest.WorkerOptions{MaxContext: 4096, Decode: r.Reply("one two three", 2),
		Settings: map[string]string{"lookup": "true", "chunk": "256", "ddtree-budget": "22", "max-token-gap-ms": "80",
			"fa-window": "4096", "cache-type-k": "q8_0", "cache-type-v": "f16", "prefix-cache-slots": "100",
			"prefix-cache-ram-mb": "512", "kv-cache-budget": "2048"},
		Counters: map[string]float64{"drafted_tokens": 40, "accepted_tokens": 30, "prefix_cache_lookups": 9,
			"prefix_cache_hits": 6, "prefix_cache_tokens": 4000, "prefix_cache_evictions": 2, "prefix_cache_entries": 5,
			"prefix_cache_bytes": 1e6, "prefix_cache_disk_states": 3, "prefix_cache_disk_bytes": 2e6,
			"prefix_cache_disk_lookups": 8, "prefix_cache_disk_hits": 4, "prefix_cache_disk_tokens": 900,
			"prefix_cache_disk_writes": 7, "prefix_cache_disk_evictions": 1, "prefix_cache_disk_damaged": 5}})
	script, _ := rig.Scorer(t)
	r.Scorer(script)
	target, prefill := gatewaytest.ModelPath(t, gatewaytest.Target), gatewaytest.ModelPath(t, gatewaytest.Scorer)
	v := r.Do("GET", "/props", "", "Authorization", "Bearer key").JSON(t)
	for key, want := range map[string]any{
		"model_alias": "tiny", "model_path": target, "model.arch": "qwen35", "model.draft_path": nil, "model_card.name": "C",
		"budget_envelope.model_card_source": card, "budget_envelope.default_max_tokens": 8000.0,
		"budget_envelope.hard_limit_reply_budget": 500.0, "default_generation_settings.n_ctx": 4096.0,
		"default_generation_settings.temperature": 0.7, "default_generation_settings.top_p": 0.9,
		"default_generation_settings.top_k": 20.0, "default_generation_settings.min_p": 0.1,
		"default_generation_settings.repeat_penalty": 1.1, "pflash.enabled": true, "pflash.mode": "auto",
		"pflash.threshold": 5000.0, "pflash.keep_ratio": 0.1, "pflash.drafter_gguf": prefill,
		"reasoning.supported": true, "reasoning.default": true, "runtime.backend": "cpu",
		"runtime.target_device": "fake", "runtime.chunk": 256.0,
		"runtime.max_token_gap_ms": 80.0, "runtime.kv_cache_k": "q8_0", "runtime.kv_cache_v": "f16",
		"runtime.fa_window": 4096.0, "runtime.lazy_draft": false, "pflash.skip_park": nil,
		"speculative.enabled": true, "speculative.ddtree_budget": 22.0,
		"speculative.drafted_tokens": 40.0, "speculative.accepted_tokens": 30.0, "speculative.accept_rate": 0.75,
		"speculative_mode": "lookup", "capabilities.speculative_supported": true, "tandem.features.speculation": true,
		"tandem.features.pflash": true, "tandem.queue.limit": 7.0, "daemon.alive": true, "server.version": "test",
		"server.props_schema": 2.0, "full_cache": nil,
		"prefix_cache.capacity": 100.0, "prefix_cache.in_use": 5.0, "prefix_cache.ram_mb": 512.0,
		"prefix_cache.bytes": 1e6, "prefix_cache.lifetime_lookups": 9.0, "prefix_cache.lifetime_hits": 6.0,
		"prefix_cache.lifetime_tokens": 4000.0, "prefix_cache.lifetime_evictions": 2.0,
		"prefix_cache.disk.budget_mb": 2048.0, "prefix_cache.disk.states": 3.0, "prefix_cache.disk.bytes": 2e6,
		"prefix_cache.disk.lifetime_lookups": 8.0, "prefix_cache.disk.lifetime_hits": 4.0,
		"prefix_cache.disk.lifetime_tokens": 900.0, "prefix_cache.disk.lifetime_writes": 7.0,
		"prefix_cache.disk.lifetime_evictions": 1.0, "prefix_cache.disk.lifetime_damaged": 5.0,
		"sampling.capabilities.top_k": true,
		"tool_replay.current_entries": 0.0,
	} {
		got := any(v)
		for _, p := range strings.Split(key, ".") {
			got = rig.At(got, p)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", key, d)
		}
	}
	if d := cmp.Diff([]any{"lookup"}, rig.At(v, "speculative", "sources")); d != "" {
		t.Error(d)
	}
	// Without a key no path shows.
	v = r.Do("GET", "/props", "").JSON(t)
	for _, got := range []any{rig.At(v, "model_path"), rig.At(v, "pflash", "drafter_gguf")} {
		if got != gatewaytest.Target && got != gatewaytest.Scorer {
			t.Errorf("path %v without a key", got)
		}
	}
}

// TestPropsSpeculation: what speculates decides, not whether a draft exists.
func TestPropsSpeculation(t *testing.T) {
	for name, tt := range map[string]struct {
		settings map[string]string
		attached []string
		mode     string
		sources  []any
	}{
		"nothing":          {map[string]string{"lookup": "false"}, nil, "off", []any{}},
		"an older worker":  {nil, nil, "off", []any{}},
		"lookup":           {map[string]string{"lookup": "true"}, nil, "lookup", []any{"lookup"}},
		"draft":            {map[string]string{"lookup": "false"}, []string{"d1"}, "dflash", []any{"draft"}},
		"draft and lookup": {map[string]string{"lookup": "true"}, []string{"d1"}, "dflash", []any{"draft", "lookup"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := rig.Start(t, nil)
			r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("ok", 1), Settings: tt.settings, Attached: tt.attached})
			r.Eventually("heartbeat", func() bool {
				w := r.Parts.Cluster.Workers()
				return len(w) == 1 && len(w[0].Heartbeat.GetAttached()) == len(tt.attached)
			})
			if len(tt.attached) > 0 {
				gatewaytest.Join(t, r.App.RegistryAddr().String(),
					gatewaytest.WorkerOptions{ID: "d1", Role: tandemv1.Role_ROLE_DRAFT, Slots: 1,
						Model: &tandemv1.ModelInfo{Name: "draft", Path: "/models/draft.gguf"}})
				r.Eventually("draft", func() bool { return len(r.Parts.Cluster.Workers()) == 2 })
			}
			v := r.Do("GET", "/props", "").JSON(t)
			on := len(tt.sources) > 0
			if rig.At(v, "speculative_mode") != tt.mode || rig.At(v, "speculative", "enabled") != on ||
				rig.At(v, "capabilities", "speculative_supported") != on ||
				rig.At(v, "tandem", "features", "speculation") != on || !cmp.Equal(rig.At(v, "speculative", "sources"),
				any(tt.sources)) ||
				rig.At(v, "speculative", "accept_rate") != nil {
				t.Errorf("%v %v", v["speculative_mode"], v["speculative"])
			}
			if (rig.At(v, "model", "draft_path") == "/models/draft.gguf") != (len(tt.attached) > 0) {
				t.Errorf("draft_path %v", rig.At(v, "model", "draft_path"))
			}
		})
	}
}
