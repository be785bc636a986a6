package agents

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// openWebUI is version 0.12.4: routers/openai.py and tasks.py build the requests, utils/middleware.py reads the
// answers and plays the tools.
func (w *wire) openWebUI(t *testing.T) {
	header := http.Header{
		"Authorization": {"Bearer x"}, "X-Openwebui-User-Name": {"Ada%20L%C3%B6w"}, "X-Openwebui-User-Id": {"u1"},
		"X-Openwebui-User-Email": {"ada@example.org"}, "X-Openwebui-User-Role": {"admin"}, "X-Openwebui-Auth-Type": {"jwt"},
		"X-Openwebui-Chat-Id": {"c1"}, "X-Openwebui-Message-Id": {"m1"},
	}
	model := ""
	t.Run("models", func(t *testing.T) {
		_, text, body := w.get(t, "/v1/models")
		data, _ := body["data"].([]any)
		if len(data) == 0 {
			t.Fatalf("no models in %s", text)
		}
		entry, _ := data[0].(map[string]any)
		model, _ = entry["id"].(string)
		if model == "" || entry["owned_by"] == "ollama" { // else requests have another form
			t.Errorf("entry %v", entry)
		}
	})
	ask := func(t *testing.T, fields, messages string) turn {
		t.Helper()
		return stream(t, w.post(t, "/v1/chat/completions", fmt.Sprintf(`{"stream":true,"model":%q,"stream_options":{"include_usage":true},%s
			"messages":[{"role":"system","content":"User Context:\nToday is Tuesday."},%s]}`, model, fields, messages), header))
	}
	const tools = `"tools":[` + weatherTool + `],`
	t.Run("tools", func(t *testing.T) {
		const question = `{"role":"user","content":"Weather in Oslo and Rome?"}`
		first := ask(t, tools, question)
		if len(first.calls) != 2 || first.calls[0].arguments != `{"city": "Oslo"}` ||
			first.calls[1].arguments != `{"city": "Rome"}` || first.calls[0].name != "weather" ||
			first.calls[1].name != "weather" || first.finish != "tool_calls" ||
			strings.TrimSpace(first.text) != "Let me look." || first.role != "assistant" || !first.done {
			t.Fatalf("first turn %+v", first)
		}
		a, b := first.calls[0].id, first.calls[1].id
		if a == "" || a == b {
			t.Fatalf("ids %q and %q", a, b)
		}
		second := ask(t, tools, fmt.Sprintf(question+`,{"role":"assistant","content":"Let me look.","tool_calls":[
			{"id":%[1]q,"type":"function","function":{"name":"weather","arguments":%[3]q}},
			{"id":%[2]q,"type":"function","function":{"name":"weather","arguments":%[4]q}}]},
			{"role":"tool","tool_call_id":%[1]q,"content":"rain"},{"role":"tool","tool_call_id":%[2]q,"content":"sunny"}`, a, b,
			first.calls[0].arguments, first.calls[1].arguments))
		if second.text != "It is sunny." || second.finish != "stop" {
			t.Errorf("second turn %+v", second)
		}
		for _, name := range []string{"prompt_tokens", "completion_tokens", "total_tokens"} {
			if n, _ := second.usage[name].(float64); n < 1 {
				t.Errorf("usage.%s is %v", name, second.usage[name])
			}
		}
	})
	t.Run("reasoning", func(t *testing.T) {
		got := ask(t, tools+`"reasoning_effort":"low",`, `{"role":"user","content":"Oslo?"}`)
		if strings.TrimSpace(got.reasoning) != "I need the weather." ||
			strings.TrimSpace(got.text) != "Let me look." || len(got.calls) != 1 {
			t.Errorf("%+v", got)
		}
		// A server that was set up as llama.cpp gets the reasoning of earlier turns back.
		again := ask(t, tools+`"reasoning_effort":"low",`, fmt.Sprintf(`{"role":"user","content":"Oslo?"},
			{"role":"assistant","content":"","reasoning_content":%q,"tool_calls":[{"id":%q,"type":"function","function":{"name":"weather","arguments":%q}}]},
			{"role":"tool","tool_call_id":%q,"content":"sunny"}`, got.reasoning, got.calls[0].id, got.calls[0].arguments,
			got.calls[0].id))
		if again.text != "It is sunny." {
			t.Errorf("after the tool %+v", again)
		}
	})
	t.Run("continue", func(t *testing.T) {
		got := ask(t, `"continue_final_message":true,"add_generation_prompt":false,`,
			`{"role":"user","content":"Oslo?"},{"role":"assistant","content":"The weather in Oslo is"}`)
		if got.text != " sunny today." || got.finish != "stop" {
			t.Errorf("the button Continue got %+v", got)
		}
	})
	t.Run("tasks", func(t *testing.T) {
		for task, want := range map[string]string{
			`"max_tokens":1000,"messages":[{"role":"user","content":"Write a title.\n<chat_history>\nUSER: Oslo?\n</chat_history>"}]`: `{"title": "Weather"}`,
			`"messages":[{"role":"user","content":"Write 1-3 tags.\n<chat_history>\nUSER: Oslo?\n</chat_history>"}]`:                  `{"tags": ["weather"]}`,
		} {
			got := w.whole(t, fmt.Sprintf(`{"model":%q,"stream":false,%s}`, model, task), header)
			if got.Message.Content != want || got.FinishReason != "stop" || !json.Valid([]byte(got.Message.Content)) {
				t.Errorf("%s: %+v, want %s", task, got, want)
			}
		}
	})
}
