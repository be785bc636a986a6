package responses

import (
	"encoding/json"
	"strconv"

	"github.com/tandem-inference/tandem/gateway/internal/emit"
	"github.com/tandem-inference/tandem/gateway/internal/jsontext"
	"github.com/tandem-inference/tandem/gateway/internal/seal"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
)

// outputOptions say what items carry.
type outputOptions struct {
	// summary fills the summary of reasoning items, with the whole text.
	summary bool
	// sealed, when not nil, fills encrypted_content.
	sealed *seal.Sealer
	// logprobs keeps the entries of visible text; entries appends them as JSON, separated by commas.
	logprobs bool
	entries  func(dst []byte, entries []emit.Entry) []byte
	// newID makes an id with a prefix.
	newID func(prefix string) string
}

// output puts the items of an answer together. With events on it also appends the events that tell of each step to buf;
// the items are the same with and without.
type output struct {
	outputOptions
	events bool
	buf    []byte
	seq    int // of the next event

	items []any
	open  *building // item that is being written, nil between items
}

// building is an item that is not complete.
type building struct {
	kind, id string
	call     *toolcall.Call
	text     []byte
	logprobs []byte
	input    toolcall.InputText // of a custom tool's call
}

// add takes one event of the generation.
func (o *output) add(ev *emit.Event) {
	switch ev.Kind {
	case emit.Reasoning:
		if len(ev.Text) > 0 {
			o.at(itemReasoning)
			o.reasoning(ev.Text)
		}
	case emit.Content:
		if len(ev.Text) > 0 || (o.open != nil && o.open.kind == itemMessage && len(ev.Entries) > 0) {
			o.at(itemMessage)
			o.content(ev.Text, ev.Entries)
		}
	case emit.ToolStart:
		o.finish(statusCompleted)
		o.begin(kindOf(ev.Call), ev.Call)
	case emit.ToolArgs:
		o.arguments(ev.Text)
	case emit.ToolEnd:
		o.finish(statusCompleted)
	}
}

// kindOf tells a custom tool's call from a function's.
func kindOf(c *toolcall.Call) string {
	if c.Tool != nil && c.Tool.Kind == toolcall.Custom {
		return itemCustom
	}
	return itemCall
}

// end completes the output. A completed answer without any visible part gets an empty message. What the end cut off is
// incomplete; a call that it cut off has no events of an end of its own: clients run what they are told is done.
func (o *output) end(status string) {
	if b := o.open; b != nil && b.call != nil {
		o.inputEnd()
		o.items = append(o.items, b.shape(statusIncomplete, &o.outputOptions))
		o.open = nil
	}
	if status != statusCompleted {
		o.finish(statusIncomplete)
		return
	}
	o.finish(statusCompleted)
	for _, it := range o.items {
		if _, ok := it.(*reasoningItem); !ok {
			return
		}
	}
	o.begin(itemMessage, nil)
	o.finish(statusCompleted)
}

// at makes the open item one of this kind.
func (o *output) at(kind string) {
	if o.open == nil || o.open.kind != kind {
		o.finish(statusCompleted)
		o.begin(kind, nil)
	}
}

var idPrefix = map[string]string{itemReasoning: "rs_", itemMessage: "msg_", itemCall: "fc_", itemCustom: "ctc_"}

func (o *output) begin(kind string, call *toolcall.Call) {
	o.open = &building{kind: kind, id: o.newID(idPrefix[kind]), call: call}
	if !o.events {
		return
	}
	o.start("response.output_item.added")
	o.index()
	o.buf = appendJSON(append(o.buf, `,"item":`...), o.open.shape(statusInProgress, &o.outputOptions))
	o.stop()
	switch kind {
	case itemMessage:
		o.part("response.content_part.added", outputPart{Type: "output_text", Annotations: []any{}, Logprobs: emptyList})
	case itemReasoning:
		if o.summary {
			o.summaryEvent("response.reasoning_summary_part.added")
			o.buf = appendJSON(append(o.buf, `,"part":`...), textPart{Type: "summary_text"})
			o.stop()
		}
		o.part("response.content_part.added", textPart{Type: "reasoning_text"})
	}
}

func (o *output) reasoning(text []byte) {
	o.open.text = append(o.open.text, text...)
	if !o.events {
		return
	}
	if o.summary {
		o.summaryEvent("response.reasoning_summary_text.delta")
		o.field("delta", text)
		o.stop()
	}
	o.inPart("response.reasoning_text.delta")
	o.field("delta", text)
	o.stop()
}

func (o *output) content(text []byte, entries []emit.Entry) {
	b := o.open
	b.text = append(b.text, text...)
	from := 0
	if o.logprobs && len(entries) > 0 {
		if from = len(b.logprobs); from > 0 {
			b.logprobs = append(b.logprobs, ',')
			from++
		}
		b.logprobs = o.entries(b.logprobs, entries)
	}
	if !o.events {
		return
	}
	o.inPart("response.output_text.delta")
	o.field("delta", text)
	o.buf = append(o.buf, `,"logprobs":[`...)
	if o.logprobs && len(entries) > 0 {
		o.buf = append(o.buf, b.logprobs[from:]...)
	}
	o.buf = append(o.buf, ']')
	o.stop()
}

func (o *output) arguments(fragment []byte) {
	b := o.open
	from := len(b.text)
	kind := "response.function_call_arguments.delta"
	if b.kind == itemCustom {
		kind = "response.custom_tool_call_input.delta"
		b.text = b.input.Add(b.text, fragment)
	} else {
		b.text = append(b.text, fragment...)
	}
	o.argumentsDelta(kind, b.text[from:])
}

// inputEnd completes the text of a custom tool's call.
func (o *output) inputEnd() {
	b := o.open
	if b.kind != itemCustom {
		return
	}
	from := len(b.text)
	b.text = b.input.End(b.text)
	o.argumentsDelta("response.custom_tool_call_input.delta", b.text[from:])
}

func (o *output) argumentsDelta(kind string, text []byte) {
	if !o.events || len(text) == 0 {
		return
	}
	o.inItem(kind)
	o.field("delta", text)
	o.stop()
}

// finish completes the open item, if there is one.
func (o *output) finish(status string) {
	b := o.open
	if b == nil {
		return
	}
	o.inputEnd()
	shape := b.shape(status, &o.outputOptions)
	if o.events {
		o.done(shape)
	}
	o.items = append(o.items, shape)
	o.open = nil
}

// done appends the events that close the open item.
func (o *output) done(shape any) {
	b := o.open
	switch it := shape.(type) {
	case *messageItem:
		o.inPart("response.output_text.done")
		o.field("text", b.text)
		o.buf = append(append(o.buf, `,"logprobs":`...), it.Content[0].Logprobs...)
		o.stop()
		o.part("response.content_part.done", it.Content[0])
	case *reasoningItem:
		o.inPart("response.reasoning_text.done")
		o.field("text", b.text)
		o.stop()
		o.part("response.content_part.done", it.Content[0])
		if o.summary {
			o.summaryEvent("response.reasoning_summary_text.done")
			o.field("text", b.text)
			o.stop()
			o.summaryEvent("response.reasoning_summary_part.done")
			o.buf = appendJSON(append(o.buf, `,"part":`...), it.Summary[0])
			o.stop()
		}
	case *callItem:
		o.inItem("response.function_call_arguments.done")
		o.field("arguments", b.text)
		o.field("name", []byte(it.Name))
		o.stop()
	case *customItem:
		o.inItem("response.custom_tool_call_input.done")
		o.field("input", b.text)
		o.stop()
	}
	o.start("response.output_item.done")
	o.index()
	o.buf = appendJSON(append(o.buf, `,"item":`...), shape)
	o.stop()
}

var emptyList = json.RawMessage("[]")

// shape is the item as clients see it. In progress it has no content yet.
func (b *building) shape(status string, opt *outputOptions) any {
	fresh := status == statusInProgress
	switch b.kind {
	case itemReasoning:
		it := &reasoningItem{ID: b.id, Type: b.kind, Status: status, Summary: []textPart{}, Content: []textPart{}}
		if fresh {
			return it
		}
		text := string(b.text)
		it.Content = append(it.Content, textPart{"reasoning_text", text})
		if opt.summary {
			it.Summary = append(it.Summary, textPart{"summary_text", text})
		}
		if opt.sealed != nil {
			it.Encrypted = opt.sealed.Seal(text)
		}
		return it
	case itemMessage:
		it := &messageItem{ID: b.id, Type: b.kind, Status: status, Role: "assistant", Content: []outputPart{}}
		if !fresh {
			logprobs := append(append([]byte{'['}, b.logprobs...), ']')
			it.Content = append(it.Content,
				outputPart{Type: "output_text", Text: string(b.text), Annotations: []any{}, Logprobs: logprobs})
		}
		return it
	}
	name, namespace := b.call.Name, ""
	if t := b.call.Tool; t != nil && t.Namespace != "" {
		name, namespace = t.Local, t.Namespace
	}
	if b.kind == itemCustom {
		return &customItem{ID: b.id, Type: b.kind, Status: status, CallID: b.call.ID, Name: name,
			Namespace: namespace, Input: string(b.text)}
	}
	return &callItem{ID: b.id, Type: b.kind, Status: status, CallID: b.call.ID, Name: name, Namespace: namespace,
		Arguments: string(b.text)}
}

// The following append the pieces of events to buf.

// start opens an event.
func (o *output) start(kind string) {
	o.buf = append(append(o.buf, "event: "...), kind...)
	o.buf = append(append(o.buf, "\ndata: {\"type\":\""...), kind...)
	o.buf = append(o.buf, `","sequence_number":`...)
	o.buf = strconv.AppendInt(o.buf, int64(o.seq), 10)
	o.seq++
}

// stop closes it.
func (o *output) stop() { o.buf = append(o.buf, "}\n\n"...) }

func (o *output) field(name string, text []byte) {
	o.buf = append(append(append(o.buf, `,"`...), name...), `":`...)
	o.buf = jsontext.AppendString(o.buf, text)
}

// index names the open item by its place.
func (o *output) index() {
	o.buf = strconv.AppendInt(append(o.buf, `,"output_index":`...), int64(len(o.items)), 10)
}

// inItem opens an event of the open item.
func (o *output) inItem(kind string) {
	o.start(kind)
	o.buf = append(append(append(o.buf, `,"item_id":"`...), o.open.id...), '"')
	o.index()
}

// inPart opens an event of the open item's one content part.
func (o *output) inPart(kind string) {
	o.inItem(kind)
	o.buf = append(o.buf, `,"content_index":0`...)
}

// part appends an event that carries the part.
func (o *output) part(kind string, part any) {
	o.inPart(kind)
	o.buf = appendJSON(append(o.buf, `,"part":`...), part)
	o.stop()
}

// summaryEvent opens an event of the open item's one summary part.
func (o *output) summaryEvent(kind string) {
	o.inItem(kind)
	o.buf = append(o.buf, `,"summary_index":0`...)
}

// response appends an event that carries the whole response.
func (o *output) response(kind string, obj *object) {
	o.start(kind)
	o.buf = appendJSON(append(o.buf, `,"response":`...), obj)
	o.stop()
}
