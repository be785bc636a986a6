package app

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/wirecheck"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
)

const weatherCall = "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>"

// TestLegacyFunctions: functions and function_call work as tools do and are answered in their own shape.
func TestLegacyFunctions(t *testing.T) {
	r := start(t, nil)
	w := r.target(gatewaytest.WorkerOptions{})
	w.SetDecode(r.reply("Looking."+weatherCall, 2))
	const functions = `"functions":[{"name":"get_weather","description":"w","parameters":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}}}}]`
	v := r.post("/v1/chat/completions", chatBody(functions)).json(t)
	m := at(v, "choices", 0, "message")
	want := map[string]any{"name": "get_weather", "arguments": `{"city": "Rome"}`}
	if d := cmp.Diff(want, at(m, "function_call")); d != "" || at(m, "tool_calls") != nil ||
		at(m, "content") != "Looking." || at(v, "choices", 0, "finish_reason") != "function_call" {
		t.Errorf("%v %s", v, d)
	}
	asFunctions := r.lastPrompt(w)
	r.post("/v1/chat/completions", chatBody(weatherTool))
	if d := cmp.Diff(r.lastPrompt(w), asFunctions); d != "" {
		t.Errorf("functions render unlike tools: %s", d)
	}
	a, err := wirecheck.Chat(r.post("/v1/chat/completions", chatBody(functions+`,"stream":true`)).body, 1)
	if err != nil {
		t.Fatal(err)
	}
	stream := wirecheck.Choice{Content: "Looking.",
		Calls: []wirecheck.Call{{Name: "get_weather", Arguments: `{"city": "Rome"}`, Legacy: true}}, Finish: "function_call"}
	if d := cmp.Diff(stream, a.Choices[0], cmpopts.IgnoreFields(wirecheck.Choice{}, "Details")); d != "" {
		t.Error(d)
	}
	constraint := func(more string) *tandemv1.Guide {
		if a := r.post("/v1/chat/completions", chatBody(functions+more)); a.status != 200 {
			t.Errorf("%s: %d %s", more, a.status, a.body)
		}
		all := w.Requests()
		return all[len(all)-1].GetGuide()
	}
	if g := constraint(`,"function_call":{"name":"get_weather"}`); !strings.Contains(g.GetGrammar(), "get_weather") {
		t.Errorf("named: %v", g)
	}
	if g := constraint(`,"function_call":"none"`); len(g.GetBannedTokens()) == 0 {
		t.Errorf("none: %v", g)
	}
	if g := constraint(`,"function_call":"auto"`); g != nil {
		t.Errorf("auto: %v", g)
	}
	// The history of such a conversation.
	a2 := r.post("/v1/chat/completions",
		`{"messages":[{"role":"user","content":"Go."},{"role":"assistant","content":null,"function_call":{"name":"get_weather","arguments":"{\"city\":\"Rome\"}"}},
		{"role":"function","name":"get_weather","content":"sunny"}],`+functions+`}`)
	if p := r.lastPrompt(w); a2.status != 200 || !strings.Contains(p, weatherCall) ||
		!strings.Contains(p, "<tool_response>\nsunny\n</tool_response>") {
		t.Errorf("%d, prompt %s", a2.status, p)
	}
	for more, param := range map[string]string{
		functions + `,` + weatherTool:               "functions",
		functions + `,"function_call":"sometimes"`:  "function_call",
		functions + `,"function_call":{"name":"g"}`: "function_call.name",
		functions + `,"function_call":{}`:           "function_call.name",
		`"functions":[{"description":"d"}]`:         "functions[0].name",
	} {
		if a := r.post("/v1/chat/completions", chatBody(more)); a.status != 400 || at(a.json(t), "error", "param") != param {
			t.Errorf("%s: %d %s", more, a.status, a.body)
		}
	}
}

// TestAllowedTools: all tools are shown, only those of the list can be called.
func TestAllowedTools(t *testing.T) {
	r := start(t, nil)
	w := r.target(gatewaytest.WorkerOptions{})
	w.SetDecode(r.reply(weatherCall, 2))
	const tools = `"tools":[{"type":"function","function":{"name":"get_weather"}},{"type":"function","function":{"name":"other"}}]`
	for path, choice := range map[string]string{
		"/v1/chat/completions": `"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"MODE","tools":[{"type":"function","function":{"name":"other"}}]}}`,
		"/v1/responses":        `"tool_choice":{"type":"allowed_tools","mode":"MODE","tools":[{"type":"function","name":"other"}]}`,
	} {
		for _, mode := range []string{"auto", "required"} {
			body := chatBody(tools + "," + strings.Replace(choice, "MODE", mode, 1))
			if path == "/v1/responses" {
				body = strings.Replace(body, `"messages"`, `"input"`, 1)
			}
			a := r.post(path, body)
			if a.status != 200 {
				t.Fatalf("%s: %d %s", path, a.status, a.body)
			}
			all := w.Requests()
			req := all[len(all)-1]
			// The fake worker follows no grammar: a call that slips through is text.
			text := string(a.body)
			if strings.Contains(text, `"name":"get_weather"`) && path == "/v1/chat/completions" ||
				!strings.Contains(text, "function=get_weather") {
				t.Errorf("%s, %s: %s", path, mode, text)
			}
			if g := req.GetGuide().GetGrammar(); !strings.Contains(g, "other") || strings.Contains(g, "get_weather") {
				t.Errorf("%s, %s: grammar %q", path, mode, g)
			}
			if p := r.lastPrompt(w); !strings.Contains(p, `"name": "get_weather"`) || !strings.Contains(p, `"name": "other"`) {
				t.Errorf("%s, %s: a tool is not shown: %s", path, mode, p)
			}
		}
	}
}

// TestHostedToolChoice: a choice of a tool that was left out is left out with a warning, too.
func TestHostedToolChoice(t *testing.T) {
	r := start(t, nil)
	r.target(gatewaytest.WorkerOptions{Decode: r.reply("ok", 1)})
	for path, body := range map[string]string{
		"/v1/responses": `{"input":"Hi","tools":[{"type":"web_search"}],"tool_choice":{"type":"web_search"}}`,
		"/v1/messages":  `{"messages":[{"role":"user","content":"Hi"}],"tools":[{"type":"web_search_20250305","name":"web_search"}],"tool_choice":{"type":"tool","name":"web_search"}}`,
	} {
		a := r.post(path, body)
		if w := strings.Join(a.header.Values("X-Tandem-Warning"), "; "); a.status != 200 ||
			!strings.Contains(w, "tools-ignored: web_search") || !strings.Contains(w, "tool-choice-ignored: web_search") {
			t.Errorf("%s: %d %s, warnings %q", path, a.status, a.body, w)
		}
	}
}

// TestCustomToolsOfChat: calls of custom tools come back as such, streamed and whole, and their history renders as
// it was.
func TestCustomToolsOfChat(t *testing.T) {
	r := start(t, nil)
	w := r.target(gatewaytest.WorkerOptions{})
	const text = "*** Begin\n+\"日\" \\ \U0001F600\n*** End"
	w.SetDecode(r.reply("<tool_call>\n<function=patch>\n<parameter=input>\n"+text+
		"\n</parameter>\n</function>\n</tool_call>", 1))
	const tool = `"tools":[{"type":"custom","custom":{"name":"patch","description":"d","format":{"type":"grammar","grammar":{"syntax":"lark","definition":"x"}}}}]`
	whole := r.post("/v1/chat/completions", chatBody(tool))
	call := at(whole.json(t), "choices", 0, "message", "tool_calls", 0)
	if at(call, "type") != "custom" || at(call, "function") != nil ||
		!cmp.Equal(at(call, "custom"), any(map[string]any{"name": "patch", "input": text})) {
		t.Errorf("call %v", call)
	}
	if got := whole.header.Get("X-Tandem-Warning"); got != "tool-format-ignored: patch" {
		t.Errorf("warning %q", got)
	}
	a, err := wirecheck.Chat(r.post("/v1/chat/completions", chatBody(tool+`,"stream":true`)).body, 1)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]wirecheck.Call{{Name: "patch", Arguments: text, Custom: true}}, a.Choices[0].Calls,
		cmpopts.IgnoreFields(wirecheck.Call{}, "ID")); d != "" {
		t.Error(d)
	}
	history := func(call any) string {
		a := r.post("/v1/chat/completions",
			`{"messages":[{"role":"user","content":"Go."},{"role":"assistant","tool_calls":[`+string(mustJSON(call))+
				`]},{"role":"tool","tool_call_id":"c","content":"done"}],`+tool+`}`)
		if a.status != 200 {
			t.Fatalf("%d %s", a.status, a.body)
		}
		return r.lastPrompt(w)
	}
	custom := history(map[string]any{"id": "c", "type": "custom",
		"custom": map[string]any{"name": "patch", "input": text}})
	function := history(map[string]any{"id": "c", "type": "function",
		"function": map[string]any{"name": "patch", "arguments": string(mustJSON(map[string]string{"input": text}))}})
	if d := cmp.Diff(function, custom); d != "" || !strings.Contains(custom, text) {
		t.Errorf("%s: %s", d, custom)
	}
	if forced := r.post("/v1/chat/completions",
		chatBody(tool+`,"tool_choice":{"type":"custom","custom":{"name":"patch"}}`)); forced.status != 200 {
		t.Errorf("%d %s", forced.status, forced.body)
	}
}

// TestNothingIsIgnoredSilently: a field that nobody reads is named in a warning, in every dialect, whole and streamed,
// at the top, in an object, in extra_body, in elements of arrays (once, whatever their number).
func TestNothingIsIgnoredSilently(t *testing.T) {
	type elements struct{ members, names string }
	blocks := []elements{
		{`"messages":[{"role":"user","content":[{"type":"text","text":"a","x":1},{"type":"text","text":"b","x":2,"y":{"z":1}}],"id":"m"},{"role":"user","content":"c","id":"n"}]`, "messages[].content[].x,messages[].content[].y,messages[].id"},
		{`"messages":[{"role":"user","content":[{"type":"document","source":{"type":"text","data":"d","x":1}}]}]`,
			"messages[].content[].source.x"},
		{`"messages":[{"role":"user","content":"a"}],"system":[{"type":"text","text":"b","x":1}],"tools":[{"name":"f","input_schema":{"x":1},"x":2}]`, "system[].x,tools[].x"},
	}
	unheard := map[string][]elements{
		"/v1/chat/completions": {
			{`"messages":[{"role":"user","content":[{"type":"text","text":"a","x":1},{"type":"text","text":"b","x":2}],"tool_calls":[{"id":"c"}],"reasoning":"r"}]`, "messages[].content[].x,messages[].reasoning,messages[].tool_calls"},
			{`"messages":[{"role":"user","content":"a"},{"role":"assistant","tool_calls":[{"id":"c","x":1,"function":{"name":"f","y":1}}],"function_call":{"name":"g"}},{"role":"tool","content":"r"}]`,
				"messages[].function_call,messages[].tool_calls[].function.y,messages[].tool_calls[].x"},
			{`"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","x":1,"function":{"name":"f","y":1,"parameters":{"z":1}}}],"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function","w":1,"function":{"name":"f"}}]}}`,
				"tool_choice.allowed_tools.tools[].w,tools[].function.y,tools[].x"},
		},
		"/v1/responses": {
			{`"input":[{"role":"user","content":[{"type":"input_text","text":"a","x":1}],"y":1},{"type":"function_call","name":"f","z":1},{"type":"function_call_output","output":[{"type":"input_text","text":"r","x":1}]}]`, "input[].content[].x,input[].output[].x,input[].y,input[].z"},
			{`"input":[{"role":"user","content":"a"},{"type":"additional_tools","tools":[{"type":"namespace","name":"n","y":1,"tools":[{"type":"function","name":"f","x":1}]}]}]`, "input[].tools[].tools[].x,input[].tools[].y"},
		},
		"/v1/messages": blocks, "/v1/messages/count_tokens": blocks,
	}
	r := start(t, nil)
	r.target(gatewaytest.WorkerOptions{Decode: r.reply("ok", 1)})
	for path, body := range map[string]string{
		"/v1/chat/completions": chatBody(""), "/v1/completions": `{"prompt":"a"}`, "/v1/responses": `{"input":"a"}`,
		"/v1/messages":              `{"messages":[{"role":"user","content":"a"}]}`,
		"/v1/messages/count_tokens": `{"messages":[{"role":"user","content":"a"}]}`,
	} {
		for more, want := range map[string]string{
			``:                                "",
			`,"never_heard":1,"also":{"a":1}`: "fields-ignored: also,never_heard",
			`,"speculation":{"mode":"off","speed":9}`:             "fields-ignored: speculation.speed",
			`,"extra_body":{"never_heard":1,"temperature":0.5}`:   "fields-ignored: never_heard",
			`,"never_heard":null,"metadata":{"a":"b"},"user":"u"`: "",
			`,"max_tokens":5,"max_completion_tokens":6`:           "fields-ignored: max_completion_tokens",
		} {
			for _, stream := range []string{"", `,"stream":true`} {
				a := r.post(path, strings.TrimSuffix(body, "}")+more+stream+"}")
				if got := a.header.Get("X-Tandem-Warning"); a.status != 200 || got != want {
					t.Errorf("%s%s: %d, warning %q, want %q", path, more, a.status, got, want)
				}
			}
		}
		for _, element := range unheard[path] {
			for _, stream := range []string{"", `,"stream":true`} {
				a := r.post(path, "{"+element.members+stream+"}")
				if got := a.header.Get("X-Tandem-Warning"); a.status != 200 || got != "fields-ignored: "+element.names {
					t.Errorf("%s %s: %d %s, warning %q", path, element.members, a.status, a.body, got)
				}
			}
		}
		for _, name := range []string{"guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs",
			"json_schema", "regex", "ebnf"} {
			a := r.post(path, strings.TrimSuffix(body, "}")+`,"`+name+`":{"type":"object"}}`)
			if a.status != 400 || !strings.Contains(string(a.body), name) {
				t.Errorf("%s with %s: %d %s", path, name, a.status, a.body)
			}
		}
		if strings.HasPrefix(path, "/v1/messages") || path == "/v1/responses" {
			if a := r.post(path, strings.TrimSuffix(body, "}")+`,"n":2}`); a.status != 400 ||
				!strings.Contains(string(a.body), "'n'") {
				t.Errorf("%s with n: %d %s", path, a.status, a.body)
			}
		}
	}
}
