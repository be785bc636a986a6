package toolcall

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/services/grammar"
)

// byteVocabulary has every byte and the marks as tokens of their own.
func byteVocabulary(marks []string) *grammar.Vocabulary {
	return grammar.NewVocabulary(grammar.Source{
		Size: 256 + len(marks),
		Bytes: func(id int32) []byte {
			if id < 256 {
				return []byte{byte(id)}
			}
			return nil
		},
		Named: func(text string) (int32, bool) {
			for i, m := range marks {
				if m == text {
					return int32(256 + i), true
				}
			}
			return 0, false
		},
	})
}

// TestConstrain: whatever a grammar of calls allows, the parser reads as calls of the allowed tools.
func TestConstrain(t *testing.T) {
	set := &Set{}
	for _, tool := range []Tool{
		{Name: "write", Strict: true,
			Schema: json.RawMessage(`{"type":"object","properties":{"mode":{"enum":["a","w"]},"lines":{"$ref":"#/$defs/n"},"text":{"type":"string"}},
			"required":["mode","lines"],"additionalProperties":false,"$defs":{"n":{"type":"integer","minimum":1,"maximum":99}}}`)},
		{Name: "plan", Strict: true, Schema: json.RawMessage(planSchema)},
		{Name: "now"},
		{Name: "get_weather", Schema: json.RawMessage(`{"type":"object","properties":{"city":{"type":"string"}}}`)},
	} {
		if err := set.Add(tool, nil); err != nil {
			t.Fatal(err)
		}
	}
	judge := planJudge(t)
	marks := []string{openToolCall, closeToolCall, openGemma, closeGemma, quoteGemma}
	voc := byteVocabulary(marks)
	mark := func(m string) string {
		for i, s := range marks {
			if s == m {
				return grammar.Token(int32(256 + i))
			}
		}
		return grammar.Quote(m)
	}
	for _, f := range []struct {
		form    Format
		family  Family
		closing string
	}{
		{QwenXML, QwenFamily, "\n</parameter>\n</function>\n"}, {Hermes, QwenFamily, "\"}]"}, {Gemma, GemmaFamily, "}]"},
		{Laguna, LagunaFamily, "</arg_value>\n"},
	} {
		for _, only := range []string{"", "write", "plan", "now"} {
			t.Run(f.form.String()+"/"+only, func(t *testing.T) {
				w := grammar.NewWriter()
				root, err := set.Constrain(w, Constraint{Form: f.form, Mark: mark, Must: true, Only: only})
				if err != nil {
					t.Fatal(err)
				}
				w.Define("root", root)
				syntax, err := grammar.Parse(w.Text())
				if err != nil {
					t.Fatalf("%v\n%s", err, w.Text())
				}
				g, err := syntax.Compile(voc)
				if err != nil {
					t.Fatal(err)
				}
				for seed := range uint64(30) {
					text := sample(t, g, f.closing, marks, rand.New(rand.NewPCG(seed, 1)))
					got, rec := parse(t, Config{Set: set, Family: f.family}, text, false, func(int) bool { return false })
					if got.Failure != "" || len(rec.calls) == 0 || len(rec.spans) > 0 {
						t.Fatalf("%q is read as %+v", text, got)
					}
					for _, c := range rec.calls {
						if only != "" && c.Name != only {
							t.Errorf("%q calls %s", text, c.Name)
						}
						if c.Name == "write" {
							checkWrite(t, c.Arguments)
						}
						if c.Name == "plan" && !judge(c.Arguments) {
							t.Errorf("%q gives the arguments %s", text, c.Arguments)
						}
					}
				}
			})
		}
	}
}

// planSchema has texts of every kind, values beside text, and values with texts in them.
const planSchema = `{"type":"object","properties":{"id":{"type":"string","pattern":"^[A-Z]{2}-[0-9]+$"},"day":{"type":"string","format":"date"},
	"title":{"type":"string","minLength":1,"maxLength":9},"body":{"type":"string","minLength":2},"kind":{"$ref":"#/$defs/kind"},"owner":{"type":["string","null"],"maxLength":4},
	"steps":{"type":"array","items":{"type":"object","properties":{"do":{"type":"string"},"n":{"type":"integer"}},"required":["do"],"additionalProperties":false},"maxItems":2},"any":{}},
	"required":["id","title","kind","owner","steps"],"additionalProperties":false,"$defs":{"kind":{"enum":["a<b","null","5"]}}}`

// planJudge accepts arguments by the grammar of the schema in JSON, whose texts are valid.
func planJudge(t *testing.T) func(args string) bool {
	t.Helper()
	w := grammar.NewWriter()
	rule, err := w.Schema([]byte(planSchema))
	if err != nil {
		t.Fatal(err)
	}
	w.Define("root", rule)
	syntax, err := grammar.Parse(w.Text())
	if err != nil {
		t.Fatal(err)
	}
	g, err := syntax.Compile(byteVocabulary(nil))
	if err != nil {
		t.Fatal(err)
	}
	return func(args string) bool { return g.Accepts(g.AdvanceBytes(g.Start(), []byte(args))) }
}

// checkWrite holds arguments to the schema of the strict tool.
func checkWrite(t *testing.T, args string) {
	t.Helper()
	var v struct {
		Mode  string
		Lines int
		Text  *string
	}
	dec := json.NewDecoder(strings.NewReader(args))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&v); err != nil || (v.Mode != "a" && v.Mode != "w") || v.Lines < 1 || v.Lines > 99 {
		t.Errorf("arguments %s: %+v, %v", args, v, err)
	}
}

// sample follows random tokens of the masks, with a liking for tokens that end something.
func sample(t *testing.T, g *grammar.Grammar, closing string, marks []string, rng *rand.Rand) string {
	t.Helper()
	var b strings.Builder
	s := g.Start()
	at := 0
	for n := 0; ; n++ {
		if g.Accepts(s) && (n > 40 || rng.IntN(3) == 0) {
			return b.String()
		}
		mask, err := g.Mask(s)
		if err != nil {
			t.Fatal(err)
		}
		var allowed []int32
		for id := range int32(256 + len(marks)) {
			if mask.Allows(id) && (id < 0x80 || id >= 256) {
				allowed = append(allowed, id)
			}
		}
		id := allowed[rng.IntN(len(allowed))]
		if n > 40 {
			// Spell what closes the form; where that does not fit, anything goes.
			if c := closing[at%len(closing)]; mask.Allows(int32(c)) {
				id = int32(c)
			}
			at++
			for _, a := range allowed {
				if a >= 256 {
					id = a
				}
			}
		}
		if n > 4000 {
			t.Fatalf("no end: %.200q", b.String())
		}
		if id < 256 {
			b.WriteByte(byte(id))
		} else {
			b.WriteString(marks[id-256])
		}
		if s = g.Advance(s, id); s == nil {
			t.Fatalf("the mask allows %d after %q, Advance does not", id, b.String())
		}
	}
}

func TestStrictFaults(t *testing.T) {
	for schema, want := range map[string]string{
		`{"type":"object","properties":{"a":{"type":"string","pattern":"^</parameter>$"}}}`: "properties.a.pattern",
		`{"type":"object","properties":{"a":{"type":"string","not":{"format":"uri"}}}}`:     "properties.a.not",
		`{"type":"object","properties":{"a":{"type":["string","integer"],"minimum":1}}}`:    "properties.a.minimum",
		`{"type":"object","properties":{"a":{"type":"integer","multipleOf":0.1234567}}}`:    "properties.a.multipleOf",
		`{"type":"object","properties":{"a":{"type":"array","uniqueItems":true}}}`:          "properties.a.uniqueItems",
	} {
		set := &Set{}
		if err := set.Add(Tool{Name: "f", Strict: true, Schema: json.RawMessage(schema)}, nil); err != nil {
			t.Fatal(err)
		}
		_, err := set.Constrain(grammar.NewWriter(), Constraint{Form: QwenXML, Mark: grammar.Quote, Must: true})
		var se *StrictError
		if !errors.As(err, &se) || se.Keyword != want {
			t.Errorf("%s: %v, want a fault at %s", schema, err, want)
		}
	}
}
