// Package chat holds the canonical form of a conversation, into which every dialect's history is converted without
// loss, and turns it into what the model's chat template reads.
package chat

import (
	"strings"

	"github.com/tandem-inference/tandem/gateway/internal/chattemplate"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
)

// Roles of messages.
const (
	RoleSystem    = "system"
	RoleUser      = "user"
	RoleAssistant = "assistant"
	RoleTool      = "tool"
)

// Message is one turn.
type Message struct {
	Role    string
	Content string
	// Reasoning of an assistant turn, without markers; HasReasoning tells an empty one from none.
	Reasoning    string
	HasReasoning bool
	Name         string
	ToolCalls    []ToolCall
	// ToolCallID names the call that a tool message answers.
	ToolCallID string
	// CacheMark says that the client is going to send the conversation up to the end of this message again.
	CacheMark bool
}

// ToolCall is a call that the assistant made.
type ToolCall struct {
	ID, Name string
	// Arguments is a *chattemplate.Dict in the order in which the keys came, or text that is no JSON object.
	Arguments chattemplate.Value
	// Written is the call as the model wrote it, after the whitespace Gap; empty = not known, the template writes
	// it again.
	Written, Gap string
}

// Conversation is all that the template reads of a request.
type Conversation struct {
	Messages []Message
	// Tools in the chat form, key order kept; nil = none.
	Tools *chattemplate.List
	// Thinking is the resolved switch.
	Thinking bool
	// Kwargs are further variables of the template, from chat_template_kwargs; nil = none.
	Kwargs *chattemplate.Dict
}

// Prefill reports whether the last message is an assistant's text that the model should continue.
func (c *Conversation) Prefill() bool {
	if len(c.Messages) == 0 {
		return false
	}
	m := c.Messages[len(c.Messages)-1]
	return m.Role == RoleAssistant && len(m.ToolCalls) == 0
}

// WithContents returns the conversation with other message contents, for compressed prompts.
func (c *Conversation) WithContents(contents []string) *Conversation {
	out := *c
	out.Messages = make([]Message, len(c.Messages))
	for i, m := range c.Messages {
		m.Content = contents[i]
		out.Messages[i] = m
	}
	return &out
}

// written gives the content with the calls after it, when all of them are known as the model wrote them.
func (m *Message) written() (chattemplate.Str, bool) {
	if len(m.ToolCalls) == 0 {
		return chattemplate.Text(m.Content), false
	}
	content := strings.TrimRight(m.Content, " \t\r\n")
	parts := []chattemplate.Str{chattemplate.Text(content)}
	for i, c := range m.ToolCalls {
		if c.Written == "" {
			return chattemplate.Text(m.Content), false
		}
		if i > 0 || content != "" {
			parts = append(parts, chattemplate.Text(c.Gap))
		}
		parts = append(parts, marked(c.Written)...)
	}
	return chattemplate.Join(parts...), true
}

// marked splits a call so that the marks of its format may become control tokens and nothing else in it may.
func marked(call string) []chattemplate.Str {
	var parts []chattemplate.Str
	for call != "" {
		at, mark := len(call), ""
		for _, m := range toolcall.GemmaMarks {
			if i := strings.Index(call, m); i >= 0 && i < at {
				at, mark = i, m
			}
		}
		parts = append(parts, chattemplate.Text(call[:at]), chattemplate.Trusted(mark))
		call = call[at+len(mark):]
	}
	return parts
}

// TemplateMessages converts messages to the dictionaries that published templates expect.
func TemplateMessages(msgs []Message) *chattemplate.List {
	list := chattemplate.NewList()
	for _, m := range msgs {
		d := chattemplate.NewDict()
		d.Set("role", chattemplate.Trusted(m.Role))
		written, asWritten := m.written()
		d.Set("content", written)
		if m.HasReasoning {
			d.Set("reasoning_content", m.Reasoning)
		}
		if m.Name != "" {
			d.Set("name", m.Name)
		}
		if m.ToolCallID != "" {
			d.Set("tool_call_id", m.ToolCallID)
		}
		if len(m.ToolCalls) > 0 && !asWritten {
			calls := chattemplate.NewList()
			for _, c := range m.ToolCalls {
				f := chattemplate.NewDict()
				f.Set("name", c.Name)
				f.Set("arguments", c.Arguments)
				call := chattemplate.NewDict()
				if c.ID != "" {
					call.Set("id", c.ID)
				}
				call.Set("type", "function")
				call.Set("function", f)
				calls.Append(call)
			}
			d.Set("tool_calls", calls)
		}
		list.Append(d)
	}
	return list
}
