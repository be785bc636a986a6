package constrain

import (
	"slices"
	"testing"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/ddtree"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/grammar"
	"github.com/tandem-inference/tandem/worker-target/internal/constraint"
)

const (
	vocab = 32
	stop  = 31
	shut  = 30 // closes reasoning
)

// newConstraint compiles a message for a vocabulary whose tokens 0 to 25 are the letters.
func newConstraint(t *testing.T, m *tandemv1.Guide) *constraint.Constraint {
	t.Helper()
	bytes := func(id int32) []byte {
		if id < 26 {
			return []byte{byte('a' + id)}
		}
		return nil
	}
	factory := constraint.NewFactory(func(size int) (*constraint.Text, error) {
		encode := func(text []byte) []int32 { return letters(string(text)) }
		return &constraint.Text{Bytes: bytes, Encode: encode, Vocabulary: grammar.NewVocabulary(grammar.Source{
			Size: size, Bytes: bytes, Named: func(string) (int32, bool) { return 0, false },
		})}, nil
	})
	g, err := factory.New(m, constraint.Options{Vocab: vocab, Max: 100, Stop: []int32{stop}})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// letters returns the tokens of a text.
func letters(s string) (tokens []int32) {
	for _, c := range s {
		tokens = append(tokens, c-'a')
	}
	return tokens
}

// spell returns the text of the path to a node, without the anchor.
func spell(t *ddtree.Tree, node int32) string {
	if node == 0 {
		return ""
	}
	return spell(t, t.Parents[node]) + string('a'+t.Tokens[node])
}

// TestFit: paths that the grammar forbids are cut off, text that it leaves no choice about is added, within the rows of
// the step, and the target's choices are followed down what is left.
func TestFit(t *testing.T) {
	const branches = `root ::= "ab" ("cdef" | "x" [a-z]) "z"`
	for name, c := range map[string]struct {
		grammar  string
		proposed []string // paths
		logprob  float32  // of each proposed node
		rows     int
		noGuess  bool
		want     []string // paths to leaves of the fitted tree
		cut      bool
		added    bool
		choices  string // of the target along the walk
		walked   string
	}{
		"no constraint": {proposed: []string{"qq", "r"}, rows: 9, want: []string{"qq", "r"}, choices: "qqq", walked: "qq"},
		"allowed": {grammar: `root ::= [a-c]+`, proposed: []string{"ab", "ca"}, rows: 9, want: []string{"ab", "ca"},
			choices: "cab", walked: "ca"},
		"forbidden at once": {grammar: `root ::= [a-c]+`, proposed: []string{"xa", "b"}, rows: 9, want: []string{"b"},
			cut: true, choices: "ba", walked: "b"},
		"forbidden below": {grammar: `root ::= [a-c]+`, proposed: []string{"axc"}, rows: 9, want: []string{"a"}, cut: true,
			choices: "bb", walked: ""},
		"beside a forbidden path": {
			grammar: `root ::= "abc" | "bde"`, proposed: []string{"axbc", "bd"}, rows: 9, noGuess: true,
			want: []string{"a", "bd"}, cut: true, choices: "bdx", walked: "bd",
		},
		"text without a choice": {grammar: branches, rows: 9, want: []string{"ab"}, added: true, choices: "abx",
			walked: "ab"},
		"after a proposal": {grammar: branches, proposed: []string{"abc"}, rows: 9, want: []string{"abcdefz"},
			added: true, choices: "abcdefz", walked: "abcdefz"},
		"no guesses": {grammar: branches, proposed: []string{"abc"}, rows: 9, noGuess: true,
			want: []string{"abc"}, choices: "abcd", walked: "abc"},
		"not after an unlikely one": {grammar: branches, proposed: []string{"abc"}, logprob: -1, rows: 9,
			want: []string{"abc"}, choices: "abcd", walked: "abc"},
		"no rows left": {grammar: branches, proposed: []string{"abc"}, rows: 6, want: []string{"abcde"}, added: true,
			choices: "abcdef", walked: "abcde"},
		"cut, then added": {grammar: branches, proposed: []string{"ax"}, rows: 9, want: []string{"ab"}, cut: true,
			added: true, choices: "abc", walked: "ab"},
	} {
		t.Run(name, func(t *testing.T) {
			var w Walker
			var g *constraint.Constraint
			if c.grammar != "" {
				g = newConstraint(t, &tandemv1.Guide{Grammar: c.grammar})
			}
			w.Start(g, !c.noGuess)
			var tree ddtree.Tree
			tree.Reset(0)
			for _, path := range c.proposed {
				node := int32(0)
				for _, token := range letters(path) {
					node = tree.Add(token, node, tree.Logprobs[node]+c.logprob)
				}
			}
			cut, added := w.Fit(&tree, c.rows)
			if cut != c.cut || added != c.added {
				t.Errorf("cut %v, added %v", cut, added)
			}
			var leaves []string
			for i := range int32(tree.Len()) {
				if !slices.Contains(tree.Parents, i) {
					leaves = append(leaves, spell(&tree, i))
				}
			}
			if !slices.Equal(leaves, c.want) {
				t.Errorf("leaves %q, want %q", leaves, c.want)
			}
			// Each node chooses the next letter of choices after its own depth.
			tokens := make([]int32, tree.Len())
			for i, depth := range tree.Depths {
				tokens[i] = letters(c.choices)[min(int(depth), len(c.choices)-1)]
			}
			path := w.Walk(&tree, tokens, nil)
			if got := spell(&tree, path[len(path)-1]); got != c.walked || len(path) != len(got)+1 {
				t.Errorf("walked %q in %d steps, want %q", got, len(path)-1, c.walked)
			}
		})
	}
}

// TestRowsAreLimited: each row has the mask of its own path, equal states share one, and a row after the end chooses
// nothing.
func TestRowsAreLimited(t *testing.T) {
	var w Walker
	w.Start(newConstraint(t, &tandemv1.Guide{Grammar: `root ::= "a" [bc] | "d" [bc]`, BannedTokens: []int32{stop}}), false)
	var tree ddtree.Tree
	tree.Reset(0)
	a := tree.Add(0, 0, 0)
	d := tree.Add(3, 0, 0)
	tree.Add(1, a, 0)
	if cut, added := w.Fit(&tree, 9); cut || added {
		t.Fatalf("cut %v, added %v", cut, added)
	}
	allowed := func(node int) (tokens []int32) {
		t.Helper()
		row := engine.Row{Mask: -1}
		if open, err := w.Limit(&row, node, true); err != nil || !open {
			t.Fatalf("node %d: open %v, %v", node, open, err)
		}
		masks, n := w.Masks()
		words := len(masks) / n
		for token := range int32(26) {
			if row.Mask < 0 || masks[int(row.Mask)*words+int(token/32)]>>(token%32)&1 != 0 {
				tokens = append(tokens, token)
			}
		}
		return tokens
	}
	w.Begin()
	for node, want := range map[int][]int32{Next: {0, 3}, 0: {0, 3}, int(a): {1, 2}, int(d): {1, 2}} {
		if got := allowed(node); !slices.Equal(got, want) {
			t.Errorf("after node %d: %v, want %v", node, got, want)
		}
	}
	w.Begin()
	if masks, n := w.Masks(); masks != nil || n != 0 {
		t.Errorf("%d masks of the step before", n)
	}
}

// TestForced: closing reasoning is forced on the walk and on replays alike, whatever was sampled. A close marker that
// is forced where it might have been chosen is told apart by what was sampled.
func TestForced(t *testing.T) {
	for name, c := range map[string]struct {
		sequence, want []int32
		closed         int
	}{
		"with a hint": {sequence: []int32{29, shut}, want: []int32{5, 5, 29, shut, 5, 5}, closed: 3},
		"at once":     {sequence: []int32{shut}, want: []int32{5, 5, shut, 5, 5, 5}, closed: 2},
	} {
		t.Run(name, func(t *testing.T) {
			g := newConstraint(t, &tandemv1.Guide{Reasoning: &tandemv1.Reasoning{
				Close: []int32{shut}, Inside: true, Budget: 2, Reserve: 1, CloseSequence: c.sequence,
			}})
			var w, again Walker
			w.Start(g, true)
			again.Start(g, true)
			var out []int32
			closed := -1
			for i := range c.want {
				if certain := i >= 2 && i <= c.closed; w.Certain() != certain {
					t.Errorf("token %d: certain %v", i, w.Certain())
				}
				token, closes := w.Resolve(5)
				if closes {
					closed = i
				}
				if again.Sampling(token) {
					again.SetChosen(5)
				}
				if err := again.Replay(token, i); err != nil {
					t.Errorf("token %d: %v", i, err)
				}
				out = append(out, token)
			}
			if !slices.Equal(out, c.want) || closed != c.closed {
				t.Errorf("%v, closed at %d", out, closed)
			}
			if w.Kind() != again.Kind() || w.Kind() != tandemv1.CloseKind_CLOSE_KIND_HARD {
				t.Errorf("closed %v, replayed %v", w.Kind(), again.Kind())
			}
		})
	}
	var strict Walker
	strict.Start(newConstraint(t, &tandemv1.Guide{Grammar: `root ::= "a"`}), true)
	if err := strict.Replay(1, 0); err == nil {
		t.Error("a token that the grammar forbids was replayed")
	}
}
