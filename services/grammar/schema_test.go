package grammar

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/services/cputime"
	"github.com/tandem-inference/tandem/services/grammar/grammartest"
)

func schemaGrammar(t testing.TB, schema string, v *Vocabulary) *Grammar {
	t.Helper()
	w := NewWriter()
	rule, err := w.Schema([]byte(schema))
	if err != nil {
		t.Fatalf("%s: %v", schema, err)
	}
	w.Define("root", rule)
	return compile(t, w.Text(), v)
}

// write lets a random writer choose among the allowed tokens; it ends as soon as it may once it has written enough.
func write(t testing.TB, g *Grammar, r *rand.Rand, enough int) string {
	t.Helper()
	text, ok := writeUpTo(t, g, r, enough, 20*enough+5000)
	if !ok {
		t.Fatalf("no end after %q", text)
	}
	return text
}

// writeUpTo is write that gives up after so many tokens: the writer may not think of the item that an array has
// to contain.
func writeUpTo(t testing.TB, g *Grammar, r *rand.Rand, enough, limit int) (string, bool) {
	t.Helper()
	var out []byte
	s := g.Start()
	for n := 0; ; n++ {
		m, err := g.Mask(s)
		if err != nil {
			t.Fatal(err)
		}
		if g.Accepts(s) && (m.Count == 0 || n > enough || r.IntN(3) == 0) {
			return string(out), true
		}
		if n > limit {
			return string(out), false
		}
		if m.Count == 0 {
			t.Fatalf("nothing may follow %q", out)
		}
		id := int32(-1)
		if n > enough || r.IntN(4) == 0 {
			// What ends things, mostly; sometimes what a pattern may be waiting for.
			const endings = `"}]ntf0123456789aAbB,:{[-.`
			first := 0
			if r.IntN(3) == 0 {
				first = r.IntN(len(endings))
			}
			for _, c := range []byte(endings[first:]) {
				if m.Allows(int32(c)) {
					id = int32(c)
					break
				}
			}
		}
		if id < 0 {
			skip := r.IntN(m.Count)
			for id = 0; ; id++ {
				if m.Allows(id) {
					if skip == 0 {
						break
					}
					skip--
				}
			}
		}
		out = append(out, g.vocab.bytes(id)...)
		if s = g.Advance(s, id); s == nil {
			t.Fatalf("token %d after %q was allowed and is refused", id, out)
		}
	}
}

func TestSchemas(t *testing.T) {
	v := testVocabulary("true", "null", `":`, `",`, `"}`, `{"`, "12", "abc")
	for _, c := range []struct {
		schema  string
		yes, no []string
	}{
		{`{"type":"object","properties":{"b":{"type":"integer"},"a":{"type":"string"}},"required":["a"]}`,
			[]string{`{"b":1,"a":"x"}`, `{ "a" : "x"}`[0:1] + `"a": "x" }`, `{"a":"\u0041\n"}`},
			[]string{`{}`, `{"b":1}`, `{"a":"x","b":1}`, `{"a":"x","c":1}`, `{   "a":"x"}`}},
		{`{"type":"object"}`, []string{`{}`, `{"x":[1,{"y":null}]}`}, []string{`[]`, `{"x"}`}},
		{`{}`, []string{`1`, `"x"`, `[true]`, `-1.5e+10`}, []string{`01`, `1e999`, `"\ud800"`}},
		{`{"type":["string","null"],"maxLength":3}`, []string{`null`, `"abc"`, `"é\n日"`, `""`}, []string{`"abcd"`, `1`}},
		{`{"type":"string","minLength":2}`, []string{`"ab"`, `"abcdef"`}, []string{`"a"`, `""`}},
		{`{"enum":["a\"b",1,null,{"x":[1,2]}]}`, []string{`"a\"b"`, `1`, `null`, `{"x":[1,2]}`}, []string{`2`, `"a"`}},
		{`{"const":"é"}`, []string{`"é"`}, []string{`"e"`}},
		{`{"type":"integer","minimum":-12,"maximum":305}`, []string{`-12`, `-9`, `0`, `99`, `100`, `299`, `305`},
			[]string{`-13`, `306`, `1000`, `05`, `1.5`}},
		{`{"type":"integer","exclusiveMinimum":9}`, []string{`10`, `123456`}, []string{`9`, `-10`, `1`}},
		{`{"type":"integer","minimum":-9007199254740991,"maximum":9007199254740991}`,
			[]string{`-9007199254740991`, `0`, `9007199254740991`}, []string{`-9007199254740992`, `9007199254740992`}},
		{`{"type":"number","minimum":0,"maximum":1}`, []string{`0`, `0.25`, `1`}, []string{`1.1`, `-0.1`, `2`}},
		{`{"type":"number","exclusiveMinimum":-2,"exclusiveMaximum":2.0}`, []string{`-1.99`, `0`, `1.5`, `-0.5`},
			[]string{`-2`, `2`, `2.5`, `-2.1`}},
		{`{"type":"number","exclusiveMinimum":0}`, []string{`0.1`, `7`, `1.0`}, []string{`0`, `0.0`, `-1`}},
		{`{"type":"array","items":{"type":"boolean"},"minItems":1,"maxItems":2}`, []string{`[true]`, `[true, false]`},
			[]string{`[]`, `[true,true,true]`}},
		{`{"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":false}`, []string{`[1,"a"]`},
			[]string{`[1]`, `[1,"a",2]`, `["a",1]`}},
		{`{"$schema":"http://json-schema.org/draft-07/schema#","type":"array","items":[{"const":1}],"additionalItems":{"const":2},"minItems":2}`, []string{`[1,2]`, `[1,2,2]`}, []string{`[1]`, `[2]`}},
		{`{"anyOf":[{"type":"integer"},{"type":"string"}]}`, []string{`1`, `"x"`}, []string{`null`}},
		{`{"type":"object","properties":{"k":{"type":"string"}},"anyOf":[{"required":["k"]},{"properties":{"n":{"type":"null"}},"required":["n"]}]}`,
			[]string{`{"k":"v"}`, `{"n":null}`, `{"k":"v","n":null}`}, []string{`{}`}},
		{`{"oneOf":[{"type":"object","properties":{"t":{"const":"a"},"x":{"type":"integer"}},"required":["t","x"]},{"type":"object","properties":{"t":{"const":"b"}},"required":["t"]}]}`,
			[]string{`{"t":"a","x":1}`, `{"t":"b"}`}, []string{`{"t":"a"}`, `{"t":"c"}`}},
		{`{"allOf":[{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},{"properties":{"b":{"type":"null"},"a":{"minimum":5}}}]}`,
			[]string{`{"a":5}`, `{"a":7,"b":null}`}, []string{`{"b":null}`, `{"a":4}`}},
		{`{"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{"v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},"required":["v","next"]}}}`,
			[]string{`{"v":1,"next":null}`, `{"v":1,"next":{"v":2,"next":null}}`}, []string{`{"v":1}`}},
		{`{"type":"array","items":{"$ref":"#"}}`, []string{`[]`, `[[],[[]]]`}, []string{`[1]`}},
		{`{"type":"object","properties":{"ab":{"type":"integer"}},"additionalProperties":{"type":"string"}}`,
			[]string{`{}`, `{"ab":1}`, `{"ab":1,"abc":"x"}`, `{"a":"x"}`, `{"":"x"}`, `{"b":"x","c":"y"}`},
			[]string{`{"ab":"x"}`, `{"a":1}`, `{"\u0061b":"x"}`, `{"b":"x","ab":"x"}`}},
		{`{"type":"object","required":["z"],"properties":{"a":{"type":"null"}}}`, []string{`{"z":1}`, `{"a":null,"z":[]}`},
			[]string{`{"a":null}`}},
		{`{"type":"string","pattern":"^[A-Z]{2}-\\d+(x|\"y\")?$"}`, []string{`"AB-1"`, `"AB-12x"`, `"AB-1\"y\""`},
			[]string{`"A-1"`, `"AB-"`, `"AB-1xx"`}},
		{`{"type":"object","propertyNames":{"type":"string"},"additionalProperties":{"type":"integer"}}`,
			[]string{`{}`, `{"x":1}`}, []string{`{"x":"y"}`}},
		{`{"type":"object","propertyNames":{"pattern":"^[a-c]+$"},"additionalProperties":{"type":"integer"}}`,
			[]string{`{}`, `{"abc":1,"a":2}`}, []string{`{"x":1}`}},
		{`{"type":"object","patternProperties":{"^x-":{"type":"null"}},"additionalProperties":false}`,
			[]string{`{}`, `{"x-a":null}`}, []string{`{"a":null}`, `{"x-a":1}`}},
		{`{"type":"string","pattern":"b\\\\"}`, []string{`"b\\"`, `"aab\\ccc"`}, []string{`"b"`, `""`}},
		{`{"type":"string","format":"date"}`, []string{`"2024-02-28"`, `"1999-12-31"`},
			[]string{`"2024-02-30"`, `"2024-13-01"`, `"x"`}},
		{`{"type":"string","format":"date-time"}`, []string{`"2024-02-28T23:59:59Z"`, `"2024-02-28T00:00:00.5+01:30"`},
			[]string{`"2024-02-28"`}},
		{`{"type":"string","format":"uuid"}`, []string{`"123e4567-e89b-12d3-a456-426614174000"`}, []string{`"123e4567"`}},
		{`{"type":"string","format":"int32","nullable":true}`, []string{`"x"`, `null`}, []string{`1`}},
		{`{"type":"object","properties":{"a":{},"b":{},"c":{}},"additionalProperties":false}`,
			[]string{`{}`, `{"a":1}`, `{"b":1}`, `{"a":1,"c":2}`, `{"a":1,"b":2,"c":3}`},
			[]string{`{"b":1,"a":2}`, `{"d":1}`, `{,"a":1}`}},
	} {
		g := schemaGrammar(t, c.schema, v)
		judge := grammartest.NewJudge(t, strings.ReplaceAll(c.schema, `,"nullable":true`, ""))
		for _, s := range c.yes {
			if !matches(g, s) {
				t.Errorf("%s: %s is refused", c.schema, s)
			}
			if err := judge.Validate(s); err != nil && s != "null" {
				t.Errorf("the judge disagrees: %v", err)
			}
		}
		for _, s := range c.no {
			if matches(g, s) {
				t.Errorf("%s: %s is accepted", c.schema, s)
			}
		}
	}
}

func TestSchemaFaultsNameThePath(t *testing.T) {
	for _, c := range []struct{ schema, path, want string }{
		{`{"type":"object","properties":{"a":{"not":{}}},"required":["a"]}`, "", "cannot be met"},
		{`{"type":"array","minItems":1,"items":{"not":{}}}`, "", "cannot be met"},
		{`{"properties":{"a":{"type":"string","not":{"format":"uri"}}}}`, "properties.a.not", "not supported"},
		{`{"type":"object","propertyNames":{"type":"integer"},"minProperties":1}`, "", "cannot be met"},
		{`{"type":"array","items":{"type":"string"},"uniqueItems":true}`, "uniqueItems", "list of values only"},
		{`{"type":"number","multipleOf":0.1234567}`, "multipleOf", "too many states"},
		{`{"type":"integer","multipleOf":0}`, "multipleOf", "above 0"},
		{`{"type":"integer","minimum":3,"maximum":2}`, "", "cannot be met"},
		{`{"anyOf":[{"type":"string"},{"type":"strin"}]}`, "anyOf[1].type", `unknown type "strin"`},
		{`{"oneOf":[{"type":"string","format":"uri"},{"type":"string","format":"email"}]}`, "oneOf[0]", "use anyOf"},
		{`{"$ref":"other.json"}`, "$ref", "inside the schema"},
		{`{"$ref":"#/$defs/x"}`, "$ref", "is not in the schema"},
		{`{"$ref":"#","type":"string"}`, "", "refers to itself"},
		{`{"type":"string","pattern":"x(?=a)"}`, "pattern", "cannot be read"},
		{`{"type":"string","pattern":"a\\b"}`, "pattern", "not supported"},
		{`{"type":"string","minLength":-1}`, "minLength", "at least 0"},
		{`{"properties":3}`, "properties", "must be an object"},
		{`{"properties":{"a":false},"required":["a"]}`, "", "cannot be met"},
		{`{"additionalProperties":false,"required":["a"]}`, "", "cannot be met"},
		{`{"enum":["a"],"type":"integer"}`, "", "cannot be met"},
		{`{"allOf":[{"type":"string"},{"type":"null"}]}`, "", "cannot be met"},
		{`{"minProperties":2}`, "minProperties", "declared keys"},
		{`[1]`, "", "must be an object or a boolean"},
		{`{`, "", "is not JSON"},
	} {
		_, err := NewWriter().Schema([]byte(c.schema))
		var e *SchemaError
		if !errors.As(err, &e) || e.Path != c.path || !strings.Contains(e.Message, c.want) {
			t.Errorf("%s: %v, want %s: %s", c.schema, err, c.path, c.want)
		}
	}
}

// TestRandomSchemas: whatever is chosen among the allowed tokens, the text is valid for an independent validator.
func TestRandomSchemas(t *testing.T) {
	v := testVocabulary("true", "null", `":`, `",`, `"}`, `{"`, "12", "abc", "é", "\xc3", `\"`, `\u00`, "  ", "\n ",
		"name", `"name"`, "2024")
	schemas := 500
	if testing.Short() {
		schemas = 60
	}
	for n := range schemas {
		r := rand.New(rand.NewPCG(uint64(n), 7))
		schema := grammartest.RandomSchema(r)
		g := schemaGrammar(t, schema, v)
		judge := grammartest.NewJudge(t, schema)
		for range 4 {
			text := write(t, g, r, 60)
			if err := judge.Validate(text); err != nil {
				t.Fatalf("schema %d %s\n%s\n%v", n, schema, text, err)
			}
			if strings.Contains(text, "   ") && !strings.Contains(text, `"`) {
				t.Fatalf("%q has too much whitespace", text)
			}
		}
	}
}

// TestSchemasThatExplode: schemas that are small as text and huge when references are followed are refused in time.
func TestSchemasThatExplode(t *testing.T) {
	for name, level := range map[string]string{
		"anyOf": `{"type":"object","properties":{"p%[1]d":{"type":"null"}},"anyOf":[{"$ref":"#/$defs/d%[1]d"},{"$ref":"#/$defs/d%[1]d"}]}`,
		"oneOf": `{"type":"object","properties":{"p":{"oneOf":[{"$ref":"#/$defs/d%[1]d"},{"allOf":[{"$ref":"#/$defs/d%[1]d"},{"$ref":"#/$defs/d%[1]d"}]}]}},"required":["p"]}`,
	} {
		var defs []string
		for i := 1; i < 60; i++ {
			defs = append(defs, fmt.Sprintf(`"d%d":`, i)+fmt.Sprintf(level, i-1))
		}
		schema := `{"$ref":"#/$defs/d59","$defs":{"d0":{"type":"object","properties":{"z":{"type":"integer"}}},` +
			strings.Join(defs, ",") + "}}"
		start := cputime.Spent(t)
		_, err := NewWriter().Schema([]byte(schema))
		if took := cputime.Spent(t) - start; err == nil || took > 10*time.Second {
			t.Errorf("%s: %v after %v", name, err, took)
		}
	}
}

// TestLargeSchemas: schemas whose parts would have to be compared or written out too often are refused before that
// is done.
func TestLargeSchemas(t *testing.T) {
	list := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format+",", i)
		}
		return strings.TrimSuffix(b.String(), ",")
	}
	const tooLarge = "too large"
	for _, tt := range []struct{ name, schema, want string }{
		{"lists of values", `{"allOf":[{"enum":[` + list(10_000, "%d.5") + `]},{"enum":[` + list(10_000, "%d.25") + `]}]}`,
			tooLarge},
		{"branches", `{"oneOf":[{"enum":[` + list(10_000, "%d.5") + `]},{"enum":[` + list(10_000, "%d.25") + `]}]}`,
			tooLarge},
		{"unknown types", `{"type":[` + list(20_000, `"%x"`) + `]}`, "unknown type"},
		{"keys", `{"required":[` + list(30_000, `"%x"`) + `]}`, tooLarge},
		{"a long key", `{"additionalProperties":true,"required":["` + strings.Repeat("k", 200_000) + `"]}`, tooLarge},
		{"classes", `{"type":"string","pattern":"` + strings.Repeat(`\\pL`, 10_000) + `"}`, "too long"},
	} {
		if _, err := NewWriter().Schema([]byte(tt.schema)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want an error that says %q", tt.name, err, tt.want)
		}
	}
	// A type that stands twice in both lists is still one type.
	g := schemaGrammar(t, `{"allOf":[{"type":["null","null","string"]},{"type":["null","null"]}]}`, testVocabulary())
	if !matches(g, "null") || matches(g, `""`) {
		t.Error("lists of types are not joined")
	}
}

func TestManyOptionalProperties(t *testing.T) {
	properties := map[string]any{}
	for i := range 300 {
		properties[fmt.Sprintf("key_%03d", i)] = map[string]any{"type": "integer"}
	}
	schema, _ := json.Marshal(map[string]any{"type": "object", "properties": properties})
	g := schemaGrammar(t, string(schema), testVocabulary("key", "_00"))
	if !matches(g, `{"key_003":1,"key_299":2}`) || matches(g, `{"key_003":1,"key_002":2}`) {
		t.Error("order of keys")
	}
}
