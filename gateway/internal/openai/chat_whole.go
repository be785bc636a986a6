package openai

import (
	"encoding/json"

	"github.com/tandem-inference/tandem/gateway/internal/emit"
	"github.com/tandem-inference/tandem/gateway/internal/generate"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/tokenizer"
)

// chatWhole collects a chat answer. Each choice is written by its own goroutine into its own element.
type chatWhole struct {
	tok      *tokenizer.Tokenizer
	logprobs bool
	legacy   bool // calls are the message's function_call
	choices  []chatChoice
}

type chatChoice struct {
	reasoning, content []byte
	entries            []byte
	calls              []*writtenCall
	end                generate.Choice
}

// writtenCall is a call as far as it came: the token limit may have cut off the last one.
type writtenCall struct {
	*toolcall.Call
	args []byte
}

func newChatWhole(tok *tokenizer.Tokenizer, n int, logprobs bool) *chatWhole {
	return &chatWhole{tok: tok, logprobs: logprobs, choices: make([]chatChoice, n)}
}

// Admitted implements generate.Sink.
func (c *chatWhole) Admitted() error { return nil }

// Prompt implements generate.Sink; chat has no prompt log-probabilities.
func (c *chatWhole) Prompt(int, []*tandemv1.PositionLogprobs) error { return nil }

// Delta implements generate.Sink.
func (c *chatWhole) Delta(index int, d generate.Delta) error {
	ch := &c.choices[index]
	for _, ev := range d.Events {
		switch ev.Kind {
		case emit.Reasoning:
			ch.reasoning = append(ch.reasoning, ev.Text...)
		case emit.Content:
			ch.content = append(ch.content, ev.Text...)
		case emit.ToolStart:
			ch.calls = append(ch.calls, &writtenCall{Call: ev.Call})
		case emit.ToolArgs:
			call := ch.calls[len(ch.calls)-1]
			call.args = append(call.args, ev.Text...)
		}
		if len(ev.Entries) > 0 {
			if len(ch.entries) > 0 {
				ch.entries = append(ch.entries, ',')
			}
			ch.entries = turn.AppendEntries(ch.entries, c.tok, ev.Entries)
		}
	}
	return nil
}

// Done implements generate.Sink.
func (c *chatWhole) Done(index int, end generate.Choice) error {
	c.choices[index].end = end
	return nil
}

// chatCompletion is the answer object.
type chatCompletion struct {
	ID          string            `json:"id"`
	Object      string            `json:"object"`
	Created     int64             `json:"created"`
	Model       string            `json:"model"`
	Fingerprint string            `json:"system_fingerprint"`
	Choices     []chatChoiceShape `json:"choices"`
	Usage       *Usage            `json:"usage"`
	ServiceTier string            `json:"service_tier"`
}

type chatChoiceShape struct {
	Index         int                 `json:"index"`
	Message       chatMessage         `json:"message"`
	Logprobs      json.RawMessage     `json:"logprobs"`
	FinishReason  string              `json:"finish_reason"`
	FinishDetails *turn.FinishDetails `json:"finish_details,omitempty"`
	StopSequence  string              `json:"stop_sequence,omitempty"`
}

type chatMessage struct {
	Role             string            `json:"role"`
	Content          *string           `json:"content"` // nil = null: nothing but calls
	Refusal          *string           `json:"refusal"`
	ReasoningContent string            `json:"reasoning_content,omitempty"`
	Reasoning        string            `json:"reasoning,omitempty"`
	ReasoningDetails []reasoningDetail `json:"reasoning_details,omitempty"`
	ToolCalls        []toolCall        `json:"tool_calls,omitempty"`
	FunctionCall     *functionCall     `json:"function_call,omitempty"`
}

// toolCall has one of function and custom, as type says.
type toolCall struct {
	ID       string        `json:"id"`
	Type     string        `json:"type"`
	Function *functionCall `json:"function,omitempty"`
	Custom   *customCall   `json:"custom,omitempty"`
}

type customCall struct {
	Name  string `json:"name"`
	Input string `json:"input"`
}

type functionCall struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

type reasoningDetail struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// newToolCall is a call in the shape of its tool's type.
func newToolCall(call *writtenCall) toolCall {
	if !isCustom(call.Call) {
		return toolCall{ID: call.ID, Type: "function", Function: call.function()}
	}
	x := &toolcall.InputText{}
	text := x.End(x.Add(nil, call.args))
	return toolCall{ID: call.ID, Type: "custom", Custom: &customCall{Name: call.Name, Input: string(text)}}
}

func (c *writtenCall) function() *functionCall {
	return &functionCall{Name: c.Name, Arguments: string(c.args)}
}

func isCustom(call *toolcall.Call) bool { return call.Tool != nil && call.Tool.Kind == toolcall.Custom }

// answer builds the object.
func (c *chatWhole) answer(env *envelope, u *generate.Usage) *chatCompletion {
	out := &chatCompletion{ID: env.id, Object: "chat.completion", Created: env.created, Model: env.model,
		Fingerprint: env.fingerprint,
		Usage:       NewUsage(u), ServiceTier: "default"}
	for i := range c.choices {
		ch := &c.choices[i]
		m := chatMessage{Role: "assistant"}
		if len(ch.content) > 0 || len(ch.calls) == 0 {
			text := string(ch.content)
			m.Content = &text
		}
		for _, call := range ch.calls {
			if c.legacy {
				m.FunctionCall = call.function()
				break
			}
			m.ToolCalls = append(m.ToolCalls, newToolCall(call))
		}
		if len(ch.reasoning) > 0 {
			m.ReasoningContent, m.Reasoning = string(ch.reasoning), string(ch.reasoning)
			m.ReasoningDetails = []reasoningDetail{{Type: "reasoning.text", Text: m.Reasoning}}
		}
		s := chatChoiceShape{Index: i, Message: m, FinishReason: finish(&ch.end, c.legacy),
			FinishDetails: turn.NewFinishDetails(&ch.end), StopSequence: ch.end.StopString}
		if c.logprobs {
			s.Logprobs = append(append([]byte(`{"content":[`), ch.entries...), `],"refusal":null}`...)
		}
		out.Choices = append(out.Choices, s)
	}
	return out
}
