// Package grammartest has what tests of constrained decoding share: random schemas of the supported subset, and an independent
// validator as their judge.
package grammartest

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Judge says whether texts are valid for a schema.
type Judge struct{ schema *jsonschema.Schema }

// NewJudge reads a schema, formats included.
func NewJudge(t testing.TB, schema string) Judge {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(schema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("schema.json", doc); err != nil {
		t.Fatalf("%s: %v", schema, err)
	}
	s, err := c.Compile("schema.json")
	if err != nil {
		t.Fatalf("%s: %v", schema, err)
	}
	return Judge{s}
}

// Validate reports what is wrong with a text.
func (j Judge) Validate(text string) error {
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return err
	}
	return j.schema.Validate(v)
}

// drawSchema makes a random schema of the supported subset.
func drawSchema(r *rand.Rand, depth int) map[string]any {
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	s := map[string]any{}
	if r.IntN(4) == 0 {
		s["description"] = "a \"value\""
	}
	kind := r.IntN(16)
	if depth <= 0 {
		kind = r.IntN(9)
	}
	switch kind {
	case 0:
		s["type"] = "string"
		switch r.IntN(4) {
		case 0:
			s["minLength"] = r.IntN(4)
		case 1:
			s["maxLength"] = r.IntN(30)
		case 2:
			s["minLength"], s["maxLength"] = r.IntN(5), 5+r.IntN(200)
		}
	case 1:
		s["type"] = "integer"
		a := r.IntN(2000) - 1000
		if r.IntN(2) == 0 {
			s["minimum"] = a
		}
		if r.IntN(2) == 0 {
			s["maximum"] = a + r.IntN(3000)
		}
	case 2:
		s["type"] = "number"
		a := r.IntN(200) - 100
		if r.IntN(2) == 0 {
			s[pick("minimum", "exclusiveMinimum")] = a
		}
		if r.IntN(2) == 0 {
			s[pick("maximum", "exclusiveMaximum")] = a + 1 + r.IntN(300)
		}
	case 3:
		s["type"] = pick("boolean", "null")
	case 4:
		s["enum"] = []any{"a", "ab", 3, nil, true, "é\"\\"}[:1+r.IntN(6)]
	case 5:
		s["const"] = []any{"x y", 7, nil, []any{1, "b"}, map[string]any{"k": 1}}[r.IntN(5)]
	case 6:
		s["type"], s["format"] = "string", pick("date", "time", "date-time", "uuid", "ipv4", "email", "hostname")
	case 7:
		s["type"], s["pattern"] = "string", pick(`^[a-z]+$`, `^\d{3}-\d{2}$`, `a|^b+$`, `[^"x]{2}`, `^(ab|c)*\.$`, `^"\\?"$`, `\w`)
	case 8:
		s["type"] = []any{"string", pick("null", "integer", "boolean")}
	case 9, 10, 11:
		s["type"] = "object"
		properties, names := map[string]any{}, []any{}
		for range r.IntN(5) {
			key := pick("a", "b", "name", "na", "value", "é", "with \"quote\"", "list")
			_, known := properties[key]
			properties[key] = drawSchema(r, depth-1)
			if !known && r.IntN(2) == 0 {
				names = append(names, key)
			}
		}
		s["properties"], s["required"] = properties, names
		switch r.IntN(4) {
		case 0:
			s["additionalProperties"] = false
		case 1:
			s["additionalProperties"] = drawSchema(r, 0)
			if len(properties) == 0 && r.IntN(2) == 0 {
				s["propertyNames"] = map[string]any{"pattern": "^[a-c]{1,4}$"}
			}
		}
	case 12:
		s["type"], s["items"] = "array", drawSchema(r, depth-1)
		if r.IntN(2) == 0 {
			s["minItems"] = r.IntN(3)
		}
		if r.IntN(2) == 0 {
			s["maxItems"] = 3 + r.IntN(3)
		}
	case 13:
		s["type"], s["prefixItems"] = "array", []any{drawSchema(r, depth-1), drawSchema(r, 0)}
		if r.IntN(2) == 0 {
			s["items"] = drawSchema(r, 0)
		}
	case 14:
		s["anyOf"] = []any{drawSchema(r, depth-1), drawSchema(r, depth-1)}
	default:
		if r.IntN(2) == 0 {
			s["$ref"] = "#/$defs/tree"
		} else {
			s["allOf"] = []any{
				map[string]any{"type": "object", "properties": map[string]any{"p": drawSchema(r, 0)}, "required": []any{"p"}},
				map[string]any{"properties": map[string]any{"q": drawSchema(r, depth-1)}},
			}
		}
	}
	return s
}

// RandomSchema draws a schema of the supported subset.
func RandomSchema(r *rand.Rand) string {
	s := drawSchema(r, 3)
	s["$defs"] = map[string]any{"tree": map[string]any{
		"type":       "object",
		"properties": map[string]any{"v": drawSchema(r, 0), "kids": map[string]any{"type": "array", "items": map[string]any{"$ref": "#/$defs/tree"}}},
		"required":   []any{"v"},
	}}
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}
