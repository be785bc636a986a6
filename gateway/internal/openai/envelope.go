package openai

import (
	"strconv"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/apierror"
	"github.com/tandem-inference/tandem/gateway/internal/generate"
	"github.com/tandem-inference/tandem/gateway/internal/jsontext"
)

// envelope is what all objects of one answer share.
type envelope struct {
	id          string
	created     int64
	model       string
	fingerprint string
	opts        streamOptions
	// head is the start of every stream chunk, up to and including the "choices":[ bracket.
	head []byte
}

func newEnvelope(id, object, model, fingerprint string, opts streamOptions) *envelope {
	e := &envelope{id: id, created: time.Now().Unix(), model: model, fingerprint: fingerprint, opts: opts}
	h := append([]byte(nil), `data: {"id":`...)
	h = jsontext.AppendString(h, id)
	h = append(h, `,"object":`...)
	h = jsontext.AppendString(h, object)
	h = append(h, `,"created":`...)
	h = strconv.AppendInt(h, e.created, 10)
	h = append(h, `,"model":`...)
	h = jsontext.AppendString(h, model)
	h = append(h, `,"system_fingerprint":`...)
	h = jsontext.AppendString(h, fingerprint)
	e.head = append(h, `,"choices":[`...)
	return e
}

// tail ends a chunk with choices.
func (e *envelope) tail(dst []byte) []byte {
	dst = append(dst, ']')
	if e.opts.usageNull {
		dst = append(dst, `,"usage":null`...)
	}
	return append(dst, "}\n\n"...)
}

// closing is how streams of the dialect end.
type closing struct{ env *envelope }

// End implements turn.Stream: the usage chunk, when it is wanted, and the end mark.
func (c closing) End(dst []byte, u *generate.Usage) []byte {
	if c.env.opts.usage {
		dst = append(dst, c.env.head...)
		dst = append(dst, `],"usage":`...)
		dst = appendJSON(dst, NewUsage(u))
		dst = append(dst, "}\n\n"...)
	}
	return append(dst, done...)
}

const done = "data: [DONE]\n\n"

// Fail implements turn.Stream: an error event and the end mark.
func (c closing) Fail(dst []byte, err error) []byte {
	dst = append(dst, "data: "...)
	dst = append(dst, apierror.From(err).OpenAI()...)
	dst = append(dst, "\n\n"...)
	return append(dst, done...)
}

// appendJSON appends v, which is of a type of this package and always marshals.
func appendJSON(dst []byte, v any) []byte {
	b, err := jsontext.Marshal(v)
	if err != nil {
		panic(err)
	}
	return append(dst, b...)
}
