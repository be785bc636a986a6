package app

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/wirecheck"
)

// TestThinkingDisplayOmitted: blocks come without their text, streamed and whole, and the text comes back out of the
// signature when the client sends the history.
func TestThinkingDisplayOmitted(t *testing.T) {
	r := start(t, nil)
	w := r.target(gatewaytest.WorkerOptions{})
	w.SetDecode(r.reply("The secret plan.\n</think>\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>", 2))
	const ask = `{"role":"user","content":"Go."}`
	body := func(messages, more string) string {
		return `{"messages":[` + messages +
			`],"tools":[{"name":"f","input_schema":{}}],"thinking":{"type":"enabled","budget_tokens":2000,"display":"omitted"}` +
			more + `}`
	}
	whole := r.post("/v1/messages", body(ask, "")).json(t)
	streamed, err := wirecheck.Messages(r.post("/v1/messages", body(ask, `,"stream":true`)).body)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]any{"whole": whole["content"], "stream": streamed.Message["content"]} {
		text := string(mustJSON(content))
		if at(content, 0, "type") != "thinking" || at(content, 0, "thinking") != "" || at(content, 0, "signature") == "" ||
			strings.Contains(text, "secret") {
			t.Errorf("%s: %s", name, text)
		}
		// The call's own memory would bring the reasoning back as well: another id keeps it out.
		history := ask + `,{"role":"assistant","content":` + strings.Replace(text, "toolu_", "toolu_x",
			1) + `},{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_x","content":"done"}]}`
		r.post("/v1/messages", body(history, ""))
		if got := r.lastPrompt(w); !strings.Contains(got, "<think>\nThe secret plan.\n</think>") {
			t.Errorf("%s: the reasoning is lost: %s", name, got)
		}
		forged := strings.Replace(history, `"signature":"`, `"signature":"AAAA`, 1)
		r.post("/v1/messages", body(forged, ""))
		if got := r.lastPrompt(w); strings.Contains(got, "secret plan") {
			t.Errorf("%s: a forged signature opens: %s", name, got)
		}
	}
	// Any other display shows the text.
	if v := r.post("/v1/messages", strings.Replace(body(ask, ""), "omitted", "summarized", 1)).json(t); at(v, "content", 0,
		"thinking") != "The secret plan." {
		t.Errorf("summarized: %v", v["content"])
	}
}

// TestFailedToolsSaySo: is_error shows in the prompt.
func TestFailedToolsSaySo(t *testing.T) {
	r := start(t, nil)
	w := r.target(gatewaytest.WorkerOptions{Decode: r.reply("ok", 1)})
	for content, want := range map[string]string{
		`"no such file"`:                       "\nError: no such file\n",
		`"Error: no such file"`:                "\nError: no such file\n",
		`"<tool_use_error>x</tool_use_error>"`: "\n<tool_use_error>x</tool_use_error>\n",
		`[{"type":"text","text":"exit 1"}]`:    "\nError: exit 1\n",
		`""`:                                   "\nThe tool failed.\n",
	} {
		for _, failed := range []bool{true, false} {
			r.post("/v1/messages", fmt.Sprintf(`{"messages":[{"role":"user","content":"Go."},{"role":"assistant","content":[{"type":"tool_use","id":"toolu_1","name":"f","input":{}}]},
				{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","is_error":%v,"content":%s}]}]}`, failed, content))
			text := "<tool_response>" + want + "</tool_response>"
			if got := strings.Contains(r.lastPrompt(w), text); got != failed && !(strings.Contains(content, "rror") && got) {
				t.Errorf("%s, failed %v: %q in the prompt: %v: %s", content, failed, text, got, r.lastPrompt(w))
			}
		}
	}
}

// TestUnknownReferences: one among other items is left out with a warning, one alone leaves nothing to answer.
func TestUnknownReferences(t *testing.T) {
	r := start(t, nil)
	w := r.target(gatewaytest.WorkerOptions{Decode: r.reply("ok", 1)})
	for _, input := range []string{`[{"type":"item_reference","id":"msg_unknown"}]`, `[{"id":"msg_unknown"}]`,
		`[{"type":"web_search_call","id":"ws_1"}]`} {
		a := r.post("/v1/responses", `{"input":`+input+`}`)
		if a.status != 400 || at(a.json(t), "error", "param") != "input" || len(w.Requests()) > 0 {
			t.Errorf("%s: %d %s", input, a.status, a.body)
		}
	}
	for path, body := range map[string]string{
		"/v1/responses": `{"input":[{"type":"item_reference","id":"msg_unknown"},{"type":"web_search_call"},{"type":"web_search_call"},{"role":"user","content":"Hello"}]}`,
		"/v1/messages":  `{"messages":[{"role":"user","content":"Hello"},{"role":"assistant","content":[{"type":"redacted_thinking","data":"x"},{"type":"item_reference"},{"type":"web_search_call"},{"type":"text","text":"a"}]},{"role":"user","content":"Go."}]}`,
	} {
		for _, body := range []string{body, withStream(body)} {
			if a := r.post(path, body); a.status != 200 ||
				a.header.Get("X-Tandem-Warning") != "items-ignored: item_reference,web_search_call" {
				t.Errorf("%s: %d, warning %q", path, a.status, a.header.Get("X-Tandem-Warning"))
			}
		}
	}
}

// TestToolMemoryIsTheKeysOwn: the same call in the history of another key is rendered by the template, not as the model
// wrote it for the first.
func TestToolMemoryIsTheKeysOwn(t *testing.T) {
	r := start(t, func(c *Config) { c.APIKey = append(c.APIKey, "key-a", "key-b") })
	w := r.target(gatewaytest.WorkerOptions{})
	const odd = "<function=get_weather><parameter=city>Rome</parameter></function>"
	w.SetDecode(r.reply(odd, 3))
	call := at(r.post("/v1/chat/completions", chatBody(weatherTool), "Authorization", "Bearer key-a").json(t),
		"choices", 0, "message")
	history := `{"messages":[{"role":"user","content":"Say hello."},` + string(mustJSON(call)) +
		`,{"role":"tool","tool_call_id":"` + fmt.Sprint(at(call, "tool_calls", 0, "id")) +
		`","content":"sunny"}],` + weatherTool + `}`
	for key, want := range map[string]bool{"key-a": true, "key-b": false} {
		r.post("/v1/chat/completions", history, "Authorization", "Bearer "+key)
		if got := strings.Contains(r.lastPrompt(w), odd); got != want {
			t.Errorf("%s: the words of the model are in the prompt: %v, want %v: %s", key, got, want, r.lastPrompt(w))
		}
	}
}

// TestPrefillRateCountsWhatWasRead: tokens that compression dropped were not read.
func TestPrefillRateCountsWhatWasRead(t *testing.T) {
	r := start(t, nil)
	w := r.target(gatewaytest.WorkerOptions{Decode: r.reply("ok", 1)})
	script, _ := scorer(t, "raven")
	r.scorer(script)
	v := r.post("/v1/chat/completions",
		`{"messages":`+chatOf("user", haystack(150, 60), "assistant", "I read it.", "user",
			"What is it?")+`,"pflash":{"mode":"always"}}`).json(t)
	read := float64(len(w.Requests()[0].GetPromptTokens()))
	if at(v, "usage", "pflash", "kept_tokens") != read || at(v, "usage", "prompt_tokens").(float64) < 2*read {
		t.Fatalf("usage %v", v["usage"])
	}
	m := regexp.MustCompile(`(?m)^tandem_prefill_tokens_per_second_sum(?:\{.*\})? (\S+)$`).FindSubmatch(r.do("GET",
		"/metrics", "").body)
	if m == nil {
		t.Fatal("no rate")
	}
	got, err := strconv.ParseFloat(string(m[1]), 64)
	// The script says that it read for 2 ms.
	if d := cmp.Diff(read/0.002, got); err != nil || d != "" {
		t.Errorf("%v %s", err, d)
	}
}
