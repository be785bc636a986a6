package openai

import (
	"fmt"
	"strconv"

	"github.com/tandem-inference/tandem/gateway/internal/emit"
	"github.com/tandem-inference/tandem/gateway/internal/generate"
	"github.com/tandem-inference/tandem/gateway/internal/jsontext"
	"github.com/tandem-inference/tandem/gateway/internal/sse"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/tokenizer"
)

// chatStream writes a chat answer as events. Events of different choices interleave; the writer orders them.
type chatStream struct {
	closing
	w   *sse.Writer
	tok *tokenizer.Tokenizer
	n   int
	// legacy: calls are the message's function_call.
	legacy bool
	// custom are the calls of custom tools that choices are making. The writer orders their use.
	custom map[int]*customText
}

// customText reads the text of a call of a custom tool.
type customText struct {
	toolcall.InputText
	call *toolcall.Call
}

// Begin implements turn.Stream: the headers and the role chunk of every choice.
func (c *chatStream) Begin() error {
	return c.w.Begin(func(dst []byte) []byte {
		for i := range c.n {
			dst = c.role(dst, i)
		}
		return dst
	})
}

func (c *chatStream) role(dst []byte, index int) []byte {
	dst = c.open(dst, index)
	dst = append(dst, `{"role":"assistant","content":""}`...)
	return c.close(dst, nil)
}

// Ping implements turn.Stream: a chunk that changes nothing.
func (c *chatStream) Ping(dst []byte) []byte { return c.role(dst, 0) }

// open starts the chunk of one choice up to the delta object.
func (c *chatStream) open(dst []byte, index int) []byte {
	dst = append(dst, c.env.head...)
	dst = append(dst, `{"index":`...)
	dst = strconv.AppendInt(dst, int64(index), 10)
	return append(dst, `,"delta":`...)
}

// close ends a chunk that does not finish its choice.
func (c *chatStream) close(dst []byte, entries []emit.Entry) []byte {
	dst = append(dst, `,"logprobs":`...)
	if len(entries) > 0 {
		dst = append(dst, `{"content":[`...)
		dst = turn.AppendEntries(dst, c.tok, entries)
		dst = append(dst, `],"refusal":null}`...)
	} else {
		dst = append(dst, "null"...)
	}
	dst = append(dst, `,"finish_reason":null}`...)
	return c.env.tail(dst)
}

// Admitted implements generate.Sink.
func (c *chatStream) Admitted() error { return c.Begin() }

// Prompt implements generate.Sink; chat has no prompt log-probabilities.
func (c *chatStream) Prompt(int, []*tandemv1.PositionLogprobs) error { return nil }

// Delta implements generate.Sink.
func (c *chatStream) Delta(index int, d generate.Delta) error {
	return c.w.Send(func(dst []byte) []byte {
		for i := range d.Events {
			dst = c.event(dst, index, &d.Events[i])
		}
		return dst
	})
}

// event appends the chunk of one event. A call's end has none, as its arguments were sent, unless a custom tool's text
// is complete only now.
func (c *chatStream) event(dst []byte, index int, ev *emit.Event) []byte {
	field, text := "arguments", ev.Text
	if ev.Call != nil && isCustom(ev.Call) {
		field = "input"
		switch x := c.custom[index]; ev.Kind {
		case emit.ToolStart:
			c.custom[index] = &customText{call: ev.Call}
		case emit.ToolArgs:
			text = x.Add(nil, ev.Text)
		case emit.ToolEnd:
			text = x.End(nil)
			delete(c.custom, index)
		}
	}
	switch {
	case ev.Kind == emit.ToolEnd && (field != "input" || len(text) == 0),
		ev.Kind == emit.ToolArgs && field == "input" && len(text) == 0:
		return dst
	}
	dst = c.open(dst, index)
	switch ev.Kind {
	case emit.Reasoning:
		dst = append(dst, `{"reasoning_content":`...)
		from := len(dst)
		dst = jsontext.AppendString(dst, ev.Text)
		to := len(dst)
		dst = append(dst, `,"reasoning":`...)
		dst = append(dst, dst[from:to]...)
	case emit.Content:
		dst = append(dst, `{"content":`...)
		dst = jsontext.AppendString(dst, ev.Text)
	case emit.ToolStart:
		if c.legacy {
			dst = append(dst, `{"function_call":{"name":`...)
			dst = jsontext.AppendString(dst, ev.Call.Name)
			dst = append(dst, `,"arguments":""}`...)
			break
		}
		dst = openCall(dst, ev.Call)
		dst = append(dst, `,"id":`...)
		dst = jsontext.AppendString(dst, ev.Call.ID)
		kind := "function"
		if field == "input" {
			kind = "custom"
		}
		dst = fmt.Appendf(dst, `,"type":"%s","%s":{"name":`, kind, kind)
		dst = jsontext.AppendString(dst, ev.Call.Name)
		dst = fmt.Appendf(dst, `,"%s":""}}]`, field)
	case emit.ToolArgs, emit.ToolEnd:
		switch {
		case c.legacy:
			dst = append(dst, `{"function_call":{"arguments":`...)
			dst = jsontext.AppendString(dst, text)
			dst = append(dst, '}')
		case field == "input":
			dst = customDelta(dst, ev.Call, text)
		default:
			dst = openCall(dst, ev.Call)
			dst = append(dst, `,"function":{"arguments":`...)
			dst = jsontext.AppendString(dst, text)
			dst = append(dst, `}}]`...)
		}
	}
	dst = append(dst, '}')
	return c.close(dst, ev.Entries)
}

// openCall starts the delta of a tool call.
func openCall(dst []byte, call *toolcall.Call) []byte {
	dst = append(dst, `{"tool_calls":[{"index":`...)
	return strconv.AppendInt(dst, int64(call.Index), 10)
}

// customDelta appends the delta of text of a custom tool's call, but for its end.
func customDelta(dst []byte, call *toolcall.Call, text []byte) []byte {
	dst = openCall(dst, call)
	dst = append(dst, `,"custom":{"input":`...)
	dst = jsontext.AppendString(dst, text)
	return append(dst, `}}]`...)
}

// Done implements generate.Sink.
func (c *chatStream) Done(index int, ch generate.Choice) error {
	return c.w.Send(func(dst []byte) []byte {
		if x := c.custom[index]; x != nil {
			// The limit cut off the call, whose text may wait for its end.
			if text := x.End(nil); len(text) > 0 {
				dst = customDelta(c.open(dst, index), x.call, text)
				dst = c.close(append(dst, '}'), nil)
			}
		}
		dst = c.open(dst, index)
		dst = append(dst, `{},"logprobs":null,"finish_reason":`...)
		dst = jsontext.AppendString(dst, finish(&ch, c.legacy))
		if fd := turn.NewFinishDetails(&ch); fd != nil {
			dst = append(dst, `,"finish_details":`...)
			dst = appendJSON(dst, fd)
		}
		if ch.StopString != "" {
			dst = append(dst, `,"stop_sequence":`...)
			dst = jsontext.AppendString(dst, ch.StopString)
		}
		dst = append(dst, '}')
		return c.env.tail(dst)
	})
}
