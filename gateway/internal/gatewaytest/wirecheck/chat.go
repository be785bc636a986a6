package wirecheck

import (
	"errors"
	"fmt"
	"strings"
)

// Call is a tool call of a chat answer.
type Call struct {
	ID, Name, Arguments string
	// Custom: Arguments are the text of a custom tool, Legacy: the call is the message's function_call.
	Custom, Legacy bool
}

// Choice is one choice of a chat answer.
type Choice struct {
	Content, Reasoning string
	Calls              []Call
	Finish, Stop       string
	Details            any
	// Tokens are the texts of the log-probability entries.
	Tokens []string
}

// ChatAnswer is what a chat stream says.
type ChatAnswer struct {
	ID      string
	Choices []Choice
	// Usage is nil when there was no usage chunk.
	Usage map[string]any
	// Error is the error event, nil when the stream ended well.
	Error map[string]any
}

type chatState struct {
	Choice
	role, finished, content bool
}

// Chat checks a chat completion stream of n choices.
func Chat(body []byte, n int) (*ChatAnswer, error) {
	evs, err := Parse(body)
	if err != nil {
		return nil, err
	}
	if len(evs) == 0 || evs[len(evs)-1].Raw != "[DONE]" {
		return nil, errors.New("the last event is not [DONE]")
	}
	out := &ChatAnswer{}
	states := make([]chatState, n)
	for i, e := range evs[:len(evs)-1] {
		if err := out.event(e, states); err != nil {
			return nil, fmt.Errorf("event %d: %w (%s)", i, err, e.Raw)
		}
	}
	for k := range states {
		if !states[k].finished && out.Error == nil {
			return nil, fmt.Errorf("choice %d has no finish_reason", k)
		}
		if out.Error == nil {
			for i, c := range states[k].Calls {
				// The limit may cut the last call off.
				if cut := states[k].Finish == "length" && i == len(states[k].Calls)-1; !cut && !c.Custom && !complete(c.Arguments) {
					return nil, fmt.Errorf("choice %d: the arguments of %s are %q", k, c.Name, c.Arguments)
				}
			}
		}
		out.Choices = append(out.Choices, states[k].Choice)
	}
	return out, nil
}

func (a *ChatAnswer) event(e Event, states []chatState) error {
	if e.Name != "" {
		return fmt.Errorf("chat has no event: lines, got %q", e.Name)
	}
	if a.Error != nil || a.Usage != nil {
		return errors.New("comes after the end")
	}
	if a.Error = obj(e.Data, "error"); a.Error != nil {
		return has(a.Error, "message", "type", "param", "code")
	}
	if err := has(e.Data, "id", "object", "created", "model", "choices"); err != nil {
		return err
	}
	if str(e.Data, "object") != "chat.completion.chunk" {
		return fmt.Errorf("object is %v", e.Data["object"])
	}
	if a.ID == "" {
		a.ID = str(e.Data, "id")
	}
	if id := str(e.Data, "id"); id != a.ID || id == "" {
		return fmt.Errorf("id is %q, was %q", id, a.ID)
	}
	choices := list(e.Data, "choices")
	if len(choices) == 0 {
		for k := range states {
			if !states[k].finished {
				return fmt.Errorf("usage comes before the end of choice %d", k)
			}
		}
		if a.Usage = obj(e.Data, "usage"); a.Usage == nil {
			return errors.New("neither choices nor usage")
		}
		return nil
	}
	for _, c := range choices {
		k := num(c, "index")
		if k < 0 || k >= len(states) {
			return fmt.Errorf("choice %d of %d", k, len(states))
		}
		if err := states[k].chunk(c); err != nil {
			return fmt.Errorf("choice %d: %w", k, err)
		}
	}
	return nil
}

func (s *chatState) chunk(c any) error {
	if err := has(c, "index", "delta", "finish_reason"); err != nil {
		return err
	}
	if s.finished {
		return errors.New("goes on after its finish_reason")
	}
	d := obj(c, "delta")
	if !s.role {
		if str(d, "role") != "assistant" {
			return errors.New("does not begin with its role")
		}
		s.role = true
	}
	if text := str(d, "reasoning_content"); text != "" || str(d, "reasoning") != "" {
		if str(d, "reasoning") != text {
			return errors.New("reasoning and reasoning_content differ")
		}
		if s.content || len(s.Calls) > 0 {
			return errors.New("reasoning comes after visible output")
		}
		s.Reasoning += text
	}
	if text := str(d, "content"); text != "" {
		s.content = true
		s.Content += text
	}
	for _, e := range list(obj(c, "logprobs"), "content") {
		s.Tokens = append(s.Tokens, str(e, "token"))
	}
	for _, t := range list(d, "tool_calls") {
		if err := s.call(t); err != nil {
			return err
		}
	}
	if f := obj(d, "function_call"); f != nil {
		if name := str(f, "name"); name != "" {
			s.Calls = append(s.Calls, Call{Name: name, Legacy: true})
		}
		if len(s.Calls) != 1 {
			return fmt.Errorf("function_call is call %d", len(s.Calls))
		}
		s.Calls[0].Arguments += str(f, "arguments")
	}
	if f := str(c, "finish_reason"); f != "" {
		s.finished, s.Finish, s.Stop = true, f, str(c, "stop_sequence")
		s.Details = c.(map[string]any)["finish_details"]
		if f == "tool_calls" && len(s.Calls) == 0 {
			return errors.New("finish_reason tool_calls without a call")
		}
	}
	return nil
}

func (s *chatState) call(t any) error {
	f, args := obj(t, "function"), "arguments"
	custom := obj(t, "custom") != nil
	if custom {
		f, args = obj(t, "custom"), "input"
	}
	switch i := num(t, "index"); {
	case i == len(s.Calls):
		if !strings.HasPrefix(str(t, "id"), "call_") ||
			str(t, "type") != map[bool]string{false: "function", true: "custom"}[custom] || str(f, "name") == "" {
			return fmt.Errorf("call %d begins with %v", i, t)
		}
		if str(f, args) != "" {
			return fmt.Errorf("call %d begins with arguments", i)
		}
		s.Calls = append(s.Calls, Call{ID: str(t, "id"), Name: str(f, "name"), Custom: custom})
	case i == len(s.Calls)-1 && i >= 0:
		if str(t, "id") != "" {
			return fmt.Errorf("call %d begins twice", i)
		}
		if custom != s.Calls[i].Custom {
			return fmt.Errorf("call %d changes its type", i)
		}
		s.Calls[i].Arguments += str(f, args)
	default:
		return fmt.Errorf("call %d after %d calls", i, len(s.Calls))
	}
	return nil
}
