package openai_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/wirecheck"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
)

// TestLegacyFunctions: functions and function_call work as tools do and are answered in their own shape.
func TestLegacyFunctions(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{})
	w.SetDecode(r.Reply("Looking."+rig.WeatherCall, 2))
	const functions = `"functions":[{"name":"get_weather","description":"w","parameters":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}}}}]`
	v := r.Post("/v1/chat/completions", rig.ChatBody(functions)).JSON(t)
	m := rig.At(v, "choices", 0, "message")
	want := map[string]any{"name": "get_weather", "arguments": `{"city": "Rome"}`}
	if d := cmp.Diff(want, rig.At(m, "function_call")); d != "" || rig.At(m, "tool_calls") != nil ||
		rig.At(m, "content") != "Looking." || rig.At(v, "choices", 0, "finish_reason") != "function_call" {
		t.Errorf("%v %s", v, d)
	}
	asFunctions := r.LastPrompt(w)
	r.Post("/v1/chat/completions", rig.ChatBody(rig.WeatherTool))
	if d := cmp.Diff(r.LastPrompt(w), asFunctions); d != "" {
		t.Errorf("functions render unlike tools: %s", d)
	}
	a, err := wirecheck.Chat(r.Post("/v1/chat/completions", rig.ChatBody(functions+`,"stream":true`)).Body, 1)
	if err != nil {
		t.Fatal(err)
	}
	stream := wirecheck.Choice{Content: "Looking.",
		Calls: []wirecheck.Call{{Name: "get_weather", Arguments: `{"city": "Rome"}`, Legacy: true}}, Finish: "function_call"}
	if d := cmp.Diff(stream, a.Choices[0], cmpopts.IgnoreFields(wirecheck.Choice{}, "Details")); d != "" {
		t.Error(d)
	}
	constraint := func(more string) *tandemv1.Guide {
		if a := r.Post("/v1/chat/completions", rig.ChatBody(functions+more)); a.Status != 200 {
			t.Errorf("%s: %d %s", more, a.Status, a.Body)
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
	a2 := r.Post("/v1/chat/completions",
		`{"messages":[{"role":"user","content":"Go."},{"role":"assistant","content":null,"function_call":{"name":"get_weather","arguments":"{\"city\":\"Rome\"}"}},
		{"role":"function","name":"get_weather","content":"sunny"}],`+functions+`}`)
	if p := r.LastPrompt(w); a2.Status != 200 || !strings.Contains(p, rig.WeatherCall) ||
		!strings.Contains(p, "<tool_response>\nsunny\n</tool_response>") {
		t.Errorf("%d, prompt %s", a2.Status, p)
	}
	for more, param := range map[string]string{
		functions + `,` + rig.WeatherTool:           "functions",
		functions + `,"function_call":"sometimes"`:  "function_call",
		functions + `,"function_call":{"name":"g"}`: "function_call.name",
		functions + `,"function_call":{}`:           "function_call.name",
		`"functions":[{"description":"d"}]`:         "functions[0].name",
	} {
		if a := r.Post("/v1/chat/completions", rig.ChatBody(more)); a.Status != 400 || rig.At(a.JSON(t), "error",
			"param") != param {
			t.Errorf("%s: %d %s", more, a.Status, a.Body)
		}
	}
}

// TestCustomToolsOfChat: calls of custom tools come back as such, streamed and whole, and their history renders as
// it was.
func TestCustomToolsOfChat(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{})
	const text = "*** Begin\n+\"日\" \\ \U0001F600\n*** End"
	w.SetDecode(r.Reply("<tool_call>\n<function=patch>\n<parameter=input>\n"+text+
		"\n</parameter>\n</function>\n</tool_call>", 1))
	const tool = `"tools":[{"type":"custom","custom":{"name":"patch","description":"d","format":{"type":"grammar","grammar":{"syntax":"lark","definition":"x"}}}}]`
	whole := r.Post("/v1/chat/completions", rig.ChatBody(tool))
	call := rig.At(whole.JSON(t), "choices", 0, "message", "tool_calls", 0)
	if rig.At(call, "type") != "custom" || rig.At(call, "function") != nil ||
		!cmp.Equal(rig.At(call, "custom"), any(map[string]any{"name": "patch", "input": text})) {
		t.Errorf("call %v", call)
	}
	if got := whole.Header.Get("X-Tandem-Warning"); got != "tool-format-ignored: patch" {
		t.Errorf("warning %q", got)
	}
	a, err := wirecheck.Chat(r.Post("/v1/chat/completions", rig.ChatBody(tool+`,"stream":true`)).Body, 1)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]wirecheck.Call{{Name: "patch", Arguments: text, Custom: true}}, a.Choices[0].Calls,
		cmpopts.IgnoreFields(wirecheck.Call{}, "ID")); d != "" {
		t.Error(d)
	}
	history := func(call any) string {
		a := r.Post("/v1/chat/completions",
			`{"messages":[{"role":"user","content":"Go."},{"role":"assistant","tool_calls":[`+string(rig.JSON(call))+
				`]},{"role":"tool","tool_call_id":"c","content":"done"}],`+tool+`}`)
		if a.Status != 200 {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
		return r.LastPrompt(w)
	}
	custom := history(map[string]any{"id": "c", "type": "custom",
		"custom": map[string]any{"name": "patch", "input": text}})
	function := history(map[string]any{"id": "c", "type": "function",
		"function": map[string]any{"name": "patch", "arguments": string(rig.JSON(map[string]string{"input": text}))}})
	if d := cmp.Diff(function, custom); d != "" || !strings.Contains(custom, text) {
		t.Errorf("%s: %s", d, custom)
	}
	if forced := r.Post("/v1/chat/completions",
		rig.ChatBody(tool+`,"tool_choice":{"type":"custom","custom":{"name":"patch"}}`)); forced.Status != 200 {
		t.Errorf("%d %s", forced.Status, forced.Body)
	}
}
