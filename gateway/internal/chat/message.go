// Package chat holds the canonical form of a conversation, into which every dialect's history is converted without loss, and
// turns it into what the model's chat template reads.
package chat

import (
	"github.com/tandem-inference/tandem/services/chattemplate"
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
}

// ToolCall is a call that the assistant made.
type ToolCall struct {
	ID, Name string
	// Arguments is a *chattemplate.Dict in the order in which the keys came, or text that is no JSON object.
	Arguments chattemplate.Value
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

// TemplateMessages converts messages to the dictionaries that published templates expect.
func TemplateMessages(msgs []Message) *chattemplate.List {
	list := chattemplate.NewList()
	for _, m := range msgs {
		d := chattemplate.NewDict()
		d.Set("role", chattemplate.Trusted(m.Role))
		d.Set("content", m.Content)
		if m.HasReasoning {
			d.Set("reasoning_content", m.Reasoning)
		}
		if m.Name != "" {
			d.Set("name", m.Name)
		}
		if m.ToolCallID != "" {
			d.Set("tool_call_id", m.ToolCallID)
		}
		if len(m.ToolCalls) > 0 {
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
