package tokenizer

import (
	"sync"
	"unicode"
	"unicode/utf8"
)

// Patterns of the two pre-tokenisers, as in tokenizer.json. The only difference: qwen35 counts combining marks as word
// characters. The matcher below is written by hand because of the look-ahead, which Go's regexp cannot express, and
// because it must be linear; the tests compare it with a full regular-expression engine.
const (
	patternQwen35 = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternQwen2  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// class is the kind of a character that the patterns distinguish. The values are bits so that sets are masks.
type class uint8

const (
	classLetter  class = 1 << iota // category L
	classMark                      // category M
	classNumber                    // category N
	classNewline                   // CR, LF
	classSpace                     // other white space
	classOther                     // everything else, including bytes that are not UTF-8
)

const white = classNewline | classSpace

// splitter cuts text into the pieces of one pattern.
type splitter struct {
	// word holds the classes of word characters.
	word class
	// symbol holds the classes of the fourth alternative: neither white space, word character nor number.
	symbol class
	bmp    *[1 << 16]class
}

// newSplitter finds the matcher for a tokenizer.ggml.pre name.
func newSplitter(pre string) (*splitter, bool) {
	switch pre {
	case "qwen35":
		return &splitter{word: classLetter | classMark, symbol: classOther, bmp: bmpClasses()}, true
	case "qwen2":
		return &splitter{word: classLetter, symbol: classOther | classMark, bmp: bmpClasses()}, true
	}
	return nil, false
}

// bmpClasses is a lookup table for the basic plane (64 KiB), built once: the range tables of package unicode cost a
// binary search per character.
var bmpClasses = sync.OnceValue(func() *[1 << 16]class {
	t := new([1 << 16]class)
	for r := range t {
		t[r] = classify(rune(r))
	}
	return t
})

func classify(r rune) class {
	switch {
	case r == '\r' || r == '\n':
		return classNewline
	case unicode.Is(unicode.White_Space, r):
		return classSpace
	case unicode.IsLetter(r):
		return classLetter
	case unicode.IsMark(r):
		return classMark
	case unicode.IsNumber(r):
		return classNumber
	}
	return classOther
}

// at returns the class and width of the character at s[i]; width 0 and class 0 at the end.
func (p *splitter) at(s string, i int) (class, int) {
	if i >= len(s) {
		return 0, 0
	}
	if b := s[i]; b < utf8.RuneSelf {
		return p.bmp[b], 1
	}
	r, w := utf8.DecodeRuneInString(s[i:])
	if r < 1<<16 {
		return p.bmp[r], w
	}
	return classify(r), w
}

// run returns the end of the longest run from i of characters in set.
func (p *splitter) run(s string, i int, set class) int {
	for {
		c, w := p.at(s, i)
		if c&set == 0 {
			return i
		}
		i += w
	}
}

// next returns the end of the piece that starts at s[i]; i must be inside s. The steps follow the alternatives of
// the pattern.
func (p *splitter) next(s string, i int) int {
	c, w := p.at(s, i)
	if s[i] == '\'' {
		if n := contraction(s[i+1:]); n > 0 {
			return i + 1 + n
		}
	}
	// Word, with one optional leading character that is no newline, letter or number. When that character is itself a mark
	// with nothing after it, the pattern backtracks and the mark alone is the word.
	if c&p.word != 0 {
		return p.run(s, i+w, p.word)
	}
	if c&(classNewline|classLetter|classNumber) == 0 {
		if c2, w2 := p.at(s, i+w); c2&p.word != 0 {
			return p.run(s, i+w+w2, p.word)
		}
	}
	if c == classNumber {
		return i + w
	}
	// Symbols after an optional space, then newlines.
	j := i
	if s[i] == ' ' {
		j++
	}
	if end := p.run(s, j, p.symbol); end > j {
		return p.run(s, end, classNewline)
	}
	return p.space(s, i)
}

// space handles the three white-space alternatives: up to the last newline of the run; else all but the last character
// when something follows; else the run.
func (p *splitter) space(s string, i int) int {
	end, last, newline := i, i, -1
	for {
		c, w := p.at(s, end)
		if c&white == 0 {
			break
		}
		last = end
		end += w
		if c == classNewline {
			newline = end
		}
	}
	switch {
	case newline >= 0:
		return newline
	case end < len(s) && last > i:
		return last
	}
	return end
}

// contraction returns the length of an English contraction at the start of s (after its apostrophe), 0 if there
// is none.
func contraction(s string) int {
	if len(s) == 0 {
		return 0
	}
	switch s[0] | 0x20 {
	case 's', 't', 'm', 'd':
		return 1
	}
	if len(s) < 2 {
		return 0
	}
	switch [2]byte{s[0] | 0x20, s[1] | 0x20} {
	case [2]byte{'r', 'e'}, [2]byte{'v', 'e'}, [2]byte{'l', 'l'}:
		return 2
	}
	return 0
}
