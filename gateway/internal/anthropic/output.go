package anthropic

import (
	"encoding/json"
	"strconv"

	"github.com/tandem-inference/tandem/gateway/internal/emit"
	"github.com/tandem-inference/tandem/gateway/internal/jsontext"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
)

// Types of content blocks.
const (
	blockThinking = "thinking"
	blockText     = "text"
	blockToolUse  = "tool_use"
)

// thinkingBlock, textBlock and toolBlock are the blocks of an answer.
type thinkingBlock struct {
	Type      string `json:"type"`
	Thinking  string `json:"thinking"`
	Signature string `json:"signature"`
}

type textBlock struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

type toolBlock struct {
	Type  string          `json:"type"`
	ID    string          `json:"id"`
	Name  string          `json:"name"`
	Input json.RawMessage `json:"input"`
}

// output puts the blocks of an answer together. With events on it also appends the events that tell of each step to
// buf; the blocks are the same with and without.
type output struct {
	sign func(text []byte) string
	// seal, when not nil, makes the signature of thinking blocks whose text is not shown: it holds the text.
	seal   func(text string) string
	events bool
	buf    []byte

	blocks []any
	begun  int       // blocks that were begun
	open   *building // block that is being written, nil between blocks
}

// building is a block that is not complete.
type building struct {
	kind string
	call *toolcall.Call
	text []byte
}

// add takes one event of the generation. Log-probabilities have no place in this dialect.
func (o *output) add(ev *emit.Event) {
	switch ev.Kind {
	case emit.Reasoning:
		o.append(blockThinking, "thinking_delta", "thinking", ev.Text)
	case emit.Content:
		o.append(blockText, "text_delta", "text", ev.Text)
	case emit.ToolStart:
		o.finish()
		o.begin(blockToolUse, ev.Call)
		// The first delta is empty, as clients of the vendor's own service know it.
		o.delta("input_json_delta", "partial_json", nil)
	case emit.ToolArgs:
		o.open.text = append(o.open.text, ev.Text...)
		o.delta("input_json_delta", "partial_json", ev.Text)
	case emit.ToolEnd:
		o.finish()
	}
}

// append adds text to the open block if it is of this kind, else to a new one.
func (o *output) append(kind, delta, field string, text []byte) {
	if len(text) == 0 {
		return
	}
	if o.open == nil || o.open.kind != kind {
		o.finish()
		o.begin(kind, nil)
	}
	o.open.text = append(o.open.text, text...)
	if kind == blockThinking && o.seal != nil {
		return
	}
	o.delta(delta, field, text)
}

// end completes the output: an answer is never without a block. A call that the end cut off is part of it, as far as it
// came.
func (o *output) end() {
	o.finish()
	if len(o.blocks) == 0 {
		o.begin(blockText, nil)
		o.finish()
	}
}

func (o *output) begin(kind string, call *toolcall.Call) {
	o.open = &building{kind: kind, call: call}
	o.begun++
	if !o.events {
		return
	}
	o.start("content_block_start")
	o.index()
	o.buf = append(o.buf, `,"content_block":`...)
	switch kind {
	case blockThinking:
		o.buf = appendJSON(o.buf, thinkingBlock{Type: kind})
	case blockText:
		o.buf = appendJSON(o.buf, textBlock{Type: kind})
	default:
		o.buf = appendJSON(o.buf, toolBlock{Type: kind, ID: call.ID, Name: call.Name, Input: json.RawMessage("{}")})
	}
	o.stop()
}

func (o *output) delta(kind, field string, text []byte) {
	if !o.events {
		return
	}
	o.start("content_block_delta")
	o.index()
	o.buf = append(append(append(o.buf, `,"delta":{"type":"`...), kind...), `","`...)
	o.buf = append(append(o.buf, field...), `":`...)
	o.buf = append(jsontext.AppendString(o.buf, text), '}')
	o.stop()
}

// finish completes the open block, if there is one.
func (o *output) finish() {
	b := o.open
	if b == nil {
		return
	}
	switch b.kind {
	case blockThinking:
		var signature, shown string
		if o.seal != nil {
			signature = o.seal(string(b.text))
		} else {
			signature, shown = o.sign(b.text), string(b.text)
		}
		o.delta("signature_delta", "signature", []byte(signature))
		o.blocks = append(o.blocks, thinkingBlock{b.kind, shown, signature})
	case blockText:
		o.blocks = append(o.blocks, textBlock{b.kind, string(b.text)})
	default:
		o.blocks = append(o.blocks, toolBlock{b.kind, b.call.ID, b.call.Name, inputOf(b.text)})
	}
	o.close()
}

// inputOf is the object of a call's arguments. Those of a call that was cut off are completed, as clients do with the
// parts that streams send.
func inputOf(args []byte) json.RawMessage {
	if json.Valid(args) {
		return args
	}
	whole, ok := toolcall.CompleteObject(string(args))
	if !ok { // nothing of them has come
		return json.RawMessage("{}")
	}
	return json.RawMessage(whole)
}

func (o *output) close() {
	if o.events {
		o.start("content_block_stop")
		o.index()
		o.stop()
	}
	o.open = nil
}

// start opens an event, stop closes it.
func (o *output) start(kind string) {
	o.buf = append(append(o.buf, "event: "...), kind...)
	o.buf = append(append(o.buf, "\ndata: {\"type\":\""...), kind...)
	o.buf = append(o.buf, '"')
}

func (o *output) stop() { o.buf = append(o.buf, "}\n\n"...) }

// index names the open block by its place.
func (o *output) index() {
	o.buf = strconv.AppendInt(append(o.buf, `,"index":`...), int64(o.begun-1), 10)
}

// appendJSON appends v, which is of a type of this package and always marshals.
func appendJSON(dst []byte, v any) []byte {
	b, err := jsontext.Marshal(v)
	if err != nil {
		panic(err)
	}
	return append(dst, b...)
}
