package compress

import (
	"fmt"
	"strings"

	"github.com/tandem-inference/tandem/gateway/internal/chat"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/tokenizer"
	"golang.org/x/text/unicode/norm"
)

// span is a half-open range of token positions.
type span struct{ first, last int }

func (s *span) proto() *tandemv1.Span {
	if s == nil {
		return nil
	}
	return &tandemv1.Span{First: int32(s.first), Last: int32(s.last)}
}

// segment is the text of one message that may be shortened.
type segment struct {
	message int
	span    span
	text    string
	ends    []int // byte offset in text after each token
}

// document is a prompt in the scorer's tokens.
type document struct {
	tokens       []int32
	segments     []*segment
	query        *span // last user turn
	compressible int
}

// newDocument cuts the rendered prompt at the message texts that matter and tokenises the pieces. A text that the
// template changed cannot be found and stays whole.
func newDocument(tok *tokenizer.Tokenizer, prompt string, conv *chat.Conversation) *document {
	d := &document{}
	last := lastUser(conv.Messages)
	rest := prompt
	for i, m := range conv.Messages {
		if i != last && (i > last || !shortenable(m) || len(m.Content) < minSegment) {
			continue
		}
		text := strings.TrimSpace(m.Content)
		at := strings.Index(rest, text)
		if i == last {
			// The question may be a word that also stands further up.
			at = strings.LastIndex(rest, text)
		}
		if text == "" || at < 0 {
			continue
		}
		s := newSegment(tok, i, text)
		if s == nil || (i != last && len(s.ends) < minSegment) {
			continue
		}
		d.add(tok.Encode(rest[:at], tokenizer.Options{ParseSpecial: true}))
		rest = rest[at+len(text):]
		s.span = d.add(tok.Encode(s.text, tokenizer.Options{}))
		if i == last {
			q := s.span
			d.query = &q
			if len(s.ends) < longTurn {
				continue
			}
		}
		d.segments = append(d.segments, s)
		d.compressible += len(s.ends)
	}
	d.add(tok.Encode(rest, tokenizer.Options{ParseSpecial: true}))
	return d
}

// add appends tokens and returns where they lie.
func (d *document) add(ids []int32) span {
	s := span{first: len(d.tokens)}
	d.tokens = append(d.tokens, ids...)
	s.last = len(d.tokens)
	return s
}

// lastUser is the index of the last user message, len(msgs) when there is none. What follows it is the last tool round.
func lastUser(msgs []chat.Message) int {
	for i := len(msgs) - 1; i >= 0; i-- {
		if msgs[i].Role == chat.RoleUser {
			return i
		}
	}
	return len(msgs)
}

// shortenable: system text and turns with tool calls are never shortened.
func shortenable(m chat.Message) bool {
	return m.Role != chat.RoleSystem && len(m.ToolCalls) == 0
}

// newSegment notes where each token ends in the text. The tokenizer sees text in normal form C, so the segment has that
// form too. It returns nil when tokens and text do not match byte for byte.
func newSegment(tok *tokenizer.Tokenizer, message int, text string) *segment {
	s := &segment{message: message, text: norm.NFC.String(text)}
	at := 0
	for _, id := range tok.Encode(s.text, tokenizer.Options{}) {
		at += len(tok.TokenBytes(id))
		s.ends = append(s.ends, at)
	}
	if at != len(s.text) {
		return nil
	}
	return s
}

// mostScoreMS bounds what a scorer may say that it took: a day.
const mostScoreMS = 24 * 3600 * 1000

// read checks a scorer's answer and makes its spans relative to their segments.
func (d *document) read(resp *tandemv1.CompressResponse) ([][]span, error) {
	if len(resp.GetSegments()) != len(d.segments) {
		return nil, fmt.Errorf("scorer answered %d segments for %d", len(resp.GetSegments()), len(d.segments))
	}
	if ms := resp.GetScoreMs(); !(ms >= 0 && ms < mostScoreMS) {
		return nil, fmt.Errorf("scorer says that it took %v ms", ms)
	}
	out := make([][]span, len(d.segments))
	for i, k := range resp.GetSegments() {
		s := d.segments[i]
		at := s.span.first
		for _, p := range k.GetKept() {
			first, last := int(p.GetFirst()), int(p.GetLast())
			if first < at || last <= first || last > s.span.last {
				return nil, fmt.Errorf("scorer kept tokens %d to %d outside or out of order in segment %d", first, last, i)
			}
			at = last
			out[i] = append(out[i], span{first - s.span.first, last - s.span.first})
		}
	}
	return out, nil
}
