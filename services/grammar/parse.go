package grammar

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Parse reads a grammar. Faults are *Error.
func Parse(text string) (s *Syntax, err error) {
	p := &parser{text: text, syntax: &Syntax{names: map[string]int{}, text: text}}
	defer func() {
		if r := recover(); r != nil {
			e, ok := r.(*Error)
			if !ok {
				panic(r)
			}
			s, err = nil, e
		}
	}()
	switch {
	case len(text) > MaxText:
		return nil, &Error{1, 1, fmt.Sprintf("the text has %d bytes, at most %d are allowed", len(text), MaxText)}
	case !utf8.ValidString(text):
		p.pos = strings.IndexRune(text, utf8.RuneError)
		for i, r := range text {
			if r == utf8.RuneError && !strings.HasPrefix(text[i:], "\uFFFD") {
				p.pos = i
				break
			}
		}
		p.fail("is not UTF-8")
	}
	p.space(true)
	for p.pos < len(p.text) {
		p.rule()
		p.space(true)
	}
	return p.finish(), nil
}

// parser is a recursive descent; faults unwind it by panic.
type parser struct {
	text   string
	pos    int
	depth  int
	syntax *Syntax
	used   []int // offset of the first use of each rule
}

func (p *parser) fail(format string, args ...any) { p.failAt(p.pos, format, args...) }

func (p *parser) failAt(at int, format string, args ...any) {
	panic(faultAt(p.text, at, fmt.Sprintf(format, args...)))
}

// faultAt names the line and column of an offset.
func faultAt(text string, at int, message string) *Error {
	before := text[:at]
	start := strings.LastIndexByte(before, '\n') + 1
	return &Error{strings.Count(before, "\n") + 1, utf8.RuneCountInString(before[start:]) + 1, message}
}

func (p *parser) peek() byte {
	if p.pos < len(p.text) {
		return p.text[p.pos]
	}
	return 0
}

func (p *parser) has(prefix string) bool { return strings.HasPrefix(p.text[p.pos:], prefix) }

func (p *parser) accept(prefix string) bool {
	if p.has(prefix) {
		p.pos += len(prefix)
		return true
	}
	return false
}

func (p *parser) expect(what string) {
	if !p.accept(what) {
		p.fail("expected %q", what)
	}
}

// space skips blanks and comments, and with newlines also line ends.
func (p *parser) space(newlines bool) {
	for p.pos < len(p.text) {
		switch c := p.text[p.pos]; {
		case c == ' ' || c == '\t':
			p.pos++
		case c == '#':
			n := strings.IndexAny(p.text[p.pos:], "\r\n")
			if n < 0 {
				p.pos = len(p.text)
				return
			}
			p.pos += n
		case newlines && (c == '\n' || c == '\r'):
			p.pos++
		default:
			return
		}
	}
}

func wordByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_'
}

func (p *parser) name() string {
	start := p.pos
	for p.pos < len(p.text) && wordByte(p.text[p.pos]) {
		p.pos++
	}
	if p.pos == start {
		p.fail("expected a rule name")
	}
	return p.text[start:p.pos]
}

// index of a rule by name, made when it is new.
func (p *parser) index(name string, at int) int {
	s := p.syntax
	i, ok := s.names[name]
	if !ok {
		i = len(s.rules)
		if i >= MaxRules {
			p.failAt(at, "more than %d rules", MaxRules)
		}
		s.names[name] = i
		s.rules = append(s.rules, rule{name: name, at: -1})
		p.used = append(p.used, at)
	}
	return i
}

func (p *parser) rule() {
	at := p.pos
	name := p.name()
	p.space(false)
	p.expect("::=")
	p.space(true)
	i := p.index(name, at)
	if p.syntax.rules[i].at >= 0 {
		p.failAt(at, "rule %q is defined twice", name)
	}
	body := p.alternatives(false)
	p.syntax.rules[i].body, p.syntax.rules[i].at = body, at
	p.space(false)
	if c := p.peek(); p.pos < len(p.text) && c != '\n' && c != '\r' {
		r, _ := utf8.DecodeRuneInString(p.text[p.pos:])
		p.fail("unexpected %q", r)
	}
}

func (p *parser) alternatives(nested bool) expr {
	if p.depth++; p.depth > MaxNesting {
		p.fail("groups are nested deeper than %d", MaxNesting)
	}
	defer func() { p.depth-- }()
	list := alt{p.sequence(nested)}
	for {
		p.space(nested)
		if !p.accept("|") {
			break
		}
		p.space(true)
		list = append(list, p.sequence(nested))
	}
	if len(list) == 1 {
		return list[0]
	}
	return list
}

func (p *parser) sequence(nested bool) expr {
	var list seq
	for {
		p.space(nested)
		x := p.item(nested)
		if x == nil {
			break
		}
		list = append(list, p.repetitions(x, nested))
	}
	if len(list) == 1 {
		return list[0]
	}
	return list
}

// item reads one symbol, nil where a sequence ends.
func (p *parser) item(nested bool) expr {
	if p.pos >= len(p.text) {
		return nil
	}
	switch c := p.text[p.pos]; {
	case c == '"':
		return literal(p.quoted())
	case c == '[':
		return p.class()
	case c == '(':
		p.pos++
		p.space(true)
		x := p.alternatives(true)
		p.space(true)
		if !p.accept(")") {
			p.fail("expected ')'")
		}
		return x
	case c == '.':
		p.pos++
		return chars{{0, utf8.MaxRune}}.valid()
	case c == '<':
		return tokens{list: p.tokenNames()}
	case c == '!':
		p.pos++
		p.space(nested)
		if p.peek() != '<' {
			p.fail("expected a token such as <[12]> or <tag> after '!'")
		}
		return tokens{not: true, list: p.tokenNames()}
	case c == '$':
		return p.construct()
	case wordByte(c):
		at := p.pos
		name := p.name()
		return ref(p.index(name, at))
	}
	return nil
}

func (p *parser) repetitions(x expr, nested bool) expr {
	for {
		save := p.pos
		p.space(nested)
		at := p.pos
		lo, hi := 0, -1
		switch c := p.peek(); {
		case p.pos >= len(p.text):
			return x
		case c == '*':
			p.pos++
		case c == '+':
			p.pos++
			lo = 1
		case c == '?':
			p.pos++
			hi = 1
		case c == '{':
			p.pos++
			lo, hi = p.bounds(at)
		default:
			p.pos = save
			return x
		}
		x = repeat{x, lo, hi}
		if p.depth++; p.depth > MaxNesting {
			p.failAt(at, "repetitions are nested deeper than %d", MaxNesting)
		}
		defer func() { p.depth-- }()
	}
}

func (p *parser) bounds(at int) (lo, hi int) {
	p.space(true)
	lo = p.number()
	hi = lo
	p.space(true)
	if p.accept(",") {
		p.space(true)
		hi = -1
		if c := p.peek(); c >= '0' && c <= '9' {
			hi = p.number()
			p.space(true)
		}
	}
	p.expect("}")
	if hi >= 0 && hi < lo {
		p.failAt(at, "repetition {%d,%d} ends before it begins", lo, hi)
	}
	return lo, hi
}

func (p *parser) number() int {
	start := p.pos
	for p.pos < len(p.text) && p.text[p.pos] >= '0' && p.text[p.pos] <= '9' {
		p.pos++
	}
	if p.pos == start {
		p.fail("expected a number")
	}
	n, err := strconv.Atoi(p.text[start:p.pos])
	if err != nil || n > MaxRepeat {
		p.failAt(start, "%s is more than %d repetitions", p.text[start:p.pos], MaxRepeat)
	}
	return n
}

func (p *parser) quoted() string {
	start := p.pos
	p.expect(`"`)
	var b []byte
	for {
		if p.pos >= len(p.text) || p.peek() == '\n' {
			p.failAt(start, "the literal has no closing '\"'")
		}
		if p.accept(`"`) {
			return string(b)
		}
		if p.peek() == '\\' {
			r, isByte := p.escape()
			if isByte {
				b = append(b, byte(r))
			} else {
				b = utf8.AppendRune(b, r)
			}
			continue
		}
		_, n := utf8.DecodeRuneInString(p.text[p.pos:])
		b = append(b, p.text[p.pos:p.pos+n]...)
		p.pos += n
	}
}

// escape reads a backslash sequence. isByte marks \x above 7F, which in a literal is a byte and in a class a
// code point.
func (p *parser) escape() (r rune, isByte bool) {
	at := p.pos
	p.pos++
	c := p.peek()
	p.pos = min(p.pos+1, len(p.text))
	digits := 0
	switch c {
	case 'n':
		return '\n', false
	case 'r':
		return '\r', false
	case 't':
		return '\t', false
	case '\\', '"', '[', ']', '-', '^':
		return rune(c), false
	case 'x':
		digits = 2
	case 'u':
		digits = 4
	case 'U':
		digits = 8
	default:
		p.failAt(at, "unknown escape; known are \\n \\r \\t \\\\ \\\" \\[ \\] \\- \\^ \\xHH \\uHHHH \\UHHHHHHHH")
	}
	if p.pos+digits > len(p.text) {
		p.failAt(at, "the escape is cut off")
	}
	v, err := strconv.ParseUint(p.text[p.pos:p.pos+digits], 16, 32)
	if err != nil {
		p.failAt(at, "the escape needs %d hexadecimal digits", digits)
	}
	p.pos += digits
	if digits > 2 && (v > utf8.MaxRune || v >= 0xD800 && v <= 0xDFFF) {
		p.failAt(at, "U+%04X is no character", v)
	}
	return rune(v), digits == 2 && v >= utf8.RuneSelf
}

func (p *parser) class() expr {
	start := p.pos
	p.expect("[")
	not := p.accept("^")
	var c chars
	one := func() rune {
		if p.pos >= len(p.text) || p.peek() == '\n' {
			p.failAt(start, "the character class has no closing ']'")
		}
		if p.peek() == '\\' {
			r, _ := p.escape()
			return r
		}
		r, n := utf8.DecodeRuneInString(p.text[p.pos:])
		p.pos += n
		return r
	}
	for p.peek() != ']' || p.pos >= len(p.text) {
		at := p.pos
		lo := one()
		hi := lo
		if p.has("-") && !p.has("-]") {
			p.pos++
			hi = one()
			if hi < lo {
				p.failAt(at, "the range %q-%q is empty", lo, hi)
			}
		}
		c = append(c, runeRange{lo, hi})
	}
	p.pos++
	c = c.normal()
	if not {
		c = c.complement()
	}
	if c = c.valid(); len(c) == 0 {
		p.failAt(start, "the character class is empty")
	}
	return c
}

// tokenNames reads <[1]>, <[1,2]> or <text>.
func (p *parser) tokenNames() []tokenName {
	start := p.pos
	p.expect("<")
	if !p.accept("[") {
		n := strings.IndexAny(p.text[p.pos:], ">\n")
		if n < 0 || p.text[p.pos+n] != '>' {
			p.failAt(start, "the token has no closing '>'")
		}
		p.pos += n + 1
		if n == 0 {
			p.failAt(start, "the token has no text")
		}
		return []tokenName{{text: p.text[start:p.pos], at: start}}
	}
	var list []tokenName
	for {
		p.space(true)
		at := p.pos
		for p.pos < len(p.text) && p.text[p.pos] >= '0' && p.text[p.pos] <= '9' {
			p.pos++
		}
		id, err := strconv.ParseInt(p.text[at:p.pos], 10, 32)
		if err != nil {
			p.failAt(at, "expected a token id")
		}
		list = append(list, tokenName{id: int32(id), at: at})
		p.space(true)
		if !p.accept(",") {
			break
		}
	}
	p.expect("]>")
	return list
}

// construct reads $until("a", "b") or $without("a", "b").
func (p *parser) construct() expr {
	at := p.pos
	p.pos++
	name := p.name()
	if name != "until" && name != "without" && name != "members" {
		p.failAt(at, "unknown construct $%s; known are $until, $without and $members", name)
	}
	p.expect("(")
	if name == "members" {
		return p.members(at)
	}
	x := text{through: name == "until"}
	size := 0
	for {
		p.space(true)
		from := p.pos
		s := p.quoted()
		if s == "" || !utf8.ValidString(s) {
			p.failAt(from, "the literal of $%s must be text and not empty", name)
		}
		x.literals = append(x.literals, s)
		size += len(s)
		p.space(true)
		if !p.accept(",") {
			break
		}
	}
	p.expect(")")
	if size > 4096 {
		p.failAt(at, "the literals of $%s have %d bytes, at most 4096 are allowed", name, size)
	}
	return x
}

// maxParts of one $members.
const maxParts = 512

// members reads $members(least, most, separator, part, part!, part*, part+) after its parenthesis.
func (p *parser) members(at int) expr {
	comma := func() {
		p.space(true)
		p.expect(",")
		p.space(true)
	}
	rule := func() expr {
		from := p.pos
		name := p.name()
		return ref(p.index(name, from))
	}
	x := members{most: -1}
	p.space(true)
	x.least = p.number()
	comma()
	if !p.accept("*") {
		x.most = p.number()
	}
	comma()
	x.separator = rule()
	needed, few, many := 0, 0, false
	for {
		p.space(true)
		if p.accept(")") {
			break
		}
		p.expect(",")
		p.space(true)
		part := memberPart{x: rule()}
		switch {
		case p.accept("!"):
			part.required = true
			needed++
			few++
		case p.accept("*"):
			part.many, many = true, true
		case p.accept("+"):
			part.many, part.late, many = true, true, true
		default:
			few++
		}
		if x.parts = append(x.parts, part); len(x.parts) > maxParts {
			p.failAt(at, "$members has more than %d parts", maxParts)
		}
	}
	if many {
		few++
	}
	switch {
	case len(x.parts) == 0:
		p.failAt(at, "$members has no parts")
	case x.least > few:
		p.failAt(at, "$members asks for %d parts and has %d", x.least, few)
	case x.most >= 0 && (x.most < needed || x.most < x.least):
		p.failAt(at, "$members allows %d parts and needs more", x.most)
	}
	return x
}

// finish makes the checks that need the whole grammar.
func (p *parser) finish() *Syntax {
	s := p.syntax
	for i := range s.rules {
		if s.rules[i].at < 0 {
			p.failAt(p.used[i], "rule %q is not defined", s.rules[i].name)
		}
	}
	root, ok := s.names["root"]
	if !ok {
		p.failAt(0, "there is no rule \"root\"")
	}
	s.root = root
	nullable := s.nullable()
	for i := range s.rules {
		p.solid(s.rules[i].body, s.rules[i].at, nullable)
	}
	if cycle := s.leftRecursion(nullable); cycle != nil {
		names := make([]string, len(cycle))
		for i, r := range cycle {
			names[i] = s.rules[r].name
		}
		p.failAt(s.rules[cycle[0]].at, "left recursion: %s; write it with a repetition or with the recursion at the end",
			strings.Join(names, " -> "))
	}
	return s
}

// solid refuses parts of $members that match the empty text, because nothing would show which of them are there.
func (p *parser) solid(x expr, at int, null []bool) {
	switch x := x.(type) {
	case seq:
		for _, y := range x {
			p.solid(y, at, null)
		}
	case alt:
		for _, y := range x {
			p.solid(y, at, null)
		}
	case repeat:
		p.solid(x.x, at, null)
	case members:
		if nullableExpr(x.separator, null) {
			p.failAt(at, "the separator of $members matches the empty text")
		}
		for _, part := range x.parts {
			if nullableExpr(part.x, null) {
				p.failAt(at, "a part of $members matches the empty text")
			}
		}
	}
}

// normal sorts and joins ranges.
func (c chars) normal() chars {
	slices.SortFunc(c, func(a, b runeRange) int { return int(a.lo - b.lo) })
	out := c[:0]
	for _, r := range c {
		if n := len(out); n > 0 && r.lo <= out[n-1].hi+1 {
			out[n-1].hi = max(out[n-1].hi, r.hi)
		} else {
			out = append(out, r)
		}
	}
	return out
}

func (c chars) complement() chars {
	var out chars
	from := rune(0)
	for _, r := range c {
		if r.lo > from {
			out = append(out, runeRange{from, r.lo - 1})
		}
		from = r.hi + 1
	}
	if from <= utf8.MaxRune {
		out = append(out, runeRange{from, utf8.MaxRune})
	}
	return out
}

// valid takes surrogates out: they have no UTF-8 form.
func (c chars) valid() chars {
	var out chars
	for _, r := range c {
		if r.hi < 0xD800 || r.lo > 0xDFFF {
			out = append(out, r)
			continue
		}
		if r.lo < 0xD800 {
			out = append(out, runeRange{r.lo, 0xD7FF})
		}
		if r.hi > 0xDFFF {
			out = append(out, runeRange{0xE000, r.hi})
		}
	}
	return out
}
