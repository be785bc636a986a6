// Package grammartest has shared parts of the tests of constrained decoding: random schemas of the supported subset,
// and an independent validator to check outputs.
package grammartest

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Judge validates texts against a schema.
type Judge struct{ schema *jsonschema.Schema }

// NewJudge reads a schema, formats included.
func NewJudge(t testing.TB, schema string) Judge {
	t.Helper()
	j, err := ReadJudge(schema, true)
	if err != nil {
		t.Fatalf("%s: %v", schema, err)
	}
	return j
}

// ReadJudge reads a schema. Without formats texts may have any.
func ReadJudge(schema string, formats bool) (Judge, error) {
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(schema))
	if err != nil {
		return Judge{}, err
	}
	c := jsonschema.NewCompiler()
	if formats {
		c.AssertFormat()
	}
	if err := c.AddResource("schema.json", doc); err != nil {
		return Judge{}, err
	}
	s, err := c.Compile("schema.json")
	return Judge{s}, err
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
		s["type"], s["pattern"] = "string",
			pick(`^[a-z]+$`, `^\d{3}-\d{2}$`, `a|^b+$`, `[^"x]{2}`, `^(ab|c)*\.$`, `^"\\?"$`, `\w`)
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
		"type": "object",
		"properties": map[string]any{"v": drawSchema(r, 0),
			"kids": map[string]any{"type": "array", "items": map[string]any{"$ref": "#/$defs/tree"}}},
		"required": []any{"v"},
	}}
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// drawCondition makes a random schema with few conditions: for not, if, contains and branches that overlap.
func drawCondition(r *rand.Rand, depth int) map[string]any {
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	key := pick("a", "b", "name")
	switch kind := r.IntN(14); {
	case kind == 0:
		return map[string]any{"required": []any{key}}
	case kind == 1:
		return map[string]any{"const": []any{"a", 3, nil, true, []any{1}, map[string]any{"a": 1}}[r.IntN(6)]}
	case kind == 2:
		return map[string]any{"enum": []any{"a", "ab", 3, nil, true}[:1+r.IntN(5)]}
	case kind == 3:
		return map[string]any{"type": pick("string", "integer", "number", "object", "array", "null", "boolean")}
	case kind == 4:
		return map[string]any{"minimum": r.IntN(20) - 10, "maxLength": r.IntN(4)}
	case kind == 5:
		return map[string]any{"multipleOf": []any{2, 3, 0.5, 0.25, 1.5}[r.IntN(5)]}
	case kind == 6:
		return map[string]any{"pattern": pick("^a", "b$", `^[a-z]*$`, "[0-9]"), "minLength": r.IntN(3)}
	case kind == 7:
		return map[string]any{"minProperties": r.IntN(3), "maxProperties": 2 + r.IntN(2)}
	case kind == 8:
		return map[string]any{"minItems": r.IntN(2), "maxItems": 1 + r.IntN(3)}
	case kind == 9 && depth > 0:
		return map[string]any{"properties": map[string]any{key: drawCondition(r, depth-1)}, "required": []any{key}}
	case kind == 10 && depth > 0:
		return map[string]any{"contains": drawCondition(r, depth-1)}
	case kind == 11 && depth > 0:
		return map[string]any{"not": drawCondition(r, depth-1)}
	case kind == 12 && depth > 0:
		return map[string]any{pick("anyOf", "oneOf", "allOf"): []any{drawCondition(r, depth-1), drawCondition(r, depth-1)}}
	case kind == 13 && depth > 0:
		return map[string]any{"items": drawCondition(r, depth-1), "additionalProperties": drawCondition(r, depth-1)}
	}
	return map[string]any{"exclusiveMaximum": []any{0.5, 10, -1.25}[r.IntN(3)]}
}

// RandomFullSchema draws a schema with any of the keywords, joined as they come.
func RandomFullSchema(r *rand.Rand) string {
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	s := drawSchema(r, 1)
	if r.IntN(3) == 0 {
		s = map[string]any{"type": "object", "properties": map[string]any{"a": drawCondition(r, 1), "name": drawSchema(r, 0)}}
	}
	for range 1 + r.IntN(4) {
		switch r.IntN(14) {
		case 0:
			s["not"] = drawCondition(r, 2)
		case 1:
			s["if"], s["then"] = drawCondition(r, 1), drawCondition(r, 1)
			if r.IntN(2) == 0 {
				s["else"] = drawCondition(r, 1)
			}
		case 2:
			s["oneOf"] = []any{drawCondition(r, 1), drawCondition(r, 1), drawCondition(r, 1)}[:2+r.IntN(2)]
		case 3:
			s["anyOf"] = []any{drawCondition(r, 2), drawCondition(r, 1)}
		case 4:
			s["allOf"] = []any{drawCondition(r, 2), drawCondition(r, 1)}
		case 5:
			s["dependentRequired"] = map[string]any{pick("a", "b"): []any{pick("b", "name", "c")}}
		case 6:
			s["dependentSchemas"] = map[string]any{pick("a", "b"): drawCondition(r, 1)}
		case 7:
			s["contains"] = drawCondition(r, 1)
			if r.IntN(2) == 0 {
				s["minContains"], s["maxContains"] = r.IntN(2), 1+r.IntN(2)
			}
		case 8:
			s["uniqueItems"], s["items"] = true, map[string]any{"enum": []any{"a", 1, 1.0, nil, []any{}}[:2+r.IntN(4)]}
		case 9:
			s[pick("minProperties", "maxProperties")] = 1 + r.IntN(2)
		case 10:
			s["patternProperties"] = map[string]any{"^a": drawCondition(r, 1), "[b-d]$": drawCondition(r, 1)}
		case 11:
			s["propertyNames"] = map[string]any{pick("pattern", "not"): map[string]any{"pattern": "^b"}}
			if p := s["propertyNames"].(map[string]any); p["pattern"] != nil {
				p["pattern"] = "^[a-z]{1,5}$"
			}
		case 12:
			s[pick("unevaluatedProperties", "additionalProperties")] = []any{false, drawCondition(r, 0)}[r.IntN(2)]
		case 13:
			s[pick("unevaluatedItems", "items")] = []any{false, drawCondition(r, 0)}[r.IntN(2)]
		}
	}
	s["$defs"] = map[string]any{"tree": map[string]any{"type": "object", "properties": map[string]any{
		"v": drawCondition(r, 0), "kids": map[string]any{"type": "array", "items": map[string]any{"$ref": "#/$defs/tree"}}}}}
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}
