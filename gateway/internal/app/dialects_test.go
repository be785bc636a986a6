package app

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"google.golang.org/grpc/codes"
	rpcstatus "google.golang.org/grpc/status"
)

// TestDialectErrors has the rows of docs/spec/http-api.md §3.2 that a body can cause, for the dialects with several
// kinds of input.
func TestDialectErrors(t *testing.T) {
	r := start(t, func(c *Config) { c.StrictModel, c.ImagePolicy = true, "reject" })
	w := r.target(gatewaytest.WorkerOptions{MaxContext: 512})
	w.SetDecode(r.reply("ok", 1))
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
		{"background", responses, in(`"background":true`), 400, "unsupported_parameter", "background"},
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
				for _, body := range []string{tt.body, withStream(tt.body)} {
					a := r.post(path, body)
					v := a.json(t)
					if a.status != tt.status {
						t.Fatalf("status %d: %s", a.status, a.body)
					}
					if tt.path == responses {
						param, _ := at(v, "error", "param").(string)
						if at(v, "error", "code") != tt.code || param != tt.param || at(v, "error", "type") != "invalid_request_error" {
							t.Errorf("error %s", a.body)
						}
						continue
					}
					text, _ := at(v, "error", "message").(string)
					if v["type"] != "error" || at(v, "error", "type") != tt.code || !strings.Contains(text, tt.param) {
						t.Errorf("error %s, want %s about %q", a.body, tt.code, tt.param)
					}
					if id := a.header.Get("Request-Id"); id == "" || v["request_id"] != id || a.header.Get("X-Request-Id") != id {
						t.Errorf("request id %v, headers %v", v["request_id"], a.header)
					}
				}
			}
		})
	}
}

// TestDialectStatuses has the rows that the state of the server causes.
func TestDialectStatuses(t *testing.T) {
	check := func(t *testing.T, a answer, status int, typ string) {
		t.Helper()
		if a.status != status || at(a.json(t), "error", "type") != typ {
			t.Errorf("%d %s, want %d %s", a.status, a.body, status, typ)
		}
		if status == 429 || status == 503 || status == 529 {
			if a.header.Get("Retry-After") == "" {
				t.Error("no Retry-After")
			}
		}
	}
	const messages = `{"messages":[{"role":"user","content":"Hi"}]}`
	t.Run("no worker", func(t *testing.T) {
		r := start(t, func(c *Config) { c.Model = gatewaytest.ModelPath(t, gatewaytest.Target); c.FailoverTimeoutS = 0.05 })
		check(t, r.post("/v1/messages", messages), 529, "overloaded_error")
		check(t, r.post("/v1/responses", `{"input":"Hi"}`), 503, "server_error")
		if a := r.post("/v1/messages/count_tokens", messages); a.status != 200 {
			t.Errorf("counting needs no worker: %d %s", a.status, a.body)
		}
	})
	t.Run("queue", func(t *testing.T) {
		r := start(t, func(c *Config) { c.MaxQueue = 1 })
		b := gatewaytest.NewBlock()
		r.target(gatewaytest.WorkerOptions{Lanes: 1, Decode: b.Script(r.tok, "one two")})
		first := r.send(t.Context(), chatBody(""))
		receive(t, b.Admitted, "first request runs")
		second := r.send(t.Context(), chatBody(""))
		r.eventually("second request waits", func() bool { return r.app.cluster.Targets.Queued() == 1 })
		check(t, r.post("/v1/messages", messages), 429, "rate_limit_error")
		check(t, r.post("/v1/responses", `{"input":"Hi"}`), 429, "rate_limit_error")
		close(b.Release)
		receive(t, first, "first answer")
		receive(t, second, "second answer")
	})
	t.Run("deadline", func(t *testing.T) {
		r := start(t, func(c *Config) { c.RequestTimeoutS = 0.05 })
		b := gatewaytest.NewBlock()
		r.target(gatewaytest.WorkerOptions{Lanes: 1, Decode: b.Script(r.tok, "one two")})
		check(t, r.post("/v1/messages", messages), 504, "timeout_error")
		check(t, r.post("/v1/responses", `{"input":"Hi"}`), 504, "server_error")
	})
	t.Run("worker failed", func(t *testing.T) {
		r := start(t, func(c *Config) { c.FailoverTimeoutS = 0.05 })
		r.target(gatewaytest.WorkerOptions{Decode: gatewaytest.DieAt(r.tok, "one two three", 0, 99,
			rpcstatus.Error(codes.Internal, "fault"))})
		check(t, r.post("/v1/messages", messages), 500, "api_error")
		check(t, r.post("/v1/responses", `{"input":"Hi"}`), 500, "server_error")
	})
	t.Run("draining", func(t *testing.T) {
		r := start(t, nil)
		b := gatewaytest.NewBlock()
		r.target(gatewaytest.WorkerOptions{Lanes: 1, Decode: b.Script(r.tok, "one two")})
		first := r.send(t.Context(), chatBody(""))
		receive(t, b.Admitted, "first request runs")
		stopped := make(chan error, 1)
		go func() { stopped <- r.stop() }()
		r.eventually("the gateway drains", func() bool { return r.app.draining.Load() })
		check(t, r.post("/v1/messages", messages), 529, "overloaded_error")
		check(t, r.post("/v1/responses", `{"input":"Hi"}`), 503, "server_error")
		close(b.Release)
		receive(t, first, "first answer")
		if err := receive(t, stopped, "end of the gateway"); err != nil {
			t.Error(err)
		}
	})
	t.Run("body", func(t *testing.T) {
		r := start(t, nil)
		// The body is never sent: the answer comes to its announcement.
		client := &http.Client{Transport: &http.Transport{ExpectContinueTimeout: 10 * time.Second}}
		defer client.CloseIdleConnections()
		for path, typ := range map[string]string{"/v1/messages": "request_too_large",
			"/v1/responses": "invalid_request_error"} {
			req, err := http.NewRequestWithContext(t.Context(), "POST", r.url+path, strings.NewReader("{"))
			if err != nil {
				t.Fatal(err)
			}
			req.ContentLength = 64<<20 + 1
			req.Header.Set("Expect", "100-continue")
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			check(t, answer{resp.StatusCode, resp.Header, body}, 413, typ)
		}
	})
	t.Run("routes", func(t *testing.T) {
		r := start(t, func(c *Config) { c.APIKey = append(c.APIKey, "secret") })
		key := []string{"x-api-key", "secret"}
		check(t, r.post("/v1/messages", messages), 401, "authentication_error")
		check(t, r.post("/v1/responses", `{}`), 401, "authentication_error")
		check(t, r.do("GET", "/v1/messages", "", key...), 405, "invalid_request_error")
		check(t, r.do("PUT", "/responses/resp_1", "", key...), 405, "invalid_request_error")
		check(t, r.do("GET", "/v1/responses/resp_1", "", key...), 404, "invalid_request_error")
		check(t, r.do("DELETE", "/responses/resp_1", "", key...), 404, "invalid_request_error")
		check(t, r.do("POST", "/v1/responses/resp_1/cancel", "", key...), 404, "invalid_request_error")
		check(t, r.do("GET", "/v1/messages/batches", "", key...), 404, "not_found_error")
		check(t, r.do("GET", "/v1/models/unknown", "", append(key, "anthropic-version", "2023-06-01")...), 404,
			"not_found_error")
		check(t, r.do("POST", "/v1/messages?"+strings.Repeat("a", 17000), messages, key...), 414, "invalid_request_error")
		if a := r.do("HEAD", "/api/hello", ""); a.status != 404 {
			t.Errorf("unknown paths must be 404, got %d", a.status)
		}
	})
}

func TestDialectsTakeNullAsAbsent(t *testing.T) {
	r := start(t, nil)
	w := r.target(gatewaytest.WorkerOptions{})
	w.SetDecode(r.reply("ok", 1))
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
			if a := r.post(path, body+`"`+f+`":null}`); a.status != 200 {
				t.Errorf("%s with %s: null: %d %s", path, f, a.status, a.body)
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
			if a := r.post(path, body); a.status != 200 {
				t.Errorf("%s %s: %d %s", path, body, a.status, a.body)
			}
		}
	}
}

// The same conversation in each dialect: three rounds of a tool loop with reasoning, after an earlier question.
const (
	loopChat = `{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hello."},{"role":"assistant","content":"Hello!"},
		{"role":"user","content":"Compare the files."},
		{"role":"assistant","content":"I read a.","reasoning_content":"First a.","tool_calls":[{"id":"call_1","type":"function","function":{"name":"read","arguments":"{\"path\": \"a.go\", \"lines\": 12}"}}]},
		{"role":"tool","tool_call_id":"call_1","content":"package a"},
		{"role":"assistant","content":null,"reasoning_content":"Now both others.","tool_calls":[{"id":"call_2","type":"function","function":{"name":"read","arguments":"{\"path\":\"b.go\"}"}},{"id":"call_3","type":"function","function":{"name":"list","arguments":"{}"}}]},
		{"role":"tool","tool_call_id":"call_2","content":"package b"},{"role":"tool","tool_call_id":"call_3","content":"a.go\nb.go"},
		{"role":"assistant","content":null,"reasoning_content":"Again.","tool_calls":[{"id":"call_4","type":"function","function":{"name":"read","arguments":"{\"path\":\"c.go\"}"}}]},
		{"role":"tool","tool_call_id":"call_4","content":""}],
		"tools":[{"type":"function","function":{"name":"read","description":"Read a file","parameters":{"type":"object","properties":{"path":{"type":"string"},"lines":{"type":"integer"}},"required":["path"]}}},
			{"type":"function","function":{"name":"list","parameters":{"type":"object","properties":{}}}}]`
	loopResponses = `{"instructions":"Be brief.","input":[{"role":"user","content":"Hello."},
		{"type":"message","role":"assistant","id":"msg_0","status":"completed","content":[{"type":"output_text","text":"Hello!","annotations":[]}]},
		{"type":"message","role":"user","content":[{"type":"input_text","text":"Compare "},{"type":"input_text","text":"the files."}]},
		{"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"First a."}]},
		{"type":"message","role":"assistant","content":[{"type":"output_text","text":"I read a."}]},
		{"type":"function_call","call_id":"call_1","name":"read","arguments":"{\"path\":\"a.go\",\"lines\":12}"},
		{"type":"function_call_output","call_id":"call_1","output":"package a"},
		{"type":"reasoning","id":"rs_2","summary":[{"type":"summary_text","text":"Now both others."}]},
		{"type":"function_call","call_id":"call_2","name":"read","arguments":"{\"path\":\"b.go\"}"},
		{"type":"web_search_call","id":"ws_1","status":"completed"},
		{"type":"function_call","call_id":"call_3","name":"list","arguments":""},
		{"type":"function_call_output","call_id":"call_2","output":[{"type":"input_text","text":"package b"}]},
		{"type":"function_call_output","call_id":"call_3","output":"a.go\nb.go"},
		{"type":"reasoning","id":"rs_3","summary":[],"content":[{"type":"reasoning_text","text":"Again."}]},
		{"type":"function_call","call_id":"call_4","name":"read","arguments":"{\"path\":\"c.go\"}"},
		{"type":"function_call_output","call_id":"call_4","output":""}],
		"tools":[{"type":"function","name":"read","description":"Read a file","parameters":{"type":"object","properties":{"path":{"type":"string"},"lines":{"type":"integer"}},"required":["path"]}},
			{"type":"web_search"},{"type":"function","name":"list","parameters":{"type":"object","properties":{}},"strict":false}]`
	loopMessages = `{"system":[{"type":"text","text":"x-anthropic-billing-header: cc_version=2.1; cch=0;"},{"type":"text","text":"Be brief.","cache_control":{"type":"ephemeral"}}],
		"messages":[{"role":"user","content":"Hello."},{"role":"assistant","content":[{"type":"text","text":"Hello!"}]},
		{"role":"user","content":[{"type":"text","text":"Compare the files."}]},
		{"role":"assistant","content":[{"type":"thinking","thinking":"First a.","signature":"wrong"},{"type":"text","text":"I read a."},{"type":"tool_use","id":"call_1","name":"read","input":{"path":"a.go","lines":12}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"call_1","content":"package a","is_error":false}]},
		{"role":"assistant","content":[{"type":"thinking","thinking":"Now both others.","signature":""},{"type":"redacted_thinking","data":"x"},{"type":"tool_use","id":"call_2","name":"read","input":{"path":"b.go"}},{"type":"tool_use","id":"call_3","name":"list","input":{}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"call_2","content":[{"type":"text","text":"package b"}]},{"type":"tool_result","tool_use_id":"call_3","content":"a.go\nb.go"}]},
		{"role":"assistant","content":[{"type":"thinking","thinking":"Again.","signature":""},{"type":"tool_use","id":"call_4","name":"read","input":{"path":"c.go"}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"call_4"}]}],
		"tools":[{"name":"read","description":"Read a file","input_schema":{"type":"object","properties":{"path":{"type":"string"},"lines":{"type":"integer"}},"required":["path"]},"cache_control":{"type":"ephemeral"}},
			{"type":"web_search_20250305","name":"web_search","max_uses":8},{"type":"custom","name":"list","input_schema":{"type":"object","properties":{}},"eager_input_streaming":true}]`
)

func TestHistoryRendersTheSameInAllDialects(t *testing.T) {
	r := start(t, nil)
	w := r.target(gatewaytest.WorkerOptions{})
	w.SetDecode(r.reply("ok", 1))
	for _, thinking := range []string{"", `,"thinking":{"type":"enabled"}`} {
		reference := r.post("/apply-template", loopChat+thinking+"}").json(t)["prompt"]
		for path, body := range map[string]string{"/v1/chat/completions": loopChat, "/v1/responses": loopResponses,
			"/v1/messages": loopMessages} {
			if a := r.post(path, body+thinking+"}"); a.status != 200 {
				t.Fatalf("%s: %d %s", path, a.status, a.body)
			}
			reqs := w.Requests()
			if d := cmp.Diff(reference, r.tok.Decode(reqs[len(reqs)-1].GetPromptTokens(), true)); d != "" {
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
	r := start(t, nil)
	strict := start(t, func(c *Config) { c.ImagePolicy = "reject" })
	strict.target(gatewaytest.WorkerOptions{Decode: r.reply("ok", 1)})
	w := r.target(gatewaytest.WorkerOptions{})
	w.SetDecode(r.reply("ok", 1))
	for path, body := range map[string]string{
		"/v1/chat/completions": `{"messages":[{"role":"user","content":[{"type":"text","text":"See "},{"type":"image_url","image_url":{"url":"data:"}}]}]}`,
		"/v1/responses":        `{"input":[{"role":"user","content":[{"type":"input_text","text":"See "},{"type":"input_image","image_url":"data:"}]}]}`,
		"/v1/messages":         `{"messages":[{"role":"user","content":[{"type":"text","text":"See "},{"type":"image","source":{"type":"base64"}}]}]}`,
	} {
		if a := r.post(path, body); a.status != 200 || !strings.Contains(r.lastPrompt(w), "[image omitted]") {
			t.Errorf("%s: %d %s, prompt %s", path, a.status, a.body, r.lastPrompt(w))
		}
		for _, body := range []string{body, withStream(body)} {
			if got := r.post(path, body).header.Get("X-Tandem-Warning"); got != "content-omitted: image" {
				t.Errorf("%s: warning %q", path, got)
			}
		}
		if a := strict.post(path, body); a.status != 400 ||
			!strings.Contains(string(a.body), "is not supported by this model") {
			t.Errorf("%s, policy reject: %d %s", path, a.status, a.body)
		}
	}
}
