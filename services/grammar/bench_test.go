package grammar

import (
	"testing"

	"github.com/tandem-inference/tandem/services/grammar/grammartest"
)

const benchVocabulary = 150_000

func syntheticVocabulary(n int) *Vocabulary {
	list := grammartest.Vocabulary(n)
	return NewVocabulary(Source{Size: n, Bytes: func(id int32) []byte { return []byte(list[id]) },
		Named: func(string) (int32, bool) { return 0, false }})
}

// jsonText is a grammar of JSON with limits on whitespace, as response formats use it.
const jsonText = `root ::= object
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws (pair ("," ws pair)*)? "}"
pair ::= string ":" ws value ws
array ::= "[" ws (value ws ("," ws value ws)*)? "]"
string ::= "\"" char* "\""
char ::= [^"\\\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4})
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [-+]? [0-9]+)?
ws ::= [ \t\n\r]{0,2}
`

// BenchmarkMaskMiss computes masks again, at the places of a JSON text that a model spends its time in.
func BenchmarkMaskMiss(b *testing.B) {
	v := syntheticVocabulary(benchVocabulary)
	for _, c := range []struct{ name, grammar, after string }{
		{"string", jsonText, `{"name": "some te`},
		{"key", jsonText, `{"`},
		{"object", jsonText, `{"name": "x", `},
		{"number", jsonText, `{"a": [1, 2`},
		{"value", jsonText, `{"a": `},
		{"bounded string", `root ::= "\"" [^"\\\x00-\x1F]{0,500} "\""`, `"some te`},
		{"words", `root ::= [a-z]+ (" " [a-z]+)*`, `some`},
		{"free text", `root ::= $until("</parameter>")`, `some`},
	} {
		b.Run(c.name, func(b *testing.B) {
			g := compile(b, c.grammar, v)
			s := g.AdvanceBytes(g.Start(), []byte(c.after))
			m, err := g.Mask(s)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(m.Count), "tokens")
			for b.Loop() {
				// The epoch ends: no state, transition or mask is known.
				g.m.count = maxStates
				if _, err := g.Mask(s); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkMaskHit(b *testing.B) {
	g := compile(b, jsonText, syntheticVocabulary(benchVocabulary))
	s := g.AdvanceBytes(g.Start(), []byte(`{"name": "some te`))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := g.Mask(s); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkText follows a JSON document token by token, a mask at every place, states and masks known from earlier
// requests or not at all.
func BenchmarkText(b *testing.B) {
	v := syntheticVocabulary(benchVocabulary)
	const document = `{"name": "some text here", "list": [1, 2.5, -3, {"deep": {"er": ["a", "b", null, true]}}], "more": {"k": "v"}, "last": "a longer text with several words"}`
	for _, fresh := range []bool{true, false} {
		name := "known"
		if fresh {
			name = "fresh"
		}
		b.Run(name, func(b *testing.B) {
			g := compile(b, jsonText, v)
			tokens := 0
			for b.Loop() {
				if fresh {
					g.m.count = maxStates
				}
				s := g.Start()
				for i := 0; i < len(document); i += 4 {
					if _, err := g.Mask(s); err != nil {
						b.Fatal(err)
					}
					if s = g.AdvanceBytes(s, []byte(document[i:min(i+4, len(document))])); s == nil {
						b.Fatal("refused")
					}
					tokens++
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(tokens)/1000, "us/token")
		})
	}
}
