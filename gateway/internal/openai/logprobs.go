package openai

import (
	"bytes"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/tandem-inference/tandem/gateway/internal/emit"
	"github.com/tandem-inference/tandem/gateway/internal/jsontext"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/tokenizer"
)

// classic collects log-probabilities in the shape of legacy completions.
type classic struct {
	tok     *tokenizer.Tokenizer
	offset  int // code points of the choice's text so far
	pending []byte

	tokens, values, top, offsets []byte
	n                            int
}

// add appends a token. known is false for the first prompt token, which has no log-probability.
func (c *classic) add(e emit.Entry, known bool) {
	b := c.tok.TokenBytes(e.ID)
	if c.n > 0 {
		c.tokens, c.values = append(c.tokens, ','), append(c.values, ',')
		c.top, c.offsets = append(c.top, ','), append(c.offsets, ',')
	}
	c.n++
	c.tokens = jsontext.AppendString(c.tokens, spell(b))
	c.offsets = strconv.AppendInt(c.offsets, int64(c.offset), 10)
	c.advance(b)
	if !known {
		c.values, c.top = append(c.values, "null"...), append(c.top, "null"...)
		return
	}
	c.values = jsontext.AppendFloat(c.values, e.Logprob)
	c.top = append(c.top, '{')
	for i, t := range e.Top {
		if i > 0 {
			c.top = append(c.top, ',')
		}
		c.top = jsontext.AppendString(c.top, c.key(e.Top[:i], t.ID))
		c.top = append(c.top, ':')
		c.top = jsontext.AppendFloat(c.top, t.Logprob)
	}
	c.top = append(c.top, '}')
}

// key is the spelling of a candidate in the map. Of tokens that are spelled alike, as the unused ones of a vocabulary
// may be, all but the first have their id in it, so that the map holds as many entries as there are candidates.
func (c *classic) key(before []emit.Candidate, id int32) []byte {
	text := spell(c.tok.TokenBytes(id))
	for _, t := range before {
		if bytes.Equal(text, spell(c.tok.TokenBytes(t.ID))) {
			return strconv.AppendInt([]byte("token_id:"), int64(id), 10)
		}
	}
	return text
}

// spell writes a token as the original API did: its text, or bytes:\xE2\x80 when it holds a part of a character.
func spell(b []byte) []byte {
	if utf8.Valid(b) {
		return b
	}
	out := []byte("bytes:")
	for _, c := range b {
		out = fmt.Appendf(out, `\x%02X`, c)
	}
	return out
}

// advance counts the code points that b completes.
func (c *classic) advance(b []byte) {
	c.pending = append(c.pending, b...)
	for len(c.pending) > 0 && utf8.FullRune(c.pending) {
		_, n := utf8.DecodeRune(c.pending)
		c.pending = c.pending[n:]
		c.offset++
	}
}

// take appends the object and starts again; offsets go on.
func (c *classic) take(dst []byte) []byte {
	dst = append(dst, `{"tokens":[`...)
	dst = append(dst, c.tokens...)
	dst = append(dst, `],"token_logprobs":[`...)
	dst = append(dst, c.values...)
	dst = append(dst, `],"top_logprobs":[`...)
	dst = append(dst, c.top...)
	dst = append(dst, `],"text_offset":[`...)
	dst = append(dst, c.offsets...)
	c.tokens, c.values, c.top, c.offsets, c.n = c.tokens[:0], c.values[:0], c.top[:0], c.offsets[:0], 0
	return append(dst, ']', '}')
}

// promptEntry converts the log-probabilities of one prompt token.
func promptEntry(id int32, p *tandemv1.PositionLogprobs) emit.Entry {
	e := emit.Entry{Candidate: emit.Candidate{ID: id, Logprob: max(-9999, float64(p.GetLogprob()))}}
	for _, t := range p.GetTop() {
		e.Top = append(e.Top, emit.Candidate{ID: t.GetToken(), Logprob: max(-9999, float64(t.GetLogprob()))})
	}
	return e
}
