package grammar

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// SchemaError is a part of a JSON schema that cannot be turned into a grammar.
type SchemaError struct {
	// Path of the keyword at fault, such as properties.age.minimum, empty at the top.
	Path    string
	Message string
	// TooHard says that the schema as a whole is beyond the compiler, not one of its keywords.
	TooHard bool
}

// Error implements error.
func (e *SchemaError) Error() string {
	if e.Path == "" {
		return "schema: " + e.Message
	}
	return "schema: " + e.Path + ": " + e.Message
}

// Writer collects the rules of a generated grammar: rules for JSON, for schemas, and those that its user adds.
type Writer struct {
	b     strings.Builder
	rules map[string]bool
	count int
	memo  map[string]string // rules with names made here, by body
}

// NewWriter returns an empty writer.
func NewWriter() *Writer { return &Writer{rules: map[string]bool{}, memo: map[string]string{}} }

// Define adds a rule.
func (w *Writer) Define(name, body string) {
	w.rules[name] = true
	w.b.WriteString(name + " ::= " + body + "\n")
}

// Rule returns the name of a rule with this body, made when there is none.
func (w *Writer) Rule(body string) string {
	if name, ok := w.memo[body]; ok {
		return name
	}
	name := w.fresh()
	w.Define(name, body)
	w.memo[body] = name
	return name
}

// fresh is a name that no rule has.
func (w *Writer) fresh() string {
	w.count++
	return fmt.Sprintf("r%d", w.count)
}

// Text is the grammar so far.
func (w *Writer) Text() string { return w.b.String() }

// Quote writes a text as a literal of a grammar.
func Quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02X`, s[i])
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < 0x20 || r == 0x7F:
			fmt.Fprintf(&b, `\x%02X`, r)
		default:
			b.WriteRune(r)
		}
		i += n
	}
	b.WriteByte('"')
	return b.String()
}

// Token is a terminal for a token by id.
func Token(id int32) string { return fmt.Sprintf("<[%d]>", id) }

// The rules of JSON. Whitespace is at most two characters long; numbers and escapes are bounded so that every text is
// also read by parsers with limits. Escaped surrogates are left out: characters above U+FFFF stand for themselves.
const jsonEscape = `"\\" (["\\/bfnrt] | "u" ([0-9a-ce-fA-CE-F] json-hex{3} | [dD] [0-7] json-hex{2}))`

var jsonRules = map[string]string{
	"ws":     `[ \t\n]{0,2}`,
	"hex":    `[0-9a-fA-F]`,
	"escape": jsonEscape,
	"char":   `[^"\\\x00-\x1F] | ` + jsonEscape,
	"string": `"\"" json-char* "\""`,
	"int":    `"-"? ("0" | [1-9] [0-9]{0,15})`,
	"number": `json-int ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,2})?`,
	"bool":   `"true" | "false"`,
	"null":   `"null"`,
	"pair":   `json-string ":" json-ws json-value json-ws`,
	"object": `"{" json-ws (json-pair ("," json-ws json-pair)*)? "}"`,
	"array":  `"[" json-ws (json-value json-ws ("," json-ws json-value json-ws)*)? "]"`,
	"value":  `json-object | json-array | json-string | json-number | json-bool | json-null`,
}

// JSON returns the name of a rule of JSON: object, array, string, int, number, bool, null, value, char or ws. It adds
// the rule and those that it needs.
func (w *Writer) JSON(name string) string { return w.table("json-", jsonRules, name) }

// table returns the name of a rule out of a table, and adds it with those of this table and of JSON that it needs.
func (w *Writer) table(prefix string, table map[string]string, name string) string {
	full := prefix + name
	if w.rules[full] {
		return full
	}
	body, ok := table[name]
	if !ok {
		panic("grammar: no rule " + full)
	}
	w.Define(full, body)
	for _, word := range strings.FieldsFunc(body, func(r rune) bool { return r >= 0x80 || !wordByte(byte(r)) }) {
		if name, ok := strings.CutPrefix(word, "json-"); ok {
			w.JSON(name)
		} else if name, ok := strings.CutPrefix(word, prefix); ok && !w.rules[word] {
			w.table(prefix, table, name)
		}
	}
	return full
}
