package app

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
)

func TestErrorTable(t *testing.T) {
	r := start(t, func(c *Config) { c.StrictModel, c.ImagePolicy = true, "reject" })
	w := r.target(gatewaytest.WorkerOptions{MaxContext: 512})
	w.SetDecode(r.reply("ok", 1))
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
		{"max_tokens 0", chat, chatBody(`"max_tokens":0`), 400, "invalid_request_error", "invalid_value", "max_tokens"},
		{"max_tokens 0 without echo", "/v1/completions", `{"prompt":"a","max_tokens":0}`, 400, "invalid_request_error",
			"invalid_value", "max_tokens"},
		{"alias names itself", chat, chatBody(`"max_completion_tokens":-1`), 400, "invalid_request_error", "invalid_value",
			"max_completion_tokens"},
		{"temperature", chat, chatBody(`"temperature":2.1`), 400, "invalid_request_error", "invalid_value", "temperature"},
		{"temperature type", chat, chatBody(`"temperature":"hot"`), 400, "invalid_request_error",
			"invalid_value", "temperature"},
		{"top_p 0", chat, chatBody(`"top_p":0`), 400, "invalid_request_error", "invalid_value", "top_p"},
		{"top_p below 32 bits", chat, chatBody(`"top_p":5e-324`), 400, "invalid_request_error", "invalid_value", "top_p"},
		{"penalty below 32 bits", chat, chatBody(`"repeat_penalty":1e-50`), 400, "invalid_request_error",
			"invalid_value", "repeat_penalty"},
		{"top_k fraction", chat, chatBody(`"top_k":1.5`), 400, "invalid_request_error", "invalid_value", "top_k"},
		{"min_p", chat, chatBody(`"min_p":-0.1`), 400, "invalid_request_error", "invalid_value", "min_p"},
		{"repetition penalty", chat, chatBody(`"rep_pen":0`), 400, "invalid_request_error", "invalid_value", "rep_pen"},
		{"window", chat, chatBody(`"rep_window":9000`), 400, "invalid_request_error", "invalid_value", "rep_window"},
		{"frequency", chat, chatBody(`"frequency_penalty":3`), 400, "invalid_request_error",
			"invalid_value", "frequency_penalty"},
		{"bias id", chat, chatBody(`"logit_bias":{"99999":1}`), 400, "invalid_request_error",
			"invalid_value", "logit_bias.99999"},
		{"bias value", chat, chatBody(`"logit_bias":{"5":101}`), 400, "invalid_request_error",
			"invalid_value", "logit_bias.5"},
		{"seed", chat, chatBody(`"seed":"x"`), 400, "invalid_request_error", "invalid_value", "seed"},
		{"stop too many", chat, chatBody(`"stop":["` + strings.Repeat(`a","`, 16) + `b"]`), 400, "invalid_request_error",
			"invalid_value", "stop"},
		{"stop too long", chat, chatBody(`"stop":["` + strings.Repeat("a", 257) + `"]`), 400, "invalid_request_error",
			"invalid_value", "stop[0]"},
		{"n", chat, chatBody(`"n":9`), 400, "invalid_request_error", "invalid_value", "n"},
		{"n in extra_body", chat, chatBody(`"extra_body":{"n":0}`), 400, "invalid_request_error", "invalid_value", "n"},
		{"stream type", chat, chatBody(`"stream":1`), 400, "invalid_request_error", "invalid_value", "stream"},
		{"top_logprobs alone", chat, chatBody(`"top_logprobs":2`), 400, "invalid_request_error",
			"invalid_value", "top_logprobs"},
		{"top_logprobs range", chat, chatBody(`"logprobs":true,"top_logprobs":21`), 400, "invalid_request_error",
			"invalid_value", "top_logprobs"},
		{"thinking type", chat, chatBody(`"thinking":{"type":"maybe"}`), 400, "invalid_request_error",
			"invalid_value", "thinking.type"},
		{"thinking budget", chat, chatBody(`"thinking":{"type":"enabled","budget_tokens":0}`), 400, "invalid_request_error",
			"invalid_value", "thinking.budget_tokens"},
		{"speculation mode", chat, chatBody(`"speculation":{"mode":"wild"}`), 400, "invalid_request_error",
			"invalid_value", "speculation.mode"},
		{"json_schema", chat, chatBody(`"response_format":{"type":"json_schema"}`), 400, "invalid_request_error",
			"missing_required_parameter", "response_format.schema"},
		{"modalities", chat, chatBody(`"modalities":["text","audio"]`), 400, "invalid_request_error",
			"unsupported_parameter", "modalities[1]"},
		{"tool name", chat, chatBody(`"tools":[{"type":"function","function":{"name":"a b"}}]`), 400, "invalid_request_error",
			"invalid_value", "tools[0].function.name"},
		{"unknown named tool", chat, chatBody(`"tool_choice":{"type":"function","function":{"name":"f"}}`), 400,
			"invalid_request_error", "invalid_value", "tool_choice.function.name"},
		{"required", chat, chatBody(`"tool_choice":"required"`), 400, "invalid_request_error",
			"invalid_value", "tool_choice"},
		{"pflash without scorer", chat, chatBody(`"pflash":{"mode":"always"}`), 400, "invalid_request_error",
			"unsupported_parameter", "pflash.mode"},
		{"pflash code floor", chat, chatBody(`"pflash":{"code_floor":0.3}`), 400, "invalid_request_error",
			"unsupported_parameter", "pflash.code_floor"},
		{"pflash protect", chat, chatBody(`"pflash":{"protect":["cache_control"]}`), 400, "invalid_request_error",
			"unsupported_parameter", "pflash.protect"},
		{"pflash rescore", chat, chatBody(`"pflash":{"rescore":true}`), 400, "invalid_request_error",
			"unsupported_parameter", "pflash.rescore"},
		{"context", chat, `{"messages":[{"role":"user","content":"` + long + `"}]}`, 400, "invalid_request_error",
			"context_length_exceeded", "messages"},
		{"other model", chat, chatBody(`"model":"gpt"`), 404, "invalid_request_error", "model_not_found", "model"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, body := range []string{tt.body, withStream(tt.body)} {
				a := r.post(tt.path, body)
				v := a.json(t)
				e, _ := v["error"].(map[string]any)
				param, _ := e["param"].(string)
				if a.status != tt.status || e["type"] != tt.typ || e["code"] != tt.code || param != tt.param {
					t.Errorf("status %d, error %v; want %d %s %s %q", a.status, e, tt.status, tt.typ, tt.code, tt.param)
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

// withStream asks for a stream; errors before the first event must look the same.
// TestTemplateRefuses: what a template raises is the answer, with the line where it happened.
func TestTemplateRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "strict.jinja")
	const source = "{%- for m in messages %}\n{%- if m.role == 'system' %}\n{{- raise_exception('No rules, please.') }}\n{%- endif %}\n{{- m.content }}\n{%- endfor %}"
	if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	r := start(t, func(c *Config) { c.ChatTemplateFile = file })
	w := r.target(gatewaytest.WorkerOptions{})
	w.SetDecode(r.reply("ok", 1))
	if a := r.post("/v1/chat/completions", chatBody("")); a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	const body = `{"messages":[{"role":"system","content":"x"},{"role":"user","content":"y"}]}`
	for _, body := range []string{body, withStream(body)} {
		a := r.post("/v1/chat/completions", body)
		e := at(a.json(t), "error")
		if text := fmt.Sprint(at(e, "message")); a.status != 400 || at(e, "code") != "template_error" ||
			at(e, "param") != "messages" ||
			!strings.Contains(text, "No rules, please.") || !strings.Contains(text, "line 3") {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
}

func withStream(body string) string {
	if strings.HasPrefix(body, "{") && strings.HasSuffix(body, "}") &&
		!strings.Contains(body, `"stream"`) && body != "{}" {
		return strings.TrimSuffix(body, "}") + `,"stream":true}`
	}
	return body
}

func TestNullIsAbsent(t *testing.T) {
	r := start(t, nil)
	w := r.target(gatewaytest.WorkerOptions{})
	w.SetDecode(r.reply("ok", 1))
	fields := strings.Fields(`model max_tokens max_completion_tokens max_output_tokens temperature top_p top_k min_p repetition_penalty rep_pen
		repeat_penalty rep_window frequency_penalty presence_penalty logit_bias seed stop stop_sequences n stream tools tool_choice parallel_tool_calls
		reasoning reasoning_effort thinking enable_thinking thinking_budget chat_template_kwargs session_id cache_prompt pflash speculation user
		metadata service_tier store extra_body logprobs top_logprobs stream_options response_format modalities output_config prompt_cache_key
		echo suffix best_of some_unknown_field`)
	for _, f := range fields {
		for path, body := range map[string]string{"/v1/chat/completions": chatBody(`"` + f + `":null`),
			"/v1/completions": `{"prompt":"a","` + f + `":null}`} {
			if a := r.post(path, body); a.status != 200 {
				t.Errorf("%s with %s: null: %d %s", path, f, a.status, a.body)
			}
		}
	}
	all := `"` + strings.Join(fields, `":null,"`) + `":null`
	if a := r.post("/v1/chat/completions", chatBody(all)); a.status != 200 {
		t.Errorf("all null: %d %s", a.status, a.body)
	}
	msg := `{"messages":[{"role":"assistant","content":null,"tool_calls":null,"reasoning_content":null,"name":null},{"role":"user","content":"x","name":null}]}`
	if a := r.post("/v1/chat/completions", msg); a.status != 200 {
		t.Errorf("null in messages: %d %s", a.status, a.body)
	}
}

func TestTransport(t *testing.T) {
	r := start(t, func(c *Config) { c.CORSOrigin = []string{"https://a.example"} })
	w := r.target(gatewaytest.WorkerOptions{})
	w.SetDecode(r.reply("ok", 1))
	for _, tt := range []struct {
		name, method, path, body string
		header                   []string
		status                   int
		code                     string
		want                     http.Header
	}{
		{"unknown path", "GET", "/api/tags", "", nil, 404, "not_found", nil},
		{"wrong method", "DELETE", "/v1/chat/completions", "", nil, 405, "method_not_allowed",
			http.Header{"Allow": {"OPTIONS, POST"}}},
		{"wrong method on get", "POST", "/health", "{}", nil, 405, "method_not_allowed",
			http.Header{"Allow": {"GET, HEAD, OPTIONS"}}},
		{"long URL", "GET", "/health?" + strings.Repeat("a", 17000), "", nil, 414, "uri_too_long", nil},
		{"preflight", "OPTIONS", "/v1/anything", "", []string{"Origin", "https://a.example"}, 204, "",
			http.Header{"Access-Control-Allow-Origin": {"https://a.example"},
				"Access-Control-Max-Age": {"86400"}, "Vary": {"Origin"}}},
		{"foreign origin", "GET", "/health", "", []string{"Origin", "https://b.example"}, 200, "",
			http.Header{"Access-Control-Allow-Origin": nil}},
		{"request id is returned", "GET", "/health", "", []string{"X-Request-Id", "abc-1"}, 200, "",
			http.Header{"X-Request-Id": {"abc-1"}}},
		{"head", "HEAD", "/health", "", nil, 200, "", nil},
		{"query is ignored", "POST", "/v1/chat/completions?beta=true", chatBody(""), nil, 200, "", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := r.do(tt.method, tt.path, tt.body, tt.header...)
			if a.status != tt.status {
				t.Fatalf("status %d: %s", a.status, a.body)
			}
			if tt.code != "" && at(a.json(t), "error", "code") != tt.code {
				t.Errorf("body %s", a.body)
			}
			for k, v := range tt.want {
				if got := a.header.Values(k); fmt.Sprint(got) != fmt.Sprint(v) {
					t.Errorf("%s: %v, want %v", k, got, v)
				}
			}
			if a.header.Get("X-Request-Id") == "" {
				t.Error("no request id")
			}
		})
	}
}

func TestAuth(t *testing.T) {
	r := start(t, func(c *Config) { c.APIKey = append(c.APIKey, "secret"); c.ProtectIntrospection = true })
	w := r.target(gatewaytest.WorkerOptions{})
	w.SetDecode(r.reply("ok", 1))
	for _, tt := range []struct {
		method, path string
		header       []string
		status       int
	}{
		{"GET", "/health", nil, 200},
		{"GET", "/v1/models", nil, 401},
		{"GET", "/v1/models", []string{"Authorization", "Bearer secret"}, 200},
		{"GET", "/v1/models", []string{"Authorization", "Bearer wrong"}, 401},
		{"GET", "/v1/models", []string{"x-api-key", "secret"}, 200},
		{"GET", "/cluster", nil, 401},
		{"GET", "/metrics", []string{"x-api-key", "secret"}, 200},
		{"OPTIONS", "/v1/models", nil, 204},
		{"POST", "/v1/chat/completions", nil, 401},
	} {
		if a := r.do(tt.method, tt.path, "", tt.header...); a.status != tt.status {
			t.Errorf("%s %s %v: %d, want %d", tt.method, tt.path, tt.header, a.status, tt.status)
		}
	}
}

func TestBodyLimits(t *testing.T) {
	r := start(t, nil)
	r.target(gatewaytest.WorkerOptions{Decode: r.reply("ok", 1)})
	req, _ := http.NewRequestWithContext(t.Context(), "POST", r.url+"/v1/chat/completions",
		strings.NewReader(strings.Repeat(" ", 64<<20+1)))
	resp, err := r.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 413 {
		t.Errorf("64 MiB + 1: status %d, want 413", resp.StatusCode)
	}
	// A reader of unknown length is sent in chunks.
	req, _ = http.NewRequestWithContext(t.Context(), "POST", r.url+"/v1/chat/completions",
		struct{ *strings.Reader }{strings.NewReader(chatBody(""))})
	req.ContentLength = -1
	resp, err = r.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("chunked body: status %d, want 200", resp.StatusCode)
	}
}
