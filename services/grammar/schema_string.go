package grammar

import (
	"fmt"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode/utf8"
)

// formats that are enforced; others say what a text is for and do not narrow it. Days stop at the 28th in February, so that
// every date exists.
var formats = map[string]string{
	"date":      formatDate,
	"time":      formatTime,
	"date-time": formatDate + ` "T" ` + formatTime,
	"uuid":      `[0-9a-f]{8} "-" [0-9a-f]{4} "-" [0-9a-f]{4} "-" [0-9a-f]{4} "-" [0-9a-f]{12}`,
	"ipv4":      formatByte + ` ("." ` + formatByte + `){3}`,
	"email":     `[a-zA-Z0-9_+-]{1,20} ("." [a-zA-Z0-9_+-]{1,20}){0,2} "@" [a-z0-9]{1,30} ("." [a-z0-9]{1,30}){0,2} "." [a-z]{2,10}`,
	"hostname":  `[a-z0-9]{1,30} ("." [a-z0-9]{1,30}){0,4}`,
}

const (
	formatDate = `[0-9]{4} "-" (("0" [13578] | "1" [02]) "-" ("0" [1-9] | [12] [0-9] | "3" [01])` +
		` | ("0" [469] | "11") "-" ("0" [1-9] | [12] [0-9] | "30") | "02-" ("0" [1-9] | "1" [0-9] | "2" [0-8]))`
	formatTime = `([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9] ("." [0-9]{1,9})? ("Z" | [+-] ([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9])`
	formatByte = `([0-9] | [1-9] [0-9] | "1" [0-9]{2} | "2" [0-4] [0-9] | "25" [0-5])`
)

func (c *schemaCompiler) string(s *jsonNode, path string) string {
	least, most := c.count(s, "minLength", 0, path), c.count(s, "maxLength", -1, path)
	if most >= 0 && most < least {
		c.fail(path+".maxLength", "is less than minLength")
	}
	sized := s.get("minLength") != nil || s.get("maxLength") != nil
	pattern, format := s.get("pattern"), s.get("format")
	body := ""
	if format != nil {
		body = formats[format.text]
	}
	switch {
	case pattern != nil && body != "":
		c.fail(path+".pattern", "is not supported beside format "+format.text)
	case sized && (pattern != nil || body != ""):
		k := "minLength"
		if s.get(k) == nil {
			k = "maxLength"
		}
		c.fail(path+"."+k, "is not supported beside pattern or format")
	case pattern != nil:
		if pattern.kind != 's' {
			c.fail(path+".pattern", "must be a string")
		}
		body = c.pattern(pattern.text, path+".pattern")
	case body != "":
	case c.raw():
		body = c.rawSized(least, most)
	case !sized:
		return c.json("string")
	case most < 0:
		body = fmt.Sprintf("%s{%d,}", c.json("char"), least)
	default:
		body = fmt.Sprintf("%s{%d,%d}", c.json("char"), least, most)
	}
	switch {
	case c.spelling.Quote != "":
		return c.w.Rule(fmt.Sprintf("%s (%s) %s", c.spelling.Quote, body, c.spelling.Quote))
	case c.whole():
		return c.w.Rule(body)
	}
	return c.w.Rule(`"\"" (` + body + `) "\""`)
}

// pattern turns a regular expression into the inside of a string.
func (c *schemaCompiler) pattern(text, path string) string {
	re, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		c.fail(path, "cannot be read: "+err.Error())
	}
	p := &patternWriter{c: c, path: path, any: c.json("char")}
	if c.raw() {
		p.scan(re)
		for _, next := range p.banned {
			if slices.Contains(p.begins, next) {
				c.fail(path, "may spell "+c.spelling.Until)
			}
		}
		p.any = p.class([]rune{0, utf8.MaxRune})
	}
	list := []*syntax.Regexp{re}
	if re.Op == syntax.OpAlternate {
		list = re.Sub
	}
	var out []string
	for _, x := range list {
		out = append(out, p.anchored(x))
	}
	return strings.Join(out, " | ")
}

type patternWriter struct {
	c     *schemaCompiler
	path  string
	any   string // rule or class of any character
	depth int
	size  int // of all characters and classes so far

	// Of texts without escapes, in which no class has "<": what would go on with a tag that literals begin, and what literals
	// begin with.
	banned, begins []rune
}

// scan looks for literals that begin the tag.
func (p *patternWriter) scan(re *syntax.Regexp) {
	if re.Op == syntax.OpLiteral {
		tag := []rune(p.c.spelling.Until)
		p.begins = append(p.begins, re.Rune[0])
		for i := range re.Rune {
			rest := re.Rune[i:]
			switch n := min(len(rest), len(tag)); {
			case !slices.Equal(rest[:n], tag[:n]):
			case n == len(tag):
				p.c.fail(p.path, "spells "+p.c.spelling.Until)
			default:
				p.banned = append(p.banned, tag[n])
			}
		}
	}
	for _, x := range re.Sub {
		p.scan(x)
	}
}

// anchored writes one alternative: where it is not tied to an end of the text, anything may stand beside it.
func (p *patternWriter) anchored(re *syntax.Regexp) string {
	list := []*syntax.Regexp{re}
	if re.Op == syntax.OpConcat {
		list = re.Sub
	}
	begin, end := false, false
	for len(list) > 0 && (list[0].Op == syntax.OpBeginText || list[0].Op == syntax.OpBeginLine) {
		begin, list = true, list[1:]
	}
	for len(list) > 0 && (list[len(list)-1].Op == syntax.OpEndText || list[len(list)-1].Op == syntax.OpEndLine) {
		end, list = true, list[:len(list)-1]
	}
	var parts []string
	if !begin {
		parts = append(parts, p.any+"*")
	}
	for _, x := range list {
		parts = append(parts, p.write(x))
	}
	if !end {
		parts = append(parts, p.any+"*")
	}
	if len(parts) == 0 {
		return `""`
	}
	return strings.Join(parts, " ")
}

func (p *patternWriter) write(re *syntax.Regexp) string {
	if p.depth++; p.depth > MaxNesting/4 {
		p.c.fail(p.path, "is nested too deep")
	}
	defer func() { p.depth-- }()
	if re.Flags&syntax.FoldCase != 0 {
		p.c.fail(p.path, "matching without case is not supported")
	}
	switch re.Op {
	case syntax.OpEmptyMatch:
		return `""`
	case syntax.OpLiteral:
		var b strings.Builder
		for _, r := range re.Rune {
			b.WriteString(p.spell(r))
		}
		return p.sized(Quote(b.String()))
	case syntax.OpCharClass:
		return p.class(re.Rune)
	case syntax.OpAnyChar:
		return p.class([]rune{0, utf8.MaxRune})
	case syntax.OpAnyCharNotNL:
		return p.class([]rune{0, 9, 11, utf8.MaxRune})
	case syntax.OpCapture:
		return p.write(re.Sub[0])
	case syntax.OpStar:
		return "(" + p.write(re.Sub[0]) + ")*"
	case syntax.OpPlus:
		return "(" + p.write(re.Sub[0]) + ")+"
	case syntax.OpQuest:
		return "(" + p.write(re.Sub[0]) + ")?"
	case syntax.OpRepeat:
		if re.Max < 0 {
			return fmt.Sprintf("(%s){%d,}", p.write(re.Sub[0]), re.Min)
		}
		return fmt.Sprintf("(%s){%d,%d}", p.write(re.Sub[0]), re.Min, re.Max)
	case syntax.OpConcat, syntax.OpAlternate:
		parts := make([]string, len(re.Sub))
		for i, x := range re.Sub {
			parts[i] = p.write(x)
		}
		if re.Op == syntax.OpConcat {
			return "(" + strings.Join(parts, " ") + ")"
		}
		return "(" + strings.Join(parts, " | ") + ")"
	}
	p.c.fail(p.path, fmt.Sprintf("%v is not supported here", re))
	return ""
}

// class writes pairs of bounds as one character of a JSON string.
func (p *patternWriter) class(bounds []rune) string {
	var plain strings.Builder
	var escaped []string
	for i := 0; i+1 < len(bounds); i += 2 {
		lo, hi := bounds[i], bounds[i+1]
		for r := lo; r <= min(hi, '\\'); r++ {
			if s := p.spell(r); len(s) > 1 {
				escaped = append(escaped, Quote(s))
			}
		}
		// The rest in runs between the characters that need escapes or are left out.
		for _, cut := range p.plain() {
			if a, z := max(lo, cut.lo), min(hi, cut.hi); a <= z {
				plain.WriteString(classRune(a))
				if z > a {
					plain.WriteString("-" + classRune(z))
				}
			}
		}
	}
	if plain.Len() > 0 {
		escaped = append(escaped, "["+plain.String()+"]")
	}
	if len(escaped) == 0 {
		p.c.fail(p.path, "a character class is empty")
	}
	return p.sized("(" + strings.Join(escaped, " | ") + ")")
}

// sized counts what is written: classes of a few characters, such as \pL, are long when they are written out.
func (p *patternWriter) sized(s string) string {
	if p.size += len(s); p.size > MaxText {
		p.c.fail(p.path, "is too long once its classes are written out")
	}
	return s
}

// spell writes a character.
func (p *patternWriter) spell(r rune) string {
	switch {
	case p.c.raw():
		return string(r)
	case r == '<' && p.c.spelling.Until != "":
		return `\u003c`
	}
	return inJSON(r)
}

// plain are the characters that stand for themselves in classes.
func (p *patternWriter) plain() []runeRange {
	var cuts []rune
	switch {
	case p.c.raw():
		cuts = append([]rune{'<'}, p.banned...)
	case p.c.spelling.Until != "":
		cuts = []rune{'"', '<', '\\'}
	default:
		cuts = []rune{'"', '\\'}
	}
	slices.Sort(cuts)
	var out []runeRange
	from := rune(0x20)
	if p.c.raw() {
		from = 0
	}
	for _, r := range cuts {
		if from < r {
			out = append(out, runeRange{from, r - 1})
		}
		from = max(from, r+1)
	}
	return append(out, runeRange{from, utf8.MaxRune})
}

// inJSON writes a character as it stands in a JSON string.
func inJSON(r rune) string {
	switch r {
	case '"', '\\':
		return `\` + string(r)
	case '\n':
		return `\n`
	case '\r':
		return `\r`
	case '\t':
		return `\t`
	}
	if r < 0x20 {
		return fmt.Sprintf(`\u%04x`, r)
	}
	return string(r)
}
