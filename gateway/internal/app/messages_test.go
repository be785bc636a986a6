package app

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/wirecheck"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// messagesBody is a request with one user message and further members.
func messagesBody(more string) string {
	if more != "" {
		more = "," + more
	}
	return `{"max_tokens":1000,"messages":[{"role":"user","content":"Say hello."}]` + more + `}`
}

// streamMessages streams a request and checks its events.
func (r *rig) streamMessages(body string) *wirecheck.MessagesAnswer {
	r.t.Helper()
	a := r.post("/messages?beta=true", strings.TrimSuffix(body, "}")+`,"stream":true}`, "anthropic-version", "2023-06-01",
		"anthropic-beta", "any-thing")
	got, err := wirecheck.Messages(a.body)
	if err != nil {
		r.t.Fatalf("status %d: %v\n%s", a.status, err, a.body)
	}
	return got
}

func TestMessagesStreamEqualsWhole(t *testing.T) {
	r := start(t, nil)
	w := r.target(gatewaytest.WorkerOptions{})
	const tools = `"tools":[{"name":"weather","input_schema":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}}}}]`
	for _, tt := range []struct{ name, text, more, want string }{
		{"plain", "Hello, wörld 日本!", "", `text "Hello, wörld 日本!"; end_turn <nil>`},
		{"empty", "", "", `text ""; end_turn <nil>`},
		{"thinking", "it is\nso\n</think>\n\nYes.", `"thinking":{"type":"adaptive","display":"summarized"}`,
			`thinking "it is\nso", text "Yes."; end_turn <nil>`},
		{"stop sequence", "one two three", `"stop_sequences":["wo th"]`, `text "one t"; stop_sequence wo th`},
		{"length", "one two three four five six", `"max_tokens":2`, ""},
		{"call", callText("weather", "city", "Zürich"), tools, `tool_use weather map[city:Zürich]; tool_use <nil>`},
		{"thinking, text and two calls",
			"hm\n</think>\n\nLook: " + callText("weather", "days", "3") + "\n" + callText("weather", "city", "Bern"),
			tools + `,"thinking":{"type":"enabled","budget_tokens":2048}`,
			`thinking "hm", text "Look: ", tool_use weather map[days:3], tool_use weather map[city:Bern]; tool_use <nil>`},
		{"call cut off", "<tool_call>\n<function=weather>\n<parameter=city>\nBern and so on and on and on",
			tools + `,"max_tokens":18`, ""},
	} {
		for _, step := range []int{1, 3, 64} {
			t.Run(fmt.Sprintf("%s, steps of %d", tt.name, step), func(t *testing.T) {
				r.t = t
				w.SetDecode(r.reply(tt.text, step))
				body := messagesBody(tt.more)
				a := r.post("/v1/messages", body)
				if a.status != 200 {
					t.Fatalf("%d %s", a.status, a.body)
				}
				whole, streamed := a.json(t), r.streamMessages(body).Message
				got := blocksOf(whole)
				if tt.want != "" && got != tt.want {
					t.Errorf("got %s, want %s", got, tt.want)
				}
				if tt.want == "" && !strings.HasSuffix(got, "; max_tokens <nil>") {
					t.Errorf("got %s, want an answer that was cut off", got)
				}
				settle(whole)
				settle(streamed)
				whole["usage"].(map[string]any)["timings"] = streamed["usage"].(map[string]any)["timings"]
				if d := cmp.Diff(whole, streamed); d != "" {
					t.Errorf("stream differs from whole: %s", d)
				}
			})
		}
	}
}

// blocksOf lists a message's content and end in short.
func blocksOf(m map[string]any) string {
	var out []string
	for _, b := range m["content"].([]any) {
		kind := at(b, "type").(string)
		if kind == "tool_use" {
			out = append(out, fmt.Sprint(kind, " ", at(b, "name"), " ", at(b, "input")))
		} else {
			out = append(out, fmt.Sprintf("%s %q", kind, at(b, kind)))
		}
	}
	return strings.Join(out, ", ") + fmt.Sprintf("; %v %v", m["stop_reason"], m["stop_sequence"])
}

func TestCountTokensEqualsUsage(t *testing.T) {
	r := start(t, nil)
	w := r.target(gatewaytest.WorkerOptions{})
	w.SetDecode(r.reply("ok", 1))
	for _, body := range []string{messagesBody(""),
		messagesBody(`"system":"Be brief.","thinking":{"type":"enabled","budget_tokens":1024}`), loopMessages + "}"} {
		usage := r.post("/v1/messages", body).json(t)["usage"]
		count := r.post("/v1/messages/count_tokens", body).json(t)
		sum := at(usage, "input_tokens").(float64) + at(usage, "cache_creation_input_tokens").(float64) + at(usage,
			"cache_read_input_tokens").(float64)
		if count["input_tokens"] != sum || len(count) != 1 || sum < 5 {
			t.Errorf("count %v, usage %v", count, usage)
		}
	}
}

// What the newest client of the dialect sends; docs/spec/clients.md §3.
func TestMessagesOfClaudeCode(t *testing.T) {
	r := start(t, nil)
	w := r.target(gatewaytest.WorkerOptions{})
	w.SetDecode(r.reply("ok", 1))
	prompt := func(body string) string {
		t.Helper()
		a := r.post("/v1/messages?beta=true", body, "anthropic-beta", "advanced-tool-use-2025-11-20")
		if a.status != 200 {
			t.Fatalf("%d %s", a.status, a.body)
		}
		return r.lastPrompt(w)
	}
	const tools = `"tools":[{"name":"ToolSearch","input_schema":{"type":"object","properties":{"query":{"type":"string"}}}},
		{"name":"WebFetch","description":"Fetch a page","input_schema":{"type":"object","properties":{"url":{"type":"string"}}},"defer_loading":true},
		{"type":"web_search_20250305","name":"web_search","max_uses":8}],
		"thinking":{"type":"adaptive","display":"updates"},"context_management":{"edits":[{"type":"clear_thinking_20251015"}]},"output_config":{"effort":"medium"}`
	const system = `"system":[{"type":"text","text":"x-anthropic-billing-header: cc_version=%s;"},{"type":"text","text":"You help."}],`
	first := `{"role":"user","content":[{"type":"text","text":"<reminder>","cache_control":{"type":"ephemeral"}},{"type":"text","text":"Fetch it."}]},
		{"role":"system","content":[{"type":"text","text":"Later rules.","cache_control":{"type":"ephemeral"}}]}`
	one := prompt("{" + fmt.Sprintf(system, "1.aaa") + `"messages":[` + first + `],` + tools + `}`)
	if other := prompt("{" + fmt.Sprintf(system, "2.bbb") + `"messages":[` + first + `],` + tools + `}`); other != one {
		t.Error("the billing block changes the prompt")
	}
	if text := strings.Replace(first, `[{"type":"text","text":"Later rules.","cache_control":{"type":"ephemeral"}}]`,
		`"Later rules."`, 1); text == first ||
		prompt("{"+fmt.Sprintf(system, "1")+`"messages":[`+text+`],`+tools+`}`) != one {
		t.Error("a string and a block list of the same text give different prompts")
	}
	for text, want := range map[string]bool{"You help.": true, "Later rules.": true, "<reminder>\nFetch it.": true,
		"ToolSearch": true, "WebFetch": false, "web_search": false, "billing": false} {
		if strings.Contains(one, text) != want {
			t.Errorf("%q is in the prompt: %v, want %v: %s", text, !want, want, one)
		}
	}
	found := first + `,{"role":"assistant","content":[{"type":"tool_use","id":"toolu_1","name":"ToolSearch","input":{"query":"fetch"}}]},
		{"role":"user","content":[{"type":"text","text":"Go on."},{"type":"tool_result","tool_use_id":"toolu_1","content":[{"type":"tool_reference","tool_name":"WebFetch"}]}]},
		{"role":"assistant","content":[{"type":"tool_use","id":"toolu_2","name":"WebFetch","input":{"url":"x"}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_2","is_error":true,"content":[{"type":"text","text":"a page"},{"type":"image","source":{"type":"base64"}}]}]}`
	two := prompt("{" + fmt.Sprintf(system, "1") + `"messages":[` + found + `],` + tools + `}`)
	head := strings.TrimSuffix(one[:strings.LastIndex(one, "Fetch it.")], "")
	if !strings.HasPrefix(two, head) {
		t.Errorf("loading a tool changed what came before it:\n%s", cmp.Diff(one, two))
	}
	for _, text := range []string{`"name": "WebFetch", "description": "Fetch a page"`, "a page\n[image omitted]"} {
		if strings.Count(two, text) != 1 {
			t.Errorf("%q is %d times in the prompt: %s", text, strings.Count(two, text), two)
		}
	}
	if strings.Index(two, "WebFetch") > strings.Index(two, "Go on.") {
		t.Error("results of tools come after the text of their message")
	}
	w.SetDecode(r.reply("</think>\n\n"+callText("WebFetch", "url", "https://x"), 3))
	v := r.post("/v1/messages", "{"+fmt.Sprintf(system, "1")+`"messages":[`+found+`],`+tools+`}`).json(t)
	if got := blocksOf(v); got != "tool_use WebFetch map[url:https://x]; tool_use <nil>" {
		t.Errorf("a loaded tool cannot be called: %s", got)
	}
	if id, _ := at(v, "content", 0, "id").(string); !strings.HasPrefix(id, "toolu_") || len(id) != 30 {
		t.Errorf("id of a call: %q", id)
	}
}

func TestMessagesInputTotal(t *testing.T) {
	for _, total := range []bool{false, true} {
		r := start(t, func(c *Config) { c.AnthropicInputTotal = total })
		w := r.target(gatewaytest.WorkerOptions{})
		w.SetDecode(r.reply("ok", 1))
		u := r.post("/v1/messages", messagesBody("")).json(t)["usage"]
		if n := float64(len(w.Requests()[0].GetPromptTokens())); total && at(u, "input_tokens") != n {
			t.Errorf("usage %v of a prompt of %v tokens", u, n)
		}
	}
}

func TestMessagesFailureIsAnEvent(t *testing.T) {
	r := start(t, func(c *Config) { c.FailoverTimeoutS = 0.1 })
	r.target(gatewaytest.WorkerOptions{Decode: gatewaytest.DieAt(r.tok, "one two three", 1, 99,
		status.Error(codes.Internal, "fault"))})
	got := r.streamMessages(messagesBody(""))
	if got.Error["type"] != "api_error" {
		t.Errorf("error %v", got.Error)
	}
}

func TestMessagesKeepAlive(t *testing.T) {
	r := start(t, func(c *Config) { c.SSEKeepaliveS = 0.03 })
	b := gatewaytest.NewBlock()
	r.target(gatewaytest.WorkerOptions{Decode: b.Script(r.tok, "one two")})
	body := r.keepAlives(b, "/v1/messages", messagesBody(`"stream":true`), "event: ping")
	got, err := wirecheck.Messages(body)
	if err != nil {
		t.Fatalf("%v\n%s", err, body)
	}
	if s := blocksOf(got.Message); s != `text "one two"; end_turn <nil>` {
		t.Errorf("message %s", s)
	}
}

func TestModelsInThreeShapes(t *testing.T) {
	r := start(t, func(c *Config) { c.ModelName = "org/tiny" })
	r.target(gatewaytest.WorkerOptions{MaxContext: 4096})
	v := r.do("GET", "/v1/models?limit=1000", "", "anthropic-version", "2023-06-01").json(t)
	if at(v, "data", 0, "id") != "org/tiny" || at(v, "data", 0, "type") != "model" || v["has_more"] != false ||
		v["first_id"] != "org/tiny" || v["last_id"] != "org/tiny" {
		t.Errorf("Anthropic: %v", v)
	}
	v = r.do("GET", "/models/org/tiny", "", "anthropic-version", "2023-06-01").json(t)
	if v["id"] != "org/tiny" || !strings.HasSuffix(fmt.Sprint(v["created_at"]), "Z") {
		t.Errorf("Anthropic, one: %v", v)
	}
	v = r.do("GET", "/v1/models?client_version=0.169.0", "").json(t)
	m := at(v, "models", 0)
	for k, want := range map[string]any{"slug": "org/tiny", "display_name": "org/tiny", "shell_type": "shell_command",
		"visibility": "list", "supported_in_api": true,
		"priority": 1.0, "context_window": 4096.0, "supports_reasoning_summaries": false,
		"supports_parallel_tool_calls": true, "default_reasoning_level": "low"} {
		if at(m, k) != want {
			t.Errorf("Codex: %s = %v, want %v", k, at(m, k), want)
		}
	}
	v = r.do("GET", "/v1/models/org/tiny", "").json(t)
	if v["object"] != "model" || v["context_length"] != 4096.0 {
		t.Errorf("OpenAI, one: %v", v)
	}
}
