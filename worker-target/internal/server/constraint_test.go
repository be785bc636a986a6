package server

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/grammar"
	"github.com/tandem-inference/tandem/services/grammar/grammartest"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/worker-target/internal/constraint"
	"github.com/tandem-inference/tandem/worker-target/internal/drafttest"
)

// letters are the texts of the fake's 64 tokens: characters of JSON, some pairs of them, and markers without text.
var letters = func() []string {
	list := strings.Split("{ } [ ] : , \" a b c d e n u l t r s f 0 1 2 3 4 5 6 7 8 9 - m \\", " ")
	list = append(list, " ", "\n", "tr", "ue", "null", "\":", "\",", "\"}", "{\"", "ab", "abc", "name", "\"name\"", "12",
		"}}", "é", "\xc3", "\xa9")
	for len(list) < 64 {
		list = append(list, "")
	}
	return list
}()

const (
	stopToken  = 63
	openToken  = 62
	closeToken = 61
	hintToken  = 60
)

func testText(vocab int) (*constraint.Text, error) {
	if vocab != len(letters) {
		return nil, fmt.Errorf("no vocabulary of %d", vocab)
	}
	bytes := func(id int32) []byte { return []byte(letters[id]) }
	return &constraint.Text{
		Bytes: bytes,
		Vocabulary: grammar.NewVocabulary(grammar.Source{Size: vocab, Bytes: bytes, Named: func(s string) (int32, bool) {
			i := slices.Index(letters, s)
			return int32(i), i >= 0
		}}),
		Encode: func(text []byte) (ids []int32) {
			for len(text) > 0 {
				best := -1
				for i, s := range letters {
					if s != "" && strings.HasPrefix(string(text), s) && (best < 0 || len(s) > len(letters[best])) {
						best = i
					}
				}
				ids = append(ids, int32(best))
				text = text[len(letters[best]):]
			}
			return ids
		},
	}, nil
}

func spell(tokens []int32) string {
	var b strings.Builder
	for _, t := range tokens {
		b.WriteString(letters[t])
	}
	return b.String()
}

const objects = `root ::= "{\"name\":" string ("," pair){0,3} "}"
pair ::= string ":" value
value ::= string | number | "true" | "null" | "[" (value ("," value)*)? "]" | "{" (pair ("," pair)*)? "}"
string ::= "\"" [a-eé]{0,12} "\""
number ::= "-"? [1-9] [0-9]{0,3}
`

func constraints() map[string]*tandemv1.Guide {
	reasoning := func(inside bool, budget, reserve int32, sequence ...int32) *tandemv1.Reasoning {
		return &tandemv1.Reasoning{Open: []int32{openToken}, Close: []int32{closeToken}, Inside: inside, Budget: budget,
			Reserve: reserve, CloseSequence: sequence}
	}
	return map[string]*tandemv1.Guide{
		"grammar":            {Grammar: objects},
		"banned":             {BannedTokens: []int32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 40, 41, 42}},
		"grammar and banned": {Grammar: objects, BannedTokens: []int32{37, 38, 46}},
		"tokens":             {Grammar: fmt.Sprintf("root ::= (!<[1,2,3]>{3,9} <[%d]>)+", hintToken)},
		"budget":             {Reasoning: reasoning(true, 20, 5, closeToken)},
		"reserve":            {Reasoning: reasoning(true, 0, 70, hintToken, hintToken, 5, closeToken, 33)},
		"hint alone":         {Reasoning: reasoning(true, 15, 5, hintToken, 7, 8, 9)},
		"budget and grammar": {Reasoning: reasoning(true, 17, 5, hintToken, closeToken, 33, 33), Grammar: objects},
		"opened":             {Reasoning: reasoning(false, 9, 5, closeToken), Grammar: objects},
		"long sequence":      {Reasoning: reasoning(true, 3, 5, slices.Repeat([]int32{hintToken, 2}, 50)...)},
		"no reserve":         {Reasoning: reasoning(true, 9, 0, closeToken), Grammar: objects},
	}
}

// TestConstrainedIdentity: under every constraint every mode gives the tokens, log-probabilities and kind of closing of
// plain decoding, and so does a second worker that is given any part of the output.
func TestConstrainedIdentity(t *testing.T) {
	seeds, accepts := int32(3), []float64{0.3, 0.95}
	if testing.Short() {
		seeds, accepts = 1, accepts[:1]
	}
	for _, accept := range accepts {
		o := enginefake.Options{Accept: accept, BlockSize: 16, EOS: stopToken, EOSChance: 0.02}
		r := newRig(t, rigOptions{target: o, draft: drafttest.New(t, o, 0)})
		for name, g := range constraints() {
			for how, sampling := range samplings() {
				for seed := range seeds {
					request := func(spec *tandemv1.Speculation) *tandemv1.DecodeRequest {
						return &tandemv1.DecodeRequest{
							PromptTokens: prompt(30, seed), Sampling: sampling, MaxTokens: 120, TopLogprobs: 1, Speculation: spec,
							StopTokens: []int32{stopToken}, Guide: g,
						}
					}
					want := r.must(request(&tandemv1.Speculation{Mode: tandemv1.SpeculationMode_SPECULATION_MODE_OFF}))
					checkConstrained(t, name, g, want)
					for _, m := range modes() {
						got := r.must(request(m.spec))
						label := fmt.Sprintf("%s %s %s seed %d", name, how, m.name, seed)
						if d := cmp.Diff(want.tokens, got.tokens); d != "" {
							t.Fatalf("%s: %s", label, d)
						}
						if got.finished.Reason != want.finished.Reason || got.finished.CloseKind != want.finished.CloseKind ||
							got.closed != want.closed {
							t.Fatalf("%s: %v, want %v", label, got.finished, want.finished)
						}
						for i := range want.logprobs {
							if want.logprobs[i].Logprob != got.logprobs[i].Logprob {
								t.Fatalf("%s: log-probability at %d", label, i)
							}
						}
					}
					for cut := range len(want.tokens) {
						if cut%7 != int(seed) {
							continue
						}
						m := request(modes()[cut%len(modes())].spec)
						m.CommittedTokens = want.tokens[:cut]
						got := r.must(m)
						if !slices.Equal(got.tokens, want.tokens[cut:]) || got.finished.CloseKind != want.finished.CloseKind ||
							got.finished.Reason != want.finished.Reason {
							t.Fatalf("%s %s seed %d: after %d tokens %v, want %v; %v and %v", name, how, seed, cut, got.tokens,
								want.tokens[cut:], got.finished, want.finished)
						}
					}
				}
			}
		}
	}
}

// checkConstrained holds an output against what its constraint says.
func checkConstrained(t *testing.T, name string, g *tandemv1.Guide, a answer) {
	t.Helper()
	content := a.tokens
	if r := g.Reasoning; r != nil {
		inside, visible, at, thought, kind := r.Inside, false, 0, 0, a.finished.CloseKind
		for i, token := range a.tokens {
			switch {
			case inside:
				if thought++; token == closeToken {
					inside, at = false, i+1
				}
			case token == openToken && !visible && at == 0:
				inside, thought = true, 1
			default:
				visible = visible || strings.TrimSpace(letters[token]) != ""
			}
		}
		if r.Reserve > 0 && inside && len(a.tokens) == 120 && name != "long sequence" {
			t.Fatalf("%s: reasoning was not closed: %v", name, a.tokens)
		}
		limit := int(r.Budget) + len(r.CloseSequence)
		if !slices.Contains(r.CloseSequence, closeToken) {
			limit += 65
		}
		if r.Reserve > 0 && r.Budget > 0 && thought > limit {
			t.Fatalf("%s: %d tokens of reasoning, at most %d are allowed", name, thought, limit)
		}
		if kind == tandemv1.CloseKind_CLOSE_KIND_HARD {
			if i := slices.Index(r.CloseSequence, closeToken); i >= 0 && !slices.Equal(content[at-i-1:at],
				r.CloseSequence[:i+1]) {
				t.Fatalf("%s: closed by %v", name, content[:at])
			}
		}
		if (kind == tandemv1.CloseKind_CLOSE_KIND_NONE) != (at == 0) {
			t.Fatalf("%s: closed %v, inside %v after %v", name, kind, inside, a.tokens)
		}
		content = content[at:]
		if kind == tandemv1.CloseKind_CLOSE_KIND_HARD {
			if i := slices.Index(r.CloseSequence, closeToken); i >= 0 {
				content = content[min(len(r.CloseSequence)-i-1, len(content)):]
			}
		}
		if inside {
			return
		}
	}
	for _, b := range g.BannedTokens {
		if slices.Contains(content, b) {
			t.Fatalf("%s: token %d is banned: %v", name, b, content)
		}
	}
	if g.Grammar == "" {
		return
	}
	s, err := grammar.Parse(g.Grammar)
	if err != nil {
		t.Fatal(err)
	}
	text, _ := testText(len(letters))
	c, err := s.Compile(text.Vocabulary)
	if err != nil {
		t.Fatal(err)
	}
	at := c.Start()
	for i, token := range content {
		if at = c.Advance(at, token); at == nil {
			t.Fatalf("%s: token %d (%q) of %q is not in the grammar", name, i, letters[token], spell(content))
		}
	}
	if a.finished.Reason == tandemv1.FinishReason_FINISH_REASON_STOP && !c.Accepts(at) {
		t.Fatalf("%s: the turn ended after %q", name, spell(content))
	}
}

// schemaText is a vocabulary of all bytes, some words, and a stop token.
func schemaText(vocab int) (*constraint.Text, error) {
	words := []string{"true", "null", "false", `":`, `",`, `"}`, `{"`, "12", "abc", "é", `\"`, "  ", "name", `"name"`,
		"value", "2024", "-0", ":00"}
	bytes := func(id int32) []byte {
		switch {
		case id < 256:
			return []byte{byte(id)}
		case int(id) < 256+len(words):
			return []byte(words[id-256])
		}
		return nil
	}
	return &constraint.Text{
		Bytes: bytes,
		Vocabulary: grammar.NewVocabulary(grammar.Source{Size: vocab, Bytes: bytes, Named: func(string) (int32,
			bool) {
			return 0, false
		}}),
		Encode: func(text []byte) (ids []int32) {
			for _, c := range text {
				ids = append(ids, int32(c))
			}
			return ids
		},
	}, nil
}

// TestRandomSchemas: for random schemas the output is valid for an independent validator, and speculation does not
// change it.
func TestRandomSchemas(t *testing.T) {
	const vocab, stop = 288, 287
	schemas := 500
	if testing.Short() {
		schemas = 40
	}
	o := enginefake.Options{Vocab: vocab, Accept: 0.8, BlockSize: 8}
	r := newRig(t, rigOptions{target: o, draft: drafttest.New(t, o, 0), text: schemaText})
	// Tokens that end things are made likely: a model of noise would write for ever.
	bias := map[int32]float64{'"': 9, '}': 9, ']': 9, stop: 12, '.': 3, ',': -3, '{': -4, '[': -4}
	accepted, drafted, texts := int64(0), int64(0), 0
	for n := range schemas {
		rng := rand.New(rand.NewPCG(uint64(n), 5))
		schema := grammartest.RandomSchema(rng)
		w := grammar.NewWriter()
		rule, err := w.Schema([]byte(schema))
		if err != nil {
			t.Fatalf("%s: %v", schema, err)
		}
		w.Define("root", rule)
		request := &tandemv1.DecodeRequest{
			PromptTokens: prompt(20, int32(n)), MaxTokens: 3000, TopLogprobs: -1, StopTokens: []int32{stop},
			Guide:       &tandemv1.Guide{Grammar: w.Text()},
			Sampling:    &tandemv1.Sampling{LogitBias: bias, Seed: ptr(int64(n))},
			Speculation: &tandemv1.Speculation{Mode: tandemv1.SpeculationMode_SPECULATION_MODE_OFF},
		}
		if n%2 == 1 {
			request.Sampling.Temperature = ptr(1.5)
		}
		plain := r.must(request)
		if plain.finished.Reason != tandemv1.FinishReason_FINISH_REASON_STOP {
			t.Fatalf("schema %d %s did not end", n, schema)
		}
		text, _ := schemaText(vocab)
		var out []byte
		for _, id := range plain.tokens {
			out = append(out, text.Bytes(id)...)
		}
		if err := grammartest.NewJudge(t, schema).Validate(string(out)); err != nil {
			t.Fatalf("schema %d %s\n%s\n%v", n, schema, out, err)
		}
		texts += len(out)
		for _, m := range []tandemv1.SpeculationMode{
			tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN, tandemv1.SpeculationMode_SPECULATION_MODE_TREE,
			tandemv1.SpeculationMode_SPECULATION_MODE_AUTO,
			tandemv1.SpeculationMode_SPECULATION_MODE_LOOKUP,
		} {
			request.Speculation = &tandemv1.Speculation{Mode: m}
			got := r.must(request)
			if !slices.Equal(got.tokens, plain.tokens) || got.finished.Reason != plain.finished.Reason {
				t.Fatalf("schema %d %s\n%v: %v, plain %v", n, schema, m, got.tokens, plain.tokens)
			}
			accepted, drafted = accepted+got.finished.Timings.AcceptedTokens, drafted+got.finished.Timings.DraftedTokens
		}
	}
	t.Logf("%d schemas, %d bytes, %d of %d drafted tokens accepted", schemas, texts, accepted, drafted)
	if accepted == 0 {
		t.Error("speculation did nothing")
	}
}

// TestForcedAsOneBatch: a forced sequence is committed by one step, however long it is. What a grammar leaves no choice
// about is verified ahead, many tokens a step, even without a draft.
func TestForcedAsOneBatch(t *testing.T) {
	r := newRig(t, rigOptions{target: enginefake.Options{}})
	ask := func(m *tandemv1.DecodeRequest) (a answer, largest int) {
		before := 0
		a, err := r.decode(t.Context(), m, func(total int) {
			largest, before = max(largest, total-before), total
		})
		if err != nil {
			t.Fatal(err)
		}
		return a, largest
	}
	for _, length := range []int{8, 30, 45} {
		sequence := append(slices.Repeat([]int32{hintToken}, length), closeToken)
		a, largest := ask(&tandemv1.DecodeRequest{
			PromptTokens: prompt(30, 1), MaxTokens: 60, TopLogprobs: -1,
			Guide: &tandemv1.Guide{Reasoning: &tandemv1.Reasoning{
				Close: []int32{closeToken}, Inside: true, Budget: 10, Reserve: 8, CloseSequence: sequence,
			}},
		})
		if largest < len(sequence) || a.finished.CloseKind != tandemv1.CloseKind_CLOSE_KIND_HARD {
			t.Errorf("a sequence of %d: at most %d tokens came at once, %v of %v", len(sequence), largest,
				a.finished.CloseKind, a.tokens)
		}
	}
	a, largest := ask(&tandemv1.DecodeRequest{
		PromptTokens: prompt(30, 1), MaxTokens: 60, TopLogprobs: -1, StopTokens: []int32{stopToken},
		Guide: &tandemv1.Guide{Grammar: `root ::= "{\"name\":[1234567890,1234567890]}"`},
	})
	const want = `{"name":[1234567890,1234567890]}`
	if text := spell(a.tokens); text != want || a.finished.Reason != tandemv1.FinishReason_FINISH_REASON_STOP {
		t.Errorf("%q, %v", text, a.finished)
	}
	if steps := int(a.finished.Timings.VerifySteps); largest < 2 || steps*3 > len(a.tokens) {
		t.Errorf("%d steps for %d tokens without choices, at most %d at once", steps, len(a.tokens), largest)
	}
}

// TestEndWithoutStop: a grammar that allows nothing more ends the turn when no token does.
func TestEndWithoutStop(t *testing.T) {
	r := newRig(t, rigOptions{target: enginefake.Options{}})
	for text, want := range map[string]string{`root ::= "abc" | "12"`: "abc 12", `root ::= ""`: ""} {
		a := r.must(&tandemv1.DecodeRequest{PromptTokens: prompt(30, 1), MaxTokens: 60, TopLogprobs: -1,
			Guide: &tandemv1.Guide{Grammar: text}})
		if got := spell(a.tokens); !slices.Contains(strings.Split(want, " "), got) ||
			a.finished.Reason != tandemv1.FinishReason_FINISH_REASON_STOP {
			t.Errorf("%q, %v", got, a.finished)
		}
	}
}

func TestConstraintFaults(t *testing.T) {
	r := newRig(t, rigOptions{target: enginefake.Options{}})
	for _, c := range []struct {
		guide     *tandemv1.Guide
		committed []int32
		want      string
	}{
		{guide: &tandemv1.Guide{Grammar: "root ::= x"}, want: `guide.grammar: line 1 column 10: rule "x" is not defined`},
		{guide: &tandemv1.Guide{Grammar: `root ::= <[99]>`}, want: "outside the vocabulary"},
		{guide: &tandemv1.Guide{BannedTokens: []int32{-1}}, want: "guide.banned_tokens"},
		{guide: &tandemv1.Guide{Reasoning: &tandemv1.Reasoning{}}, want: "guide.reasoning.close: is empty"},
		{guide: &tandemv1.Guide{Reasoning: &tandemv1.Reasoning{Close: []int32{1}, Reserve: 1}},
			want: "guide.reasoning.close_sequence"},
		{guide: &tandemv1.Guide{Reasoning: &tandemv1.Reasoning{Close: []int32{64}}}, want: "guide.reasoning.close: token 64"},
		{guide: &tandemv1.Guide{Grammar: `root ::= "ab"`}, committed: []int32{9},
			want: "committed_tokens: token 9 at 0 does not follow"},
		{guide: &tandemv1.Guide{Grammar: `root ::= "a"`, BannedTokens: []int32{7}}, want: "no token may follow"},
	} {
		_, err := r.decode(context.Background(), &tandemv1.DecodeRequest{
			PromptTokens: prompt(3, 1), MaxTokens: 5, TopLogprobs: -1, Guide: c.guide, CommittedTokens: c.committed,
		}, nil)
		if !errors.Is(err, rpcerr.AnyInvalidArgument) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %s", c.guide, err, c.want)
		}
	}
}
