package turn_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
)

// aheadTurn runs one turn and returns what it has read ahead, and the answer.
func aheadTurn(t *testing.T, r *rig.Rig, w *gatewaytest.Worker, path, body string) ([]int32, rig.Answer) {
	t.Helper()
	before := len(w.Ahead())
	a := r.Post(path, body)
	if a.Status != 200 {
		t.Fatalf("%s: %s", body, a.Body)
	}
	r.Eventually("a prompt is read ahead", func() bool { return len(w.Ahead()) > before })
	return w.Ahead()[before].PromptTokens, a
}

// predicted checks that the last prompt begins with what was read ahead, which leaves no more than the new message and
// what stands around it.
func predicted(t *testing.T, r *rig.Rig, w *gatewaytest.Worker, what string, ahead []int32, message string) {
	t.Helper()
	all := w.Requests()
	prompt := all[len(all)-1].GetPromptTokens()
	rest := len(prompt) - len(ahead)
	if rest < 1 || !slices.Equal(prompt[:len(ahead)], ahead) {
		t.Errorf("%s: read ahead is\n%q\nof the prompt\n%q", what, r.Tok.Decode(ahead, true), r.Tok.Decode(prompt, true))
	} else if most := len(r.Encode(message)) + 16; rest > most {
		t.Errorf("%s: %d tokens are left to read, want at most %d: %q", what, rest, most,
			r.Tok.Decode(prompt[len(ahead):], true))
	}
}

// TestReadAhead: what is read ahead is what the next prompt begins with, in every dialect, with reasoning and with
// calls, whatever the client does with them.
func TestReadAhead(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{})
	const question, thanks = "Say something nice about the sea, please.", "Thanks, and about the mountains?"
	user := func(text string) string { return fmt.Sprintf(`{"role":"user","content":%q}`, text) }
	for _, say := range []string{"It is wide and blue.", "I think of it.\n</think>\n\nIt is wide and blue."} {
		w.SetDecode(r.Reply(say, 3))
		on := fmt.Sprintf(`"enable_thinking":%v,"max_tokens":50`, say[0] == 'I' && say[1] == ' ')
		ahead, a := aheadTurn(t, r, w, "/v1/chat/completions", `{`+on+`,"messages":[`+user(question)+`]}`)
		c := rig.WholeChat(t, a)[0]
		reply := fmt.Sprintf(`{"role":"assistant","content":%q}`, c.Content)
		ahead2, _ := aheadTurn(t, r, w, "/v1/chat/completions",
			`{`+on+`,"messages":[`+user(question)+`,`+reply+`,`+user(thanks)+`]}`)
		predicted(t, r, w, "chat", ahead, thanks)
		aheadTurn(t, r, w, "/v1/chat/completions", `{`+on+`,"messages":[`+user(question)+`,`+reply+`,`+user(thanks)+`,`+
			reply+`,`+user(question)+`]}`)
		predicted(t, r, w, "chat, the third turn", ahead2, question)

		ahead, a = aheadTurn(t, r, w, "/v1/messages", `{`+on+`,"messages":[`+user(question)+`]}`)
		blocks, _ := json.Marshal(a.JSON(t)["content"])
		aheadTurn(t, r, w, "/v1/messages", `{`+on+`,"messages":[`+user(question)+
			`,{"role":"assistant","content":`+string(blocks)+`},`+user(thanks)+`]}`)
		predicted(t, r, w, "messages", ahead, thanks)

		ahead, a = aheadTurn(t, r, w, "/v1/responses", fmt.Sprintf(`{"input":%q}`, question))
		id := a.JSON(t)["id"]
		aheadTurn(t, r, w, "/v1/responses", fmt.Sprintf(`{"input":%q,"previous_response_id":%q}`, thanks, id))
		predicted(t, r, w, "responses", ahead, thanks)
	}

	// Calls come back as the model wrote them, in another spelling, and without the reasoning.
	for _, thought := range []string{"", "Rome it is.\n</think>\n\n"} {
		w.SetDecode(r.Reply(thought+"Looking.\n<tool_call>\n<function=get_weather>\n<parameter=days>\n2\n</parameter>\n"+
			"<parameter=city>Rome</parameter>\n</function>\n</tool_call>", 3))
		head := fmt.Sprintf(`{"enable_thinking":%v,`, thought != "") + rig.WeatherTool + `,"messages":[` + user(question)
		ahead, a := aheadTurn(t, r, w, "/v1/chat/completions", head+`]}`)
		call := rig.At(a.JSON(t), "choices", 0, "message", "tool_calls", 0, "id")
		aheadTurn(t, r, w, "/v1/chat/completions", head+fmt.Sprintf(`,{"role":"assistant","content":"Looking.",`+
			`"tool_calls":[{"id":%q,"type":"function","function":{"name":"get_weather",`+
			`"arguments":"{\"city\":\"Rome\",\"days\":2}"}}]},{"role":"tool","tool_call_id":%q,"content":%q}]}`,
			call, call, thanks))
		predicted(t, r, w, "tools", ahead, thanks)
	}
}

// TestReadsNothingAhead: where the next prompt cannot be predicted, or nobody wants it, nothing is read.
func TestReadsNothingAhead(t *testing.T) {
	quiet := func(mode string) {
		r := rig.Start(t, func(c *app.Config) { c.ReadAhead = mode })
		w := r.Target(gatewaytest.WorkerOptions{})
		w.SetDecode(r.Reply("Yes.", 1))
		const turn = `"messages":[{"role":"user","content":"Say yes."}]`
		for _, v := range []struct{ path, body string }{
			{"/v1/completions", `{"prompt":"Say yes."}`},
			{"/v1/chat/completions", `{"n":2,` + turn + `}`},
			{"/v1/chat/completions", `{"cache_prompt":false,` + turn + `}`},
			{"/v1/chat/completions", `{"messages":[{"role":"user","content":"Say yes."},{"role":"assistant","content":"Ye"}]}`},
		} {
			if a := r.Post(v.path, v.body); a.Status != 200 {
				t.Fatalf("%s", a.Body)
			}
		}
		if mode == "on" { // comes after all that the others would have asked for
			aheadTurn(t, r, w, "/v1/chat/completions", `{`+turn+`}`)
		} else {
			r.Post("/v1/chat/completions", `{`+turn+`}`)
		}
		if n, want := len(w.Ahead()), map[string]int{"on": 1, "off": 0}[mode]; n != want {
			t.Errorf("%s: %d prompts are read ahead, want %d", mode, n, want)
		}
	}
	quiet("on")
	quiet("off")
}
