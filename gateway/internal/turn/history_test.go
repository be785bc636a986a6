package turn_test

import (
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
)

// TestArgumentsOfEarlierCalls: whatever arguments a call of the history has, the conversation goes on in every dialect.
// Cut objects are completed, others stand in the text, since the test model's template reads members.
func TestArgumentsOfEarlierCalls(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{})
	w.SetDecode(r.Reply("ok", 1))
	for _, tt := range []struct{ arguments, want string }{
		{`{"city": "Rome"}`, "<function=get_weather>\n<parameter=city>\nRome\n</parameter>"},
		{`{"city": "`, "<function=get_weather>\n<parameter=city>\n\n</parameter>"},
		{`{"city": "Ro`, "<function=get_weather>\n<parameter=city>\nRo\n</parameter>"},
		{`{"city": "Rome", "days`, "<function=get_weather>\n<parameter=city>\nRome\n</parameter>"},
		{`{"days": [1, 2`, "<function=get_weather>\n<parameter=days>\n[1, 2]\n</parameter>"},
		{`{`, "<function=get_weather>\n</function>"},
		{`  `, "<function=get_weather>\n</function>"},
		{`[1]`, "Looking.\nget_weather([1])<|im_end|>"},
		{`Rome & "Bern"`, "Looking.\nget_weather(Rome & \"Bern\")<|im_end|>"},
		{`{'city': 1}`, "Looking.\nget_weather({'city': 1})<|im_end|>"},
		{`{"city": 1}}`, "Looking.\nget_weather({\"city\": 1}})<|im_end|>"},
		{`{"city": <|im_end|>`, "Looking.\nget_weather({\"city\": <|im_end|>)<|im_end|>"},
		{`7`, "get_weather(7)"},
	} {
		arguments := string(rig.JSON(tt.arguments))
		for path, body := range map[string]string{
			"/v1/chat/completions": `{"messages":[{"role":"user","content":"Weather?"},{"role":"assistant","content":"Looking.","tool_calls":[{"id":"c1","type":"function","function":{"name":"get_weather","arguments":` +
				arguments + `}}]},{"role":"tool","tool_call_id":"c1","content":"18 C"}],` + rig.WeatherTool + `}`,
			"/v1/responses": `{"input":[{"role":"user","content":"Weather?"},{"role":"assistant","content":"Looking."},{"type":"function_call","call_id":"c1","name":"get_weather","arguments":` +
				arguments + `},{"type":"function_call_output","call_id":"c1","output":"18 C"}]}`,
			"/v1/messages": `{"max_tokens":9,"messages":[{"role":"user","content":"Weather?"},{"role":"assistant","content":[{"type":"text","text":"Looking."},{"type":"tool_use","id":"c1","name":"get_weather","input":` +
				arguments + `}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":"18 C"}]}]}`,
		} {
			if a := r.Post(path, body); a.Status != 200 {
				t.Errorf("%s with %s: %d %s", path, arguments, a.Status, a.Body)
				continue
			}
			reqs := w.Requests()
			prompt := r.Tok.Decode(reqs[len(reqs)-1].GetPromptTokens(), true)
			if !strings.Contains(prompt, tt.want) || !strings.Contains(prompt, "18 C") || !strings.Contains(prompt, "Looking.") {
				t.Errorf("%s with %s: the prompt lacks %q:\n%s", path, arguments, tt.want, prompt)
			}
			// What a client wrote into arguments is never a control token.
			ends := 0
			stop := r.Encode("<|im_end|>")[0]
			for _, id := range reqs[len(reqs)-1].GetPromptTokens() {
				if id == stop {
					ends++
				}
			}
			if turns := strings.Count(prompt, "<|im_start|>"); ends != turns-1 {
				t.Errorf("%s with %s: %d turns, %d ends", path, arguments, turns, ends)
			}
		}
	}
}

// TestTemplateVariables: chat_template_kwargs win over what the gateway sets, and what they cannot set is refused
// by name.
func TestTemplateVariables(t *testing.T) {
	r := rig.Start(t, nil)
	r.Target(gatewaytest.WorkerOptions{})
	const user, answer = `{"role":"user","content":"Hi."}`, `{"role":"assistant","content":"Hello"}`
	for _, tt := range []struct{ name, messages, kwargs, end string }{
		{"default", user, `{}`, "<|im_start|>assistant\n<think>\n\n</think>\n\n"},
		{"null", user, `{"add_generation_prompt":null}`, "<|im_start|>assistant\n<think>\n\n</think>\n\n"},
		{"on", user, `{"add_generation_prompt":true}`, "<|im_start|>assistant\n<think>\n\n</think>\n\n"},
		{"off", user, `{"add_generation_prompt":false}`, "Hi.<|im_end|>\n"},
		{"answer continued", user + "," + answer, `{}`, "Hello"},
		{"answer ended", user + "," + answer, `{"add_generation_prompt":false}`, "Hello<|im_end|>\n"},
	} {
		a := r.Post("/apply-template", `{"messages":[`+tt.messages+`],"chat_template_kwargs":`+tt.kwargs+`}`)
		if prompt, _ := a.JSON(t)["prompt"].(string); a.Status != 200 || !strings.HasSuffix(prompt, tt.end) {
			t.Errorf("%s: %d %q, want the end %q", tt.name, a.Status, prompt, tt.end)
		}
	}
	for kwargs, param := range map[string]string{
		`{"messages":[]}`:                  "chat_template_kwargs.messages",
		`{"tools":null,"messages":"x"}`:    "chat_template_kwargs.messages",
		`{"tools":[{}]}`:                   "chat_template_kwargs.tools",
		`{"add_generation_prompt":"no"}`:   "chat_template_kwargs.add_generation_prompt",
		`{"bos_token":7}`:                  "chat_template_kwargs.bos_token",
		`{"enable_thinking":"yes please"}`: "chat_template_kwargs.enable_thinking",
	} {
		a := r.Post("/v1/chat/completions", `{"messages":[`+user+`],"chat_template_kwargs":`+kwargs+`}`)
		if a.Status != 400 || rig.At(a.JSON(t), "error", "param") != param {
			t.Errorf("%s: %d %s, want 400 at %s", kwargs, a.Status, a.Body, param)
		}
	}
}
