package model

import (
	"slices"
	"strings"

	"github.com/tandem-inference/tandem/gateway/internal/chat"
)

// mostMarks of a conversation are looked for, the last ones: each takes the memory of a state in a worker.
const mostMarks = 4

// Marks returns the positions in the tokens of a conversation's prompt at which its marked messages end, ascending. A
// position may lie up to a header after the message, never before its end as long as the template writes a message the
// same whatever follows; where it does not, up to where it does.
func (m *Model) Marks(c *chat.Conversation, r *Rendered) []int32 {
	var ends []int // in bytes
	whole := ""
	for i := len(c.Messages) - 1; i >= 0 && len(ends) < mostMarks; i-- {
		if !c.Messages[i].CacheMark {
			continue
		}
		part := *c
		part.Messages = c.Messages[:i+1]
		segs, err := m.segments(&part)
		if err != nil {
			continue // the template wants what follows
		}
		if whole == "" {
			whole = r.Text()
		}
		ends = append(ends, common(whole, (&Rendered{Segments: segs}).Text()))
	}
	slices.Sort(ends)
	var marks []int32
	at := 0
	for i := 0; i < len(r.Tokens) && len(ends) > 0; i++ {
		at += len(m.Tokenizer.TokenBytes(r.Tokens[i]))
		for len(ends) > 0 && ends[0] < at {
			marks, ends = append(marks, int32(i)), ends[1:]
		}
	}
	if len(ends) > 0 { // the last message is continued
		marks = append(marks, int32(len(r.Tokens)))
	}
	return slices.Compact(slices.DeleteFunc(marks, func(n int32) bool { return n == 0 }))
}

// common is the number of bytes with which both texts begin.
func common(a, b string) int {
	n := min(len(a), len(b))
	if strings.HasPrefix(a, b[:n]) {
		return n
	}
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}
