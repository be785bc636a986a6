package turn_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
)

// TestToolMemoryIsTheKeysOwn: the same call in the history of another key is rendered by the template, not as the model
// wrote it for the first.
func TestToolMemoryIsTheKeysOwn(t *testing.T) {
	r := rig.Start(t, func(c *app.Config) { c.APIKey = append(c.APIKey, "key-a", "key-b") })
	w := r.Target(gatewaytest.WorkerOptions{})
	const odd = "<function=get_weather><parameter=city>Rome</parameter></function>"
	w.SetDecode(r.Reply(odd, 3))
	call := rig.At(r.Post("/v1/chat/completions", rig.ChatBody(rig.WeatherTool), "Authorization", "Bearer key-a").JSON(t),
		"choices", 0, "message")
	history := `{"messages":[{"role":"user","content":"Say hello."},` + string(rig.JSON(call)) +
		`,{"role":"tool","tool_call_id":"` + fmt.Sprint(rig.At(call, "tool_calls", 0, "id")) +
		`","content":"sunny"}],` + rig.WeatherTool + `}`
	for key, want := range map[string]bool{"key-a": true, "key-b": false} {
		r.Post("/v1/chat/completions", history, "Authorization", "Bearer "+key)
		if got := strings.Contains(r.LastPrompt(w), odd); got != want {
			t.Errorf("%s: the words of the model are in the prompt: %v, want %v: %s", key, got, want, r.LastPrompt(w))
		}
	}
}
