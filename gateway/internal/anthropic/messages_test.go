package anthropic_test

import (
	"fmt"
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

// messagesBody is a request with one user message and further members.
func messagesBody(more string) string {
	if more != "" {
		more = "," + more
	}
	return `{"max_tokens":1000,"messages":[{"role":"user","content":"Say hello."}]` + more + `}`
}

// streamMessages streams a request and checks its events.
func streamMessages(r *rig.Rig, body string) *wirecheck.MessagesAnswer {
	r.T.Helper()
	a := r.Post("/messages?beta=true", strings.TrimSuffix(body, "}")+`,"stream":true}`, "anthropic-version", "2023-06-01",
		"anthropic-beta", "any-thing")
	got, err := wirecheck.Messages(a.Body)
	if err != nil {
		r.T.Fatalf("status %d: %v\n%s", a.Status, err, a.Body)
	}
	return got
}

func TestMessagesStreamEqualsWhole(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{})
	const tools = `"tools":[{"name":"weather","input_schema":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}}}}]`
	for _, tt := range []struct{ name, text, more, want string }{
		{"plain", "Hello, wörld 日本!", "", `text "Hello, wörld 日本!"; end_turn <nil>`},
		{"empty", "", "", `text ""; end_turn <nil>`},
		{"thinking", "it is\nso\n</think>\n\nYes.", `"thinking":{"type":"adaptive","display":"summarized"}`,
			`thinking "it is\nso", text "Yes."; end_turn <nil>`},
		{"stop sequence", "one two three", `"stop_sequences":["wo th"]`, `text "one t"; stop_sequence wo th`},
		{"length", "one two three four five six", `"max_tokens":2`, ""},
		{"call", rig.CallText("weather", "city", "Zürich"), tools, `tool_use weather map[city:Zürich]; tool_use <nil>`},
		{"thinking, text and two calls",
			"hm\n</think>\n\nLook: " + rig.CallText("weather", "days", "3") + "\n" + rig.CallText("weather", "city", "Bern"),
			tools + `,"thinking":{"type":"enabled","budget_tokens":2048}`,
			`thinking "hm", text "Look: ", tool_use weather map[days:3], tool_use weather map[city:Bern]; tool_use <nil>`},
		{"call cut off", "<tool_call>\n<function=weather>\n<parameter=city>\nBern and so on and on and on",
			tools + `,"max_tokens":18`, "tool_use weather map[city:Bern and so on and on]; max_tokens <nil>"},
	} {
		for _, step := range []int{1, 3, 64} {
			t.Run(fmt.Sprintf("%s, steps of %d", tt.name, step), func(t *testing.T) {
				r.T = t
				w.SetDecode(r.Reply(tt.text, step))
				body := messagesBody(tt.more)
				a := r.Post("/v1/messages", body)
				if a.Status != 200 {
					t.Fatalf("%d %s", a.Status, a.Body)
				}
				whole, streamed := a.JSON(t), streamMessages(r, body).Message
				got := blocksOf(whole)
				if tt.want != "" && got != tt.want {
					t.Errorf("got %s, want %s", got, tt.want)
				}
				if tt.want == "" && !strings.HasSuffix(got, "; max_tokens <nil>") {
					t.Errorf("got %s, want an answer that was cut off", got)
				}
				rig.Settle(whole)
				rig.Settle(streamed)
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
		kind := rig.At(b, "type").(string)
		if kind == "tool_use" {
			out = append(out, fmt.Sprint(kind, " ", rig.At(b, "name"), " ", rig.At(b, "input")))
		} else {
			out = append(out, fmt.Sprintf("%s %q", kind, rig.At(b, kind)))
		}
	}
	return strings.Join(out, ", ") + fmt.Sprintf("; %v %v", m["stop_reason"], m["stop_sequence"])
}

func TestCountTokensEqualsUsage(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{})
	w.SetDecode(r.Reply("ok", 1))
	for _, body := range []string{messagesBody(""),
		messagesBody(`"system":"Be brief.","thinking":{"type":"enabled","budget_tokens":1024}`), rig.LoopMessages + "}"} {
		usage := r.Post("/v1/messages", body).JSON(t)["usage"]
		count := r.Post("/v1/messages/count_tokens", body).JSON(t)
		sum := rig.At(usage, "input_tokens").(float64) + rig.At(usage, "cache_creation_input_tokens").(float64) +
			rig.At(usage,
				"cache_read_input_tokens").(float64)
		if count["input_tokens"] != sum || len(count) != 1 || sum < 5 {
			t.Errorf("count %v, usage %v", count, usage)
		}
	}
}

// What the newest client of the dialect sends; docs/spec/clients.md §3.
func TestMessagesOfClaudeCode(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{})
	w.SetDecode(r.Reply("ok", 1))
	prompt := func(body string) string {
		t.Helper()
		a := r.Post("/v1/messages?beta=true", body, "anthropic-beta", "advanced-tool-use-2025-11-20")
		if a.Status != 200 {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
		return r.LastPrompt(w)
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
	w.SetDecode(r.Reply("</think>\n\n"+rig.CallText("WebFetch", "url", "https://x"), 3))
	v := r.Post("/v1/messages", "{"+fmt.Sprintf(system, "1")+`"messages":[`+found+`],`+tools+`}`).JSON(t)
	if got := blocksOf(v); got != "tool_use WebFetch map[url:https://x]; tool_use <nil>" {
		t.Errorf("a loaded tool cannot be called: %s", got)
	}
	if id, _ := rig.At(v, "content", 0, "id").(string); !strings.HasPrefix(id, "toolu_") || len(id) != 30 {
		t.Errorf("id of a call: %q", id)
	}
}

func TestMessagesInputTotal(t *testing.T) {
	for _, total := range []bool{false, true} {
		r := rig.Start(t, func(c *app.Config) { c.AnthropicInputTotal = total })
		w := r.Target(gatewaytest.WorkerOptions{})
		w.SetDecode(r.Reply("ok", 1))
		u := r.Post("/v1/messages", messagesBody("")).JSON(t)["usage"]
		if n := float64(len(w.Requests()[0].GetPromptTokens())); total && rig.At(u, "input_tokens") != n {
			t.Errorf("usage %v of a prompt of %v tokens", u, n)
		}
	}
}

func TestMessagesFailureIsAnEvent(t *testing.T) {
	r := rig.Start(t, func(c *app.Config) { c.FailoverTimeoutS = 0.1 })
	r.Target(gatewaytest.WorkerOptions{Decode: gatewaytest.DieAt(r.Tok, "one two three", 1, 99,
		status.Error(codes.Internal, "fault"))})
	got := streamMessages(r, messagesBody(""))
	if got.Error["type"] != "api_error" {
		t.Errorf("error %v", got.Error)
	}
}

func TestMessagesKeepAlive(t *testing.T) {
	r := rig.Start(t, func(c *app.Config) { c.SSEKeepaliveS = 0.03 })
	b := gatewaytest.NewBlock()
	r.Target(gatewaytest.WorkerOptions{Decode: b.Script(r.Tok, "one two")})
	body := r.KeepAlives(b, "/v1/messages", messagesBody(`"stream":true`), "event: ping")
	got, err := wirecheck.Messages(body)
	if err != nil {
		t.Fatalf("%v\n%s", err, body)
	}
	if s := blocksOf(got.Message); s != `text "one two"; end_turn <nil>` {
		t.Errorf("message %s", s)
	}
}
