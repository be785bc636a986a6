package turn_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/wirecheck"
)

// said puts an answer of any dialect together: reasoning, text and the arguments of the calls.
type said struct{ Reasoning, Text, Calls string }

// hear asks for an answer, whole or as a stream.
func hear(r *rig.Rig, t *testing.T, path, body string, stream bool) said {
	t.Helper()
	if stream {
		body = rig.WithStream(body)
	}
	a := r.Post(path, body)
	if a.Status != 200 {
		t.Fatalf("%s: %d %s", path, a.Status, a.Body)
	}
	var s said
	var whole map[string]any
	switch {
	case path == "/v1/chat/completions":
		var c rig.ChatState
		if stream {
			got, err := wirecheck.Chat(a.Body, 1)
			if err != nil {
				t.Fatal(err)
			}
			c = got.Choices[0]
		} else {
			c = rig.WholeChat(t, a)[0]
		}
		s.Reasoning, s.Text = c.Reasoning, c.Content
		for _, call := range c.Calls {
			s.Calls += call.Arguments + ";"
		}
		return s
	case !stream:
		whole = a.JSON(t)
	case path == "/v1/responses":
		got, err := wirecheck.Responses(a.Body)
		if err != nil {
			t.Fatal(err)
		}
		whole = got.Final
	default:
		got, err := wirecheck.Messages(a.Body)
		if err != nil {
			t.Fatal(err)
		}
		whole = got.Message
	}
	items, _ := whole["output"].([]any)
	if path == "/v1/messages" {
		items, _ = whole["content"].([]any)
	}
	for _, it := range items {
		switch rig.At(it, "type") {
		case "message":
			s.Text += fmt.Sprint(rig.At(it, "content", 0, "text"))
		case "text":
			s.Text += fmt.Sprint(rig.At(it, "text"))
		case "thinking":
			s.Reasoning += fmt.Sprint(rig.At(it, "thinking"))
		case "reasoning":
			if text, ok := rig.At(it, "content", 0, "text").(string); ok {
				s.Reasoning += text
			} else {
				s.Reasoning += fmt.Sprint(rig.At(it, "summary", 0, "text"))
			}
		case "function_call":
			s.Calls += fmt.Sprint(rig.At(it, "arguments")) + ";"
		case "tool_use":
			var b strings.Builder
			e := json.NewEncoder(&b)
			e.SetEscapeHTML(false)
			if err := e.Encode(rig.At(it, "input")); err != nil {
				t.Fatal(err)
			}
			s.Calls += strings.TrimSpace(b.String()) + ";"
		}
	}
	return s
}

// TestMarkersAreText: reasoning markers without a meaning are text in every dialect, whole and streamed, also inside of
// arguments; a call that ends open reasoning is a call.
func TestMarkersAreText(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{})
	const args = `{"old":"if \"</think>\" in text:","new":"cut(\"<think>\")"}`
	const call = "<tool_call>\n<function=edit>\n<parameter=old>\nif \"</think>\" in text:\n</parameter>\n<parameter=new>\ncut(\"<think>\")\n</parameter>\n</function>\n</tool_call>"
	for _, tt := range []struct {
		name, say string
		thinking  bool
		want      said
	}{
		{"answer", "Use `<think>` and `</think>`.\n\n<think>", false, said{Text: "Use `<think>` and `</think>`.\n\n<think>"}},
		{"after reasoning", "Why?\n</think>\n\nUse `<think>` and\n</think>", true,
			said{"Why?", "Use `<think>` and\n</think>", ""}},
		{"arguments", call, false, said{Calls: args + ";"}},
		{"arguments after reasoning", "Why <think>?\n</think>\n\nNow.\n" + call, true,
			said{"Why <think>?", "Now.\n", args + ";"}},
		{"a call ends reasoning", "Look.\n" + strings.ReplaceAll(call, "</think>", "</thinking>"), true,
			said{"Look.", "", strings.ReplaceAll(args, "</think>", "</thinking>") + ";"}},
		{"a mention does not", "I could write <tool_call>\n<function=edit>, but no.\n</think>\n\nNo.", true,
			said{"I could write <tool_call>\n<function=edit>, but no.", "No.", ""}},
	} {
		on, kind := "disabled", "none"
		if tt.thinking {
			on, kind = "enabled", "high"
		}
		const params = `{"type":"object","properties":{"old":{"type":"string"},"new":{"type":"string"}}}`
		bodies := map[string]string{
			"/v1/chat/completions": `{"messages":[{"role":"user","content":"Go."}],"thinking":{"type":"` + on +
				`"},"tools":[{"type":"function","function":{"name":"edit","parameters":` + params + `}}]}`,
			"/v1/responses": `{"input":"Go.","reasoning":{"effort":"` + kind +
				`"},"tools":[{"type":"function","name":"edit","parameters":` + params + `,"strict":false}]}`,
			"/v1/messages": `{"max_tokens":1000,"messages":[{"role":"user","content":"Go."}],"thinking":{"type":"` + on +
				`"},"tools":[{"name":"edit","input_schema":` + params + `}]}`,
		}
		for path, body := range bodies {
			for _, step := range []int{1, 3, 1000} {
				w.SetDecode(r.Reply(tt.say, step))
				for _, stream := range []bool{false, true} {
					got := hear(r, t, path, body, stream)
					want := tt.want
					got.Calls = canonical(t, got.Calls)
					want.Calls = canonical(t, want.Calls)
					if got != want {
						t.Errorf("%s, %s, step %d, stream %v:\n%+v, want\n%+v", tt.name, path, step, stream, got, want)
					}
				}
			}
		}
	}
}

// canonical spells the arguments of calls with sorted keys.
func canonical(t *testing.T, calls string) (out string) {
	t.Helper()
	for _, c := range strings.SplitAfter(calls, "};") {
		if c = strings.TrimSuffix(c, ";"); c == "" {
			continue
		}
		var v any
		if err := json.Unmarshal([]byte(c), &v); err != nil {
			t.Fatalf("arguments %q: %v", c, err)
		}
		out += string(rig.JSON(v)) + ";"
	}
	return out
}

// TestNoCallInReasoningUnderAGrammar: the worker closes reasoning before a call that a grammar has to hold, so a call
// that still stands in reasoning was held to nothing and does not count.
func TestNoCallInReasoningUnderAGrammar(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{})
	const call = "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>"
	w.SetDecode(r.Reply("Look.\n"+call, 3))
	for more, calls := range map[string]int{"": 1, `,"tool_choice":"required"`: 0} {
		c := rig.WholeChat(t, r.Post("/v1/chat/completions", rig.ChatBody(rig.WeatherTool+`,"enable_thinking":true`+more)))[0]
		if len(c.Calls) != calls || (c.Reasoning == "Look.") != (calls == 1) {
			t.Errorf("with %q: %+v, want %d calls", more, c, calls)
		}
	}
}
