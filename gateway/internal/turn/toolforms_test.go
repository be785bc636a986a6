package turn_test

import (
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
)

// TestAllowedTools: all tools are shown, only those of the list can be called.
func TestAllowedTools(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{})
	w.SetDecode(r.Reply(rig.WeatherCall, 2))
	const tools = `"tools":[{"type":"function","function":{"name":"get_weather"}},{"type":"function","function":{"name":"other"}}]`
	for path, choice := range map[string]string{
		"/v1/chat/completions": `"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"MODE","tools":[{"type":"function","function":{"name":"other"}}]}}`,
		"/v1/responses":        `"tool_choice":{"type":"allowed_tools","mode":"MODE","tools":[{"type":"function","name":"other"}]}`,
	} {
		for _, mode := range []string{"auto", "required"} {
			body := rig.ChatBody(tools + "," + strings.Replace(choice, "MODE", mode, 1))
			if path == "/v1/responses" {
				body = strings.Replace(body, `"messages"`, `"input"`, 1)
			}
			a := r.Post(path, body)
			if a.Status != 200 {
				t.Fatalf("%s: %d %s", path, a.Status, a.Body)
			}
			all := w.Requests()
			req := all[len(all)-1]
			// The fake worker follows no grammar: a call that slips through is text.
			text := string(a.Body)
			if strings.Contains(text, `"name":"get_weather"`) && path == "/v1/chat/completions" ||
				!strings.Contains(text, "function=get_weather") {
				t.Errorf("%s, %s: %s", path, mode, text)
			}
			if g := req.GetGuide().GetGrammar(); !strings.Contains(g, "other") || strings.Contains(g, "get_weather") {
				t.Errorf("%s, %s: grammar %q", path, mode, g)
			}
			if p := r.LastPrompt(w); !strings.Contains(p, `"name": "get_weather"`) || !strings.Contains(p, `"name": "other"`) {
				t.Errorf("%s, %s: a tool is not shown: %s", path, mode, p)
			}
		}
	}
}

// TestHostedToolChoice: a choice of a tool that was left out is left out with a warning, too.
func TestHostedToolChoice(t *testing.T) {
	r := rig.Start(t, nil)
	r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("ok", 1)})
	for path, body := range map[string]string{
		"/v1/responses": `{"input":"Hi","tools":[{"type":"web_search"}],"tool_choice":{"type":"web_search"}}`,
		"/v1/messages":  `{"messages":[{"role":"user","content":"Hi"}],"tools":[{"type":"web_search_20250305","name":"web_search"}],"tool_choice":{"type":"tool","name":"web_search"}}`,
	} {
		a := r.Post(path, body)
		if w := strings.Join(a.Header.Values("X-Tandem-Warning"), "; "); a.Status != 200 ||
			!strings.Contains(w, "tools-ignored: web_search") || !strings.Contains(w, "tool-choice-ignored: web_search") {
			t.Errorf("%s: %d %s, warnings %q", path, a.Status, a.Body, w)
		}
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
	r := rig.Start(t, nil)
	r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("ok", 1)})
	for path, body := range map[string]string{
		"/v1/chat/completions": rig.ChatBody(""), "/v1/completions": `{"prompt":"a"}`, "/v1/responses": `{"input":"a"}`,
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
				a := r.Post(path, strings.TrimSuffix(body, "}")+more+stream+"}")
				if got := a.Header.Get("X-Tandem-Warning"); a.Status != 200 || got != want {
					t.Errorf("%s%s: %d, warning %q, want %q", path, more, a.Status, got, want)
				}
			}
		}
		for _, element := range unheard[path] {
			for _, stream := range []string{"", `,"stream":true`} {
				a := r.Post(path, "{"+element.members+stream+"}")
				if got := a.Header.Get("X-Tandem-Warning"); a.Status != 200 || got != "fields-ignored: "+element.names {
					t.Errorf("%s %s: %d %s, warning %q", path, element.members, a.Status, a.Body, got)
				}
			}
		}
		for _, name := range []string{"guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs",
			"json_schema", "regex", "ebnf"} {
			a := r.Post(path, strings.TrimSuffix(body, "}")+`,"`+name+`":{"type":"object"}}`)
			if a.Status != 400 || !strings.Contains(string(a.Body), name) {
				t.Errorf("%s with %s: %d %s", path, name, a.Status, a.Body)
			}
		}
		if strings.HasPrefix(path, "/v1/messages") || path == "/v1/responses" {
			if a := r.Post(path, strings.TrimSuffix(body, "}")+`,"n":2}`); a.Status != 400 ||
				!strings.Contains(string(a.Body), "'n'") {
				t.Errorf("%s with n: %d %s", path, a.Status, a.Body)
			}
		}
	}
}
