package compress

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxWiden bounds in bytes how far a run grows towards the next whitespace (24 tokens of about 4 bytes): text without
// spaces must not come back whole.
const maxWiden = 96

// run is a part of a segment's text, in bytes.
type run struct{ a, b int }

// runs are the parts of the text that hold the kept tokens, widened to whitespace, in order.
func (s *segment) runs(kept []span) (runs []run) {
	for _, k := range kept {
		a, b := 0, s.ends[k.last-1]
		if k.first > 0 {
			a = s.ends[k.first-1]
		}
		a, b = widenLeft(s.text, a), widenRight(s.text, b)
		if n := len(runs); n > 0 && a <= runs[n-1].b {
			runs[n-1].b = max(runs[n-1].b, b)
			continue
		}
		runs = append(runs, run{a, b})
	}
	return runs
}

// keep returns the text of the kept tokens: their runs, joined by one newline where text is missing.
func (s *segment) keep(kept []span) string {
	runs := s.runs(kept)
	var out strings.Builder
	for i, r := range runs {
		text := s.text[r.a:r.b]
		if i > 0 || r.a > 0 {
			text = strings.TrimLeft(text, "\r\n")
		}
		if i > 0 {
			out.WriteByte('\n')
		}
		if i < len(runs)-1 || r.b < len(s.text) {
			text = strings.TrimRightFunc(text, unicode.IsSpace)
		}
		out.WriteString(text)
	}
	return out.String()
}

// widenLeft moves a back to the start of its word, or to a character's start when no whitespace is near.
func widenLeft(text string, a int) int {
	for a > 0 && a < len(text) && !utf8.RuneStart(text[a]) {
		a--
	}
	if a < len(text) && isSpace(text[a]) {
		return a
	}
	for i := a; i > 0 && a-i <= maxWiden; i-- {
		if isSpace(text[i-1]) {
			return i
		}
	}
	if a <= maxWiden {
		return 0
	}
	return a
}

// widenRight moves b forward to the end of its word, or to a character's end when no whitespace is near.
func widenRight(text string, b int) int {
	for b < len(text) && !utf8.RuneStart(text[b]) {
		b++
	}
	if b > 0 && isSpace(text[b-1]) {
		return b
	}
	for i := b; i < len(text) && i-b <= maxWiden; i++ {
		if isSpace(text[i]) {
			return i
		}
	}
	if len(text)-b <= maxWiden {
		return len(text)
	}
	return b
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }
