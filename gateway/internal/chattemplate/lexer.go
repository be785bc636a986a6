package chattemplate

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

type tokenKind uint8

const (
	tokData       tokenKind = iota // text outside tags
	tokBlockBegin                  // {%
	tokBlockEnd
	tokVarBegin // {{
	tokVarEnd
	tokName
	tokString
	tokInt
	tokFloat
	tokOp
	tokEOF
)

type token struct {
	kind tokenKind
	text string // data, name, operator, digits, or the decoded string
	line int
}

// lexer cuts the source into tokens and applies the white-space rules of trim_blocks and lstrip_blocks on the way.
type lexer struct {
	src  string
	pos  int
	line int
	out  []token
	// lineStart says that what was read last ended with a newline, or nothing was read.
	lineStart bool
}

// lex gives the tokens of a template.
func lex(src string) ([]token, error) {
	src = strings.ReplaceAll(src, "\r\n", "\n")
	src = strings.ReplaceAll(src, "\r", "\n")
	src = strings.TrimSuffix(src, "\n") // keep_trailing_newline is off
	l := &lexer{src: src, line: 1, lineStart: true}
	for l.pos < len(l.src) {
		if err := l.outside(); err != nil {
			return nil, err
		}
	}
	l.emit(tokEOF, "")
	return l.out, nil
}

func (l *lexer) emit(k tokenKind, text string) { l.out = append(l.out, token{k, text, l.line}) }

func (l *lexer) fail(format string, args ...any) error { return errorAt(l.line, format, args...) }

// skip moves on by n bytes and counts lines.
func (l *lexer) skip(n int) {
	l.line += strings.Count(l.src[l.pos:l.pos+n], "\n")
	l.pos += n
}

// outside reads text up to the next tag, and the tag.
func (l *lexer) outside() error {
	rest := l.src[l.pos:]
	at := -1
	for i := 0; i+1 < len(rest); i++ {
		n := strings.IndexByte(rest[i:], '{')
		if n < 0 || i+n+1 >= len(rest) {
			break
		}
		i += n
		if c := rest[i+1]; c == '{' || c == '%' || c == '#' {
			at = i
			break
		}
	}
	if at < 0 {
		l.emit(tokData, rest)
		l.skip(len(rest))
		return nil
	}
	kind := rest[at+1]
	text := rest[:at]
	open := 2
	switch {
	case strings.HasPrefix(rest[at+2:], "-"):
		text = strings.TrimRightFunc(text, pySpace)
		open = 3
	case strings.HasPrefix(rest[at+2:], "+"):
		open = 3
	case kind != '{': // lstrip_blocks: white space between the start of the line and a block or comment
		if from := strings.LastIndexByte(text, '\n') + 1; (from > 0 || l.lineStart) &&
			strings.TrimLeftFunc(text[from:], pySpace) == "" {
			text = text[:from]
		}
	}
	if text != "" {
		l.emit(tokData, text)
	}
	l.skip(at)
	switch kind {
	case '#':
		return l.comment(open)
	case '%':
		if ok, err := l.raw(open); ok || err != nil {
			return err
		}
		l.emit(tokBlockBegin, "")
		l.skip(open)
		return l.inside(tokBlockEnd, "%}")
	}
	l.emit(tokVarBegin, "")
	l.skip(open)
	return l.inside(tokVarEnd, "}}")
}

// afterTag applies white-space control after a tag whose closing bytes (from the sign before them) start at l.pos: "-"
// strips all white space, otherwise trim removes one newline unless "+" forbids it.
func (l *lexer) afterTag(n int, minus, trim bool) {
	l.skip(n)
	start := l.pos
	switch {
	case minus:
		rest := l.src[l.pos:]
		l.skip(len(rest) - len(strings.TrimLeftFunc(rest, pySpace)))
	case trim && strings.HasPrefix(l.src[l.pos:], "\n"):
		l.skip(1)
	}
	l.lineStart = l.pos > start && l.src[l.pos-1] == '\n'
}

func (l *lexer) comment(open int) error {
	end := strings.Index(l.src[l.pos+open:], "#}")
	if end < 0 {
		return l.fail("missing end of comment tag")
	}
	end += l.pos + open
	sign := byte(0)
	if end > l.pos+open {
		sign = l.src[end-1]
	}
	l.afterTag(end+2-l.pos, sign == '-', sign != '+')
	return nil
}

// raw handles {% raw %} … {% endraw %}, whose text is not read.
func (l *lexer) raw(open int) (bool, error) {
	body, ok := tagWord(l.src[l.pos+open:], "raw")
	if !ok {
		return false, nil
	}
	minus, _, n := closing(body)
	l.afterTag(len(l.src)-l.pos-len(body)+n, minus, false) // a newline after the opening tag is text
	start := l.pos
	for at := l.pos; ; at += 2 {
		i := strings.Index(l.src[at:], "{%")
		if i < 0 {
			return false, l.fail("missing end of raw directive")
		}
		at += i
		tag := l.src[at+2:]
		signs := strings.TrimPrefix(strings.TrimPrefix(tag, "-"), "+")
		after, ok := tagWord(signs, "endraw")
		if !ok {
			continue
		}
		text := l.src[start:at]
		if strings.HasPrefix(tag, "-") {
			text = strings.TrimRightFunc(text, pySpace)
		} else if from := strings.LastIndexByte(text, '\n') + 1; tag == signs && (from > 0 || l.lineStart) &&
			strings.TrimLeftFunc(text[from:], pySpace) == "" {
			text = text[:from]
		}
		l.emit(tokData, text)
		l.skip(at - l.pos)
		minus, trim, n := closing(after)
		l.afterTag(len(l.src)-l.pos-len(after)+n, minus, trim)
		return true, nil
	}
}

// tagWord reports whether a tag holds just one word, and gives what follows the word and white space: the
// closing signs.
func tagWord(s, word string) (rest string, ok bool) {
	s = strings.TrimLeftFunc(s, pySpace)
	s, ok = strings.CutPrefix(s, word)
	if !ok {
		return "", false
	}
	s = strings.TrimLeftFunc(s, pySpace)
	return s, strings.HasPrefix(s, "%}") || strings.HasPrefix(s, "-%}") || strings.HasPrefix(s, "+%}")
}

// closing reads the closing signs of a block tag.
func closing(s string) (minus, trim bool, n int) {
	switch s[0] {
	case '-':
		return true, false, 3
	case '+':
		return false, false, 3
	}
	return false, true, 2
}

var operators = []string{"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}",
	">", "<", "=", ".", ":", "|", ",", ";"}

// inside reads the tokens of a tag up to its end. Brackets must balance before the end counts: "}}" may close
// two dictionaries.
func (l *lexer) inside(endKind tokenKind, end string) error {
	var open []byte
	for l.pos < len(l.src) {
		rest := l.src[l.pos:]
		r, w := utf8.DecodeRuneInString(rest)
		if pySpace(r) {
			l.skip(w)
			continue
		}
		if len(open) == 0 {
			signed := rest[0] == '-' || (rest[0] == '+' && end == "%}")
			if signed && strings.HasPrefix(rest[1:], end) {
				l.emit(endKind, "")
				l.afterTag(3, rest[0] == '-', false)
				return nil
			}
			if strings.HasPrefix(rest, end) {
				l.emit(endKind, "")
				l.afterTag(2, false, end == "%}")
				return nil
			}
		}
		switch {
		case r == '"' || r == '\'':
			if err := l.str(rest); err != nil {
				return err
			}
		case r >= '0' && r <= '9':
			l.number(rest)
		case r == '_' || unicode.IsLetter(r):
			n := strings.IndexFunc(rest, func(r rune) bool {
				return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.IsMark(r)
			})
			if n < 0 {
				n = len(rest)
			}
			l.emit(tokName, rest[:n])
			l.skip(n)
		default:
			op := ""
			for _, o := range operators {
				if strings.HasPrefix(rest, o) {
					op = o
					break
				}
			}
			if op == "" {
				return l.fail("unexpected character %q", r)
			}
			switch op {
			case "(", "[", "{":
				open = append(open, op[0])
			case ")", "]", "}":
				if len(open) == 0 || open[len(open)-1] != map[string]byte{")": '(', "]": '[', "}": '{'}[op] {
					return l.fail("unexpected %q", op)
				}
				open = open[:len(open)-1]
			}
			l.emit(tokOp, op)
			l.skip(len(op))
		}
	}
	return l.fail("unexpected end of template: tag is not closed with %q", end)
}

// number reads an integer, or a float unless it follows a dot (x.0.1 are two items).
func (l *lexer) number(rest string) {
	digits := func(i int) int {
		for i < len(rest) && (rest[i] >= '0' && rest[i] <= '9' ||
			(rest[i] == '_' && i+1 < len(rest) && rest[i+1] >= '0' && rest[i+1] <= '9')) {
			i++
		}
		return i
	}
	n, kind := digits(0), tokInt
	if last := l.out[len(l.out)-1]; last.kind != tokOp || last.text != "." {
		if n+1 < len(rest) && rest[n] == '.' && rest[n+1] >= '0' && rest[n+1] <= '9' {
			n, kind = digits(n+1), tokFloat
		}
		if n < len(rest) && (rest[n] == 'e' || rest[n] == 'E') {
			i := n + 1
			if i < len(rest) && (rest[i] == '+' || rest[i] == '-') {
				i++
			}
			if e := digits(i); e > i {
				n, kind = e, tokFloat
			}
		}
	}
	l.emit(kind, strings.ReplaceAll(rest[:n], "_", ""))
	l.skip(n)
}

// str reads a quoted string with Python's escapes.
func (l *lexer) str(rest string) error {
	var b strings.Builder
	for i := 1; i < len(rest); i++ {
		c := rest[i]
		if c == rest[0] {
			l.emit(tokString, b.String())
			l.skip(i + 1)
			return nil
		}
		if c != '\\' || i+1 >= len(rest) {
			b.WriteByte(c)
			continue
		}
		i++
		n, ok := escape(rest[i:], &b)
		if !ok {
			return l.fail("bad escape in string")
		}
		i += n - 1
	}
	return l.fail("string is not closed")
}

// escape decodes the escape whose letter s begins with and gives the number of bytes read. Unknown escapes stay as
// they are.
func escape(s string, b *strings.Builder) (int, bool) {
	simple := map[byte]byte{'n': '\n', 't': '\t', 'r': '\r', 'b': '\b', 'f': '\f', 'v': '\v', 'a': '\a',
		'\\': '\\', '\'': '\'', '"': '"'}
	if c, ok := simple[s[0]]; ok {
		b.WriteByte(c)
		return 1, true
	}
	value := func(digits string, base rune) rune {
		v := rune(0)
		for _, d := range digits {
			n := strings.IndexRune("0123456789abcdef", unicode.ToLower(d))
			if n < 0 || rune(n) >= base {
				return -1
			}
			v = v*base + rune(n)
		}
		return v
	}
	switch s[0] {
	case '\n': // line continuation
		return 1, true
	case 'x', 'u', 'U':
		n := map[byte]int{'x': 2, 'u': 4, 'U': 8}[s[0]]
		if len(s) < n+1 {
			return 0, false
		}
		v := value(s[1:n+1], 16)
		if v < 0 || v > unicode.MaxRune {
			return 0, false
		}
		b.WriteRune(v)
		return n + 1, true
	case '0', '1', '2', '3', '4', '5', '6', '7':
		n := 1
		for n < 3 && n < len(s) && s[n] >= '0' && s[n] <= '7' {
			n++
		}
		b.WriteRune(value(s[:n], 8))
		return n, true
	}
	b.WriteByte('\\')
	_, w := utf8.DecodeRuneInString(s)
	b.WriteString(s[:w])
	return w, true
}
