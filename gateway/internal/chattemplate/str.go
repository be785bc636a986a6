package chattemplate

import (
	"slices"
	"unicode"
	"unicode/utf8"
)

// span is a range of bytes.
type span struct{ start, end int }

// What values take besides their text, in bytes, about.
const (
	spanBytes = 16 // of a string's marks
	itemBytes = 16 // of a list
	pairBytes = 96 // of a dictionary, with its index
	partBytes = 96 // a string that is an item, with its header and marks
)

// Str is a template string: text, and which bytes of it are a user's. Operations on strings keep that per byte; where
// the origin of a byte cannot be told (a printed list, JSON) the whole result counts as the user's if any part was.
type Str struct {
	s    string
	user []span // ascending, not touching, within s
	// html says that a filter made the text safe for HTML. Only the test "escaped" looks at it: nothing is escaped
	// by itself.
	html bool
}

// Text is text from outside: its bytes never become control tokens.
func Text(s string) Str {
	if s == "" {
		return Str{}
	}
	return Str{s: s, user: []span{{0, len(s)}}}
}

// Trusted is text that may hold control tokens, like the template's own: bos_token and the like.
func Trusted(s string) Str { return Str{s: s} }

// String gives the text.
func (s Str) String() string { return s.s }

func (s Str) tainted() bool { return len(s.user) > 0 }

// slice gives the bytes from a to b.
func (s Str) slice(a, b int) Str {
	out := Str{s: s.s[a:b]}
	// By search, not from the start: splitting a string of many spans into many parts must not be quadratic.
	first, _ := slices.BinarySearchFunc(s.user, a, func(u span, pos int) int { return u.end - pos - 1 })
	for _, u := range s.user[first:] {
		if u.start >= b {
			break
		}
		if lo, hi := max(u.start, a), min(u.end, b); lo < hi {
			out.user = append(out.user, span{lo - a, hi - a})
		}
	}
	return out
}

// like marks text as the user's if tainted is set.
func like(s string, tainted bool) Str {
	if tainted {
		return Text(s)
	}
	return Str{s: s}
}

// strBuilder joins strings and their marks.
type strBuilder struct {
	b    []byte
	user []span
}

func (b *strBuilder) add(s Str) {
	off := len(b.b)
	b.b = append(b.b, s.s...)
	for _, u := range s.user {
		b.mark(off+u.start, off+u.end)
	}
}

func (b *strBuilder) mark(start, end int) {
	if n := len(b.user); n > 0 && b.user[n-1].end == start {
		b.user[n-1].end = end
	} else {
		b.user = append(b.user, span{start, end})
	}
}

func (b *strBuilder) str() Str { return Str{s: string(b.b), user: b.user} }

// size is what the builder holds, in bytes.
func (b *strBuilder) size() int { return len(b.b) + spanBytes*len(b.user) }

// Join joins texts; each keeps its origin.
func Join(parts ...Str) Str {
	var b strBuilder
	for _, p := range parts {
		b.add(p)
	}
	return b.str()
}

// pySpace is Python's str.isspace for one character.
func pySpace(r rune) bool { return unicode.IsSpace(r) || (r >= 0x1c && r <= 0x1f) }

// strip removes leading and trailing characters of a set, white space if set is nil.
func (s Str) strip(set *string, left, right bool) Str {
	in := pySpace
	if set != nil {
		chars := map[rune]bool{}
		for _, r := range *set {
			chars[r] = true
		}
		in = func(r rune) bool { return chars[r] }
	}
	a, b := 0, len(s.s)
	for left && a < b {
		r, w := utf8.DecodeRuneInString(s.s[a:b])
		if !in(r) {
			break
		}
		a += w
	}
	for right && a < b {
		r, w := utf8.DecodeLastRuneInString(s.s[a:b])
		if !in(r) {
			break
		}
		b -= w
	}
	return s.slice(a, b)
}

// mapRunes replaces each character; f sees its index in characters.
func (s Str) mapRunes(f func(i int, r rune) string) Str {
	var b strBuilder
	i, next := 0, 0
	for pos, r := range s.s {
		for next < len(s.user) && s.user[next].end <= pos {
			next++
		}
		user := next < len(s.user) && s.user[next].start <= pos
		b.add(like(f(i, r), user))
		i++
	}
	return b.str()
}

func (s Str) upper() Str { return s.mapRunes(func(_ int, r rune) string { return upperRune(r) }) }
func (s Str) lower() Str {
	return s.mapRunes(func(_ int, r rune) string { return string(unicode.ToLower(r)) })
}

// upperRune maps the one common letter whose capital form is two letters as Python does.
func upperRune(r rune) string {
	if r == 'ß' {
		return "SS"
	}
	return string(unicode.ToUpper(r))
}

func (s Str) capitalize() Str {
	return s.mapRunes(func(i int, r rune) string {
		if i == 0 {
			return string(unicode.ToTitle(r))
		}
		return string(unicode.ToLower(r))
	})
}

// title capitalises after every character for which breaks is true.
func (s Str) title(breaks func(rune) bool) Str {
	start := true
	return s.mapRunes(func(_ int, r rune) string {
		at := start
		start = breaks(r)
		if at {
			return string(unicode.ToTitle(r))
		}
		return string(unicode.ToLower(r))
	})
}

// runeLen is the length in characters, which is what templates count in.
func (s Str) runeLen() int { return utf8.RuneCountInString(s.s) }

// byteAt converts a character index (0 to runeLen) to a byte position.
func (s Str) byteAt(i int) int {
	if len(s.s) == s.runeLen() {
		return i
	}
	pos := 0
	for ; i > 0; i-- {
		_, w := utf8.DecodeRuneInString(s.s[pos:])
		pos += w
	}
	return pos
}

// runes cuts the string into its characters.
func (s Str) runes() []Str {
	out := make([]Str, 0, len(s.s))
	for pos := 0; pos < len(s.s); {
		_, w := utf8.DecodeRuneInString(s.s[pos:])
		out = append(out, s.slice(pos, pos+w))
		pos += w
	}
	return out
}
