package grammar

import (
	"fmt"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// formats that are followed, as patterns; others only name the purpose of a text and do not narrow it. Each pattern
// matches only texts of the format, but not all of them. Days stop at the 28th in February, so that every date exists.
var formats = map[string]string{
	"date":          "^" + formatDate + "$",
	"time":          "^" + formatTime + "$",
	"date-time":     "^" + formatDate + "T" + formatTime + "$",
	"duration":      `^P(\d{1,4}W|\d{1,4}Y(\d{1,3}M(\d{1,3}D)?)?|\d{1,3}M(\d{1,3}D)?|\d{1,3}D|(\d{1,4}Y(\d{1,3}M(\d{1,3}D)?)?|\d{1,3}M(\d{1,3}D)?|\d{1,3}D)?T(\d{1,3}H(\d{1,3}M(\d{1,3}S)?)?|\d{1,3}M(\d{1,3}S)?|\d{1,3}S))$`,
	"uuid":          `^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$`,
	"ipv4":          "^" + formatIPv4 + "$",
	"ipv6":          "^" + formatIPv6 + "$",
	"email":         "^" + formatLocal + "@" + formatHost + "$",
	"idn-email":     "^" + formatLocal + "@" + formatHost + "$",
	"hostname":      "^" + formatHost + "$",
	"idn-hostname":  "^" + formatHost + "$",
	"uri":           "^" + formatScheme + ":" + formatURI + "$",
	"iri":           "^" + formatScheme + ":" + formatURI + "$",
	"uri-reference": "^(" + formatScheme + ":" + formatURI + "|" + formatRelative + ")$",
	"iri-reference": "^(" + formatScheme + ":" + formatURI + "|" + formatRelative + ")$",
	"uri-template": `^([A-Za-z0-9._~!$&()*+,;=:@/?#-]|` + formatPercent +
		`|\{[A-Za-z0-9_]{1,40}(,[A-Za-z0-9_]{1,40}){0,5}\})*$`, "json-pointer": `^(/([^~/]|~[01])*)*$`,
	"relative-json-pointer": `^(0|[1-9]\d{0,5})(#|(/([^~/]|~[01])*)*)$`,
	"regex":                 `^([A-Za-z0-9 _:;,<>=!@&%~#"'-]|\\[dDwWsS.*+?()^$|/\[\]{}\\]|\[\^?[A-Za-z0-9_]+(-[a-z])?\])*$`,
}

const (
	formatDate = `[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))`
	formatTime = `([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])`
	formatByte = `([0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])`
	formatIPv4 = formatByte + `(\.` + formatByte + `){3}`
	formatHex4 = `[0-9a-fA-F]{1,4}`
	formatIPv6 = `((` + formatHex4 + `:){7}` + formatHex4 + `|::|::(` + formatHex4 + `:){0,5}` + formatHex4 + `|` +
		formatHex4 + `::((` + formatHex4 + `:){0,4}` + formatHex4 + `)?|(` +
		formatHex4 + `:){1}` + formatHex4 + `::((` + formatHex4 + `:){0,3}` + formatHex4 + `)?|(` + formatHex4 + `:){2}` +
		formatHex4 + `::((` + formatHex4 + `:){0,2}` + formatHex4 + `)?|(` +
		formatHex4 + `:){3}` + formatHex4 + `::((` + formatHex4 + `:){0,1}` + formatHex4 + `)?)`
	formatLabel = `[A-Za-z0-9]([A-Za-z0-9]|-[A-Za-z0-9]){0,30}`
	formatHost  = formatLabel + `(\.` + formatLabel + `){0,3}`
	formatAtom  = `[A-Za-z0-9!#$%&'*+/=?^_{|}~-]{1,20}`
	formatLocal = formatAtom + `(\.` + formatAtom + `){0,2}`

	formatPercent = `%[0-9A-Fa-f]{2}`
	formatPchar   = `([A-Za-z0-9._~!$&'()*+,;=:@-]|` + formatPercent + `)`
	formatScheme  = `[A-Za-z][A-Za-z0-9+.-]*`
	formatPath    = `(/` + formatPchar + `*)*`
	formatTail    = `(\?(` + formatPchar + `|[/?])*)?(#(` + formatPchar + `|[/?])*)?`
	formatAuth    = `//([A-Za-z0-9._~-]+@)?([A-Za-z0-9._~-]|` + formatPercent + `)*(:[0-9]{1,4})?` + formatPath
	// What follows a scheme, and references without one.
	formatURI = `(` + formatAuth + `|/(` + formatPchar + `+` + formatPath + `)?|` + formatPchar + `+` +
		formatPath + `|)` + formatTail
	formatRelative = `(` + formatAuth + `|/(` + formatPchar + `+` + formatPath + `)?|([A-Za-z0-9._~!$&'()*+,;=@-]|` +
		formatPercent + `)+` + formatPath + `|)` + formatTail
)

// textLang is the language of a string, or why there is no automaton for it.
type textLang struct {
	lang *dfa
	err  error
}

// textLang is the language of a string with more than one condition, as an automaton. One with a long maxLength may
// hold shorter texts only, so that the automaton stays small.
func (c *schemaCompiler) textLang(t *textShape) (*dfa, error) {
	key := fmt.Sprintf("%v %q %q %d %d %v", t.patterns, t.formats, t.except, t.lo, t.hi, c.raw())
	if l, ok := c.texts[key]; ok {
		return l.lang, l.err
	}
	d, err := c.makeTextLang(t)
	c.texts[key] = textLang{d, err}
	return d, err
}

func (c *schemaCompiler) makeTextLang(t *textShape) (*dfa, error) {
	list, err := c.operands(t)
	if err != nil {
		return nil, err
	}
	if len(t.except) > 0 {
		c.spend(len(t.except), "")
		list = append(list, operand{onlyTexts(t.except), true})
	}
	if c.raw() {
		list = append(list, operand{holding(c.spelling.Until), true})
	}
	if t.lo > maxLangStates {
		return nil, errLangSize
	}
	d, err := c.intersect(list, t.lo, -1)
	if err != nil || t.hi < 0 || d.empty() {
		return d, err
	}
	return c.intersect([]operand{{d, false}}, 0, max(t.lo, min(t.hi, maxLangStates/len(d.next))))
}

// maxCells of all automata of a schema, those included that turn out to be too large.
const maxCells = 3_000_000

// intersect is counted.
func (c *schemaCompiler) intersect(list []operand, least, most int) (*dfa, error) {
	if c.cells > maxCells {
		return nil, errLangSize
	}
	d, cells, err := intersect(list, least, most)
	c.cells += cells
	return d, err
}

// holding is the language of the texts that hold a text.
func holding(text string) *dfa {
	d, err := regexLang(&syntax.Regexp{Op: syntax.OpLiteral, Rune: []rune(text)}, new(int))
	if err != nil {
		panic(err) // a tag is a few characters long
	}
	return d
}

func (c *schemaCompiler) string(s *shape, path string) string {
	t := &s.text
	sized := t.lo > 0 || t.hi >= 0
	conditions := len(t.patterns) + len(t.formats)
	if sized {
		conditions++
	}
	var body string
	switch {
	case conditions == 0 && len(t.except) == 0 && !c.raw():
		return c.json("string")
	case conditions == 0 && len(t.except) == 0:
		body = c.rawSized(0, -1)
	case sized && conditions == 1 && len(t.except) == 0:
		switch {
		case c.raw():
			body = c.rawSized(t.lo, t.hi)
		case t.hi < 0:
			body = fmt.Sprintf("%s{%d,}", c.json("char"), t.lo)
		default:
			body = fmt.Sprintf("%s{%d,%d}", c.json("char"), t.lo, t.hi)
		}
	case conditions == 1 && len(t.except) == 0 &&
		(len(t.formats) == 1 || !t.patterns[0].not && !strings.Contains(t.patterns[0].text, "(?") &&
			!anchorsInside(fromECMA(t.patterns[0].text))):
		var pattern string
		if len(t.formats) == 1 {
			pattern = formats[t.formats[0]]
		} else {
			pattern = t.patterns[0].text
		}
		body = c.pattern(fromECMA(pattern), path+".pattern")
	default:
		if body = c.classRun(t); body != "" {
			break
		}
		d, err := c.textLang(t)
		if err != nil {
			key := "pattern"
			if len(t.patterns) == 0 {
				key = "format"
			}
			c.drop(path+"."+key, err.Error())
			var rest *textShape
			if sized {
				rest = &textShape{lo: t.lo, hi: t.hi}
			} else {
				rest = &textShape{hi: -1}
			}
			return c.string(&shape{text: *rest}, path)
		}
		if d.empty() {
			return ""
		}
		p := &patternWriter{c: c, path: path, any: c.json("char"), exact: true}
		body = c.writeLang(d, func(bounds []rune) string {
			if len(bounds) == 2 && bounds[0] == 0 && bounds[1] == utf8.MaxRune && !c.raw() {
				return p.any
			}
			return p.class(bounds)
		}, path)
	}
	switch {
	case c.spelling.Quote != "":
		return c.w.Rule(fmt.Sprintf("%s (%s) %s", c.spelling.Quote, body, c.spelling.Quote))
	case c.whole():
		return c.w.Rule(body)
	}
	return c.w.Rule(`"\"" (` + body + `) "\""`)
}

// classRun writes a pattern that repeats one class, beside lengths: a counted repetition is cheaper than an automaton.
func (c *schemaCompiler) classRun(t *textShape) string {
	if len(t.patterns) != 1 || t.patterns[0].not || len(t.formats)+len(t.except) > 0 || c.raw() {
		return ""
	}
	re, err := syntax.Parse(fromECMA(t.patterns[0].text), syntax.Perl)
	if err != nil || re.Op != syntax.OpConcat || len(re.Sub) != 3 || re.Sub[0].Op != syntax.OpBeginText ||
		re.Sub[2].Op != syntax.OpEndText {
		return ""
	}
	run := re.Sub[1]
	for run.Op == syntax.OpCapture {
		run = run.Sub[0]
	}
	lo, hi := 0, -1
	switch run.Op {
	case syntax.OpStar:
	case syntax.OpPlus:
		lo = 1
	case syntax.OpRepeat:
		lo, hi = run.Min, run.Max
	default:
		return ""
	}
	class := run.Sub[0]
	for class.Op == syntax.OpCapture {
		class = class.Sub[0]
	}
	if class.Op != syntax.OpCharClass && class.Op != syntax.OpAnyChar {
		return ""
	}
	lo, hi = max(lo, t.lo), lower(hi, t.hi)
	if hi >= 0 && lo > hi {
		return ""
	}
	p := &patternWriter{c: c, path: "pattern", any: c.json("char")}
	body := p.write(class)
	if hi < 0 {
		return fmt.Sprintf("%s{%d,}", body, lo)
	}
	return fmt.Sprintf("%s{%d,%d}", body, lo, hi)
}

// pattern turns a regular expression into the inside of a string.
func (c *schemaCompiler) pattern(text, path string) string {
	re, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		c.drop(path, "cannot be read: "+err.Error())
		return c.json("char") + "*"
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
	size  int  // of all characters and classes so far
	exact bool // texts without escapes have any character: the text is known not to hold the tag

	// Of texts without escapes, in which no class has "<": characters that would continue a tag which literals begin,
	// and those with which literals begin.
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
	switch re.Op {
	case syntax.OpEmptyMatch:
		return `""`
	case syntax.OpLiteral:
		if re.Flags&syntax.FoldCase != 0 { // [xX] is read as such a literal, too
			parts := make([]string, len(re.Rune))
			for i, r := range re.Rune {
				parts[i] = p.class(folded(r))
			}
			return "(" + strings.Join(parts, " ") + ")"
		}
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

// folded returns the characters that match r without case, as pairs of bounds.
func folded(r rune) []rune {
	out := []rune{r, r}
	for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
		out = append(out, f, f)
	}
	return out
}

// anchorsInside reports whether a pattern holds an anchor that is not at an end of one of its alternatives.
func anchorsInside(pattern string) bool {
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return false // reported where it is read
	}
	begins := func(x *syntax.Regexp) bool { return x.Op == syntax.OpBeginText || x.Op == syntax.OpBeginLine }
	ends := func(x *syntax.Regexp) bool { return x.Op == syntax.OpEndText || x.Op == syntax.OpEndLine }
	var inside func(x *syntax.Regexp) bool
	inside = func(x *syntax.Regexp) bool { return begins(x) || ends(x) || slices.ContainsFunc(x.Sub, inside) }
	list := []*syntax.Regexp{re}
	if re.Op == syntax.OpAlternate {
		list = re.Sub
	}
	for _, x := range list {
		parts := []*syntax.Regexp{x}
		if x.Op == syntax.OpConcat {
			parts = x.Sub
		}
		for len(parts) > 0 && begins(parts[0]) {
			parts = parts[1:]
		}
		for len(parts) > 0 && ends(parts[len(parts)-1]) {
			parts = parts[:len(parts)-1]
		}
		if slices.ContainsFunc(parts, inside) {
			return true
		}
	}
	return false
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
	case p.c.raw() && p.exact:
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
