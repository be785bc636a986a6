package wirecheck

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
)

// MessagesAnswer is what a Messages stream says. Message has the shape of an answer in one piece.
type MessagesAnswer struct {
	Message map[string]any
	// Error is the error event's error, nil when the stream ended well.
	Error map[string]any
}

type messagesState struct {
	out     MessagesAnswer
	content []any
	begun   int            // blocks
	cut     bool           // the last block is a call without its end
	block   map[string]any // open block, nil between blocks
	text    string         // of the open block
	deltas  int            // of the open block
	signed  bool
	delta   bool // message_delta was seen
	stopped bool
}

// Messages checks an Anthropic Messages stream.
func Messages(body []byte) (*MessagesAnswer, error) {
	evs, err := Parse(body)
	if err != nil {
		return nil, err
	}
	s := &messagesState{content: []any{}}
	for i, e := range evs {
		if err := s.event(e); err != nil {
			return nil, fmt.Errorf("event %d: %w (%s)", i, err, e.Raw)
		}
	}
	if !s.stopped && s.out.Error == nil {
		return nil, errors.New("the stream has no message_stop")
	}
	if s.out.Message != nil {
		s.out.Message["content"] = s.content
	}
	return &s.out, nil
}

func (s *messagesState) event(e Event) error {
	kind := str(e.Data, "type")
	if e.Name != kind || kind == "" {
		return fmt.Errorf("event: %q, type %q", e.Name, kind)
	}
	if s.stopped || s.out.Error != nil {
		return errors.New("comes after the end")
	}
	if kind == "error" {
		s.out.Error = obj(e.Data, "error")
		return has(s.out.Error, "type", "message")
	}
	if s.out.Message == nil {
		if kind != "message_start" {
			return errors.New("comes before message_start")
		}
		return s.start(obj(e.Data, "message"))
	}
	switch kind {
	case "ping":
		return nil
	case "content_block_start":
		return s.open(e.Data)
	case "content_block_delta":
		return s.change(e.Data)
	case "content_block_stop":
		return s.close(e.Data)
	case "message_delta":
		return s.end(e.Data)
	case "message_stop":
		if !s.delta {
			return errors.New("comes before message_delta")
		}
		s.stopped = true
		return nil
	}
	return errors.New("unknown or repeated event")
}

func (s *messagesState) start(m map[string]any) error {
	if err := has(m, "id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"); err != nil {
		return err
	}
	if len(list(m, "content")) != 0 || m["stop_reason"] != nil || m["content"] == nil {
		return errors.New("message_start is not empty")
	}
	s.out.Message = m
	return has(m["usage"], "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
}

func (s *messagesState) open(d map[string]any) error {
	if s.block != nil || s.delta {
		return errors.New("a block begins inside another or after the end")
	}
	if i := num(d, "index"); i != s.begun {
		return fmt.Errorf("block %d after %d blocks", i, s.begun)
	}
	s.begun++
	b := obj(d, "content_block")
	want := map[string][]string{"thinking": {"thinking", "signature"}, "text": {"text"},
		"tool_use": {"id", "name", "input"}}[str(b, "type")]
	if want == nil {
		return fmt.Errorf("block of type %q", str(b, "type"))
	}
	if err := has(b, want...); err != nil {
		return err
	}
	if str(b, "text") != "" || str(b, "thinking") != "" || len(obj(b, "input")) != 0 {
		return errors.New("the block begins with content")
	}
	s.block, s.text, s.deltas, s.signed = b, "", 0, false
	return nil
}

func (s *messagesState) change(d map[string]any) error {
	if s.block == nil || num(d, "index") != s.begun-1 {
		return errors.New("delta of a block that is not open")
	}
	if s.signed {
		return errors.New("delta after the signature")
	}
	delta := obj(d, "delta")
	switch kind := str(s.block, "type") + "/" + str(delta, "type"); kind {
	case "thinking/thinking_delta":
		s.text += str(delta, "thinking")
	case "thinking/signature_delta":
		s.signed = true
		s.block["signature"] = str(delta, "signature")
	case "text/text_delta":
		if str(delta, "text") == "" && s.deltas > 0 {
			return errors.New("empty text_delta")
		}
		s.text += str(delta, "text")
	case "tool_use/input_json_delta":
		if (s.deltas == 0) != (str(delta, "partial_json") == "") {
			return errors.New("the first input_json_delta, and no other, is empty")
		}
		s.text += str(delta, "partial_json")
	default:
		return fmt.Errorf("%s does not fit", kind)
	}
	s.deltas++
	return nil
}

func (s *messagesState) close(d map[string]any) error {
	if s.block == nil || num(d, "index") != s.begun-1 {
		return errors.New("end of a block that is not open")
	}
	switch str(s.block, "type") {
	case "thinking":
		if !s.signed || str(s.block, "signature") == "" {
			return errors.New("thinking without a signature")
		}
		s.block["thinking"] = s.text
	case "text":
		s.block["text"] = s.text
	case "tool_use":
		if s.deltas == 0 {
			return errors.New("tool_use without an input_json_delta")
		}
		var input map[string]any
		if err := json.Unmarshal([]byte(s.text), &input); err != nil || input == nil {
			// Right only if the answer was cut off here; clients then complete what came.
			s.cut = true
			whole, ok := toolcall.CompleteObject(s.text)
			if !ok && s.text != "" {
				return fmt.Errorf("the input of a call begins with %s", s.text)
			}
			input = map[string]any{}
			if ok {
				if err := json.Unmarshal([]byte(whole), &input); err != nil {
					return err
				}
			}
		}
		s.block["input"] = input
	}
	s.content = append(s.content, s.block)
	s.block = nil
	return nil
}

func (s *messagesState) end(d map[string]any) error {
	if s.block != nil || s.delta {
		return errors.New("message_delta inside a block or twice")
	}
	delta := obj(d, "delta")
	if err := has(delta, "stop_reason", "stop_sequence"); err != nil {
		return err
	}
	if err := has(d["usage"], "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens",
		"output_tokens"); err != nil {
		return err
	}
	calls := 0
	for _, b := range s.content {
		if str(b, "type") == "tool_use" {
			calls++
		}
	}
	if s.cut && str(delta, "stop_reason") != "max_tokens" {
		return errors.New("the input of a call is no object")
	}
	if reason := str(delta, "stop_reason"); reason == "" || (reason == "tool_use" && calls == 0) {
		return fmt.Errorf("stop_reason %q with %d calls", reason, calls)
	}
	s.delta = true
	m := s.out.Message
	m["stop_reason"], m["stop_sequence"], m["usage"] = delta["stop_reason"], delta["stop_sequence"], d["usage"]
	if fd, ok := d["finish_details"]; ok {
		m["finish_details"] = fd
	}
	return nil
}
