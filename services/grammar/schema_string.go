package grammar

import (
	"fmt"
	"regexp/syntax"
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
	case !sized:
		return c.w.JSON("string")
	case most < 0:
		body = fmt.Sprintf("%s{%d,}", c.w.JSON("char"), least)
	default:
		body = fmt.Sprintf("%s{%d,%d}", c.w.JSON("char"), least, most)
	}
	return c.w.Rule(`"\"" (` + body + `) "\""`)
}

// pattern turns a regular expression into the inside of a JSON string.
func (c *schemaCompiler) pattern(text, path string) string {
	re, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		c.fail(path, "cannot be read: "+err.Error())
	}
	p := &patternWriter{c: c, path: path}
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
	depth int
	size  int // of all characters and classes so far
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
		parts = append(parts, p.c.w.JSON("char")+"*")
	}
	for _, x := range list {
		parts = append(parts, p.write(x))
	}
	if !end {
		parts = append(parts, p.c.w.JSON("char")+"*")
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
			b.WriteString(inJSON(r))
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
			if s := inJSON(r); len(s) > 1 {
				escaped = append(escaped, Quote(s))
			}
		}
		// The rest in runs between the characters that need escapes.
		for _, cut := range []runeRange{{0x20, '!'}, {'#', '['}, {']', utf8.MaxRune}} {
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
