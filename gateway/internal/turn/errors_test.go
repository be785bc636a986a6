package turn_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
)

func TestErrorTable(t *testing.T) {
	r := rig.Start(t, func(c *app.Config) { c.StrictModel, c.ImagePolicy = true, "reject" })
	w := r.Target(gatewaytest.WorkerOptions{MaxContext: 512})
	w.SetDecode(r.Reply("ok", 1))
	const chat = "/v1/chat/completions"
	long := strings.Repeat("many words in here ", 400)
	tests := []struct {
		name, path, body string
		status           int
		typ, code, param string
	}{
		{"not JSON", chat, `{"messages":`, 400, "invalid_request_error", "invalid_json", ""},
		{"no object", chat, `[1]`, 400, "invalid_request_error", "invalid_json", ""},
		{"null", chat, `null`, 400, "invalid_request_error", "invalid_json", ""},
		{"too deep", chat, `{"x":` + strings.Repeat("[", 300) + strings.Repeat("]", 300) + `}`, 400,
			"invalid_request_error", "invalid_json", ""},
		{"messages missing", chat, `{}`, 400, "invalid_request_error", "missing_required_parameter", "messages"},
		{"messages empty", chat, `{"messages":[]}`, 400, "invalid_request_error", "missing_required_parameter", "messages"},
		{"messages wrong type", chat, `{"messages":"hi"}`, 400, "invalid_request_error", "invalid_value", "messages"},
		{"message is no object", chat, `{"messages":["hi"]}`, 400, "invalid_request_error", "invalid_value", "messages[0]"},
		{"role missing", chat, `{"messages":[{"content":"x"}]}`, 400, "invalid_request_error",
			"missing_required_parameter", "messages[0].role"},
		{"role unknown", chat, `{"messages":[{"role":"king"}]}`, 400, "invalid_request_error",
			"invalid_value", "messages[0].role"},
		{"content wrong", chat, `{"messages":[{"role":"user","content":"a"},{"role":"user","content":7}]}`, 400,
			"invalid_request_error", "invalid_value", "messages[1].content"},
		{"part without text", chat, `{"messages":[{"role":"user","content":[{"type":"text"}]}]}`, 400,
			"invalid_request_error", "missing_required_parameter", "messages[0].content[0].text"},
		{"image", chat, `{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{}}]}]}`, 400, "invalid_request_error", "unsupported_parameter", "messages[0].content[1].type"},
		{"prompt missing", "/v1/completions", `{}`, 400, "invalid_request_error", "missing_required_parameter", "prompt"},
		{"prompt empty", "/v1/completions", `{"prompt":""}`, 400, "invalid_request_error",
			"missing_required_parameter", "prompt"},
		{"prompt token out of range", "/v1/completions", `{"prompt":[1,99999]}`, 400, "invalid_request_error",
			"invalid_value", "prompt[1]"},
		{"max_tokens 0", chat, rig.ChatBody(`"max_tokens":0`), 400, "invalid_request_error", "invalid_value", "max_tokens"},
		{"max_tokens 0 without echo", "/v1/completions", `{"prompt":"a","max_tokens":0}`, 400, "invalid_request_error",
			"invalid_value", "max_tokens"},
		{"alias names itself", chat, rig.ChatBody(`"max_completion_tokens":-1`), 400, "invalid_request_error",
			"invalid_value",
			"max_completion_tokens"},
		{"temperature", chat, rig.ChatBody(`"temperature":2.1`), 400, "invalid_request_error", "invalid_value",
			"temperature"},
		{"temperature type", chat, rig.ChatBody(`"temperature":"hot"`), 400, "invalid_request_error",
			"invalid_value", "temperature"},
		{"top_p 0", chat, rig.ChatBody(`"top_p":0`), 400, "invalid_request_error", "invalid_value", "top_p"},
		{"top_p below 32 bits", chat, rig.ChatBody(`"top_p":5e-324`), 400, "invalid_request_error", "invalid_value", "top_p"},
		{"penalty below 32 bits", chat, rig.ChatBody(`"repeat_penalty":1e-50`), 400, "invalid_request_error",
			"invalid_value", "repeat_penalty"},
		{"top_k fraction", chat, rig.ChatBody(`"top_k":1.5`), 400, "invalid_request_error", "invalid_value", "top_k"},
		{"min_p", chat, rig.ChatBody(`"min_p":-0.1`), 400, "invalid_request_error", "invalid_value", "min_p"},
		{"repetition penalty", chat, rig.ChatBody(`"rep_pen":0`), 400, "invalid_request_error", "invalid_value", "rep_pen"},
		{"window", chat, rig.ChatBody(`"rep_window":9000`), 400, "invalid_request_error", "invalid_value", "rep_window"},
		{"frequency", chat, rig.ChatBody(`"frequency_penalty":3`), 400, "invalid_request_error",
			"invalid_value", "frequency_penalty"},
		{"bias id", chat, rig.ChatBody(`"logit_bias":{"99999":1}`), 400, "invalid_request_error",
			"invalid_value", "logit_bias.99999"},
		{"bias value", chat, rig.ChatBody(`"logit_bias":{"5":101}`), 400, "invalid_request_error",
			"invalid_value", "logit_bias.5"},
		{"seed", chat, rig.ChatBody(`"seed":"x"`), 400, "invalid_request_error", "invalid_value", "seed"},
		{"stop too many", chat, rig.ChatBody(`"stop":["` + strings.Repeat(`a","`, 16) + `b"]`), 400, "invalid_request_error",
			"invalid_value", "stop"},
		{"stop too long", chat, rig.ChatBody(`"stop":["` + strings.Repeat("a", 257) + `"]`), 400, "invalid_request_error",
			"invalid_value", "stop[0]"},
		{"n", chat, rig.ChatBody(`"n":9`), 400, "invalid_request_error", "invalid_value", "n"},
		{"n in extra_body", chat, rig.ChatBody(`"extra_body":{"n":0}`), 400, "invalid_request_error", "invalid_value", "n"},
		{"stream type", chat, rig.ChatBody(`"stream":1`), 400, "invalid_request_error", "invalid_value", "stream"},
		{"top_logprobs alone", chat, rig.ChatBody(`"top_logprobs":2`), 400, "invalid_request_error",
			"invalid_value", "top_logprobs"},
		{"top_logprobs range", chat, rig.ChatBody(`"logprobs":true,"top_logprobs":21`), 400, "invalid_request_error",
			"invalid_value", "top_logprobs"},
		{"thinking type", chat, rig.ChatBody(`"thinking":{"type":"maybe"}`), 400, "invalid_request_error",
			"invalid_value", "thinking.type"},
		{"thinking budget", chat, rig.ChatBody(`"thinking":{"type":"enabled","budget_tokens":0}`), 400,
			"invalid_request_error",
			"invalid_value", "thinking.budget_tokens"},
		{"speculation mode", chat, rig.ChatBody(`"speculation":{"mode":"wild"}`), 400, "invalid_request_error",
			"invalid_value", "speculation.mode"},
		{"json_schema", chat, rig.ChatBody(`"response_format":{"type":"json_schema"}`), 400, "invalid_request_error",
			"missing_required_parameter", "response_format.schema"},
		{"modalities", chat, rig.ChatBody(`"modalities":["text","audio"]`), 400, "invalid_request_error",
			"unsupported_parameter", "modalities[1]"},
		{"tool name", chat, rig.ChatBody(`"tools":[{"type":"function","function":{"name":"a b"}}]`), 400,
			"invalid_request_error",
			"invalid_value", "tools[0].function.name"},
		{"unknown named tool", chat, rig.ChatBody(`"tool_choice":{"type":"function","function":{"name":"f"}}`), 400,
			"invalid_request_error", "invalid_value", "tool_choice.function.name"},
		{"required", chat, rig.ChatBody(`"tool_choice":"required"`), 400, "invalid_request_error",
			"invalid_value", "tool_choice"},
		{"pflash without scorer", chat, rig.ChatBody(`"pflash":{"mode":"always"}`), 400, "invalid_request_error",
			"unsupported_parameter", "pflash.mode"},
		{"pflash code floor", chat, rig.ChatBody(`"pflash":{"code_floor":0.3}`), 400, "invalid_request_error",
			"unsupported_parameter", "pflash.code_floor"},
		{"pflash protect", chat, rig.ChatBody(`"pflash":{"protect":["cache_control"]}`), 400, "invalid_request_error",
			"unsupported_parameter", "pflash.protect"},
		{"pflash rescore", chat, rig.ChatBody(`"pflash":{"rescore":true}`), 400, "invalid_request_error",
			"unsupported_parameter", "pflash.rescore"},
		{"context", chat, `{"messages":[{"role":"user","content":"` + long + `"}]}`, 400, "invalid_request_error",
			"context_length_exceeded", "messages"},
		{"other model", chat, rig.ChatBody(`"model":"gpt"`), 404, "invalid_request_error", "model_not_found", "model"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, body := range []string{tt.body, rig.WithStream(tt.body)} {
				a := r.Post(tt.path, body)
				v := a.JSON(t)
				e, _ := v["error"].(map[string]any)
				param, _ := e["param"].(string)
				if a.Status != tt.status || e["type"] != tt.typ || e["code"] != tt.code || param != tt.param {
					t.Errorf("status %d, error %v; want %d %s %s %q", a.Status, e, tt.status, tt.typ, tt.code, tt.param)
				}
				if tt.param != "" && tt.code != "context_length_exceeded" && tt.code != "model_not_found" &&
					!strings.Contains(fmt.Sprint(e["message"]), tt.param) {
					t.Errorf("message %q does not name %q", e["message"], tt.param)
				}
				if tt.code == "context_length_exceeded" &&
					!strings.Contains(fmt.Sprint(e["message"]), "maximum context length is 512 tokens") {
					t.Errorf("message %q lacks the limit", e["message"])
				}
			}
		})
	}
}

// TestTemplateRefuses: what a template raises is the answer, with the line where it happened.
func TestTemplateRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "strict.jinja")
	const source = "{%- for m in messages %}\n{%- if m.role == 'system' %}\n{{- raise_exception('No rules, please.') }}\n{%- endif %}\n{{- m.content }}\n{%- endfor %}"
	if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	r := rig.Start(t, func(c *app.Config) { c.ChatTemplateFile = file })
	w := r.Target(gatewaytest.WorkerOptions{})
	w.SetDecode(r.Reply("ok", 1))
	if a := r.Post("/v1/chat/completions", rig.ChatBody("")); a.Status != 200 {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	const body = `{"messages":[{"role":"system","content":"x"},{"role":"user","content":"y"}]}`
	for _, body := range []string{body, rig.WithStream(body)} {
		a := r.Post("/v1/chat/completions", body)
		e := rig.At(a.JSON(t), "error")
		if text := fmt.Sprint(rig.At(e, "message")); a.Status != 400 || rig.At(e, "code") != "template_error" ||
			rig.At(e, "param") != "messages" ||
			!strings.Contains(text, "No rules, please.") || !strings.Contains(text, "line 3") {
			t.Errorf("%d %s", a.Status, a.Body)
		}
	}
}

func TestNullIsAbsent(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{})
	w.SetDecode(r.Reply("ok", 1))
	fields := strings.Fields(`model max_tokens max_completion_tokens max_output_tokens temperature top_p top_k min_p repetition_penalty rep_pen
		repeat_penalty rep_window frequency_penalty presence_penalty logit_bias seed stop stop_sequences n stream tools tool_choice parallel_tool_calls
		reasoning reasoning_effort thinking enable_thinking thinking_budget chat_template_kwargs session_id cache_prompt pflash speculation user
		metadata service_tier store extra_body logprobs top_logprobs stream_options response_format modalities output_config prompt_cache_key
		echo suffix best_of some_unknown_field`)
	for _, f := range fields {
		for path, body := range map[string]string{"/v1/chat/completions": rig.ChatBody(`"` + f + `":null`),
			"/v1/completions": `{"prompt":"a","` + f + `":null}`} {
			if a := r.Post(path, body); a.Status != 200 {
				t.Errorf("%s with %s: null: %d %s", path, f, a.Status, a.Body)
			}
		}
	}
	all := `"` + strings.Join(fields, `":null,"`) + `":null`
	if a := r.Post("/v1/chat/completions", rig.ChatBody(all)); a.Status != 200 {
		t.Errorf("all null: %d %s", a.Status, a.Body)
	}
	msg := `{"messages":[{"role":"assistant","content":null,"tool_calls":null,"reasoning_content":null,"name":null},{"role":"user","content":"x","name":null}]}`
	if a := r.Post("/v1/chat/completions", msg); a.Status != 200 {
		t.Errorf("null in messages: %d %s", a.Status, a.Body)
	}
}
