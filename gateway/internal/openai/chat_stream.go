package openai

import (
	"strconv"

	"github.com/tandem-inference/tandem/gateway/internal/emit"
	"github.com/tandem-inference/tandem/gateway/internal/generate"
	"github.com/tandem-inference/tandem/gateway/internal/jsontext"
	"github.com/tandem-inference/tandem/gateway/internal/sse"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/tokenizer"
)

// chatStream writes a chat answer as events. Events of different choices interleave; the writer orders them.
type chatStream struct {
	env *envelope
	w   *sse.Writer
	tok *tokenizer.Tokenizer
	n   int
}

// begin sends the headers and the role chunk of every choice.
func (c *chatStream) begin() error {
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

// ping is the keep-alive: a chunk that changes nothing.
func (c *chatStream) ping(dst []byte) []byte { return c.role(dst, 0) }

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
		dst = appendEntries(dst, c.tok, entries)
		dst = append(dst, `],"refusal":null}`...)
	} else {
		dst = append(dst, "null"...)
	}
	dst = append(dst, `,"finish_reason":null}`...)
	return c.env.tail(dst)
}

// Admitted implements generate.Sink.
func (c *chatStream) Admitted() error { return c.begin() }

// Prompt implements generate.Sink; chat has no prompt log-probabilities.
func (c *chatStream) Prompt(int, []*tandemv1.PositionLogprobs) error { return nil }

// Delta implements generate.Sink.
func (c *chatStream) Delta(index int, d generate.Delta) error {
	return c.w.Send(func(dst []byte) []byte {
		if len(d.Reasoning) > 0 {
			dst = c.open(dst, index)
			dst = append(dst, `{"reasoning_content":`...)
			from := len(dst)
			dst = jsontext.AppendString(dst, d.Reasoning)
			to := len(dst)
			dst = append(dst, `,"reasoning":`...)
			dst = append(dst, dst[from:to]...)
			dst = append(dst, '}')
			dst = c.close(dst, nil)
		}
		if len(d.Content) > 0 || len(d.Entries) > 0 {
			dst = c.open(dst, index)
			dst = append(dst, `{"content":`...)
			dst = jsontext.AppendString(dst, d.Content)
			dst = append(dst, '}')
			dst = c.close(dst, d.Entries)
		}
		return dst
	})
}

// Done implements generate.Sink.
func (c *chatStream) Done(index int, ch generate.Choice) error {
	return c.w.Send(func(dst []byte) []byte {
		dst = c.open(dst, index)
		dst = append(dst, `{},"logprobs":null,"finish_reason":`...)
		dst = jsontext.AppendString(dst, ch.Finish)
		if fd := newFinishDetails(&ch); fd != nil {
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
