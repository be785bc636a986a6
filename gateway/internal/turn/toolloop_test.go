package turn_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
)

// TestToolLoop runs three turns of calls. Each prompt must begin with the one before it and the tokens that the model
// wrote, in the words in which it wrote them, also when they are not those of the template.
func TestToolLoop(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{})
	odd := func(city string) string {
		return "Looking.\n<tool_call>\n<function=get_weather>\n<parameter=days>\n2\n</parameter>\n<parameter=city>" + city +
			"</parameter>\n</function>\n</tool_call>"
	}
	for _, thinking := range []bool{false, true} {
		messages := []any{map[string]any{"role": "user", "content": "Weather in three cities?"}}
		var before []int32
		for i, city := range []string{"Rome", "Bern", "Oslo"} {
			say := odd(city)
			if thinking {
				say = "I need " + city + ".\n</think>\n\n" + say
			}
			w.SetDecode(r.Reply(say, 3))
			body, _ := json.Marshal(messages)
			on := "false"
			if thinking {
				on = "true"
			}
			a := r.Post("/v1/chat/completions", `{"messages":`+string(body)+`,`+rig.WeatherTool+`,"enable_thinking":`+on+`}`)
			c := rig.WholeChat(t, a)[0]
			if len(c.Calls) != 1 || c.Calls[0].Arguments != `{"days": 2, "city": "`+city+`"}` || c.Finish != "tool_calls" {
				t.Fatalf("turn %d: %+v", i, c)
			}
			req := w.Requests()[len(w.Requests())-1]
			if len(before) > 0 && !slices.Equal(req.GetPromptTokens()[:min(len(before), len(req.GetPromptTokens()))], before) {
				t.Errorf("turn %d, thinking %v: the prompt is\n%q\nwant it to begin with\n%q", i, thinking,
					r.Tok.Decode(req.GetPromptTokens(), true), r.Tok.Decode(before, true))
			}
			before = append(slices.Clone(req.GetPromptTokens()), r.Encode(say+"<|im_end|>\n")...)
			// The client sends the call back, its arguments spelled in its own way, and no reasoning.
			id := rig.At(a.JSON(t), "choices", 0, "message", "tool_calls", 0, "id")
			messages = append(messages,
				map[string]any{"role": "assistant", "content": c.Content,
					"tool_calls": []any{map[string]any{"id": id, "type": "function",
						"function": map[string]any{"name": "get_weather", "arguments": `{"city":"` + city + `","days":2}`}}}},
				map[string]any{"role": "tool", "tool_call_id": id, "content": "18 C"})
		}
	}
}

// TestUnknownCallsAreRendered: what the memory does not know is written by the template, and equals what it knows when
// the model writes like the template.
func TestUnknownCallsAreRendered(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{})
	w.SetDecode(r.Reply("<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>", 1))
	id, _ := rig.At(r.Post("/v1/chat/completions", rig.ChatBody(rig.WeatherTool)).JSON(t), "choices", 0, "message",
		"tool_calls", 0, "id").(string)
	prompt := func(id string) string {
		body := `{"messages":[{"role":"user","content":"Say hello."},{"role":"assistant","content":null,"tool_calls":[{"id":"` + id +
			`","type":"function","function":{"name":"get_weather","arguments":"{\"city\":\"Rome\"}"}}]},{"role":"tool","tool_call_id":"` + id + `","content":"18"}],` + rig.WeatherTool + `}`
		return r.Post("/apply-template", body).JSON(t)["prompt"].(string)
	}
	known, unknown := prompt(id), prompt("call_of_another_server")
	if n := rig.At(r.Do("GET", "/props", "").JSON(t), "tool_replay", "current_entries"); n != 1.0 {
		t.Errorf("/props counts %v remembered calls", n)
	}
	if m := string(r.Do("GET", "/metrics", "").Body); !strings.Contains(m,
		`tandem_tool_calls_total{format="qwen_xml"} 1`) ||
		!strings.Contains(m, `tandem_generated_tokens_total{kind="tool"}`) {
		t.Error("/metrics does not count the call")
	}
	if known != unknown || !strings.Contains(known, "<function=get_weather>\n<parameter=city>\nRome") {
		t.Errorf("known call:\n%s\nunknown call:\n%s", known, unknown)
	}
}

// TestConstraints: the constraint that the worker gets for tool choices and formats.
func TestConstraints(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{})
	w.SetDecode(r.Reply("ok", 1))
	opener, _ := r.Tok.ID("<tool_call>")
	closer, _ := r.Tok.ID("</tool_call>")
	strict := strings.Replace(rig.WeatherTool, `"name"`, `"strict":true,"name"`, 1)
	for _, tt := range []struct {
		name, more string
		check      func(g *tandemv1.Guide) bool
	}{
		{"free", rig.WeatherTool, func(g *tandemv1.Guide) bool { return g == nil }},
		{"none", rig.WeatherTool + `,"tool_choice":"none"`, func(g *tandemv1.Guide) bool {
			return g.GetGrammar() == "" && slices.Equal(g.GetBannedTokens(), []int32{opener})
		}},
		{"required", rig.WeatherTool + `,"tool_choice":"required"`,
			func(g *tandemv1.Guide) bool { return strings.Contains(g.GetGrammar(), "get_weather") }},
		{"named", rig.WeatherTool + `,"tool_choice":{"type":"function","function":{"name":"get_weather"}}`,
			func(g *tandemv1.Guide) bool {
				return strings.Contains(g.GetGrammar(), "get_weather") && g.GetReasoning() == nil
			}},
		{"strict", strict, func(g *tandemv1.Guide) bool { return strings.Contains(g.GetGrammar(), "get_weather") }},
		{"strict text", strings.Replace(strict, `"days":{"type":"integer"}`,
			`"days":{"type":"string","pattern":"^[1-7] days$"}`, 1), func(g *tandemv1.Guide) bool {
			return strings.Contains(g.GetGrammar(), `[1-7]`) && strings.Contains(g.GetGrammar(), " days")
		}},
		{"json", `"response_format":{"type":"json_object"}`,
			func(g *tandemv1.Guide) bool { return strings.Contains(g.GetGrammar(), "json-object") }},
		{"schema", `"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"type":"object","properties":{"age":{"type":"integer"}}}}}`,
			func(g *tandemv1.Guide) bool { return strings.Contains(g.GetGrammar(), "age") }},
		{"schema and tools", rig.WeatherTool + `,"response_format":{"type":"json_object"}`, func(g *tandemv1.Guide) bool {
			return strings.Contains(g.GetGrammar(), "get_weather") && strings.Contains(g.GetGrammar(), "json-object")
		}},
		{"grammar", `"grammar":"root ::= \"yes\" | \"no\""`,
			func(g *tandemv1.Guide) bool { return g.GetGrammar() == `root ::= "yes" | "no"` }},
		{"thinking first", `"response_format":{"type":"json_object"},"enable_thinking":true`, func(g *tandemv1.Guide) bool {
			return g.GetReasoning().GetInside() && len(g.GetReasoning().GetClose()) == 1 &&
				strings.Contains(g.GetGrammar(), `root ::= [ \n]{0,2} json-object`)
		}},
		{"calls in reasoning", rig.WeatherTool + `,"enable_thinking":true`, func(g *tandemv1.Guide) bool {
			return g.GetReasoning().CallOpen != nil && g.GetReasoning().GetCallOpen() == opener &&
				g.GetReasoning().GetCallClose() == closer
		}},
		{"no calls in reasoning", `"enable_thinking":true`, func(g *tandemv1.Guide) bool {
			return g.GetReasoning().CallOpen == nil && g.GetReasoning().CallClose == nil
		}},
		{"nothing before the first token", `"response_format":{"type":"json_object"}`, func(g *tandemv1.Guide) bool {
			return strings.Contains(g.GetGrammar(), "root ::= json-object\n")
		}},
	} {
		a := r.Post("/v1/chat/completions", rig.ChatBody(tt.more))
		if a.Status != 200 {
			t.Errorf("%s: %s", tt.name, a.Body)
			continue
		}
		if g := w.Requests()[len(w.Requests())-1].GetGuide(); !tt.check(g) {
			t.Errorf("%s: constraint %v", tt.name, g)
		}
	}
	if a := r.Post("/v1/completions", `{"prompt":"Say","grammar":"root ::= \"yes\""}`); a.Status != 200 ||
		w.Requests()[len(w.Requests())-1].GetGuide().GetGrammar() != `root ::= "yes"` {
		t.Errorf("completions with a grammar: %d %s", a.Status, a.Body)
	}
	// Without strict what cannot be held is named, and the rest is held.
	a := r.Post("/v1/chat/completions",
		rig.ChatBody(`"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"object","properties":{"a":{"type":"array","uniqueItems":true}}}}}`))
	if g := w.Requests()[len(w.Requests())-1].GetGuide().GetGrammar(); a.Status != 200 ||
		!strings.Contains(g, `"\"a\""`) && !strings.Contains(g, "a") ||
		a.Header.Get("x-tandem-warning") != "schema-partly-followed: response_format.json_schema.schema.properties.a.uniqueItems" {
		t.Errorf("without strict: %d %v\n%s", a.Status, a.Header, g)
	}
	a = r.Post("/v1/chat/completions",
		rig.ChatBody(`"response_format":{"type":"json_schema","json_schema":{"strict":false,"schema":{"type":"object","properties":{"x":{"anyOf":[{"$ref":"#/properties/x"},{"type":"null"}]}}}}}`))
	if g := w.Requests()[len(w.Requests())-1].GetGuide().GetGrammar(); a.Status != 200 ||
		!strings.Contains(g, "root ::= json-value") ||
		!strings.HasPrefix(a.Header.Get("x-tandem-warning"),
			"schema-not-followed: response_format.json_schema.schema.properties.x") {
		t.Errorf("a schema that cannot be read without strict: %d %v\n%s", a.Status, a.Header, g)
	}
	for more, param := range map[string]string{
		`"grammar":"root ::= ("`:                        "grammar",
		rig.WeatherTool + `,"grammar":"root ::= \"x\""`: "grammar",
		`"response_format":{"type":"json_schema","json_schema":{"strict":true,"schema":{"type":"object","properties":{"a":{"type":"array","uniqueItems":true}}}}}`: "response_format.json_schema.schema.properties.a.uniqueItems",
		`"response_format":{"type":"json_schema","json_schema":{"strict":true,"schema":{"anyOf":[{"$ref":"#"},{"type":"null"}]}}}`:                                 "response_format.json_schema.schema",
		strings.Replace(strict, `"days":{"type":"integer"}`, `"days":{"type":"integer","multipleOf":0.1234567}`,
			1): "tools[0].function.parameters.properties.days.multipleOf",
	} {
		if a := r.Post("/v1/chat/completions", rig.ChatBody(more)); a.Status != 400 || rig.At(a.JSON(t), "error",
			"param") != param {
			t.Errorf("%s: %d %s, want 400 at %s", more, a.Status, a.Body, param)
		}
	}
}

// TestToolsOfOthersAreLeftOut: tools that a server would have to run are named in a header, whole and streamed, and
// nothing else changes.
func TestToolsOfOthersAreLeftOut(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{})
	w.SetDecode(r.Reply("ok", 1))
	for _, more := range []string{"", `,"stream":true`} {
		a := r.Post("/v1/chat/completions", rig.ChatBody(`"tools":[{"type":"web_search"},{"type":"computer\nuse"}]`+more))
		if got := a.Header.Get("X-Tandem-Warning"); a.Status != 200 || got != "tools-ignored: web_search,computer?use" {
			t.Errorf("status %d, warning %q", a.Status, got)
		}
	}
	if prompt := r.Tok.Decode(w.Requests()[0].GetPromptTokens(), true); strings.Contains(prompt, "web_search") ||
		strings.Contains(prompt, "<tools>") {
		t.Errorf("the prompt shows them: %q", prompt)
	}
}
