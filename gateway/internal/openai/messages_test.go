package openai

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/tandem-inference/tandem/gateway/internal/chat"
	"github.com/tandem-inference/tandem/gateway/internal/chattemplate"
	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
)

func object(t *testing.T, body string) reqjson.Object {
	t.Helper()
	o, err := reqjson.Parse([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestMessages(t *testing.T) {
	tests := []struct {
		name, json string
		want       chat.Message
		args       string // of the first tool call
	}{
		{"developer", `{"role":"developer","content":"a"}`, chat.Message{Role: "system", Content: "a"}, ""},
		{"parts", `{"role":"user","content":[{"type":"text","text":"a"},{"type":"input_text","text":"b"},{"text":"c"},"d"]}`,
			chat.Message{Role: "user", Content: "abcd"}, ""},
		{"function", `{"role":"function","name":"f","content":"4"}`, chat.Message{Role: "tool", Name: "f", Content: "4"}, ""},
		{"tool", `{"role":"tool","tool_call_id":"c1","content":"4"}`,
			chat.Message{Role: "tool", ToolCallID: "c1", Content: "4"}, ""},
		{"reasoning_content", `{"role":"assistant","content":"x","reasoning_content":"why"}`,
			chat.Message{Role: "assistant", Content: "x", Reasoning: "why", HasReasoning: true}, ""},
		{"reasoning", `{"role":"assistant","content":"x","reasoning":"why"}`,
			chat.Message{Role: "assistant", Content: "x", Reasoning: "why", HasReasoning: true}, ""},
		{"reasoning_details", `{"role":"assistant","content":"x","reasoning_details":[{"type":"reasoning.text","text":"w"},{"text":"hy"}]}`,
			chat.Message{Role: "assistant", Content: "x", Reasoning: "why", HasReasoning: true}, ""},
		{"call with text arguments",
			`{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"z\": 1, \"a\": {\"y\": 2, \"b\": [3.0]}}"}}]}`,
			chat.Message{Role: "assistant", ToolCalls: []chat.ToolCall{{ID: "c1", Name: "f"}}},
			`{"z": 1, "a": {"y": 2, "b": [3.0]}}`},
		{"call with object arguments",
			`{"role":"assistant","tool_calls":[{"id":"c1","function":{"name":"f","arguments":{"z":1,"a":2}}}]}`,
			chat.Message{Role: "assistant", ToolCalls: []chat.ToolCall{{ID: "c1", Name: "f"}}}, `{"z": 1, "a": 2}`},
		{"call with other text", `{"role":"assistant","tool_calls":[{"id":"c1","function":{"name":"f","arguments":"[1"}}]}`,
			chat.Message{Role: "assistant", ToolCalls: []chat.ToolCall{{ID: "c1", Name: "f"}}}, `"[1"`},
		{"call without arguments", `{"role":"assistant","tool_calls":[{"id":"c1","function":{"name":"f"}}]}`,
			chat.Message{Role: "assistant", ToolCalls: []chat.ToolCall{{ID: "c1", Name: "f"}}}, `{}`},
		{"function_call", `{"role":"assistant","function_call":{"name":"f","arguments":"{}"}}`,
			chat.Message{Role: "assistant", ToolCalls: []chat.ToolCall{{Name: "f"}}}, `{}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseMessages(object(t, `{"messages":[`+tt.json+`]}`), nil)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff([]chat.Message{tt.want}, got, cmpopts.IgnoreFields(chat.ToolCall{}, "Arguments")); d != "" {
				t.Error(d)
			}
			if tt.args == "" {
				return
			}
			if args, err := chattemplate.ToJSON(got[0].ToolCalls[0].Arguments); err != nil || args != tt.args {
				t.Errorf("arguments %s, %v; want %s", args, err, tt.args)
			}
		})
	}
}
