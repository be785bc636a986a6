package grammar

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-inference/tandem/services/grammar/grammartest"
)

func openGrammar(t testing.TB, schema string, v *Vocabulary) *Grammar {
	t.Helper()
	w := NewWriter()
	rule, err := w.SchemaWith([]byte(schema), SchemaOptions{Open: true})
	if err != nil {
		t.Fatalf("%s: %v", schema, err)
	}
	w.Define("root", rule)
	return compile(t, w.Text(), v)
}

// TestKeywords: what each keyword takes and refuses when a schema is read as the standard has it. The judge agrees with
// both lists, except for texts that are valid and not written (marked with ~).
func TestKeywords(t *testing.T) {
	v := testVocabulary()
	for _, c := range []struct {
		schema  string
		yes, no []string
	}{
		// Neighbours of allOf look at their own place only.
		{`{"allOf":[{"properties":{"foo":{}}}],"additionalProperties":{"type":"boolean"}}`,
			[]string{`{"foo":true,"bar":true}`, `1`}, []string{`{"foo":1,"bar":true}`}},
		{`{"allOf":[{"prefixItems":[{"minimum":3}]}],"items":{"minimum":5}}`, []string{`[5,5]`, `[5]`},
			[]string{`[3,5]`, `[3]`}},
		{`{"allOf":[true],"unevaluatedItems":false}`, []string{`[]`, `{}`}, []string{`["foo"]`}},
		{`{"allOf":[{"patternProperties":{"^f":{}}}],"additionalProperties":false}`, []string{`{}`}, []string{`{"foo":1}`}},
		{`{"properties":{"a":{}},"allOf":[{"properties":{"b":{}},"unevaluatedProperties":false}]}`,
			[]string{`{"b":1}`}, []string{`{"a":1}`}},
		{`{"allOf":[{"properties":{"a":{}}}],"unevaluatedProperties":false}`, []string{`{"a":1}`}, []string{`{"b":1}`}},
		{`{"prefixItems":[{}],"unevaluatedItems":{"type":"null"}}`, []string{`[1,null]`, `[1]`}, []string{`[1,2]`}},
		// not
		{`{"type":"object","not":{"required":["a"]}}`, []string{`{}`, `{"b":1}`}, []string{`{"a":1}`, `{"b":1,"a":2}`}},
		{`{"not":{"const":"a"}}`, []string{`"b"`, `"ab"`, `""`, `1`, `{"a":1}`}, []string{`"a"`, `"\u0061"`}},
		{`{"type":"integer","not":{"enum":[1,2,-3]}}`, []string{`3`, `12`, `0`}, []string{`1`, `2`, `-3`}},
		{`{"not":{"type":["string","integer"]}}`, []string{`1.5`, `null`, `[]`}, []string{`"a"`, `1`, `"1"`}},
		{`{"type":"string","not":{"pattern":"^a|z"}}`, []string{`"b"`, `""`}, []string{`"a"`, `"bz"`}},
		{`{"type":"object","not":{"anyOf":[{"required":["a"]},{"required":["b"]}]}}`, []string{`{"c":1}`},
			[]string{`{"a":1}`, `{"c":1,"b":1}`}},
		{`{"type":"array","not":{"items":{"type":"string"}}}`, []string{`[1]`, `["a",1]`}, []string{`[]`, `["a"]`}},
		{`{"type":"object","properties":{"k":{"type":"string"}},"not":{"properties":{"k":{"const":"x"}},"required":["k"]}}`,
			[]string{`{"k":"y"}`, `{}`}, []string{`{"k":"x"}`}},
		{`{"not":{"const":[1,2]},"type":"array"}`, []string{`[2,2]`, `[]`}, []string{`[1,2]`}},
		// Lengths beside patterns and formats.
		{`{"type":"string","pattern":"^[a-z]+(-[a-z]+)*$","minLength":3,"maxLength":5}`, []string{`"a-b"`, `"abcde"`},
			[]string{`"ab"`, `"abcdef"`, `"a--b"`}},
		{`{"type":"string","pattern":"^[a-z]*$","maxLength":3}`, []string{`""`, `"abc"`}, []string{`"abcd"`, `"A"`}},
		{`{"type":"string","format":"ipv4","maxLength":8}`, []string{`"1.2.3.44"`}, []string{`"1.2.3.444"`, `"1.2.3"`}},
		{`{"type":"string","allOf":[{"pattern":"a"},{"pattern":"b"}]}`, []string{`"xbya"`, `"ab"`}, []string{`"a"`, `"b"`}},
		{`{"type":"string","pattern":"^(?!foo$)(?=.*[0-9]).{1,9}$"}`, []string{`"foo1"`, `"1"`}, []string{`"foo"`, `"bar"`}},
		{`{"type":"string","pattern":"(?i)^ab$"}`, []string{`"aB"`, `"AB"`}, []string{`"b"`}},
		{`{"type":"string","pattern":"^.$"}`, []string{`"a"`}, []string{`"\n"`, `"\r"`}},
		// Objects.
		{`{"type":"object","dependentRequired":{"a":["b"]}}`, []string{`{}`, `{"b":1}`, `{"a":1,"b":1}`, `{"b":1,"a":1}`},
			[]string{`{"a":1}`}},
		{`{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","dependencies":{"a":["b"],"c":{"properties":{"a":{"type":"null"}}}}}`,
			[]string{`{"b":1}`, `{"c":1,"a":null,"b":2}`}, []string{`{"a":1}`, `{"c":1,"a":1,"b":2}`}},
		{`{"type":"object","dependentSchemas":{"a":{"maxProperties":1}}}`, []string{`{"a":1}`, `{"b":1,"c":2}`},
			[]string{`{"a":1,"b":2}`}},
		{`{"type":"object","minProperties":1}`, []string{`{"a":1}`}, []string{`{}`}},
		{`{"type":"object","maxProperties":1}`, []string{`{"a":1}`, `{}`}, []string{`{"a":1,"b":2}`}},
		{`{"type":"object","properties":{"a":{},"b":{},"c":{}},"additionalProperties":false,"minProperties":2,"maxProperties":2}`,
			[]string{`{"a":1,"c":1}`, `{"c":1,"b":1}`}, []string{`{"a":1}`, `{"a":1,"b":1,"c":1}`, `{"a":1,"a":1}`}},
		{`{"type":"object","patternProperties":{"^a":{"type":"integer"},"b$":{"minimum":5}},"additionalProperties":{"type":"null"}}`,
			[]string{`{"a":1,"b":5,"ab":7,"c":null}`, `{"b":"x"}`}, []string{`{"ab":4}`, `{"a":null}`, `{"c":1}`}},
		{`{"type":"object","properties":{"foo":{}},"patternProperties":{"o":{"type":"integer"}}}`,
			[]string{`{"foo":1,"x":"y"}`}, []string{`{"foo":"a"}`, `{"o":"a"}`}},
		{`{"type":"object","propertyNames":{"enum":["a","b"]}}`, []string{`{"a":1,"b":2}`}, []string{`{"c":1}`}},
		{`{"type":"object","propertyNames":{"maxLength":2},"properties":{"abc":{},"ab":{"type":"null"}}}`,
			[]string{`{"ab":null,"x":1}`}, []string{`{"abc":1}`, `{"xyz":1}`}},
		{`{"type":"object","properties":{"a":{},"b":{}},"required":["b"]}`, []string{`{"b":1,"a":2}`, `{"b":2,"x":1}`},
			[]string{`{"a":1}`, `{"x":1}`}},
		{`{"properties":{"a":{"type":"null"}}}`, []string{`1`, `"x"`, `[1]`, `{"a":null}`}, []string{`{"a":1}`}},
		// Conditions.
		{`{"type":"object","if":{"properties":{"k":{"const":1}},"required":["k"]},"then":{"required":["a"]},"else":{"required":["b"]}}`,
			[]string{`{"k":1,"a":0}`, `{"k":2,"b":0}`, `{"b":0}`}, []string{`{"k":1,"b":0}`, `{"k":2,"a":0}`, `{}`}},
		{`{"oneOf":[{"required":["a"]},{"required":["b"]}],"type":"object"}`, []string{`{"a":1}`, `{"b":1}`},
			[]string{`{}`, `{"a":1,"b":1}`}},
		{`{"oneOf":[{"type":"integer"},{"type":"number","minimum":2}]}`, []string{`1`, `2.5`}, []string{`3`, `1.5`}},
		{`{"oneOf":[{"maxLength":2},{"type":"object","required":["a"]}]}`, []string{`"ab"`, `{"b":1}`, `3`},
			[]string{`"abc"`, `{"a":1}`}},
		{`{"enum":["a","abc",3,[1],{"x":1}],"maxLength":2,"maxItems":0}`, []string{`"a"`, `3`, `{"x":1}`},
			[]string{`"abc"`, `[1]`}},
		// Numbers.
		{`{"type":"number","minimum":0.5,"maximum":2.25}`, []string{`0.5`, `0.75`, `1`, `2.25`, `2`, `2.2500`},
			[]string{`0.4`, `0`, `2.26`, `3`, `-1`, `0.49999`}},
		{`{"type":"number","exclusiveMinimum":-0.5,"exclusiveMaximum":0.5}`, []string{`-0.4`, `0`, `0.49`},
			[]string{`-0.5`, `0.5`, `-0.50`, `1`, `-1`}},
		{`{"type":"integer","multipleOf":3}`, []string{`0`, `9`, `-12`, `111`}, []string{`1`, `10`}},
		{`{"type":"number","multipleOf":0.25,"maximum":1}`, []string{`0.5`, `0.75`, `1`, `-3.250`}, []string{`0.3`, `1.25`}},
		{`{"type":"integer","not":{"multipleOf":2}}`, []string{`1`, `-7`}, []string{`0`, `12`}},
		// Arrays.
		{`{"type":"array","contains":{"const":1}}`, []string{`[1]`, `[2,1,"x"]`}, []string{`[]`, `[2]`}},
		{`{"type":"array","contains":{"type":"null"},"minContains":1,"maxContains":2}`, []string{`[null]`, `[null,1,null]`},
			[]string{`[1]`, `[null,null,null]`}},
		{`{"type":"array","uniqueItems":true,"items":{"enum":["a","b",1]}}`, []string{`[]`, `["b","a"]`, `[1,"a","b"]`},
			[]string{`["a","a"]`, `[1,"a",1]`}},
		{`{"type":"array","uniqueItems":true,"items":{"type":"integer","minimum":1,"maximum":9},"minItems":2}`,
			[]string{`[3,1]`}, []string{`[1,1]`, `[1]`}},
		{`{"type":"array","prefixItems":[{"type":"null"},{"type":"integer"}]}`, []string{`[]`, `[null]`, `[null,1,"x"]`},
			[]string{`[1]`, `[null,"x"]`}},
		// References.
		{`{"$defs":{"a":{"$id":"x:/a","$defs":{"b":{"type":"null"}},"$ref":"#/$defs/b"}},"$ref":"#/$defs/a"}`,
			[]string{`null`}, []string{`1`}},
		{`{"$defs":{"a":{"$anchor":"here","type":"null"}},"$ref":"#here"}`, []string{`null`}, []string{`1`}},
		{`{"type":"object","properties":{"kid":{"$ref":"#"}},"allOf":[{"properties":{"v":{"type":"integer"}}}]}`,
			[]string{`{"kid":{"v":1}}`}, []string{`{"kid":{"v":"x"}}`, `{"v":"x"}`}},
		// Formats.
		{`{"type":"string","format":"uri"}`, []string{`"https://example.com/a?b=c#d"`, `"urn:a:b"`},
			[]string{`"not a uri"`, `"/a/b"`, `" http://a"`}},
		{`{"type":"string","format":"uri-reference"}`, []string{`"/a/b"`, `"a?b"`, `"http://x"`}, []string{`"a b"`}},
		{`{"type":"string","format":"ipv6"}`, []string{`"::1"`, `"2001:db8::1"`, `"1:2:3:4:5:6:7:8"`},
			[]string{`"1::2::3"`, `"12345::"`}},
		{`{"type":"string","format":"hostname"}`, []string{`"example.com"`}, []string{`"-a"`, `"a..b"`}},
		{`{"type":"string","format":"duration"}`, []string{`"P1D"`, `"PT5M"`, `"P1Y2M3DT4H5M6S"`},
			[]string{`"P"`, `"1D"`, `"PT"`}},
	} {
		g := openGrammar(t, c.schema, v)
		judge, err := grammartest.ReadJudge(c.schema, true)
		for _, s := range c.yes {
			if !matches(g, s) {
				t.Errorf("%s: %s is refused", c.schema, s)
			}
			if err != nil {
				continue // a pattern that only this package reads
			}
			if err := judge.Validate(s); err != nil {
				t.Errorf("%s: the judge disagrees about %s: %v", c.schema, s, err)
			}
		}
		for _, s := range c.no {
			if matches(g, s) {
				t.Errorf("%s: %s is accepted", c.schema, s)
			}
		}
		// By the order of the schema nothing else is taken either.
		w := NewWriter()
		rule, err := w.Schema([]byte(c.schema))
		if err != nil {
			t.Errorf("%s: %v", c.schema, err)
			continue
		}
		w.Define("root", rule)
		g = compile(t, w.Text(), v)
		for _, s := range c.no {
			if matches(g, s) {
				t.Errorf("%s: %s is accepted in order", c.schema, s)
			}
		}
	}
}

// TestUnfollowedFormatsTellNothingApart: a format that is followed by a part of its texts only does not make branches
// exclude each other.
func TestUnfollowedFormatsTellNothingApart(t *testing.T) {
	for _, schema := range []string{
		`{"oneOf":[{"properties":{"p":{"type":"string","format":"email"}},"required":["p"]},{"properties":{"p":{"enum":["\"a b\"@example.com"]}},"required":["p"]}],"type":"object"}`,
		`{"oneOf":[{"not":{"propertyNames":{"maxLength":3}}},{"type":"object","required":["long-key"]}],"type":"object"}`,
	} {
		g, err := func() (*Grammar, error) {
			w := NewWriter()
			rule, err := w.SchemaWith([]byte(schema), SchemaOptions{Open: true})
			if err != nil {
				return nil, err
			}
			w.Define("root", rule)
			return compile(t, w.Text(), testVocabulary()), nil
		}()
		if err != nil {
			continue
		}
		for _, s := range []string{`{"p":"\"a b\"@example.com"}`, `{"long-key":1}`} {
			if judge := grammartest.NewJudge(t, schema); matches(g, s) && judge.Validate(s) != nil {
				t.Errorf("%s: %s is accepted", schema, s)
			}
		}
	}
}

// TestDroppedKeywords: with Drop what cannot be followed is named, and the rest is held.
func TestDroppedKeywords(t *testing.T) {
	for _, c := range []struct {
		schema  string
		dropped []string
		yes, no []string
	}{
		{`{"type":"array","items":{"type":"string"},"uniqueItems":true,"maxItems":2}`, []string{"uniqueItems"},
			[]string{`["a","a"]`}, []string{`["a","b","c"]`, `[1]`}},
		{`{"type":"object","properties":{"a":{"type":"string","pattern":"x\\b","minLength":2}},"required":["a"]}`,
			[]string{"properties.a.pattern"}, []string{`{"a":"zz"}`}, []string{`{"a":1}`, `{}`}},
		{`{"type":"object","properties":{"a":{"$ref":"http://other/x"},"b":{"type":"null"}}}`, []string{"properties.a.$ref"},
			[]string{`{"a":[1],"b":null}`}, []string{`{"b":1}`}},
		{`{"type":"string","not":{"format":"uri"}}`, []string{"not"}, []string{`"x"`}, []string{`1`}},
		{`{"type":"string","oneOf":[{"format":"uri"},{"format":"email"}]}`, []string{"oneOf[0]"},
			[]string{`"a:b"`}, []string{`1`}},
	} {
		var dropped []string
		w := NewWriter()
		rule, err := w.SchemaWith([]byte(c.schema),
			SchemaOptions{Open: true, Drop: func(e *SchemaError) { dropped = append(dropped, e.Path) }})
		if err != nil {
			t.Errorf("%s: %v", c.schema, err)
			continue
		}
		if !slices.Equal(dropped, c.dropped) {
			t.Errorf("%s: %q are dropped, want %q", c.schema, dropped, c.dropped)
		}
		w.Define("root", rule)
		g := compile(t, w.Text(), testVocabulary())
		for _, s := range c.yes {
			if !matches(g, s) {
				t.Errorf("%s: %s is refused", c.schema, s)
			}
		}
		for _, s := range c.no {
			if matches(g, s) {
				t.Errorf("%s: %s is accepted", c.schema, s)
			}
		}
		var e *SchemaError
		if _, err := NewWriter().Schema([]byte(c.schema)); !errors.As(err, &e) || e.Path != c.dropped[0] {
			t.Errorf("%s: %v, want a fault at %q", c.schema, err, c.dropped[0])
		}
	}
}

// TestRandomOpenSchemas: as TestRandomSchemas, with every keyword, for schemas that are read as the standard has it.
func TestRandomOpenSchemas(t *testing.T) {
	v := testVocabulary("true", "null", `":`, `",`, `"}`, `{"`, "12", "abc", "é", `\"`, "name", `"name"`, "2024",
		`"a":`, `"b":`, `,"a":1`)
	schemas, refused, ended := 1500, 0, 0
	if testing.Short() {
		schemas = 150
	}
	for n := range schemas {
		r := rand.New(rand.NewPCG(uint64(n), 11))
		schema := grammartest.RandomFullSchema(r)
		w := NewWriter()
		rule, err := w.SchemaWith([]byte(schema), SchemaOptions{Open: n%3 > 0})
		if err != nil {
			refused++
			continue
		}
		w.Define("root", rule)
		g := compile(t, w.Text(), v)
		judge := grammartest.NewJudge(t, schema)
		for range 6 {
			text, ok := writeUpTo(t, g, r, 40, 400)
			if !ok {
				continue
			}
			ended++
			if err := judge.Validate(text); err != nil {
				t.Fatalf("schema %d %s\n%s\n%v", n, schema, text, err)
			}
		}
	}
	if refused > schemas/2 || ended < 3*schemas {
		t.Errorf("%d of %d schemas are refused, %d texts came to an end", refused, schemas, ended)
	}
}
