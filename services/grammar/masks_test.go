package grammar

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/services/grammar/grammartest"
)

// sameMasks compares masks along a text with what following every token byte by byte says, in a grammar that never made
// a mask.
func sameMasks(t *testing.T, masks, bytewise *Grammar, v *Vocabulary, text string) {
	t.Helper()
	s, slow := masks.Start(), bytewise.Start()
	for i := 0; ; i++ {
		m, err := masks.Mask(s)
		if err != nil {
			t.Fatal(err)
		}
		for id := range int32(v.size) {
			if want := v.bytes(id) != nil && bytewise.AdvanceBytes(slow, v.bytes(id)) != nil; m.Allows(id) != want {
				t.Fatalf("after %q the token %q is allowed: %v", text[:i], v.bytes(id), m.Allows(id))
			}
		}
		if i == len(text) {
			return
		}
		if s, slow = masks.AdvanceBytes(s, []byte(text[i:i+1])), bytewise.AdvanceBytes(slow, []byte(text[i:i+1])); s == nil ||
			slow == nil {
			t.Fatalf("%q is refused at %d", text, i)
		}
	}
}

// Places whose masks take many steps when they are made letter by letter.
var heavyPlaces = []struct{ name, schema, text string }{
	{"other keys", `{"properties":{"storeapisupport":{"type":"string"},"storelist":{"type":"string"},"storestatus":{"type":"string"},
		"url":{"type":"string"},"naïve":{"type":"null"},"номер":{"type":"integer"}}}`, `{"url":"x","storelist2":"","storeli`},
	{"patterns anywhere", `{"anyOf":[{"type":"string","pattern":"[0-9]{4}-[0-9]{2}-[0-9]{2}"},{"type":"string","pattern":"[0-9]{4}-[1-2]{1}-[0-9]{2}"},
		{"type":"string","pattern":"[0-9]{4}-[0-9]{1}"},{"type":"string","pattern":"[0-9]{4}"}]}`, `"on 202`},
	{"a pattern without case", `{"type":"string","pattern":"[xX][kK]"}`, `"0x`},
	{"formats", `{"anyOf":[{"type":"string","format":"uri"},{"type":"string","format":"ipv6"}]}`, `"http://ex`},
	{"lengths", `{"type":"string","minLength":3,"maxLength":9}`, `"twelve`},
	{"patterns of keys", `{"patternProperties":{"^a":{"type":"integer"},"b$":{"type":"null"}},"properties":{"ac":true}}`,
		`{"ac":1,"`},
}

// TestMasksOfHeavyPlaces: masks in which letters share their steps are exact for every token.
func TestMasksOfHeavyPlaces(t *testing.T) {
	words := grammartest.Vocabulary(3000)[256:]
	v := testVocabulary(append(words, "storelist", "storestatus", "стор", "номер", "ном", "naï", "\xc3", "\xaf", `list":`,
		`url"`, "2024-01", "-1", "K\u212a", "http", "://", "::", `9"`, `":"`)...)
	for _, c := range heavyPlaces {
		t.Run(c.name, func(t *testing.T) {
			sameMasks(t, openGrammar(t, c.schema, v), openGrammar(t, c.schema, v), v, c.text)
		})
	}
	// And of schemas that nobody chose.
	schemas := 40
	if testing.Short() {
		schemas = 8
	}
	small := testVocabulary("true", "null", `":`, `",`, `"}`, `{"`, "12", "abc", "é", "\xc3", `\"`, `\u00`, "  ", "\n ",
		"name", `"name"`, "2024", "a long text that is plain")
	for n := range schemas {
		schema := grammartest.RandomFullSchema(rand.New(rand.NewPCG(uint64(n), 11)))
		var grammars [2]*Grammar
		for i := range grammars {
			w := NewWriter()
			rule, err := w.SchemaWith([]byte(schema), SchemaOptions{Open: true, Drop: func(*SchemaError) {}})
			if err != nil {
				break
			}
			w.Define("root", rule)
			grammars[i] = compile(t, w.Text(), small)
		}
		if grammars[1] == nil {
			continue // cannot be met
		}
		text := write(t, grammars[1], rand.New(rand.NewPCG(uint64(n), 12)), 40)
		sameMasks(t, grammars[0], grammars[1], small, text)
	}
}

// TestMaskSteps bounds the pairs that masks of such places look at, over a vocabulary of many words: several times as
// many are needed when every letter takes a step of its own.
func TestMaskSteps(t *testing.T) {
	v := syntheticVocabulary(20_000)
	for _, c := range heavyPlaces {
		most := map[string]int{"other keys": 2_000, "patterns anywhere": 10_000}[c.name]
		if most == 0 {
			continue
		}
		g := openGrammar(t, c.schema, v)
		s := g.AdvanceBytes(g.Start(), []byte(c.text[:strings.LastIndexByte(c.text, '"')+1]))
		m, err := g.Mask(s)
		if err != nil || m.Count < 15_000 {
			t.Fatal(m, err)
		}
		if t.Logf("%s: %d", c.name, g.m.spent); g.m.spent > most {
			t.Errorf("%s: %d pairs were looked at, want at most %d", c.name, g.m.spent, most)
		}
	}
}

// TestForgettingMembers: places of $members get other numbers when they are made again, and states from before lead on
// as if nothing had been forgotten.
func TestForgettingMembers(t *testing.T) {
	const schema = `{"properties":{"a":{"type":"integer"},"b":{"type":"integer"},"c":{"properties":{"x":{"type":"null"},"y":{"type":"null"},"z":{"type":"null"}},
		"required":["z"],"additionalProperties":false},"d":{"type":"integer"}},"required":["a","d"],"additionalProperties":false}`
	v := testVocabulary(`"a"`, `{"`, `":`, `,"`, `},"`, "null")
	g, fresh := openGrammar(t, schema, v), openGrammar(t, schema, v)
	g.m.room = 3
	texts := []string{
		`{"d":1,"c":{"y":null,"z":null,"x":null},"b":2,"a":3}`,
		`{"b":1,"a":2,"c":{"z":null},"d":4}`,
		`{"c":{"x":null,"z":null},"a":7,"d":8}`,
	}
	at, want := make([]*State, len(texts)), make([]*State, len(texts))
	for i := range texts {
		at[i], want[i] = g.Start(), fresh.Start()
	}
	epochs := g.m.epoch
	// The texts are followed side by side, so that each waits while the others make places.
	for n := range len(texts[0]) {
		for i, text := range texts {
			if n >= len(text) {
				continue
			}
			at[i], want[i] = g.AdvanceBytes(at[i], []byte(text[n:n+1])), fresh.AdvanceBytes(want[i], []byte(text[n:n+1]))
			if at[i] == nil || want[i] == nil {
				t.Fatalf("%s is refused at %d", text, n)
			}
			for _, key := range []string{"a", "b", "c", "d", "x", "y", "z"} {
				for _, before := range []string{`"`, `,"`, ``} {
					next := []byte(before + key + `":`)
					if a, b := g.AdvanceBytes(at[i], next) != nil, fresh.AdvanceBytes(want[i], next) != nil; a != b {
						t.Fatalf("after %q %q is allowed: %v", text[:n+1], next, a)
					}
				}
			}
			m, err := g.Mask(at[i])
			if err != nil {
				t.Fatal(err)
			}
			w, err := fresh.Mask(want[i])
			if err != nil {
				t.Fatal(err)
			}
			for id := range int32(v.size) {
				if m.Allows(id) != w.Allows(id) {
					t.Fatalf("after %q %q is allowed: %v", text[:n+1], v.bytes(id), m.Allows(id))
				}
			}
			if done := n == len(text)-1; g.Accepts(at[i]) != done {
				t.Fatalf("after %q complete: %v", text[:n+1], !done)
			}
		}
	}
	if g.m.epoch-epochs < 20 || fresh.m.epoch != 0 {
		t.Errorf("%d and %d epochs", g.m.epoch-epochs, fresh.m.epoch)
	}
}

// TestPatternsWithoutCase: [xX] is read as a letter without case, also where a pattern stands alone; anchors inside a
// pattern are followed.
func TestPatternsWithoutCase(t *testing.T) {
	for _, c := range []struct {
		pattern    string
		good, evil []string
	}{
		{`^[0-9]+[xX][0-9]+$`, []string{"3x4", "3X4"}, []string{"3y4", "x4", "34"}},
		{`^[kK]+$`, []string{"k", "Kk"}, []string{"q", "\u212a"}},
		{`^(a|b):(t|T|[mM])$`, []string{"a:T", "b:m", "b:M"}, []string{"a:x", "A:t"}},
		{`(^[0-9]+$)|(^a$)`, []string{"12", "a"}, []string{"a1", "b"}},
		{`^(a$|bc)`, []string{"a", "bcd"}, []string{"ab", "b"}},
	} {
		schema := `{"type":"string","pattern":"` + c.pattern + `"}`
		for _, g := range []*Grammar{openGrammar(t, schema, testVocabulary()), schemaGrammar(t, schema, testVocabulary())} {
			for _, s := range c.good {
				if !matches(g, `"`+s+`"`) {
					t.Errorf("%s refuses %q", c.pattern, s)
				}
			}
			for _, s := range c.evil {
				if matches(g, `"`+s+`"`) {
					t.Errorf("%s takes %q", c.pattern, s)
				}
			}
		}
	}
}
