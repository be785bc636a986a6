package turn_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
)

// TestReasoningFormat: with none the content of chat completions is what the model wrote, after what the prompt opened
// it with, streamed and whole; the other values split as without the field.
func TestReasoningFormat(t *testing.T) {
	r := rig.Start(t, nil)
	r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("why\n</think>\n\nok", 1)})
	ask := func(field string, stream bool) (content, reasoning string) {
		t.Helper()
		body := rig.ChatBody(`"enable_thinking":true` + field)
		if !stream {
			a := r.Post("/v1/chat/completions", body)
			if a.Status != http.StatusOK {
				t.Fatalf("%d %s", a.Status, a.Body)
			}
			message := rig.At(a.JSON(t), "choices", 0, "message")
			content, _ = rig.At(message, "content").(string)
			reasoning, _ = rig.At(message, "reasoning_content").(string)
			return content, reasoning
		}
		a := r.Post("/v1/chat/completions", strings.Replace(body, "{", `{"stream":true,`, 1))
		for _, ev := range rig.Events(t, a.Body) {
			if c, ok := rig.At(ev, "choices", 0, "delta", "content").(string); ok {
				content += c
			}
			if c, ok := rig.At(ev, "choices", 0, "delta", "reasoning_content").(string); ok {
				reasoning += c
			}
		}
		return content, reasoning
	}
	for _, stream := range []bool{false, true} {
		if c, why := ask(`,"reasoning_format":"none"`, stream); c != "<think>\nwhy\n</think>\n\nok" || why != "" {
			t.Errorf("none, stream %v: content %q, reasoning %q", stream, c, why)
		}
		for _, field := range []string{"", `,"reasoning_format":"auto"`, `,"reasoning_format":"deepseek"`} {
			if c, why := ask(field, stream); c != "ok" || why != "why" {
				t.Errorf("%s, stream %v: content %q, reasoning %q", field, stream, c, why)
			}
		}
	}
	for _, field := range []string{`"reasoning_format":"deepseek-legacy"`, `"reasoning_format":7`,
		`"reasoning_format":"none","logprobs":true`} {
		a := r.Post("/v1/chat/completions", rig.ChatBody(field))
		if a.Status != http.StatusBadRequest || rig.At(a.JSON(t), "error", "param") != "reasoning_format" {
			t.Errorf("%s: %d %s", field, a.Status, a.Body)
		}
	}
}
