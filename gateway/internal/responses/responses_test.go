package responses_test

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/wirecheck"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// weatherTools are a function, a custom tool, a namespace and a kind that is not offered.
const weatherTools = `"tools":[{"type":"function","name":"weather","parameters":{"type":"object","properties":{"city":{"type":"string"}}}},
	{"type":"custom","name":"patch","description":"Apply a patch","format":{"type":"grammar","syntax":"lark","definition":"start: /.+/"}},
	{"type":"namespace","name":"files","description":"Files","tools":[{"type":"function","name":"read","parameters":{"type":"object","properties":{"path":{"type":"string"}}}}]},
	{"type":"web_search"}]`

// streamResponse streams a request and checks its events.
func streamResponse(r *rig.Rig, body string, header ...string) *wirecheck.ResponsesAnswer {
	r.T.Helper()
	a := r.Post("/v1/responses", strings.TrimSuffix(body, "}")+`,"stream":true}`, header...)
	got, err := wirecheck.Responses(a.Body)
	if err != nil {
		r.T.Fatalf("status %d: %v\n%s", a.Status, err, a.Body)
	}
	return got
}

func TestResponsesStreamEqualsWhole(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{})
	for _, tt := range []struct{ name, text, more, status, output string }{
		{"plain", "Hello, wörld 日本!", "", "completed", `message "Hello, wörld 日本!"`},
		{"empty", "", "", "completed", `message ""`},
		{"thinking", "it is\nso\n</think>\n\nYes.", `"reasoning":{"effort":"low","summary":"auto"}`, "completed",
			`reasoning "it is\nso", message "Yes."`},
		{"sealed", "so\n</think>\n\nYes.", `"reasoning":{"effort":"low"},"include":["reasoning.encrypted_content"]`,
			"completed", `reasoning "so", message "Yes."`},
		{"stop string", "one two three", `"stop":["wo th"]`, "completed", `message "one t"`},
		{"length", "one two three four five six", `"max_output_tokens":2`, "incomplete", ""},
		{"logprobs", "a b", `"include":["message.output_text.logprobs"],"top_logprobs":2`, "completed", `message "a b"`},
		{"call", rig.CallText("weather", "city", "Zürich"), weatherTools, "completed",
			`function_call weather {"city": "Zürich"}`},
		{"text and two calls", "Let me see.\n" + rig.CallText("files.read", "path", "a.go") + "\n" + rig.CallText("weather",
			"city",
			"Bern"), weatherTools, "completed",
			`message "Let me see.\n", function_call files/read {"path": "a.go"}, function_call weather {"city": "Bern"}`},
		{"custom", rig.CallText("patch", "input", "*** Begin\n\"x\"\t\\"), weatherTools, "completed",
			`custom_tool_call patch *** Begin` + "\n\"x\"\t\\"},
		{"custom, cut off", rig.CallText("patch", "input", "*** Begin to write and write and write and write on"),
			`"max_output_tokens":24,` + weatherTools, "incomplete", ""},
		{"unknown name is text", rig.CallText("none", "a", "b"), weatherTools, "completed",
			fmt.Sprintf("message %q", rig.CallText("none", "a", "b"))},
	} {
		for _, step := range []int{1, 3, 64} {
			t.Run(fmt.Sprintf("%s, steps of %d", tt.name, step), func(t *testing.T) {
				r.T = t
				w.SetDecode(r.Reply(tt.text, step))
				body := `{"input":"Say hello."}`
				if tt.more != "" {
					body = `{"input":"Say hello.",` + tt.more + `}`
				}
				a := r.Post("/responses", body)
				if a.Status != 200 {
					t.Fatalf("%d %s", a.Status, a.Body)
				}
				whole, streamed := a.JSON(t), streamResponse(r, body).Final
				if got := describe(whole); tt.output != "" && got != tt.output {
					t.Errorf("output %s, want %s", got, tt.output)
				}
				if got := describe(whole); strings.HasSuffix(tt.name, "cut off") &&
					!strings.HasPrefix(got, "custom_tool_call patch *** Begin to") {
					t.Errorf("the call that was cut off is %q", got)
				}
				if whole["status"] != tt.status {
					t.Errorf("status %v", whole["status"])
				}
				rig.Settle(whole)
				rig.Settle(streamed)
				if d := cmp.Diff(whole, streamed); d != "" {
					t.Errorf("stream differs from whole: %s", d)
				}
				if strings.Contains(tt.more, "web_search") && !strings.Contains(a.Header.Get("X-Tandem-Warning"), "web_search") {
					t.Errorf("no warning about the tool that is left out: %v", a.Header)
				}
			})
		}
	}
}

// describe lists the output of a response in short.
func describe(resp map[string]any) string {
	var out []string
	for _, it := range resp["output"].([]any) {
		s := fmt.Sprint(rig.At(it, "type"), " ")
		if ns, ok := rig.At(it, "namespace").(string); ok {
			s += ns + "/"
		}
		switch rig.At(it, "type") {
		case "function_call":
			s += fmt.Sprint(rig.At(it, "name"), " ", rig.At(it, "arguments"))
		case "custom_tool_call":
			s += fmt.Sprint(rig.At(it, "name"), " ", rig.At(it, "input"))
		default:
			s += fmt.Sprintf("%q", rig.At(it, "content", 0, "text"))
		}
		out = append(out, s)
	}
	return strings.Join(out, ", ")
}

func TestResponseObject(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{})
	const thought = "The user wants a yes."
	w.SetDecode(r.Reply(thought+"\n</think>\n\nYes.", 2))
	v := r.Post("/v1/responses", `{"input":"Hi","instructions":"Be brief.","max_output_tokens":50,"temperature":0.5,"top_p":0.9,"metadata":{"a":"b"},
		"reasoning":{"effort":"medium","summary":"auto"},"tools":[{"type":"function","name":"f"}],"tool_choice":"none","parallel_tool_calls":false,
		"truncation":"auto","user":"me","store":false,"prompt_cache_key":"k","include":["reasoning.encrypted_content"]}`).JSON(t)
	n := float64(len(r.Encode(thought + "\n</think>\n\nYes.")))
	reasoning := rig.At(v, "usage", "output_tokens_details", "reasoning_tokens").(float64)
	for path, want := range map[string]any{
		"object": "response", "status": "completed", "background": false, "instructions": "Be brief.",
		"max_output_tokens": 50.0, "temperature": 0.5, "top_p": 0.9, "parallel_tool_calls": false, "truncation": "auto",
		"user": "me", "store": false, "prompt_cache_key": "k", "tool_choice": "none",
		"service_tier": "default", "output_text": "Yes.", "model": "tiny", "metadata.a": "b", "reasoning.effort": "medium",
		"reasoning.summary": "auto", "text.format.type": "text", "usage.output_tokens": n,
	} {
		var got any = v
		for _, k := range strings.Split(path, ".") {
			got = rig.At(got, k)
		}
		if got != want {
			t.Errorf("%s = %v, want %v", path, got, want)
		}
	}
	if reasoning < 1 || reasoning >= n {
		t.Errorf("%v of %v tokens are reasoning", reasoning, n)
	}
	if rig.At(v, "usage", "total_tokens").(float64) != n+rig.At(v, "usage", "input_tokens").(float64) {
		t.Errorf("usage %v does not add up", v["usage"])
	}
	for _, k := range []string{"error", "incomplete_details", "previous_response_id"} {
		if x, ok := v[k]; !ok || x != nil {
			t.Errorf("%s = %v, want null", k, x)
		}
	}
	if rig.At(v, "finish_details", "close_kind") != "natural" || rig.At(v, "tools", 0, "name") != "f" ||
		rig.At(v, "completed_at") == nil {
		t.Errorf("response %v", v)
	}
	sealed, _ := rig.At(v, "output", 0, "encrypted_content").(string)
	raw, err := base64.RawURLEncoding.DecodeString(sealed)
	if err != nil || len(raw) < len(thought) || bytes.Contains(raw, []byte(thought)) {
		t.Errorf("encrypted_content %q says %q: %v", sealed, raw, err)
	}
}

// chatPrompt is how chat renders messages.
func chatPrompt(r *rig.Rig, body string) string {
	r.T.Helper()
	return r.Post("/apply-template", body).JSON(r.T.(*testing.T))["prompt"].(string)
}

func TestPreviousResponse(t *testing.T) {
	r := rig.Start(t, func(c *app.Config) { c.APIKey = append(c.APIKey, "alice", "bob") })
	w := r.Target(gatewaytest.WorkerOptions{})
	alice, bob := []string{"x-api-key", "alice"}, []string{"x-api-key", "bob"}
	w.SetDecode(r.Reply("Four.", 1))
	first := r.Post("/v1/responses", `{"input":"2+2?","instructions":"Be brief."}`, alice...).JSON(t)
	w.SetDecode(r.Reply("Five.", 1))
	second := streamResponse(r, `{"input":[{"role":"user","content":"And 2+3?"}],"previous_response_id":"`+
		first["id"].(string)+`"}`, alice...).Final
	if second["previous_response_id"] != first["id"] {
		t.Errorf("previous_response_id %v", second["previous_response_id"])
	}
	r.Post("/v1/responses", `{"input":"Sum?","previous_response_id":"`+second["id"].(string)+`","store":false}`, alice...)
	body := `{"messages":[{"role":"user","content":"2+2?"},{"role":"assistant","content":"Four."},{"role":"user","content":"And 2+3?"},
		{"role":"assistant","content":"Five."},{"role":"user","content":"Sum?"}]}`
	want := r.Do("POST", "/apply-template", body, alice...).JSON(t)["prompt"]
	if d := cmp.Diff(want, r.LastPrompt(w)); d != "" {
		t.Errorf("the conversation went on with another prompt: %s", d)
	}
	id := first["id"].(string)
	if got := r.Do("GET", "/v1/responses/"+id, "", alice...); got.Status != 200 || cmp.Diff(first, got.JSON(t)) != "" {
		t.Errorf("GET: %d %s", got.Status, got.Body)
	}
	if got := r.Do("GET", "/v1/responses/"+id, "", bob...); got.Status != 404 {
		t.Errorf("another key reads the response: %d", got.Status)
	}
	if got := r.Post("/v1/responses", `{"input":"x","previous_response_id":"`+id+`"}`, bob...); got.Status != 400 {
		t.Errorf("another key continues the response: %d", got.Status)
	}
	if got := r.Do("POST", "/v1/responses/"+id+"/cancel", "", alice...); got.Status != 200 ||
		got.JSON(t)["status"] != "completed" {
		t.Errorf("cancel of a finished response: %d %s", got.Status, got.Body)
	}
	if got := r.Do("DELETE", "/v1/responses/"+id, "", alice...); got.Status != 200 ||
		cmp.Diff(got.JSON(t), map[string]any{"id": id, "object": "response.deleted", "deleted": true}) != "" {
		t.Errorf("DELETE: %d %s", got.Status, got.Body)
	}
	if got := r.Do("GET", "/responses/"+id, "", alice...); got.Status != 404 {
		t.Errorf("GET after DELETE: %d", got.Status)
	}
}

// Reasoning comes back as an item, sealed, or as a reference to a kept item; all give the prompt that the chat
// dialect gives.
func TestReasoningRoundTrip(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{})
	text := "Read it.\n</think>\n\n" + rig.CallText("weather", "city", "Bern")
	w.SetDecode(r.Reply(text, 2))
	ask := func(more string) []any {
		t.Helper()
		return r.Post("/v1/responses",
			`{"input":"Weather?","reasoning":{"effort":"low"},`+weatherTools+more+`}`).JSON(t)["output"].([]any)
	}
	want := chatPrompt(r, `{"messages":[{"role":"user","content":"Weather?"},
		{"role":"assistant","reasoning_content":"Read it.","tool_calls":[{"id":"c","type":"function","function":{"name":"weather","arguments":"{\"city\":\"Bern\"}"}}]},
		{"role":"tool","tool_call_id":"c","content":"rain"}],`+weatherTools+`,"reasoning_effort":"low"}`)
	for name, replay := range map[string]func() string{
		"as it was": func() string { return string(rig.JSON(ask(""))) },
		"sealed": func() string {
			out := ask(`,"include":["reasoning.encrypted_content"],"store":false`)
			out[0] = map[string]any{"type": "reasoning", "id": rig.At(out[0], "id"), "summary": []any{}, "content": nil,
				"encrypted_content": rig.At(out[0], "encrypted_content")}
			return string(rig.JSON(out))
		},
		"referenced": func() string {
			out := ask("")
			out[0] = map[string]any{"type": "item_reference", "id": rig.At(out[0], "id")}
			out[1] = map[string]any{"id": rig.At(out[1], "id")}
			return string(rig.JSON(out))
		},
		"unknown reference": func() string {
			out := ask("")
			return string(rig.JSON(append([]any{map[string]any{"type": "item_reference", "id": "rs_unknown"}}, out...)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			items := strings.TrimSuffix(replay(), "]")
			var out []map[string]any
			if err := json.Unmarshal([]byte(items+"]"), &out); err != nil {
				t.Fatal(err)
			}
			a := r.Post("/v1/responses", `{"input":[{"role":"user","content":"Weather?"},`+strings.TrimPrefix(items, "[")+
				`,{"type":"function_call_output","call_id":"`+fmt.Sprint(out[len(out)-1]["call_id"])+
				`","output":"rain"}],"reasoning":{"effort":"low"},`+weatherTools+`}`)
			if a.Status != 200 {
				t.Fatalf("%d %s", a.Status, a.Body)
			}
			if d := cmp.Diff(want, r.LastPrompt(w)); d != "" {
				t.Errorf("the replay renders something else: %s", d)
			}
		})
	}
}

// A gateway that keeps its key reads what it sealed before a restart.
func TestSealedReasoningSurvivesARestart(t *testing.T) {
	path := t.TempDir() + "/key"
	sealed := ""
	for i := range 2 {
		r := rig.Start(t, func(c *app.Config) { c.SealKeyFile = path })
		w := r.Target(gatewaytest.WorkerOptions{})
		w.SetDecode(r.Reply("Deep thought.\n</think>\n\nYes.", 2))
		if i == 0 {
			v := r.Post("/v1/responses",
				`{"input":"Hi","reasoning":{"effort":"low"},"include":["reasoning.encrypted_content"]}`).JSON(t)
			sealed = rig.At(v, "output", 0, "encrypted_content").(string)
		} else {
			r.Post("/v1/responses", `{"input":[{"role":"user","content":"Hi"},{"type":"reasoning","summary":[],"encrypted_content":"`+sealed+`"},
				{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"x"}]}`)
			if p := r.LastPrompt(w); !strings.Contains(p, "Deep thought.") {
				t.Errorf("the reasoning is not in the prompt: %s", p)
			}
		}
		if err := r.Stop(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTruncationDropsOldestTurns(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{MaxContext: 512})
	w.SetDecode(r.Reply("ok", 1))
	var items []string
	for i := range 12 {
		items = append(items, fmt.Sprintf(`{"role":"user","content":"Question %d %s"},{"role":"assistant","content":"Answer %d."}`, i, strings.Repeat("word ", 60), i))
	}
	body := `{"instructions":"Be brief.","input":[` + strings.Join(items,
		",") + `,{"role":"user","content":"The last one."}],"max_output_tokens":64`
	if a := r.Post("/v1/responses", body+`}`); a.Status != 400 {
		t.Fatalf("without truncation: %d %s", a.Status, a.Body)
	}
	a := r.Post("/v1/responses", body+`,"truncation":"auto"}`)
	if a.Status != 200 {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	p := r.LastPrompt(w)
	n := len(w.Requests()[0].GetPromptTokens())
	if !strings.Contains(p, "Be brief.") || !strings.Contains(p, "The last one.") || strings.Contains(p, "Question 0 ") ||
		strings.Contains(p, "Answer 0.") {
		t.Errorf("prompt %s", p)
	}
	// A turn has about 70 tokens; another one would not have fitted.
	if n+64 > 512 || n < 512-64-150 {
		t.Errorf("%d tokens are left of 512", n)
	}
	if strings.Count(p, "Question ") != strings.Count(p, "Answer ") {
		t.Errorf("a turn was cut in two: %s", p)
	}
}

func TestCancelResponse(t *testing.T) {
	r := rig.Start(t, nil)
	b := gatewaytest.NewBlock()
	r.Target(gatewaytest.WorkerOptions{Decode: b.Script(r.Tok, "one two three")})
	req, _ := http.NewRequestWithContext(t.Context(), "POST", r.URL+"/v1/responses",
		strings.NewReader(`{"input":"Hi","stream":true}`))
	resp, err := r.Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	rig.Receive(t, b.Admitted, "admission")
	var body strings.Builder
	id := ""
	sc := bufio.NewScanner(resp.Body)
	for sc.Scan() {
		body.WriteString(sc.Text() + "\n")
		if id != "" || !strings.Contains(sc.Text(), "output_text.delta") {
			if rest, ok := strings.CutPrefix(sc.Text(), "data: "); ok && id == "" {
				var e map[string]any
				if err := json.Unmarshal([]byte(rest), &e); err != nil {
					t.Fatal(err)
				}
				id, _ = rig.At(e, "response", "id").(string)
				if a := r.Do("GET", "/v1/responses/"+id, ""); a.Status != 200 || a.JSON(t)["status"] != "in_progress" {
					t.Errorf("GET while it runs: %d %s", a.Status, a.Body)
				}
				if a := r.Do("POST", "/v1/responses/"+id+"/cancel", ""); a.Status != 200 || a.JSON(t)["status"] != "cancelled" {
					t.Errorf("cancel: %d %s", a.Status, a.Body)
				}
			}
		}
	}
	rig.Receive(t, b.Cancelled, "cancel at the worker")
	got, err := wirecheck.Responses([]byte(body.String()))
	if err != nil {
		t.Fatalf("%v\n%s", err, body.String())
	}
	if got.Final["status"] != "cancelled" || got.Terminal != "response.incomplete" {
		t.Errorf("the stream ends with %s, status %v", got.Terminal, got.Final["status"])
	}
	if a := r.Do("GET", "/v1/responses/"+id, ""); a.Status != 200 || a.JSON(t)["status"] != "cancelled" {
		t.Errorf("GET afterwards: %d %s", a.Status, a.Body)
	}
}

func TestResponsesFailureIsAnEvent(t *testing.T) {
	r := rig.Start(t, func(c *app.Config) { c.FailoverTimeoutS = 0.1 })
	r.Target(gatewaytest.WorkerOptions{Decode: gatewaytest.DieAt(r.Tok, "one two three", 1, 99,
		status.Error(codes.Internal, "fault"))})
	got := streamResponse(r, `{"input":"Hi"}`)
	if got.Terminal != "response.failed" || rig.At(got.Final, "error", "code") != "server_error" ||
		rig.At(got.Final, "error", "message") == "" {
		t.Errorf("ends with %s, error %v", got.Terminal, got.Final["error"])
	}
}

func TestResponsesKeepAlive(t *testing.T) {
	r := rig.Start(t, func(c *app.Config) { c.SSEKeepaliveS = 0.03 })
	b := gatewaytest.NewBlock()
	r.Target(gatewaytest.WorkerOptions{Decode: b.Script(r.Tok, "one two")})
	body := r.KeepAlives(b, "/v1/responses", `{"input":"Hi","stream":true}`, "event: response.in_progress")
	got, err := wirecheck.Responses(body)
	if err != nil {
		t.Fatalf("%v\n%s", err, body)
	}
	if got.Final["output_text"] != "one two" {
		t.Errorf("text %q", got.Final["output_text"])
	}
}

func TestAdditionalTools(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{})
	w.SetDecode(r.Reply(rig.CallText("exec", "input", "run()"), 4))
	v := r.Post("/v1/responses", `{"input":[{"type":"additional_tools","role":"developer","tools":[{"type":"custom","name":"exec","description":"Run code"}]},
		{"role":"user","content":"Go"}]}`).JSON(t)
	if got := describe(v); got != "custom_tool_call exec run()" {
		t.Errorf("output %s", got)
	}
	if p := r.LastPrompt(w); !strings.Contains(p, "Run code") {
		t.Errorf("the tool is not in the prompt: %s", p)
	}
}
