package tokenizer

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// graphemeJoiner is what package norm inserts into runs of more than 30 combining marks ("stream-safe" text).
// Tokenizers do not do that, so such text takes nfcPlain.
const graphemeJoiner = "\u034f"

// nfc brings s into Unicode normal form C.
func nfc(s string) string {
	ascii := true
	for i := range len(s) {
		if s[i] >= 0x80 {
			ascii = false
			break
		}
	}
	if ascii || norm.NFC.IsNormalString(s) {
		return s
	}
	out := norm.NFC.String(s)
	if strings.Count(out, graphemeJoiner) == strings.Count(s, graphemeJoiner) {
		return out
	}
	return nfcPlain(s)
}

// mark is a character with its canonical combining class in the upper byte, so that long runs of marks take 4
// bytes each.
type mark uint32

// notUTF8 added to a byte stands for that byte where it is part of no character.
const notUTF8 = utf8.MaxRune + 1

// char returns the character, or notUTF8 and a byte.
func (m mark) char() rune { return rune(m & 0xFFFFFF) }

// class returns the canonical combining class, 0 for starters.
func (m mark) class() int { return int(m >> 24) }

// appendTo appends the text of m.
func (m mark) appendTo(b []byte) []byte {
	if c := m.char(); c >= notUTF8 {
		return append(b, byte(c-notUTF8))
	}
	return utf8.AppendRune(b, m.char())
}

// appendMarks appends the characters of s as they are.
func appendMarks(ms []mark, s []byte) []mark {
	for len(s) > 0 {
		r, n := utf8.DecodeRune(s)
		if r == utf8.RuneError && n == 1 {
			r = notUTF8 + rune(s[0])
		}
		ms = append(ms, mark(r)|mark(norm.NFC.Properties(s).CCC())<<24)
		s = s[n:]
	}
	return ms
}

// nfcPlain is the textbook algorithm (decompose, order, compose) without a limit on the length of mark runs. It takes
// its data from package norm and is only used where that package would insert characters. It works segment by segment:
// no character combines across a segment's ends.
func nfcPlain(s string) string {
	out := make([]byte, 0, len(s))
	var marks, spare []mark
	var plain []byte // one character, decomposed
	for len(s) > 0 {
		n := segment(s)
		marks = marks[:0]
		for rest := s[:n]; len(rest) > 0; {
			r, size := utf8.DecodeRuneInString(rest)
			plain = append(plain[:0], rest[:size]...)
			if d := norm.NFC.PropertiesString(rest).Decomposition(); d != nil {
				plain = append(plain[:0], d...)
			} else if unicode.Is(unicode.Hangul, r) { // its syllables have an algorithm instead of a table
				plain = norm.NFD.AppendString(plain[:0], rest[:size])
			}
			marks = appendMarks(marks, plain)
			rest = rest[size:]
		}
		spare = slices.Grow(spare[:0], len(marks))[:len(marks)]
		order(marks, spare)
		for _, m := range compose(marks) {
			out = m.appendTo(out)
		}
		s = s[n:]
	}
	return string(out)
}

// segment returns the length of the first segment of s: up to the next character that combines with nothing before it.
func segment(s string) int {
	for i := 0; i < len(s); {
		_, n := utf8.DecodeRuneInString(s[i:])
		if i > 0 && (n == 1 || norm.NFC.PropertiesString(s[i:]).BoundaryBefore()) {
			return i
		}
		i += n
	}
	return len(s)
}

// order sorts each run of marks by class, marks of one class as they stand. spare has the length of ms.
func order(ms, spare []mark) {
	for i := 0; i < len(ms); {
		j := i
		for j < len(ms) && ms[j].class() != 0 {
			j++
		}
		if j-i < 2 {
			i = j + 1
			continue
		}
		var at [256]int // by class: how many there are, then where the next one goes
		for _, m := range ms[i:j] {
			at[m.class()]++
		}
		sum := i
		for class, n := range at {
			at[class], sum = sum, sum+n
		}
		for _, m := range ms[i:j] {
			spare[at[m.class()]] = m
			at[m.class()]++
		}
		copy(ms[i:j], spare[i:j])
		i = j + 1
	}
}

// compose joins characters with the starter before them where there is a character for both, in place.
func compose(ms []mark) []mark {
	starter := -1 // index into out of the last starter
	out := ms[:0]
	lastClass := -1 // class of the last character kept after the starter, -1 directly after it
	var pair, joined []byte
	for _, m := range ms {
		if starter >= 0 && lastClass < m.class() {
			pair = m.appendTo(out[starter].appendTo(pair[:0]))
			joined = norm.NFC.Append(joined[:0], pair...)
			if r, n := utf8.DecodeRune(joined); n > 1 && n == len(joined) {
				out[starter] = mark(r)
				continue
			}
		}
		out = append(out, m)
		if m.class() == 0 {
			starter, lastClass = len(out)-1, -1
		} else {
			lastClass = m.class()
		}
	}
	return out
}
