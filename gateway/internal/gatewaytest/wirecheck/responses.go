package wirecheck

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// ResponsesAnswer is what a Responses stream says.
type ResponsesAnswer struct {
	// Final is the object of the terminal event, Terminal its type.
	Final    map[string]any
	Terminal string
	// Error is the error event, nil when there was none.
	Error map[string]any
}

type responsesState struct {
	out      ResponsesAnswer
	id       string
	seq      int
	seen     int            // events apart from repeated keep-alives
	items    []any          // complete ones
	item     map[string]any // open one
	part     map[string]any // open content part of the item
	summary  map[string]any // open summary part
	text     string         // deltas of the part, or of a call's arguments
	sumText  string
	partDone bool // *.done of the part's text was seen
	sumDone  bool
}

// Responses checks a Responses stream.
func Responses(body []byte) (*ResponsesAnswer, error) {
	evs, err := Parse(body)
	if err != nil {
		return nil, err
	}
	s := &responsesState{}
	for i, e := range evs {
		if err := s.event(e); err != nil {
			return nil, fmt.Errorf("event %d: %w (%s)", i, err, e.Raw)
		}
	}
	if s.out.Final == nil && s.out.Error == nil {
		return nil, errors.New("the stream has no terminal event")
	}
	return &s.out, nil
}

func (s *responsesState) event(e Event) error {
	kind := str(e.Data, "type")
	if e.Name != kind || kind == "" {
		return fmt.Errorf("event: %q, type %q", e.Name, kind)
	}
	if s.out.Final != nil || s.out.Error != nil {
		return errors.New("comes after the end")
	}
	if n := num(e.Data, "sequence_number"); n != s.seq {
		return fmt.Errorf("sequence_number %d, want %d", n, s.seq)
	}
	s.seq++
	s.seen++
	switch {
	case kind == "error":
		s.out.Error = e.Data
		return has(e.Data, "code", "message", "param")
	case s.seen == 1:
		if kind != "response.created" {
			return errors.New("the first event is not response.created")
		}
		return s.begin(obj(e.Data, "response"))
	case kind == "response.in_progress":
		// Again and again as a keep-alive.
		return s.begin(obj(e.Data, "response"))
	case s.seen == 2:
		return errors.New("the second event is not response.in_progress")
	}
	switch kind {
	case "response.completed", "response.incomplete", "response.failed":
		return s.end(kind, obj(e.Data, "response"))
	case "response.output_item.added":
		return s.open(e.Data)
	}
	if s.item == nil {
		return errors.New("no item is open")
	}
	if num(e.Data, "output_index") != len(s.items) {
		return fmt.Errorf("output_index %d, the open item is %d", num(e.Data, "output_index"), len(s.items))
	}
	if kind == "response.output_item.done" {
		return s.close(obj(e.Data, "item"))
	}
	if id := str(e.Data, "item_id"); id != str(s.item, "id") {
		return fmt.Errorf("item_id %q, the open item is %q", id, str(s.item, "id"))
	}
	return s.inside(kind, e.Data)
}

func (s *responsesState) begin(r map[string]any) error {
	if err := has(r, "id", "object", "created_at", "status", "error", "incomplete_details", "instructions",
		"max_output_tokens", "model",
		"output", "parallel_tool_calls", "previous_response_id", "reasoning", "store", "temperature", "text",
		"tool_choice", "tools", "top_p", "truncation", "usage", "metadata"); err != nil {
		return err
	}
	if r["status"] != "in_progress" || r["output"] == nil || len(list(r, "output")) != 0 {
		return fmt.Errorf("begins with status %v and %d items", r["status"], len(list(r, "output")))
	}
	if s.id == "" {
		s.id = str(r, "id")
	}
	if id := str(r, "id"); id != s.id || !strings.HasPrefix(id, "resp_") {
		return fmt.Errorf("response id %q, was %q", id, s.id)
	}
	return nil
}

// prefixes of item ids by type
var itemPrefix = map[string]string{"reasoning": "rs_", "message": "msg_", "function_call": "fc_",
	"custom_tool_call": "ctc_"}

func (s *responsesState) open(d map[string]any) error {
	if s.item != nil {
		return errors.New("an item begins before the last one is done")
	}
	if i := num(d, "output_index"); i != len(s.items) {
		return fmt.Errorf("output_index %d after %d items", i, len(s.items))
	}
	it := obj(d, "item")
	prefix, ok := itemPrefix[str(it, "type")]
	if !ok || !strings.HasPrefix(str(it, "id"), prefix) {
		return fmt.Errorf("item of type %q with id %q", str(it, "type"), str(it, "id"))
	}
	if str(it, "status") != "in_progress" || len(list(it, "content")) != 0 || str(it, "arguments") != "" ||
		str(it, "input") != "" {
		return errors.New("the item does not begin empty and in progress")
	}
	s.item, s.part, s.summary, s.text, s.sumText = it, nil, nil, "", ""
	return nil
}

func (s *responsesState) inside(kind string, d map[string]any) error {
	name := strings.TrimPrefix(kind, "response.")
	switch str(s.item, "type") + " " + name {
	case "message content_part.added", "reasoning content_part.added":
		if s.part != nil || num(d, "content_index") != 0 {
			return errors.New("a second part")
		}
		s.part = obj(d, "part")
		return has(s.part, "type", "text")
	case "message output_text.delta":
		if err := has(d, "logprobs"); err != nil {
			return err
		}
		return s.delta(d, s.part != nil && !s.partDone)
	case "reasoning reasoning_text.delta":
		return s.delta(d, s.part != nil && !s.partDone)
	case "function_call function_call_arguments.delta", "custom_tool_call custom_tool_call_input.delta":
		return s.delta(d, !s.partDone)
	case "message output_text.done", "reasoning reasoning_text.done":
		return s.done(d, "text")
	case "function_call function_call_arguments.done":
		if str(d, "name") != str(s.item, "name") {
			return fmt.Errorf("done names %q", str(d, "name"))
		}
		if !complete(str(d, "arguments")) {
			return fmt.Errorf("arguments %q are no object", str(d, "arguments"))
		}
		return s.done(d, "arguments")
	case "custom_tool_call custom_tool_call_input.done":
		return s.done(d, "input")
	case "message content_part.done", "reasoning content_part.done":
		if s.part == nil || !s.partDone || str(obj(d, "part"), "text") != s.text {
			return fmt.Errorf("part is done with %v, the deltas spell %q", d["part"], s.text)
		}
		s.part = nil
		return nil
	case "reasoning reasoning_summary_part.added":
		if s.summary != nil || num(d, "summary_index") != 0 {
			return errors.New("a second summary part")
		}
		s.summary = obj(d, "part")
		return nil
	case "reasoning reasoning_summary_text.delta":
		if s.summary == nil || s.sumDone {
			return errors.New("no summary part is open")
		}
		s.sumText += str(d, "delta")
		return nil
	case "reasoning reasoning_summary_text.done":
		if s.summary == nil || s.sumDone {
			return errors.New("the summary is done twice")
		}
		s.sumDone = true
		if str(d, "text") != s.sumText {
			return fmt.Errorf("the summary is done with %q, the deltas spell %q", str(d, "text"), s.sumText)
		}
		return nil
	case "reasoning reasoning_summary_part.done":
		if s.summary == nil || !s.sumDone || str(obj(d, "part"), "text") != s.sumText {
			return errors.New("the summary part is done with another text")
		}
		s.summary = nil
		return nil
	}
	return fmt.Errorf("does not belong into an item of type %q", str(s.item, "type"))
}

func (s *responsesState) delta(d map[string]any, open bool) error {
	if !open {
		return errors.New("delta of a part that is not open")
	}
	s.text += str(d, "delta")
	return nil
}

func (s *responsesState) done(d map[string]any, field string) error {
	if s.partDone {
		return errors.New("done twice")
	}
	s.partDone = true
	if got := str(d, field); got != s.text {
		return fmt.Errorf("%s is done with %q, the deltas spell %q", field, got, s.text)
	}
	return nil
}

func (s *responsesState) close(it map[string]any) error {
	if s.part != nil || s.summary != nil || !s.partDone {
		return errors.New("the item is done before its parts")
	}
	for _, k := range []string{"id", "type", "call_id", "name", "namespace"} {
		if !reflect.DeepEqual(it[k], s.item[k]) {
			return fmt.Errorf("%s was %v, is now %v", k, s.item[k], it[k])
		}
	}
	text := str(it, "arguments") + str(it, "input")
	for _, c := range list(it, "content") {
		text += str(c, "text")
	}
	if text != s.text {
		return fmt.Errorf("the item holds %q, the deltas spell %q", text, s.text)
	}
	if st := str(it, "status"); st != "completed" && st != "incomplete" {
		return fmt.Errorf("the item is done with status %q", st)
	}
	s.items = append(s.items, it)
	s.item, s.partDone, s.sumDone = nil, false, false
	return nil
}

func (s *responsesState) end(kind string, r map[string]any) error {
	if call := str(s.item, "call_id") != ""; s.item != nil && (!call || s.partDone || kind == "response.completed") {
		// Only a call that was cut off has no end.
		return errors.New("the response ends inside an item")
	}
	if out := list(r, "output"); s.item != nil && len(out) == len(s.items)+1 {
		cut, _ := out[len(s.items)].(map[string]any)
		if str(cut, "status") != "incomplete" {
			return fmt.Errorf("the call that was cut off has status %q", str(cut, "status"))
		}
		s.partDone = true // nothing said so
		if err := s.close(cut); err != nil {
			return err
		}
	}
	status := map[string][]string{"response.completed": {"completed"}, "response.incomplete": {"incomplete", "cancelled"},
		"response.failed": {"failed"}}[kind]
	if st := str(r, "status"); !slices.Contains(status, st) {
		return fmt.Errorf("status %q", st)
	}
	if str(r, "id") != s.id {
		return fmt.Errorf("response id %q, was %q", str(r, "id"), s.id)
	}
	if out := list(r, "output"); len(out) != len(s.items) || (len(out) > 0 && !reflect.DeepEqual(out, s.items)) {
		return fmt.Errorf("output is %v, the items were %v", out, s.items)
	}
	if kind != "response.failed" && obj(r, "usage") == nil && str(r, "status") != "cancelled" {
		return errors.New("no usage")
	}
	if kind == "response.failed" {
		if err := has(obj(r, "error"), "code", "message"); err != nil {
			return err
		}
	}
	s.out.Final, s.out.Terminal = r, kind
	return nil
}
