package turn_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
)

// TestDialectErrors has the rows of docs/spec/http-api.md §3.2 that a body can cause, for the dialects with several
// kinds of input.
func TestDialectErrors(t *testing.T) {
	r := rig.Start(t, func(c *app.Config) { c.StrictModel, c.ImagePolicy = true, "reject" })
	w := r.Target(gatewaytest.WorkerOptions{MaxContext: 512})
	w.SetDecode(r.Reply("ok", 1))
	long := strings.Repeat("many words in here ", 400)
	msg := func(more string) string { return `{"messages":[{"role":"user","content":"Hi"}],` + more + `}` }
	in := func(more string) string { return `{"input":"Hi",` + more + `}` }
	item := func(json string) string { return `{"input":[` + json + `]}` }
	block := func(json string) string { return `{"messages":[{"role":"user","content":[` + json + `]}]}` }
	const responses, messages = "/v1/responses", "/v1/messages"
	for _, tt := range []struct {
		name, path, body string
		status           int
		code, param      string // OpenAI's, or the type of Anthropic's error and a word of its message
	}{
		{"not JSON", responses, `{"input":`, 400, "invalid_json", ""},
		{"no object", responses, `[1]`, 400, "invalid_json", ""},
		{"input missing", responses, `{}`, 400, "missing_required_parameter", "input"},
		{"input empty", responses, `{"input":[]}`, 400, "missing_required_parameter", "input"},
		{"input empty text", responses, `{"input":""}`, 400, "missing_required_parameter", "input"},
		{"input type", responses, `{"input":7}`, 400, "invalid_value", "input"},
		{"item type", responses, item(`7`), 400, "invalid_value", "input[0]"},
		{"role missing", responses, item(`{"type":"message","content":"x"}`), 400,
			"missing_required_parameter", "input[0].role"},
		{"role unknown", responses, item(`{"role":"king","content":"x"}`), 400, "invalid_value", "input[0].role"},
		{"part unknown", responses, item(`{"role":"user","content":[{"type":"thought"}]}`), 400, "invalid_value",
			"input[0].content[0].type"},
		{"part without text", responses, item(`{"role":"user","content":[{"type":"input_text"}]}`), 400,
			"missing_required_parameter", "input[0].content[0].text"},
		{"image", responses, item(`{"role":"user","content":[{"type":"input_image","image_url":"data:"}]}`), 400,
			"unsupported_parameter", "input[0].content[0].type"},
		{"image in an output", responses,
			item(`{"type":"function_call_output","call_id":"c","output":[{"type":"input_image"}]}`), 400,
			"unsupported_parameter", "input[0].output[0].type"},
		{"call without name", responses, item(`{"type":"function_call","call_id":"c","arguments":"{}"}`), 400,
			"missing_required_parameter", "input[0].name"},
		{"background", responses, in(`"background":true,"store":false`), 400, "invalid_value", "background"},
		{"conversation", responses, in(`"conversation":"conv_1"`), 400, "unsupported_parameter", "conversation"},
		{"previous response", responses, in(`"previous_response_id":"resp_x"`), 400, "previous_response_not_found",
			"previous_response_id"},
		{"truncation", responses, in(`"truncation":"some"`), 400, "invalid_value", "truncation"},
		{"reasoning", responses, in(`"reasoning":"high"`), 400, "invalid_value", "reasoning"},
		{"summary", responses, in(`"reasoning":{"summary":1}`), 400, "invalid_value", "reasoning.summary"},
		{"metadata", responses, in(`"metadata":"x"`), 400, "invalid_value", "metadata"},
		{"format", responses, in(`"text":{"format":{"type":"xml"}}`), 400, "invalid_value", "text.format.type"},
		{"instructions", responses, in(`"instructions":["x"]`), 400, "invalid_value", "instructions"},
		{"top_logprobs", responses, in(`"top_logprobs":21`), 400, "invalid_value", "top_logprobs"},
		{"max_output_tokens", responses, in(`"max_output_tokens":0`), 400, "invalid_value", "max_output_tokens"},
		{"tool name", responses, in(`"tools":[{"type":"namespace","name":"ns","tools":[{"type":"function","name":"a b"}]}]`),
			400, "invalid_value", "tools[0].tools[0].name"},
		{"context", responses, `{"input":"` + long + `"}`, 400, "context_length_exceeded", "messages"},
		{"other model", responses, in(`"model":"gpt"`), 404, "model_not_found", "model"},

		{"not JSON", messages, `{"messages":`, 400, "invalid_request_error", "JSON"},
		{"no object", messages, `"x"`, 400, "invalid_request_error", "object"},
		{"messages missing", messages, `{}`, 400, "invalid_request_error", "messages"},
		{"messages empty", messages, `{"messages":[]}`, 400, "invalid_request_error", "messages"},
		{"role unknown", messages, `{"messages":[{"role":"tool","content":"x"}]}`, 400,
			"invalid_request_error", "messages[0].role"},
		{"content type", messages, `{"messages":[{"role":"user","content":7}]}`, 400,
			"invalid_request_error", "messages[0].content"},
		{"block without type", messages, block(`{"text":"x"}`), 400, "invalid_request_error", "messages[0].content[0].type"},
		{"block without text", messages, block(`{"type":"text"}`), 400, "invalid_request_error",
			"messages[0].content[0].text"},
		{"image", messages, block(`{"type":"image","source":{}}`), 400, "invalid_request_error",
			"messages[0].content[0].type"},
		{"image in a result", messages, block(`{"type":"tool_result","tool_use_id":"t","content":[{"type":"image"}]}`), 400,
			"invalid_request_error", "messages[0].content[0].content[0].type"},
		{"result without id", messages, block(`{"type":"tool_result","content":"x"}`), 400,
			"invalid_request_error", "tool_use_id"},
		{"system type", messages, msg(`"system":7`), 400, "invalid_request_error", "system"},
		{"temperature", messages, msg(`"temperature":3`), 400, "invalid_request_error", "temperature"},
		{"thinking", messages, msg(`"thinking":{"type":"maybe"}`), 400, "invalid_request_error", "thinking.type"},
		{"budget", messages, msg(`"thinking":{"type":"enabled","budget_tokens":0}`), 400,
			"invalid_request_error", "budget_tokens"},
		{"tool choice", messages, msg(`"tool_choice":{"type":"tool","name":"x"}`), 400,
			"invalid_request_error", "tool_choice.name"},
		{"format", messages, msg(`"output_config":{"format":{"type":"xml"}}`), 400, "invalid_request_error",
			"output_config.format.type"},
		{"context", messages, `{"messages":[{"role":"user","content":"` + long + `"}]}`, 400,
			"invalid_request_error", " > 512 maximum"},
		{"other model", messages, msg(`"model":"gpt"`), 404, "not_found_error", "gpt"},
	} {
		t.Run(tt.path+" "+tt.name, func(t *testing.T) {
			for _, path := range []string{tt.path, strings.TrimPrefix(tt.path, "/v1")} {
				for _, body := range []string{tt.body, rig.WithStream(tt.body)} {
					a := r.Post(path, body)
					v := a.JSON(t)
					if a.Status != tt.status {
						t.Fatalf("status %d: %s", a.Status, a.Body)
					}
					if tt.path == responses {
						param, _ := rig.At(v, "error", "param").(string)
						if rig.At(v, "error", "code") != tt.code || param != tt.param ||
							rig.At(v, "error", "type") != "invalid_request_error" {
							t.Errorf("error %s", a.Body)
						}
						continue
					}
					text, _ := rig.At(v, "error", "message").(string)
					if v["type"] != "error" || rig.At(v, "error", "type") != tt.code || !strings.Contains(text, tt.param) {
						t.Errorf("error %s, want %s about %q", a.Body, tt.code, tt.param)
					}
					if id := a.Header.Get("Request-Id"); id == "" || v["request_id"] != id || a.Header.Get("X-Request-Id") != id {
						t.Errorf("request id %v, headers %v", v["request_id"], a.Header)
					}
				}
			}
		})
	}
}

func TestDialectsTakeNullAsAbsent(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{})
	w.SetDecode(r.Reply("ok", 1))
	for path, list := range map[string]string{
		`/v1/responses {"input":"Hi",`: `model instructions max_output_tokens max_tool_calls reasoning tools tool_choice parallel_tool_calls text
			previous_response_id store include truncation metadata stream stream_options temperature top_p top_logprobs prompt_cache_key
			safety_identifier service_tier user client_metadata background conversation prompt context_management unknown`,
		`/v1/messages {"messages":[{"role":"user","content":[{"type":"text","text":"Hi","cache_control":null,"citations":null}]}],`: `model max_tokens
			system temperature top_p top_k stop_sequences stream tools tool_choice thinking output_config metadata context_management container
			mcp_servers service_tier unknown`,
	} {
		path, body, _ := strings.Cut(path, " ")
		for _, f := range strings.Fields(list) {
			if a := r.Post(path, body+`"`+f+`":null}`); a.Status != 200 {
				t.Errorf("%s with %s: null: %d %s", path, f, a.Status, a.Body)
			}
		}
	}
	// Members of objects inside count too.
	for path, bodies := range map[string][]string{
		"/v1/responses": {
			`{"input":[{"type":null,"role":"user","content":"Hi","id":null,"status":null}]}`,
			`{"input":[{"type":"reasoning","id":"rs_1","summary":[],"content":null,"encrypted_content":null},{"role":"user","content":"Hi"}]}`,
			`{"input":"Hi","reasoning":{"effort":null,"summary":null,"generate_summary":null},"text":{"format":null,"verbosity":null}}`,
			`{"input":"Hi","tools":[{"type":"function","name":"f","description":null,"parameters":null,"strict":null}]}`,
		},
		"/v1/messages": {
			`{"messages":[{"role":"user","content":"Hi"}],"thinking":{"type":null,"budget_tokens":null},"output_config":{"effort":null,"format":null}}`,
			`{"messages":[{"role":"user","content":"Hi"}],"tools":[{"name":"f","description":null,"input_schema":null,"cache_control":null}],"tool_choice":{"type":"auto","disable_parallel_tool_use":null}}`,
			`{"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":null,"is_error":null}]}]}`,
		},
	} {
		for _, body := range bodies {
			if a := r.Post(path, body); a.Status != 200 {
				t.Errorf("%s %s: %d %s", path, body, a.Status, a.Body)
			}
		}
	}
}

func TestHistoryRendersTheSameInAllDialects(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{})
	w.SetDecode(r.Reply("ok", 1))
	for _, thinking := range []string{"", `,"thinking":{"type":"enabled"}`} {
		reference := r.Post("/apply-template", rig.LoopChat+thinking+"}").JSON(t)["prompt"]
		for path, body := range map[string]string{"/v1/chat/completions": rig.LoopChat, "/v1/responses": rig.LoopResponses,
			"/v1/messages": rig.LoopMessages} {
			if a := r.Post(path, body+thinking+"}"); a.Status != 200 {
				t.Fatalf("%s: %d %s", path, a.Status, a.Body)
			}
			reqs := w.Requests()
			if d := cmp.Diff(reference, r.Tok.Decode(reqs[len(reqs)-1].GetPromptTokens(), true)); d != "" {
				t.Errorf("%s renders something else: %s", path, d)
			}
		}
		if !strings.Contains(fmt.Sprint(reference), "Now both others.") ||
			!strings.Contains(fmt.Sprint(reference), "<parameter=lines>\n12\n") {
			t.Errorf("the reference lacks parts of the conversation: %s", reference)
		}
	}
}

func TestImagesAreReplacedInAllDialects(t *testing.T) {
	r := rig.Start(t, nil)
	strict := rig.Start(t, func(c *app.Config) { c.ImagePolicy = "reject" })
	strict.Target(gatewaytest.WorkerOptions{Decode: r.Reply("ok", 1)})
	w := r.Target(gatewaytest.WorkerOptions{})
	w.SetDecode(r.Reply("ok", 1))
	for path, body := range map[string]string{
		"/v1/chat/completions": `{"messages":[{"role":"user","content":[{"type":"text","text":"See "},{"type":"image_url","image_url":{"url":"data:"}}]}]}`,
		"/v1/responses":        `{"input":[{"role":"user","content":[{"type":"input_text","text":"See "},{"type":"input_image","image_url":"data:"}]}]}`,
		"/v1/messages":         `{"messages":[{"role":"user","content":[{"type":"text","text":"See "},{"type":"image","source":{"type":"base64"}}]}]}`,
	} {
		if a := r.Post(path, body); a.Status != 200 || !strings.Contains(r.LastPrompt(w), "[image omitted]") {
			t.Errorf("%s: %d %s, prompt %s", path, a.Status, a.Body, r.LastPrompt(w))
		}
		for _, body := range []string{body, rig.WithStream(body)} {
			if got := r.Post(path, body).Header.Get("X-Tandem-Warning"); got != "content-omitted: image" {
				t.Errorf("%s: warning %q", path, got)
			}
		}
		if a := strict.Post(path, body); a.Status != 400 ||
			!strings.Contains(string(a.Body), "is not supported by this model") {
			t.Errorf("%s, policy reject: %d %s", path, a.Status, a.Body)
		}
	}
}
