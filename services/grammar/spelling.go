package grammar

import (
	"fmt"
	"strings"
)

// Spelling is the form of a schema's values where that is not plain JSON: in the calls of models. The zero spelling
// is JSON.
type Spelling struct {
	// Until is a tag, "<", a mark and a letter at least, whose first occurrence ends the value or, with Quote, a
	// string: no value holds it. JSON escapes text that would begin it.
	Until string
	// Text writes a string that is the whole value without quotes and escapes. Mixed: the value may have other types
	// too, and readers take a text that looks like one of these for that type.
	Text, Mixed bool
	// Quote is the terminal around strings, in which nothing is escaped; its text is Until. Keys then stand bare,
	// without whitespace.
	Quote string
}

// taggedRules are those of JSON between tags: a "<" is never followed by "/", which may be written with an escape.
var taggedRules = map[string]string{
	"char":   `[^"\\<\x00-\x1F] | json-escape`,
	"string": `"\"" ([^"\\<\x00-\x1F] | json-escape | "<"+ ([^"\\</\x00-\x1F] | json-escape))* "<"* "\""`,
	"pair":   `tagged-string ":" json-ws tagged-value json-ws`,
	"object": `"{" json-ws (tagged-pair ("," json-ws tagged-pair)*)? "}"`,
	"array":  `"[" json-ws (tagged-value json-ws ("," json-ws tagged-value json-ws)*)? "]"`,
	"value":  `tagged-object | tagged-array | tagged-string | json-number | json-bool | json-null`,
}

// bareRules are those of values with bare keys.
var bareRules = map[string]string{
	"key":    bareChar + `{1,64}`,
	"pair":   `bare-key ":" bare-value`,
	"object": `"{" (bare-pair ("," bare-pair)*)? "}"`,
	"array":  `"[" (bare-value ("," bare-value)*)? "]"`,
	"value":  `bare-object | bare-array | bare-string | json-number | json-bool | json-null`,
}

const (
	bareChar  = `[a-zA-Z0-9_.$-]`
	bareChars = `abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.$-`
)

// json returns the name of the rule for values of a kind, see Writer.JSON.
func (c *schemaCompiler) json(name string) string {
	sp := &c.spelling
	switch {
	case name == "ws" && sp.Quote != "":
		return ""
	case sp.Quote != "" && name == "string":
		if !c.w.rules["bare-string"] {
			c.w.Define("bare-string", fmt.Sprintf("%s $without(%s) %s", sp.Quote, Quote(sp.Until), sp.Quote))
		}
		return "bare-string"
	case sp.Quote != "" && bareRules[name] != "":
		c.json("string")
		return c.w.table("bare-", bareRules, name)
	case sp.Until != "" && taggedRules[name] != "":
		return c.w.table("tagged-", taggedRules, name)
	}
	return c.w.JSON(name)
}

// whole reports whether the value in work is the whole one, to which Spelling.Text applies.
func (c *schemaCompiler) whole() bool { return c.spelling.Text && !c.nested }

// raw reports whether strings are written without escapes here.
func (c *schemaCompiler) raw() bool { return c.spelling.Quote != "" || c.whole() }

// inside compiles a part of a value.
func (c *schemaCompiler) inside(set conj, path string) string {
	was := c.nested
	c.nested = true
	defer func() { c.nested = was }()
	return c.compile(set, path)
}

// rawSized is text of least to most characters (-1 = any number) that does not hold the tag. A text with a limit cannot
// be counted and kept free of the tag at the same time. So it has no "<", or consists of at most a third as many pieces
// of at most three characters, none of which begins the tag.
func (c *schemaCompiler) rawSized(least, most int) string {
	tag := []rune(c.spelling.Until)
	free := "$without(" + Quote(c.spelling.Until) + ")"
	piece := func() string {
		mark, letter := classRune(tag[1]), classRune(tag[2])
		return c.w.Rule(fmt.Sprintf(`[^<] | "<" ([^<%s] | %s [^<%s])`, mark, Quote(string(tag[1])), letter))
	}
	if most < 0 {
		if least == 0 {
			return free
		}
		return fmt.Sprintf("%s{%d} %s", piece(), least, free)
	}
	out := fmt.Sprintf("[^<]{%d,%d}", least, most)
	if most/3 >= max(least, 1) {
		out += fmt.Sprintf(" | %s{%d,%d}", piece(), least, most/3)
	}
	return out
}

// misread reports whether readers may take a text for another type than a string.
func misread(text string) bool {
	t := strings.ToLower(strings.TrimSpace(text))
	return t == "true" || t == "false" || t == "null" || t != "" && strings.ContainsRune("0123456789+-.{[", rune(t[0]))
}

// literal writes a fixed value.
func (c *schemaCompiler) literal(v *jsonNode, path string) string {
	sp := &c.spelling
	switch {
	case sp.Quote != "":
		return c.bare(v, path)
	case v.kind == 's' && c.whole():
		if strings.Contains(v.text, sp.Until) {
			c.fail(path, "must not hold "+sp.Until)
		}
		return Quote(v.text)
	}
	return Quote(c.tagged(v.spell()))
}

// tagged escapes text that would begin a closing tag in JSON, where "</" occurs in strings only.
func (c *schemaCompiler) tagged(text string) string {
	if c.spelling.Until == "" {
		return text
	}
	return strings.ReplaceAll(text, "</", `<\/`)
}

// bare writes a fixed value with bare keys.
func (c *schemaCompiler) bare(v *jsonNode, path string) string {
	var parts []string
	switch v.kind {
	case 's':
		if strings.Contains(v.text, c.spelling.Until) {
			c.fail(path, "must not hold "+c.spelling.Until)
		}
		return fmt.Sprintf("%s %s %s", c.spelling.Quote, Quote(v.text), c.spelling.Quote)
	case 'a':
		for _, x := range v.items {
			parts = append(parts, c.bare(x, path))
		}
		return `"[" ` + strings.Join(parts, ` "," `) + ` "]"`
	case 'o':
		for _, m := range v.members {
			parts = append(parts, c.key(m.key, path)+` ":" `+c.bare(m.value, path))
		}
		return `"{" ` + strings.Join(parts, ` "," `) + ` "}"`
	}
	return Quote(v.spell())
}

// key writes a declared key.
func (c *schemaCompiler) key(key, path string) string {
	if c.spelling.Quote == "" {
		return Quote(c.tagged(spellString(key)))
	}
	if key == "" || strings.Trim(key, bareChars) != "" {
		c.fail(path, "the key must consist of letters, digits and _.$- in this model's calls")
	}
	return Quote(key)
}

// readable refuses another type than string in a value that may be text too, if it has bounds: a text that reads as
// this type would be taken for it.
func (c *schemaCompiler) readable(s *shape, path string) {
	if !c.whole() || !c.spelling.Mixed {
		return
	}
	narrow := s.types&typeNumber != 0 && (s.number.lo != nil || s.number.hi != nil || !s.number.plain()) ||
		s.types&typeArray != 0 && !s.array.free() || s.types&typeObject != 0 && !s.object.free()
	if narrow {
		for _, k := range []string{"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "properties",
			"required", "items", "minItems", "maxItems"} {
			if s.at != nil && s.at.get(k) != nil {
				path += "." + k
				break
			}
		}
		c.fail(path, "is not supported where the value may be text too")
	}
}
