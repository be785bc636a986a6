package grammar

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/services/grammar/grammartest"
)

// FuzzParse: no text makes the parser or the compiler crash or hang, and what compiles can be followed.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		jsonText, `root ::= "a" | <[3]> !<think> [^\]-a]{2,} $until("x","y")`,
		"root ::= (a)* # c\na ::= \"\\x41\"? b\nb ::= a?", `root ::= ((("a"*)*)*)* $without("ab")`,
		"root ::= x{0,9}\nx ::= root2 \"y\"\nroot2 ::= x?", `root ::= "é"{3} .`, "root ::=",
	} {
		f.Add(s, []byte(`{"a": [1]}`))
	}
	v := testVocabulary("ab", "abc", "é")
	f.Fuzz(func(t *testing.T, text string, input []byte) {
		if len(text) > 2000 || len(input) > 200 {
			return
		}
		s, err := Parse(text)
		if err != nil {
			return
		}
		g, err := s.Compile(v)
		if err != nil {
			return
		}
		at := g.Start()
		for _, c := range input {
			m, err := g.Mask(at)
			if err != nil {
				return
			}
			next := g.Advance(at, int32(c))
			if m.Allows(int32(c)) != (next != nil) {
				t.Fatalf("%q: byte %q allowed: %v, advances: %v", text, c, m.Allows(int32(c)), next != nil)
			}
			if next == nil {
				return
			}
			at = next
		}
		g.Accepts(at)
		g.Forced(at, 100)
	})
}

// FuzzSchema: no JSON makes the schema compiler crash or hang, and its output is a grammar.
func FuzzSchema(f *testing.F) {
	for _, s := range []string{
		`{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a","b"],"additionalProperties":{"type":"integer","minimum":-5,"maximum":1e3}}`,
		`{"allOf":[{"$ref":"#/$defs/x"},{"anyOf":[{"type":"string","pattern":"^a|b\\d{2,}$"},{"enum":[1,"é",null]}]}],"$defs":{"x":{"type":["string","null"]}}}`,
		`{"type":"array","prefixItems":[true],"items":{"oneOf":[{"const":1},{"type":"string","format":"date"}]},"minItems":2,"maxItems":300}`,
		`{"type":"number","exclusiveMinimum":0,"exclusiveMaximum":true,"maximum":-0.0}`, `{"$ref":"#"}`,
		`{"anyOf":[{"$ref":"#"}]}`,
	} {
		f.Add(s, true, false)
	}
	for n := range 40 {
		f.Add(grammartest.RandomFullSchema(rand.New(rand.NewPCG(uint64(n), 3))), n%2 == 0, n%3 == 0)
	}
	v := testVocabulary()
	f.Fuzz(func(t *testing.T, schema string, open, lenient bool) {
		if len(schema) > 4000 {
			return
		}
		o := SchemaOptions{Open: open}
		if lenient {
			o.Drop = func(*SchemaError) {}
		}
		w := NewWriter()
		rule, err := w.SchemaWith([]byte(schema), o)
		if err != nil {
			return
		}
		w.Define("root", rule)
		s, err := Parse(w.Text())
		if err != nil {
			if e, ok := err.(*Error); ok &&
				(strings.Contains(e.Message, "left recursion") || strings.Contains(e.Message, "nested deeper") ||
					strings.Contains(e.Message, "bytes, at most")) {
				return
			}
			t.Fatalf("%s\n%s\n%v", schema, w.Text(), err)
		}
		g, err := s.Compile(v)
		if err != nil {
			return
		}
		if m, err := g.Mask(g.Start()); err == nil && m.Count == 0 && !g.Accepts(g.Start()) {
			t.Fatalf("%s allows nothing", schema)
		}
	})
}

// FuzzSpelling: values between tags never hold the tag, whatever the schema, however hard the writer tries.
func FuzzSpelling(f *testing.F) {
	eager := []byte(strings.Repeat("\x01", 12))
	for _, seed := range []struct {
		schema string
		kind   byte
	}{
		{`true`, 1}, {`{"enum":["</x>",1]}`, 0}, {`{"type":"string","minLength":2,"maxLength":12}`, 3},
		{`{"type":["string","null"],"pattern":"^<.a*"}`, 3},
		{`{"type":"object","properties":{"a</x>":{"type":"string"}},"additionalProperties":true}`, 2},
		{`{"anyOf":[{"type":"array","items":{"type":"string"}},{"type":"null"}]}`, 4},
		{`{"type":"string","pattern":"[^a]</?[x-z]"}`, 1},
	} {
		f.Add(seed.schema, eager, seed.kind)
	}
	const tag = "</x>"
	v := testVocabulary()
	f.Fuzz(func(t *testing.T, schema string, choices []byte, kind byte) {
		if len(schema) > 1000 || len(choices) > 40 {
			return
		}
		as := Spelling{Until: tag, Text: kind&1 != 0, Mixed: kind&2 != 0}
		if kind&4 != 0 {
			as = Spelling{Until: tag, Quote: Quote(tag)}
		}
		w := NewWriter()
		rule, err := w.SchemaAs([]byte(schema), as)
		if err != nil {
			return
		}
		w.Define("root", rule)
		s, err := Parse(w.Text())
		if err != nil {
			if e, ok := err.(*Error); ok &&
				(strings.Contains(e.Message, "left recursion") || strings.Contains(e.Message, "nested deeper")) {
				return
			}
			t.Fatalf("%s\n%s\n%v", schema, w.Text(), err)
		}
		g, err := s.Compile(v)
		if err != nil {
			return
		}
		at := g.Start()
		text, goal := "", 0 // goal is how much of the tag was written last
		for _, c := range choices {
			m, err := g.Mask(at)
			if err != nil || m.Count == 0 {
				break
			}
			token := int32(tag[goal])
			if c&1 == 0 || !m.Allows(token) {
				for token = int32(c); !m.Allows(token); token = (token + 1) % int32(v.size) {
				}
			}
			if at = g.Advance(at, token); at == nil {
				t.Fatalf("%s: %q does not go on with %q, which the mask allows", schema, text, token)
			}
			switch text += string([]byte{byte(token)}); {
			case byte(token) == tag[goal]:
				goal = (goal + 1) % len(tag)
			case byte(token) == tag[0]:
				goal = 1
			default:
				goal = 0
			}
		}
		if as.Quote == "" && strings.Contains(text, tag) {
			t.Fatalf("%s %+v: %q holds the tag\n%s", schema, as, text, w.Text())
		}
	})
}

// FuzzQuote: a quoted text is a literal that matches exactly that text.
func FuzzQuote(f *testing.F) {
	f.Add("a\"\\\n\x00é\xff[]")
	v := testVocabulary()
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 1000 {
			return
		}
		s, err := Parse("root ::= " + Quote(text))
		if err != nil {
			t.Fatal(err)
		}
		g, err := s.Compile(v)
		if err != nil {
			t.Fatal(err)
		}
		if !matches(g, text) || matches(g, text+"a") {
			t.Errorf("%q", text)
		}
	})
}
