package model

import (
	"strings"

	"github.com/tandem-inference/tandem/gateway/internal/chat"
	"github.com/tandem-inference/tandem/gateway/internal/chattemplate"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
	"github.com/tandem-inference/tandem/services/tokenizer"
)

// takesWritten tries whether calls may stand in the content of a message instead of its structured calls: whether the
// template then renders the same prompt. A template that looks at the calls of earlier messages for anything else
// does not.
func (m *Model) takesWritten() bool {
	set := &toolcall.Set{}
	if set.Add(toolcall.Tool{Name: "probe"}, nil) != nil {
		return false
	}
	args := chattemplate.NewDict()
	args.Set("key", "some value")
	for _, content := range []string{"Some text.", ""} {
		msgs := []chat.Message{
			{Role: chat.RoleUser, Content: "A question."},
			{Role: chat.RoleAssistant, Content: content, Reasoning: "A thought.", HasReasoning: true, ToolCalls: []chat.ToolCall{
				{ID: "call_1", Name: "probe", Arguments: args}, {ID: "call_2", Name: "probe", Arguments: args}}},
			{Role: chat.RoleTool, ToolCallID: "call_1", Content: "A result."},
			{Role: chat.RoleTool, ToolCallID: "call_2", Content: "A result."},
		}
		structured, err := m.segments(&chat.Conversation{Messages: msgs})
		if err != nil {
			return false
		}
		text := joined(structured)
		p := toolcall.NewParser(toolcall.Config{Set: set, Family: m.Family, NewID: func() string { return "id" }})
		var found callList
		p.Push([]byte(text[max(0, strings.Index(text, "Some text.")):]), &found)
		if len(found) != 2 {
			return false
		}
		for i, c := range found {
			msgs[1].ToolCalls[i].Written, msgs[1].ToolCalls[i].Gap = c.Raw, c.Gap
		}
		written, err := m.segments(&chat.Conversation{Messages: msgs})
		if err != nil || joined(written) != text {
			return false
		}
	}
	return true
}

func joined(segs []tokenizer.Segment) string {
	r := Rendered{Segments: segs}
	return r.Text()
}

// callList is a toolcall.Output that collects complete calls.
type callList []*toolcall.Call

func (c *callList) Text([]byte, int)                {}
func (c *callList) CallStart(*toolcall.Call)        {}
func (c *callList) CallArgs(*toolcall.Call, []byte) {}
func (c *callList) CallEnd(call *toolcall.Call)     { *c = append(*c, call) }
