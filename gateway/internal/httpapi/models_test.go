package httpapi_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
)

func TestModelsInThreeShapes(t *testing.T) {
	r := rig.Start(t, func(c *app.Config) { c.ModelName = "org/tiny" })
	r.Target(gatewaytest.WorkerOptions{MaxContext: 4096})
	v := r.Do("GET", "/v1/models?limit=1000", "", "anthropic-version", "2023-06-01").JSON(t)
	if rig.At(v, "data", 0, "id") != "org/tiny" || rig.At(v, "data", 0, "type") != "model" || v["has_more"] != false ||
		v["first_id"] != "org/tiny" || v["last_id"] != "org/tiny" {
		t.Errorf("Anthropic: %v", v)
	}
	v = r.Do("GET", "/models/org/tiny", "", "anthropic-version", "2023-06-01").JSON(t)
	if v["id"] != "org/tiny" || !strings.HasSuffix(fmt.Sprint(v["created_at"]), "Z") {
		t.Errorf("Anthropic, one: %v", v)
	}
	v = r.Do("GET", "/v1/models?client_version=0.169.0", "").JSON(t)
	m := rig.At(v, "models", 0)
	for k, want := range map[string]any{"slug": "org/tiny", "display_name": "org/tiny", "shell_type": "shell_command",
		"visibility": "list", "supported_in_api": true,
		"priority": 1.0, "context_window": 4096.0, "supports_reasoning_summaries": false,
		"supports_parallel_tool_calls": true, "default_reasoning_level": "low"} {
		if rig.At(m, k) != want {
			t.Errorf("Codex: %s = %v, want %v", k, rig.At(m, k), want)
		}
	}
	v = r.Do("GET", "/v1/models/org/tiny", "").JSON(t)
	if v["object"] != "model" || v["context_length"] != 4096.0 {
		t.Errorf("OpenAI, one: %v", v)
	}
}
