package agents

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// hermes is version 0.19.0 on a custom endpoint: which requests it sends, and how it reads what comes back.
func (w *wire) hermes(t *testing.T) {
	t.Run("probe", w.hermesProbe)
	t.Run("chat", w.hermesChat)
	t.Run("reasoning", w.hermesReasoning)
	t.Run("auxiliary", w.hermesAuxiliary)
	t.Run("responses", w.hermesResponses)
	t.Run("messages", w.hermesMessages)
}

// hermesProbe takes a server for the first kind whose probe answers, and its context from the first of many names.
func (w *wire) hermesProbe(t *testing.T) {
	for _, path := range []string{"/api/v1/models", "/api/tags", "/v1/props", "/version"} {
		if status, _, _ := w.get(t, path); status != http.StatusNotFound {
			t.Errorf("%s answers %d: the server would be taken for another one", path, status)
		}
	}
	status, text, props := w.get(t, "/props")
	if status != http.StatusOK || !strings.Contains(text, "default_generation_settings") {
		t.Errorf("/props answers %d without default_generation_settings", status)
	}
	settings, _ := props["default_generation_settings"].(map[string]any)
	if n, _ := settings["n_ctx"].(float64); n != replayContext {
		t.Errorf("default_generation_settings.n_ctx is %v, want %d", settings["n_ctx"], replayContext)
	}
	_, text, models := w.get(t, "/v1/models")
	data, _ := models["data"].([]any)
	if len(data) == 0 {
		t.Fatalf("no models in %s", text)
	}
	entry, _ := data[0].(map[string]any)
	for _, name := range []string{"context_length", "context_window", "context_size", "max_context_length",
		"max_position_embeddings", "max_model_len", "max_input_tokens", "max_sequence_length", "max_seq_len", "n_ctx_train",
		"n_ctx", "ctx_size"} {
		if n, ok := entry[name].(float64); ok {
			if n != replayContext {
				t.Errorf("%s is %v, the context has %d", name, n, replayContext)
			}
			return
		}
	}
	t.Errorf("no context in %v", entry)
}

// hermesHeader is that of the OpenAI client for Python.
func hermesHeader() http.Header {
	return http.Header{"Authorization": {"Bearer no-key-required"}, "User-Agent": {"OpenAI/Python 2.24.0"},
		"X-Stainless-Lang": {"python"}, "X-Stainless-Retry-Count": {"0"}}
}

// hermesTools are 35 definitions, 58 KB of JSON.
func hermesTools() string {
	tools := make([]string, 0, 35)
	for i := range 34 {
		name := fmt.Sprintf("tool_%d", i)
		tools = append(tools, fmt.Sprintf(`{"type":"function","function":{"name":%q,"description":%q,"parameters":{"type":"object",
			"properties":{"path":{"type":"string","description":"Where."},"limit":{"type":"integer","default":500,"maximum":2000}},
			"required":["path"]}}}`, name, strings.Repeat("Reads a file with numbered lines and never more than asked. ", 24)))
	}
	return strings.Join(append(tools, weatherTool), ",")
}

// hermesSystem is 40 KB of instructions.
func hermesSystem() string { return strings.Repeat("You are an agent. Be careful with files. ", 1000) }

const hermesQuestion = `{"role":"user","content":"What is the weather in Oslo?"}`

// hermesAsk is a streamed request of the agent's loop.
func (w *wire) hermesAsk(t *testing.T, fields, messages string) turn {
	t.Helper()
	return stream(t, w.post(t, "/v1/chat/completions", fmt.Sprintf(
		`{"messages":[{"role":"system","content":%q},%s],"model":"tandem","max_tokens":65536,%s"stream":true,
		"stream_options":{"include_usage":true},"tools":[%s]}`, hermesSystem(), messages, fields, hermesTools()), hermesHeader()))
}

// hermesChat asks for more output than the context has left, and sends the call back with what it keeps of the turn.
func (w *wire) hermesChat(t *testing.T) {
	first := w.hermesAsk(t, `"reasoning_effort":"medium",`, hermesQuestion)
	if first.finish != "tool_calls" || len(first.calls) != 1 || first.calls[0].name != "weather" ||
		first.calls[0].arguments != `{"city": "Oslo"}` || strings.TrimSpace(first.text) != "Let me look." ||
		strings.TrimSpace(first.reasoning) != "I need the weather." || !first.done {
		t.Fatalf("first turn %+v", first)
	}
	prompt, _ := first.usage["prompt_tokens"].(float64)
	if prompt < 10000 || prompt+first.clamped > replayContext || first.clamped < 1000 {
		t.Errorf("a prompt of %v tokens, max_tokens lowered to %v: they must fit into %d", prompt, first.clamped, replayContext)
	}
	c := first.calls[0]
	second := w.hermesAsk(t, `"reasoning_effort":"medium",`, hermesQuestion+fmt.Sprintf(`,{"role":"assistant","content":"Let me look.",
		"reasoning_content":%q,"finish_reason":"tool_calls","tool_calls":[{"id":%q,"type":"function","function":{"name":"weather","arguments":%q}}]},
		{"role":"tool","name":"weather","content":"sunny","tool_call_id":%q}`, first.reasoning, c.id, c.arguments, c.id))
	if second.finish != "stop" || second.text != "It is sunny." {
		t.Errorf("second turn %+v", second)
	}
}

// hermesReasoning: an effort, none, and the switch of other providers.
func (w *wire) hermesReasoning(t *testing.T) {
	for fields, thinks := range map[string]bool{
		`"reasoning_effort":"high",`:                            true,
		`"reasoning_effort":"none","think":false,`:              false,
		`"reasoning":{"enabled":true,"effort":"medium"},`:       true,
		`"reasoning":{"enabled":true},`:                         true,
		`"reasoning":{"enabled":false},"enable_thinking":true,`: false,
		`"reasoning":{"enabled":false,"effort":"high"},`:        false,
	} {
		got := w.hermesAsk(t, fields, hermesQuestion)
		if thought := got.reasoning != ""; thought != thinks || len(got.calls) != 1 || strings.Contains(got.text, "think") {
			t.Errorf("%s: %+v, want reasoning %v", fields, got, thinks)
		}
	}
}

// hermesAuxiliary: titles are not streamed.
func (w *wire) hermesAuxiliary(t *testing.T) {
	got := w.whole(t, `{"messages":[{"role":"system","content":"Write a title."},{"role":"user","content":"User: Oslo?\n\nAssistant: It is sunny."}],
		"model":"tandem","max_tokens":500,"temperature":0.3}`, hermesHeader())
	if got.Message.Content != `{"title": "Weather"}` || got.Message.Reasoning != "" || got.FinishReason != "stop" {
		t.Errorf("title %+v", got)
	}
}

// events returns the data of a stream of named events.
func events(t *testing.T, response *http.Response) (out []map[string]any) {
	t.Helper()
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok && data != "[DONE]" {
			var event map[string]any
			if err := json.Unmarshal([]byte(data), &event); err != nil {
				t.Fatalf("%v in %s", err, data)
			}
			out = append(out, event)
		}
	}
	return out
}

// flatTools are hermesTools as Responses (parameters beside the name) and Messages (input_schema) have them.
func flatTools(t *testing.T, schema, kind string) string {
	t.Helper()
	var tools []struct {
		Function struct {
			Name, Description string
			Parameters        json.RawMessage
		}
	}
	if err := json.Unmarshal([]byte("["+hermesTools()+"]"), &tools); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, tool := range tools {
		out = append(out, fmt.Sprintf(`{%s"name":%q,"description":%q,%q:%s}`, kind, tool.Function.Name,
			tool.Function.Description, schema, tool.Function.Parameters))
	}
	return strings.Join(out, ",")
}

// hermesResponses is the same turn in the mode codex_responses.
func (w *wire) hermesResponses(t *testing.T) {
	ask := func(input string) (calls []map[string]any, text string) {
		body := fmt.Sprintf(`{"model":"tandem","instructions":%q,"input":[%s],"store":false,"stream":true,"tool_choice":"auto",
			"parallel_tool_calls":true,"prompt_cache_key":"0af7651916cd43dd","reasoning":{"effort":"medium","summary":"auto"},
			"include":["reasoning.encrypted_content"],"tools":[%s]}`, hermesSystem(), input,
			flatTools(t, "parameters", `"type":"function","strict":false,`))
		for _, event := range events(t, w.post(t, "/v1/responses", body, hermesHeader())) {
			if event["type"] != "response.completed" {
				continue
			}
			output, _ := event["response"].(map[string]any)["output"].([]any)
			for _, item := range output {
				switch item := item.(map[string]any); item["type"] {
				case "function_call", "reasoning":
					calls = append(calls, item)
				case "message":
					text += item["content"].([]any)[0].(map[string]any)["text"].(string)
				}
			}
		}
		return calls, text
	}
	question := `{"role":"user","content":"What is the weather in Oslo?"}`
	items, _ := ask(question)
	if len(items) != 2 || items[0]["type"] != "reasoning" || items[1]["name"] != "weather" ||
		items[1]["arguments"] != `{"city": "Oslo"}` || items[0]["encrypted_content"] == nil {
		t.Fatalf("items %v", items)
	}
	reasoning, _ := json.Marshal(map[string]any{"type": "reasoning", "summary": items[0]["summary"],
		"encrypted_content": items[0]["encrypted_content"]})
	if _, text := ask(question + fmt.Sprintf(`,%s,{"type":"function_call","call_id":%q,"name":"weather","arguments":"{\"city\": \"Oslo\"}"},
		{"type":"function_call_output","call_id":%[2]q,"output":"sunny"}`, reasoning, items[1]["call_id"])); text != "It is sunny." {
		t.Errorf("second turn %q", text)
	}
}

// hermesMessages is the same turn in the mode anthropic_messages.
func (w *wire) hermesMessages(t *testing.T) {
	header := hermesHeader()
	header.Set("Anthropic-Version", "2023-06-01")
	header.Set("Anthropic-Beta", "interleaved-thinking-2025-05-14,fine-grained-tool-streaming-2025-05-14")
	ask := func(messages string) []any {
		body := fmt.Sprintf(`{"model":"tandem","system":[{"type":"text","text":%q,"cache_control":{"type":"ephemeral"}}],"messages":[%s],
			"max_tokens":65536,"tool_choice":{"type":"auto"},"thinking":{"type":"enabled","budget_tokens":8000},"temperature":1,"tools":[%s]}`,
			hermesSystem(), messages, flatTools(t, "input_schema", ""))
		var out struct{ Content []any }
		if err := json.NewDecoder(w.post(t, "/v1/messages", body, header).Body).Decode(&out); err != nil {
			t.Fatal(err)
		}
		return out.Content
	}
	question := `{"role":"user","content":"What is the weather in Oslo?"}`
	content := ask(question)
	if len(content) != 3 {
		t.Fatalf("content %v", content)
	}
	thinking, use := content[0].(map[string]any), content[2].(map[string]any)
	input, _ := use["input"].(map[string]any)
	if thinking["type"] != "thinking" || thinking["signature"] == "" || use["name"] != "weather" ||
		input["city"] != "Oslo" {
		t.Fatalf("content %v", content)
	}
	turn, err := json.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	content = ask(question + fmt.Sprintf(`,{"role":"assistant","content":%s},{"role":"user","content":[
		{"type":"tool_result","tool_use_id":%q,"content":"sunny"}]}`, turn, use["id"]))
	last, _ := content[len(content)-1].(map[string]any)
	if last["text"] != "It is sunny." {
		t.Errorf("second turn %v", content)
	}
}
