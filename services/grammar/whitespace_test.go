package grammar

import (
	"strings"
	"testing"
)

// TestWhitespaceIsBounded: a writer that takes whitespace wherever it is allowed outside of strings gets two characters
// between tokens and none before or after the value, and comes to an end.
func TestWhitespaceIsBounded(t *testing.T) {
	v := testVocabulary()
	for _, schema := range []string{
		`{"type":"object"}`,
		`{"type":"array","items":{"type":"array"},"minItems":2}`,
		`{"type":"object","properties":{"a":{"type":"array","items":{"type":"integer"},"minItems":2},"b":{"type":"object","properties":{}},"c":{"enum":["x",{"y":[1]}]}},"required":["a","b","c"],"additionalProperties":{"type":"null"}}`,
		`{"anyOf":[{"type":"object","properties":{"k":{"const":1}},"required":["k"]},{"type":"null"}]}`,
		`{"prefixItems":[{"type":"boolean"},{"type":"object","additionalProperties":false}],"items":{"type":"number"},"minItems":3}`,
	} {
		g := schemaGrammar(t, schema, v)
		for _, space := range []string{" ", "\n", "\t"} {
			var out strings.Builder
			s, run, longest, inside := g.Start(), 0, 0, false
			for n := 0; !g.Accepts(s); n++ {
				if n > 300 {
					t.Fatalf("%s: no end of %q", schema, out.String())
				}
				m, err := g.Mask(s)
				if err != nil {
					t.Fatal(err)
				}
				next := byte(0)
				for _, c := range []byte(space + `}]"1:,{[tn0alseruxykbc`) {
					if m.Allows(int32(c)) && !(inside && c == space[0]) {
						next = c
						break
					}
				}
				if next == space[0] {
					run++
				} else {
					run = 0
				}
				longest = max(longest, run)
				if next == '"' {
					inside = !inside
				}
				out.WriteByte(next)
				if s = g.Advance(s, int32(next)); s == nil {
					t.Fatalf("%s: stuck after %q", schema, out.String())
				}
			}
			text := out.String()
			if strings.TrimSpace(text) != text || longest != 2 {
				t.Errorf("%s: %d characters of whitespace, %q", schema, longest, text)
			}
			if m, err := g.Mask(s); err != nil || m.Allows(int32(space[0])) {
				t.Errorf("%s: whitespace may follow %q, %v", schema, text, err)
			}
		}
	}
}
