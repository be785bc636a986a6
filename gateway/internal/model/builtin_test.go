package model

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/gateway/internal/chat"
	"github.com/tandem-inference/tandem/gateway/internal/chattemplate"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
)

// bare is a model of a family with its built-in template and no tokenizer.
func bare(t *testing.T, f toolcall.Family) *Model {
	t.Helper()
	m := &Model{Family: f, bos: "<bos>"}
	if err := m.chooseTemplate("", Options{}); err != nil {
		t.Fatal(err)
	}
	return m
}

func text(t *testing.T, m *Model, c *chat.Conversation) string {
	t.Helper()
	segs, err := m.segments(c)
	if err != nil {
		t.Fatal(err)
	}
	return joined(segs)
}

func dict(t *testing.T, raw string) *chattemplate.Dict {
	t.Helper()
	v, err := chattemplate.FromJSON([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	return v.(*chattemplate.Dict)
}

// TestQwenBuiltIn holds the built-in template to the digests of what the published one renders
// (docs/spec/tokenizer.md §8.2).
func TestQwenBuiltIn(t *testing.T) {
	m := bare(t, toolcall.QwenFamily)
	user := func(s string) chat.Message { return chat.Message{Role: chat.RoleUser, Content: s} }
	tools := chattemplate.NewList(dict(t,
		`{"type":"function","function":{"name":"get_weather","description":"w","parameters":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}}}`))
	weather := []chat.Message{user("Weather in Rome?"),
		{Role: chat.RoleAssistant, Reasoning: "need tool", HasReasoning: true,
			ToolCalls: []chat.ToolCall{{ID: "c1", Name: "get_weather",
				Arguments: dict(t, `{"city":"Rome","days":2,"hourly":true,"units":["C"]}`)}}},
		{Role: chat.RoleTool, ToolCallID: "c1", Content: "18 C"}, {Role: chat.RoleTool, Content: "sunny"}}
	preserve := dict(t, `{"preserve_thinking":true}`)
	for _, tt := range []struct {
		name   string
		conv   chat.Conversation
		digest string
		want   string
	}{
		{name: "A", conv: chat.Conversation{Thinking: true, Messages: []chat.Message{user(" Hi there \n")}},
			digest: "8a4eb9734e752cda0fab1e2b48eab610f67ac829f70dc47d55fd523f731ce6bc"},
		{name: "B", conv: chat.Conversation{Messages: []chat.Message{{Role: chat.RoleSystem, Content: "Be brief."},
			user("2+2?")}},
			digest: "7ad30db1e267fbfef294c7247f7bab8358e91750aaf80bb269858ac4d0960de7"},
		{name: "C", conv: chat.Conversation{Thinking: true,
			Messages: []chat.Message{user("2+2?"), {Role: chat.RoleAssistant, Content: "<think>\nadd\n</think>\n\n4"},
				user("and 3+3?")}},
			digest: "741ee8139f5699f415d06dc9f02621c2ca24a5b5e94d4f5e32ffea4471f397c5"},
		{name: "C preserved", conv: chat.Conversation{Thinking: true, Kwargs: preserve,
			Messages: []chat.Message{user("2+2?"), {Role: chat.RoleAssistant, Content: "<think>\nadd\n</think>\n\n4"},
				user("and 3+3?")}},
			want: "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n<think>\nadd\n</think>\n\n4<|im_end|>\n<|im_start|>user\nand 3+3?<|im_end|>\n<|im_start|>assistant\n<think>\n"},
		{name: "D", conv: chat.Conversation{Thinking: true, Tools: tools, Messages: weather},
			digest: "785dc78b1d0910b38a38dc258b3afb6a0893822514d3c2a107d4f8d8083542b7"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := text(t, m, &tt.conv)
			if tt.want != "" {
				if d := cmp.Diff(tt.want, got); d != "" {
					t.Error(d)
				}
				return
			}
			// The digest of D is of the 3.5 form, which writes True where 3.6 and this template write true.
			sum := sha256.Sum256([]byte(strings.Replace(got, "\ntrue\n", "\nTrue\n", 1)))
			if hex.EncodeToString(sum[:]) != tt.digest {
				t.Errorf("another text than the published template's:\n%s", got)
			}
		})
	}
}

// TestToolsInEveryFamily: tools, calls and results are in the prompt, and the call reads back as the same call.
func TestToolsInEveryFamily(t *testing.T) {
	args := dict(t, `{"city":"Rome","days":2,"deep":{"a":[1,"x"]}}`)
	tools := chattemplate.NewList(dict(t,
		`{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"},"deep":{"type":"object"}}}}}`))
	set := &toolcall.Set{}
	if err := set.Add(toolcall.Tool{Name: "get_weather",
		Schema: []byte(`{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"},"deep":{"type":"object"}}}`)}, nil); err != nil {
		t.Fatal(err)
	}
	for _, f := range []toolcall.Family{toolcall.QwenFamily, toolcall.GemmaFamily, toolcall.LagunaFamily} {
		m := bare(t, f)
		if !m.takesWritten() {
			t.Errorf("family %d: calls cannot be rendered as they were written", f)
		}
		for _, thinking := range []bool{false, true} {
			got := text(t, m, &chat.Conversation{Thinking: thinking, Tools: tools, Messages: []chat.Message{
				{Role: chat.RoleSystem, Content: "Be brief."}, {Role: chat.RoleUser, Content: "Weather?"},
				{Role: chat.RoleAssistant, Content: "Let me see.", Reasoning: "hm", HasReasoning: true,
					ToolCalls: []chat.ToolCall{{ID: "c", Name: "get_weather", Arguments: args}}},
				{Role: chat.RoleTool, ToolCallID: "c", Content: "18 C"}}})
			for _, want := range []string{"Be brief.", `"name": "get_weather"`, "Weather?", "Let me see.", "hm", "18 C"} {
				if !strings.Contains(got, want) {
					t.Errorf("family %d: %q is not in the prompt\n%s", f, want, got)
				}
			}
			p := toolcall.NewParser(toolcall.Config{Set: set, Family: f, NewID: func() string { return "id" }})
			var calls callList
			p.Push([]byte(got[strings.Index(got, "Let me see."):]), &calls)
			if len(calls) != 1 || calls[0].Arguments != `{"city": "Rome", "days": 2, "deep": {"a": [1, "x"]}}` ||
				calls[0].Format != m.CallForm {
				t.Errorf("family %d: the call reads back as %+v", f, calls)
			}
		}
	}
}
