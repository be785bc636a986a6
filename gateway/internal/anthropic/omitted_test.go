package anthropic_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/wirecheck"
)

// TestThinkingDisplayOmitted: blocks come without their text, streamed and whole, and the text comes back out of the
// signature when the client sends the history.
func TestThinkingDisplayOmitted(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{})
	w.SetDecode(r.Reply("The secret plan.\n</think>\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>", 2))
	const ask = `{"role":"user","content":"Go."}`
	body := func(messages, more string) string {
		return `{"messages":[` + messages +
			`],"tools":[{"name":"f","input_schema":{}}],"thinking":{"type":"enabled","budget_tokens":2000,"display":"omitted"}` +
			more + `}`
	}
	whole := r.Post("/v1/messages", body(ask, "")).JSON(t)
	streamed, err := wirecheck.Messages(r.Post("/v1/messages", body(ask, `,"stream":true`)).Body)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]any{"whole": whole["content"], "stream": streamed.Message["content"]} {
		text := string(rig.JSON(content))
		if rig.At(content, 0, "type") != "thinking" || rig.At(content, 0, "thinking") != "" ||
			rig.At(content, 0, "signature") == "" ||
			strings.Contains(text, "secret") {
			t.Errorf("%s: %s", name, text)
		}
		// The call's own memory would bring the reasoning back as well: another id keeps it out.
		history := ask + `,{"role":"assistant","content":` + strings.Replace(text, "toolu_", "toolu_x",
			1) + `},{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_x","content":"done"}]}`
		r.Post("/v1/messages", body(history, ""))
		if got := r.LastPrompt(w); !strings.Contains(got, "<think>\nThe secret plan.\n</think>") {
			t.Errorf("%s: the reasoning is lost: %s", name, got)
		}
		forged := strings.Replace(history, `"signature":"`, `"signature":"AAAA`, 1)
		r.Post("/v1/messages", body(forged, ""))
		if got := r.LastPrompt(w); strings.Contains(got, "secret plan") {
			t.Errorf("%s: a forged signature opens: %s", name, got)
		}
	}
	// Any other display shows the text.
	if v := r.Post("/v1/messages", strings.Replace(body(ask, ""), "omitted", "summarized", 1)).JSON(t); rig.At(v,
		"content", 0,
		"thinking") != "The secret plan." {
		t.Errorf("summarized: %v", v["content"])
	}
}

// TestFailedToolsSaySo: is_error shows in the prompt.
func TestFailedToolsSaySo(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("ok", 1)})
	for content, want := range map[string]string{
		`"no such file"`:                       "\nError: no such file\n",
		`"Error: no such file"`:                "\nError: no such file\n",
		`"<tool_use_error>x</tool_use_error>"`: "\n<tool_use_error>x</tool_use_error>\n",
		`[{"type":"text","text":"exit 1"}]`:    "\nError: exit 1\n",
		`""`:                                   "\nThe tool failed.\n",
	} {
		for _, failed := range []bool{true, false} {
			r.Post("/v1/messages", fmt.Sprintf(`{"messages":[{"role":"user","content":"Go."},{"role":"assistant","content":[{"type":"tool_use","id":"toolu_1","name":"f","input":{}}]},
				{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","is_error":%v,"content":%s}]}]}`, failed, content))
			text := "<tool_response>" + want + "</tool_response>"
			if got := strings.Contains(r.LastPrompt(w), text); got != failed && !(strings.Contains(content, "rror") && got) {
				t.Errorf("%s, failed %v: %q in the prompt: %v: %s", content, failed, text, got, r.LastPrompt(w))
			}
		}
	}
}
