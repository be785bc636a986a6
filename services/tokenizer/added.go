package tokenizer

import (
	"cmp"
	"slices"
	"strings"
)

// addedToken is a token that is recognised by its literal text, before any splitting.
type addedToken struct {
	text    string
	id      int32
	control bool // recognised only where special parsing is on
}

// addedSet finds added tokens in text.
type addedSet struct {
	// byFirst lists the tokens that start with a byte, longest first.
	byFirst [256][]addedToken
	// only is the common first byte of all tokens when there is one ('<' in all published vocabularies), for a
	// fast search.
	only   byte
	single bool
	empty  bool
}

func newAddedSet(tokens []addedToken) *addedSet {
	s := &addedSet{empty: len(tokens) == 0, single: len(tokens) > 0}
	for _, t := range tokens {
		if s.only == 0 {
			s.only = t.text[0]
		}
		s.single = s.single && t.text[0] == s.only
		s.byFirst[t.text[0]] = append(s.byFirst[t.text[0]], t)
	}
	for i := range s.byFirst {
		slices.SortFunc(s.byFirst[i], func(a, b addedToken) int {
			return cmp.Or(cmp.Compare(len(b.text), len(a.text)), cmp.Compare(a.id, b.id))
		})
	}
	return s
}

// find returns the leftmost, then longest added token at or after from; end is -1 when there is none. A control token
// counts only when it lies wholly inside one span of special text.
func (s *addedSet) find(text string, from int, special *spanCursor) (start, end int, id int32) {
	if s.empty {
		return -1, -1, 0
	}
	for i := from; i < len(text); i++ {
		if s.single {
			n := strings.IndexByte(text[i:], s.only)
			if n < 0 {
				break
			}
			i += n
		}
		for _, t := range s.byFirst[text[i]] {
			if strings.HasPrefix(text[i:], t.text) && (!t.control || i+len(t.text) <= special.endAt(i)) {
				return i, i + len(t.text), t.id
			}
		}
	}
	return -1, -1, 0
}

// span is a range of bytes.
type span struct{ start, end int }

// spanCursor answers, for positions that never go back, where the special text around a position ends.
type spanCursor struct {
	spans []span // ascending, not touching
}

// endAt returns the end of the span that holds pos, or pos itself when it is in none.
func (c *spanCursor) endAt(pos int) int {
	for len(c.spans) > 0 && c.spans[0].end <= pos {
		c.spans = c.spans[1:]
	}
	if len(c.spans) > 0 && c.spans[0].start <= pos {
		return c.spans[0].end
	}
	return pos
}
