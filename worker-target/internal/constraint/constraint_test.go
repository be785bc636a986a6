package constraint

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/grammar"
	"pgregory.net/rapid"
)

const (
	vocab      = 40
	stop       = 39
	openToken  = 38
	closeToken = 37
	hint       = 36
	blank      = 35
)

func factory() *Factory {
	bytes := func(id int32) []byte {
		switch {
		case id < 26:
			return []byte{byte('a' + id)}
		case id == blank:
			return []byte("\n\n")
		}
		return nil
	}
	return NewFactory(func(vocab int) (*Text, error) {
		return &Text{Bytes: bytes, Vocabulary: grammar.NewVocabulary(grammar.Source{
			Size: vocab, Bytes: bytes, Named: func(string) (int32, bool) { return 0, false },
		})}, nil
	})
}

func newConstraint(t testing.TB, m *tandemv1.Guide, limit int) *Constraint {
	t.Helper()
	g, err := factory().New(m, Options{Vocab: vocab, Max: limit, Stop: []int32{stop}})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// generate writes as sample says, up to limit tokens or the end of the turn.
func generate(g *Constraint, limit int, sample func(i int) int32) (out []int32, end State) {
	s := g.Start()
	for len(out) < limit {
		var token int32
		token, s = g.Resolve(s, sample(len(out)))
		if token == stop {
			return out, s
		}
		out = append(out, token)
	}
	return out, s
}

// TestBudgets is the grid of budget K, reserve R and limit N, the reserve larger than the limit included: reasoning
// that does not end by itself is closed exactly where it has to be, and once.
func TestBudgets(t *testing.T) {
	sequence := []int32{hint, hint, closeToken, blank}
	for _, k := range []int{0, 1, 2, 7, 30} {
		for _, r := range []int{0, 1, 5, 20, 60} {
			for _, n := range []int{1, 4, 10, 40, 50} {
				g := newConstraint(t, &tandemv1.Guide{Reasoning: &tandemv1.Reasoning{
					Close: []int32{closeToken}, Inside: true, Budget: int32(k), Reserve: int32(r), CloseSequence: sequence,
				}}, n)
				out, end := generate(g, n, func(int) int32 { return 3 })
				at := n + 1 // the trigger
				if r > 0 {
					at = max(0, n-r)
					if k > 0 {
						at = min(at, k)
					}
				}
				for i, token := range out {
					want := int32(3)
					if i >= at && i < at+len(sequence) {
						want = sequence[i-at]
					}
					if token != want {
						t.Fatalf("K %d R %d N %d: token %d is %d, want %d", k, r, n, i, token, want)
					}
				}
				want := tandemv1.CloseKind_CLOSE_KIND_NONE
				if at+3 <= n {
					want = tandemv1.CloseKind_CLOSE_KIND_HARD
				}
				if g.Kind(end) != want {
					t.Errorf("K %d R %d N %d: closed %v, want %v", k, r, n, g.Kind(end), want)
				}
			}
		}
	}
}

// TestClosing goes through the ways in which reasoning may end.
func TestClosing(t *testing.T) {
	say := func(tokens ...int32) func(int) int32 {
		return func(i int) int32 {
			if i < len(tokens) {
				return tokens[i]
			}
			return 1
		}
	}
	const (
		none    = tandemv1.CloseKind_CLOSE_KIND_NONE
		natural = tandemv1.CloseKind_CLOSE_KIND_NATURAL
		soft    = tandemv1.CloseKind_CLOSE_KIND_SOFT
		hard    = tandemv1.CloseKind_CLOSE_KIND_HARD
	)
	base := func(change ...func(r *tandemv1.Reasoning)) *tandemv1.Guide {
		r := &tandemv1.Reasoning{Open: []int32{openToken}, Close: []int32{closeToken}, Inside: true, Budget: 5, Reserve: 10,
			CloseSequence: []int32{hint, closeToken}}
		for _, f := range change {
			f(r)
		}
		return &tandemv1.Guide{Reasoning: r}
	}
	alone := func(r *tandemv1.Reasoning) { r.CloseSequence = []int32{hint} }
	outside := func(r *tandemv1.Reasoning) { r.Inside = false }
	long := func(r *tandemv1.Reasoning) { r.Close, r.CloseSequence = []int32{10, 11, 12}, []int32{hint, 10, 11, 12} }
	late := slices.Repeat([]int32{2}, 100)
	free := slices.Concat([]int32{1, 1, 1, 1, 1, hint}, slices.Repeat([]int32{2}, 64))
	for _, c := range []struct {
		name       string
		constraint *tandemv1.Guide
		sample     []int32
		want       []int32
		kind       tandemv1.CloseKind
	}{
		{"by itself", base(), []int32{1, closeToken, 1}, []int32{1, closeToken, 1, 1, 1, 1, 1, 1}, natural},
		{"by itself at the trigger", base(), []int32{1, 1, 1, 1, 1, closeToken, 4},
			[]int32{1, 1, 1, 1, 1, closeToken, 4, 1}, natural},
		{"forced", base(), []int32{1, 1, 1, 1, 1, 9, 9, 4}, []int32{1, 1, 1, 1, 1, hint, closeToken, 4}, hard},
		{"the sample is the hint's first token", base(), []int32{1, 1, 1, 1, 1, hint, 9, 4},
			[]int32{1, 1, 1, 1, 1, hint, closeToken, 4}, hard},
		{"end of turn inside", base(), []int32{1, stop, 9, 4}, []int32{1, hint, closeToken, 4}, hard},
		{"end of turn inside, nothing forced", base(func(r *tandemv1.Reasoning) { r.Reserve = 0 }),
			[]int32{1, stop}, []int32{1}, none},
		{"no reserve, no budget", base(func(r *tandemv1.Reasoning) { r.Reserve = 0 }), late,
			[]int32{2, 2, 2, 2, 2, 2, 2, 2}, none},
		{"hint, then by itself", base(alone), []int32{1, 1, 1, 1, 1, 9, 7, 7, closeToken, 4},
			[]int32{1, 1, 1, 1, 1, hint, 7, 7, closeToken, 4}, soft},
		{"hint, then forced", base(alone), slices.Concat(free[:5], late), append(slices.Clone(free), closeToken, 2), hard},
		{"hint, then by itself at the last moment", base(alone), slices.Concat(free[:70], []int32{closeToken}),
			append(slices.Clone(free), closeToken, 1), soft},
		{"hint, then end of turn", base(alone), []int32{1, 1, 1, 1, 1, 9, 7, stop, 4},
			[]int32{1, 1, 1, 1, 1, hint, 7, closeToken, 4}, hard},
		{"a long marker by itself", base(long), []int32{1, 10, 10, 11, 12, 4}, []int32{1, 10, 10, 11, 12, 4}, natural},
		{"a long marker begun at the trigger", base(long), []int32{1, 1, 1, 1, 1, 10, 11, 12, 4},
			[]int32{1, 1, 1, 1, 1, 10, 11, 12, 4}, natural},
		{"a long marker broken off at the trigger", base(long), []int32{1, 1, 1, 1, 10, 11, 4, 4, 4, 4, 4},
			[]int32{1, 1, 1, 1, 10, 11, hint, 10, 11, 12, 4}, hard},
		{"opened", base(outside), []int32{blank, openToken, 1, closeToken, 4},
			[]int32{blank, openToken, 1, closeToken, 4}, natural},
		{"opened and forced", base(outside), []int32{openToken, 1, 1, 1, 1, 1},
			[]int32{openToken, 1, 1, 1, 1, hint, closeToken, 1}, hard},
		{"not opened after visible text", base(outside), []int32{1, openToken, 2, 2, 2, 2, 2, 2, 2, 2},
			[]int32{1, openToken, 2, 2, 2, 2, 2, 2, 2, 2}, none},
		{"not opened again", base(), []int32{1, closeToken, openToken, 2, 2, 2, 2, 2, 2, 2, 2, 2},
			[]int32{1, closeToken, openToken, 2, 2, 2, 2, 2, 2, 2, 2, 2}, natural},
		{"forced once only", base(), slices.Concat([]int32{1, 1, 1, 1, 1, 9, 9, openToken}, late[:10]),
			slices.Concat([]int32{1, 1, 1, 1, 1, hint, closeToken, openToken}, late[:10]), hard},
		{"a reply after closing is its own", base(), slices.Concat([]int32{closeToken}, late),
			slices.Concat([]int32{closeToken}, late[:60]), natural},
	} {
		g := newConstraint(t, c.constraint, 200)
		out, end := generate(g, len(c.want), say(c.sample...))
		if !slices.Equal(out, c.want) || g.Kind(end) != c.kind {
			t.Errorf("%s: %v %v, want %v %v", c.name, out, g.Kind(end), c.want, c.kind)
		}
	}
}

// TestCalls: a turn may end in reasoning after a complete call; under a grammar reasoning is closed before a call.
func TestCalls(t *testing.T) {
	const callOpen, callClose = 34, 33
	make := func(grammar string, reserve int32) *Constraint {
		o, c := int32(callOpen), int32(callClose)
		return newConstraint(t, &tandemv1.Guide{Grammar: grammar, Reasoning: &tandemv1.Reasoning{
			Close: []int32{closeToken}, Inside: true, Reserve: reserve, CloseSequence: []int32{hint, closeToken},
			CallOpen: &o, CallClose: &c,
		}}, 40)
	}
	const natural, none, hard = tandemv1.CloseKind_CLOSE_KIND_NATURAL, tandemv1.CloseKind_CLOSE_KIND_NONE,
		tandemv1.CloseKind_CLOSE_KIND_HARD
	for _, c := range []struct {
		name, grammar string
		reserve       int32
		say, want     []int32
		kind          tandemv1.CloseKind
	}{
		{"no call", "", 10, []int32{1, stop, 2, stop}, []int32{1, hint, closeToken}, hard},
		{"call", "", 10, []int32{1, callOpen, 2, callClose, stop}, []int32{1, callOpen, 2, callClose}, none},
		{"call and whitespace", "", 10, []int32{1, callOpen, 2, callClose, blank, stop},
			[]int32{1, callOpen, 2, callClose, blank}, none},
		{"two calls", "", 10, []int32{callOpen, callClose, callOpen, callClose, stop},
			[]int32{callOpen, callClose, callOpen, callClose}, none},
		{"text after a call", "", 10, []int32{callOpen, callClose, 3, stop, 2, stop},
			[]int32{callOpen, callClose, 3, hint, closeToken}, hard},
		{"open call", "", 10, []int32{callOpen, 2, stop, 2, stop}, []int32{callOpen, 2, hint, closeToken}, hard},
		{"closed only", "", 10, []int32{callClose, stop, 2, stop}, []int32{callClose, hint, closeToken}, hard},
		{"with a grammar", `root ::= "bc"`, 10, []int32{4, callOpen, 1, 2, stop}, []int32{4, closeToken, 1, 2}, natural},
		{"with a grammar and no reserve", `root ::= "bc"`, 0, []int32{4, callOpen, 1, 2, stop},
			[]int32{4, closeToken, 1, 2}, natural},
	} {
		g := make(c.grammar, c.reserve)
		s, again := g.Start(), g.Start()
		var out []int32
		for _, sample := range c.say {
			// What is forced takes the place of no sample of the table.
			for {
				forced, ok := g.Forced(s)
				if !ok {
					break
				}
				_, s = g.Resolve(s, forced)
				_, again = g.Resolve(again, forced)
				out = append(out, forced)
			}
			token, next := g.Resolve(s, sample)
			seen := token
			if g.Open(again, token) {
				seen = sample
			}
			_, again = g.Resolve(again, seen)
			if s = next; again != s {
				t.Errorf("%s: replayed %+v, want %+v", c.name, again, s)
			}
			if token == stop {
				break
			}
			out = append(out, token)
			if token != sample && token == hint {
				forced, _ := g.Forced(s)
				_, s = g.Resolve(s, forced)
				out = append(out, forced)
				break
			}
		}
		if !slices.Equal(out, c.want) || g.Kind(s) != c.kind {
			t.Errorf("%s: wrote %v, closed %v, want %v, %v", c.name, out, g.Kind(s), c.want, c.kind)
		}
	}
	o := int32(3)
	for _, r := range []*tandemv1.Reasoning{{Close: []int32{1}, CallOpen: &o}, {Close: []int32{1}, CallClose: &o}} {
		if _, err := factory().New(&tandemv1.Guide{Reasoning: r}, Options{Vocab: vocab}); err == nil {
			t.Error("half a pair of marks is accepted")
		}
	}
	o = vocab
	outside := &tandemv1.Reasoning{Close: []int32{1}, CallOpen: &o, CallClose: &o}
	if _, err := factory().New(&tandemv1.Guide{Reasoning: outside}, Options{Vocab: vocab}); err == nil {
		t.Error("a mark outside the vocabulary is accepted")
	}
}

// TestReplay: states are functions of what was sampled; where Open says that a token does not tell, the sample does.
func TestReplay(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := &tandemv1.Reasoning{
			Close:  rapid.SampledFrom([][]int32{{closeToken}, {1, 2}, {1, 1, 2}}).Draw(rt, "close"),
			Inside: rapid.Bool().Draw(rt, "inside"),
			Budget: int32(rapid.IntRange(0, 12).Draw(rt, "budget")), Reserve: int32(rapid.IntRange(0, 20).Draw(rt, "reserve")),
			CloseSequence: rapid.SliceOfN(rapid.SampledFrom([]int32{1, 2, hint, closeToken}), 1, 4).Draw(rt, "sequence"),
			Open:          rapid.SampledFrom([][]int32{nil, {openToken}, {3, 4}}).Draw(rt, "open"),
		}
		constraint := &tandemv1.Guide{Reasoning: r}
		if rapid.Bool().Draw(rt, "calls") {
			o, c := int32(5), int32(6)
			r.CallOpen, r.CallClose = &o, &c
		}
		if rapid.Bool().Draw(rt, "grammar") {
			constraint.Grammar = "root ::= [a-z \\n]*"
		}
		g := newConstraint(t, constraint, 60)
		samples := rapid.SliceOfN(rapid.SampledFrom([]int32{1, 2, 3, 4, 5, 6, blank, hint, closeToken, openToken, stop}),
			60, 60).Draw(rt, "samples")
		s, again := g.Start(), g.Start()
		closed := 0
		for i, sample := range samples {
			token, next := g.Resolve(s, sample)
			seen := token
			if g.Open(again, token) {
				seen = sample
			}
			if forced, ok := g.Forced(s); ok && token != forced {
				rt.Fatalf("token %d is %d, %d was forced", i, token, forced)
			}
			if got, after := g.Resolve(again, seen); got != token || after != next {
				rt.Fatalf("token %d: replayed %d %+v, want %d %+v", i, got, after, token, next)
			} else {
				again = after
			}
			if due, after, ok := g.Due(s); ok && token == due && after.Alike(next) && after != next {
				rt.Fatalf("Due and Resolve differ at %d", i)
			}
			if next.Closed(s) {
				closed++
			}
			s = next
			if token == stop {
				break
			}
		}
		if closed > 1 || (g.Kind(s) == tandemv1.CloseKind_CLOSE_KIND_NONE) != (closed == 0) {
			rt.Fatalf("closed %d times, kind %v", closed, g.Kind(s))
		}
	})
}

// TestMasks: a mask and Allows agree on every token, with grammars, bans, markers to open, and ends of turns.
func TestMasks(t *testing.T) {
	for name, m := range map[string]*tandemv1.Guide{
		"grammar": {Grammar: `root ::= "a"? ("b" | "cd"){1,3}`},
		"banned":  {BannedTokens: []int32{0, 31, 32, 38}},
		"both":    {Grammar: `root ::= [a-f]+ <[36]>?`, BannedTokens: []int32{2, 36}},
		"reasoning": {Grammar: `root ::= "ab"+`,
			Reasoning: &tandemv1.Reasoning{Open: []int32{openToken, 3}, Close: []int32{closeToken}}},
	} {
		g := newConstraint(t, m, 100)
		rng := rand.New(rand.NewPCG(1, 2))
		for range 50 {
			s := g.Start()
			for range 12 {
				mask := make([]uint32, g.Words())
				key, masked := g.Masked(s)
				if masked {
					if err := g.Fill(key, mask); err != nil {
						t.Fatal(name, err)
					}
				}
				var allowed []int32
				for id := range int32(vocab) {
					_, ok := g.Allows(s, id)
					if masked && ok != (mask[id/32]>>(id%32)&1 != 0) {
						t.Fatalf("%s: token %d is allowed: %v, in the mask: %v (%+v)", name, id, ok, !ok, s)
					}
					if ok && id != stop {
						allowed = append(allowed, id)
					}
				}
				if masked && mask[len(mask)-1]>>(vocab%32) != 0 {
					t.Fatalf("%s: the mask allows tokens beyond the vocabulary", name)
				}
				if len(allowed) == 0 {
					break
				}
				s, _ = g.Allows(s, allowed[rng.IntN(len(allowed))])
			}
		}
	}
}

// TestGrammarsAreCompiledOnce counts compilations through the identity of what comes out.
func TestGrammarsAreCompiledOnce(t *testing.T) {
	f := factory()
	one := func(text string) *grammar.Grammar {
		g, err := f.New(&tandemv1.Guide{Grammar: text}, Options{Vocab: vocab, Max: 10})
		if err != nil {
			t.Fatal(err)
		}
		return g.grammar
	}
	first := one(`root ::= "a"`)
	if one(`root ::= "a"`) != first {
		t.Error("compiled twice")
	}
	for i := range maxGrammars {
		one(fmt.Sprintf(`root ::= "a"{%d}`, i+1))
	}
	if len(f.grammars) != maxGrammars || one(`root ::= "a"`) == first {
		t.Errorf("%d grammars kept", len(f.grammars))
	}
}
