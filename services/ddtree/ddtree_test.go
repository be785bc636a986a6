package ddtree

import (
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

// rows ranks full rows of log-probabilities, ties to the lower id, and keeps k of each.
func rows(k int, logprobs ...[]float32) *Candidates {
	c := &Candidates{Stride: k, Positions: len(logprobs)}
	for _, row := range logprobs {
		ids := make([]int32, len(row))
		for i := range ids {
			ids[i] = int32(i)
		}
		slices.SortStableFunc(ids, func(a, b int32) int {
			switch {
			case row[a] > row[b]:
				return -1
			case row[a] < row[b]:
				return 1
			}
			return 0
		})
		for _, id := range ids[:k] {
			c.IDs = append(c.IDs, id)
			c.Logprobs = append(c.Logprobs, row[id])
		}
	}
	return c
}

// softmax of logits at scale s, in float64 rounded once, as the worked examples are.
func softmax(s float64, logits ...float64) []float32 {
	m := slices.Max(logits) * s
	var z float64
	for _, x := range logits {
		z += math.Exp(x*s - m)
	}
	out := make([]float32, len(logits))
	for i, x := range logits {
		out[i] = float32(x*s - m - math.Log(z))
	}
	return out
}

func logs(s float64, p ...float64) []float32 {
	for i := range p {
		p[i] = math.Log(p[i])
	}
	return softmax(s, p...)
}

// exampleA is the first worked example, given as logits with an arbitrary offset per row.
func exampleA(k int) *Candidates {
	return rows(k,
		softmax(1, 0.306853, -0.272966, -1.120264, -1.813411, -2.218876),
		softmax(1, -4.302585, -2.510826, -3.609438, -4.813411, -5.218876),
		softmax(1, -2.495732, -1.397120, 0.143325, -2.313411, -2.718876))
}

func exampleB(k int, s float64) *Candidates {
	return rows(k, logs(s, .40, .33, .17, .10), logs(s, .35, .28, .20, .17), logs(s, .90, .05, .03, .02))
}

func TestBuild(t *testing.T) {
	tie := &Candidates{
		Stride: 2, Positions: 3,
		IDs: []int32{0, 1, 1, 2, 2, 1},
		// Exact in float32: (0,0) and (1) are both -1.25.
		Logprobs: []float32{-0.75, -1.25, -0.5, -1.5, -0.375, -2},
	}
	tests := []struct {
		name    string
		c       *Candidates
		o       Options
		tokens  []int32
		parents []int32
		w       []float32
		e       float64
	}{
		{"a best first", exampleA(2), Options{Budget: 4},
			[]int32{9, 0, 1, 1, 2}, []int32{-1, 0, 1, 0, 2}, []float32{0, -0.693147, -1.203973, -1.272966, -1.560648}, 2.29},
		{"a chain seed", exampleA(2), Options{Budget: 4, ChainSeed: true},
			[]int32{9, 0, 1, 2, 1}, []int32{-1, 0, 1, 2, 0}, []float32{0, -0.693147, -1.203973, -1.560648, -1.272966}, 2.29},
		{"a wider", exampleA(4), Options{Budget: 7},
			[]int32{9, 0, 1, 1, 2, 1, 2, 2}, []int32{-1, 0, 1, 0, 2, 3, 0, 5}, nil, 2.6956},
		{"a chain", exampleA(2), Options{Budget: 4, Width: 1},
			[]int32{9, 0, 1, 2}, []int32{-1, 0, 1, 2}, nil, 2.01},
		{"a cut chain", exampleA(2), Options{Budget: 2, ChainSeed: true},
			[]int32{9, 0, 1}, []int32{-1, 0, 1}, nil, 1.8},
		{"a budget 0", exampleA(2), Options{}, []int32{9}, []int32{-1}, []float32{0}, 1},
		{"b best first", exampleB(4, 1), Options{Budget: 4},
			[]int32{9, 0, 1, 2, 0}, []int32{-1, 0, 0, 0, 1}, []float32{0, -0.916291, -1.108663, -1.771957, -1.966113}, 2.040},
		{"b chain seed", exampleB(4, 1), Options{Budget: 4, ChainSeed: true},
			[]int32{9, 0, 0, 0, 1}, []int32{-1, 0, 1, 2, 0}, []float32{0, -0.916291, -1.966113, -2.071473, -1.108663}, 1.996},
		{"b budget 8", exampleB(4, 1), Options{Budget: 8},
			[]int32{9, 0, 1, 2, 0, 0, 0, 1, 0}, []int32{-1, 0, 0, 0, 1, 4, 2, 1, 6}, nil, 2.49745},
		{"b temperature", exampleB(4, 2), Options{Budget: 4},
			[]int32{9, 0, 1, 0, 0}, []int32{-1, 0, 0, 1, 3}, []float32{0, -0.654276, -1.039020, -1.443846, -1.448527}, 0},
		{"tie by ranks", tie, Options{Budget: 4},
			[]int32{9, 0, 1, 1, 2}, []int32{-1, 0, 1, 0, 2}, []float32{0, -0.75, -1.25, -1.25, -1.625}, 0},
		{"short lists", &Candidates{Stride: 2, Positions: 3, IDs: []int32{5, -1, 6, 7, -1, -1},
			Logprobs: []float32{-1, 0, -1, -2, 0, 0}},
			Options{Budget: 9, ChainSeed: true}, []int32{9, 5, 6, 7}, []int32{-1, 0, 1, 1}, nil, 0},
	}
	var b Builder
	var tree Tree
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b.Build(&tree, 9, test.c, test.o)
			if d := cmp.Diff(test.tokens, tree.Tokens); d != "" {
				t.Error("tokens:", d)
			}
			if d := cmp.Diff(test.parents, tree.Parents); d != "" {
				t.Error("parents:", d)
			}
			if test.w != nil {
				if d := cmp.Diff(test.w, tree.Logprobs, cmpopts.EquateApprox(0, 2e-6)); d != "" {
					t.Error("w:", d)
				}
			}
			if test.e != 0 && math.Abs(expected(&tree)-test.e) > 1e-5 {
				t.Errorf("E = %v, want %v", expected(&tree), test.e)
			}
			for i := 1; i < tree.Len(); i++ {
				if tree.Depths[i] != tree.Depths[tree.Parents[i]]+1 {
					t.Errorf("depths = %v", tree.Depths)
				}
			}
		})
	}
}

// expected is the expected number of tokens of a round, bonus included, if the draft's probabilities were the target's.
func expected(t *Tree) float64 {
	e := 1.0
	for _, w := range t.Logprobs[1:] {
		e += math.Exp(float64(w))
	}
	return e
}

// TestTieOfProbabilities is the tie example as printed: in float32 the two sums need not tie, the result stands anyway.
func TestTieOfProbabilities(t *testing.T) {
	c := rows(2, logs(1, .5, .3, .1, .06, .04), logs(1, .10, .60, .20, .06, .04), logs(1, .05, .15, .70, .06, .04))
	// Make the tie exact.
	c.Logprobs[1] = c.Logprobs[0] + c.Logprobs[2]
	var b Builder
	var tree Tree
	b.Build(&tree, 9, c, Options{Budget: 4})
	if d := cmp.Diff([]int32{-1, 0, 1, 0, 2}, tree.Parents); d != "" {
		t.Error(d)
	}
	if e := expected(&tree); math.Abs(e-2.31) > 1e-5 {
		t.Errorf("E = %v", e)
	}
}

func TestWalk(t *testing.T) {
	var b Builder
	var tree Tree
	b.Build(&tree, 9, exampleA(2), Options{Budget: 4})
	for _, test := range []struct{ choices, path, emitted []int32 }{
		{[]int32{0, 1, 4, 9, 9}, []int32{0, 1, 2}, []int32{0, 1, 4}},
		{[]int32{1, 9, 9, 2, 9}, []int32{0, 3}, []int32{1, 2}},
		{[]int32{0, 1, 2, 9, 7}, []int32{0, 1, 2, 4}, []int32{0, 1, 2, 7}},
		{[]int32{3, 0, 0, 0, 0}, []int32{0}, []int32{3}},
	} {
		path := tree.Walk(test.choices, nil)
		if d := cmp.Diff(test.path, path); d != "" {
			t.Error(test.choices, d)
		}
		var emitted []int32
		for _, i := range path[1:] {
			emitted = append(emitted, tree.Tokens[i])
		}
		emitted = append(emitted, test.choices[path[len(path)-1]])
		if d := cmp.Diff(test.emitted, emitted); d != "" {
			t.Error(test.choices, d)
		}
	}
}

func TestKeep(t *testing.T) {
	var b Builder
	var tree Tree
	b.Build(&tree, 9, exampleA(4), Options{Budget: 7}) // parents -1,0,1,0,2,3,0,5
	tree.Keep([]bool{false, true, false, true, true, true, true, true})
	if d := cmp.Diff([]int32{9, 0, 1, 1, 2, 2}, tree.Tokens); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]int32{-1, 0, 0, 2, 0, 3}, tree.Parents); d != "" {
		t.Error(d)
	}
	if got := tree.Child(0, 2); got != 4 {
		t.Errorf("child = %d", got)
	}
}

func TestBelow(t *testing.T) {
	var tree, out Tree
	tokens, parents := []int32{10, 11, 12, 13, 14, 15}, []int32{0, 0, 1, 1, 2, 3}
	if err := tree.Set(9, tokens, parents, []float32{-1, -2, -3, -4, -5, -6},
		Limits{Vocab: 100, Nodes: 8, Depth: 8}); err != nil {
		t.Fatal(err)
	}
	tree.Below(1, &out)
	want := Tree{Tokens: []int32{10, 12, 13, 15}, Parents: []int32{-1, 0, 0, 1}, Depths: []int32{0, 1, 1, 2},
		Logprobs: []float32{0, -2, -3, -5}}
	if d := cmp.Diff(want, out, cmpopts.IgnoreUnexported(Tree{})); d != "" {
		t.Error(d)
	}
	if out.Child(0, 13) != 2 || out.Child(1, 15) != 3 || out.Child(0, 11) != -1 {
		t.Error("children cannot be found")
	}
	tree.Below(5, &out)
	if out.Len() != 1 || out.Tokens[0] != 14 {
		t.Errorf("below a leaf: %+v", out)
	}
}

func TestNoAllocation(t *testing.T) {
	var b Builder
	var tree, received Tree
	var path []int32
	c := exampleB(4, 1)
	choices := make([]int32, 64)
	keep := make([]bool, 64)
	round := func() {
		b.Build(&tree, 9, c, Options{Budget: 22, ChainSeed: true})
		if err := received.Set(9, tree.Tokens[1:], tree.Parents[1:], tree.Logprobs[1:],
			Limits{Vocab: 10, Nodes: 22, Depth: 15}); err != nil {
			t.Fatal(err)
		}
		path = received.Walk(choices, path)
		received.Keep(keep)
	}
	round()
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("%v allocations a round", n)
	}
}

func TestSetRefuses(t *testing.T) {
	limits := Limits{Vocab: 10, Nodes: 4, Depth: 2}
	nan := float32(math.NaN())
	for name, test := range map[string]struct {
		tokens, parents []int32
		logprobs        []float32
	}{
		"fewer parents":       {[]int32{1, 2}, []int32{0}, []float32{-1, -1}},
		"fewer probabilities": {[]int32{1}, []int32{0}, nil},
		"too many":            {[]int32{1, 2, 3, 4, 5}, []int32{0, 0, 0, 0, 0}, make([]float32, 5)},
		"token too large":     {[]int32{10}, []int32{0}, []float32{-1}},
		"token negative":      {[]int32{-1}, []int32{0}, []float32{-1}},
		"own parent":          {[]int32{1}, []int32{1}, []float32{-1}},
		"negative parent":     {[]int32{1}, []int32{-1}, []float32{-1}},
		"later parent":        {[]int32{1, 2}, []int32{2, 0}, []float32{-1, -1}},
		"duplicate":           {[]int32{1, 2, 1}, []int32{0, 0, 0}, []float32{-1, -1, -1}},
		"too deep":            {[]int32{1, 1, 1}, []int32{0, 1, 2}, []float32{-1, -1, -1}},
		"nan":                 {[]int32{1}, []int32{0}, []float32{nan}},
		"positive":            {[]int32{1}, []int32{0}, []float32{0.5}},
	} {
		var tree Tree
		if err := tree.Set(3, test.tokens, test.parents, test.logprobs, limits); err == nil {
			t.Errorf("%s: accepted", name)
		} else if tree.Len() != 1 || tree.Tokens[0] != 3 {
			t.Errorf("%s: tree has %d rows after %v", name, tree.Len(), err)
		}
	}
}

// TestOptimal compares best-first trees with the best of all trees, found by enumeration.
func TestOptimal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		positions := rapid.IntRange(1, 3).Draw(t, "positions")
		vocab := rapid.IntRange(1, 4).Draw(t, "vocab")
		budget := rapid.IntRange(0, 10).Draw(t, "budget")
		var full [][]float32
		for range positions {
			p := make([]float64, vocab)
			for i := range p {
				p[i] = float64(rapid.IntRange(1, 100).Draw(t, "p")) / 100
			}
			full = append(full, logs(1, p...))
		}
		// All paths and their probabilities; the M largest are the optimum because prefixes are never less probable.
		var all []float64
		var walk func(d int, q float64)
		walk = func(d int, q float64) {
			if d == positions {
				return
			}
			for _, lp := range full[d] {
				p := q * math.Exp(float64(lp))
				all = append(all, p)
				walk(d+1, p)
			}
		}
		walk(0, 1)
		slices.SortFunc(all, func(a, b float64) int {
			if a > b {
				return -1
			}
			return 1
		})
		want := 1.0
		for _, p := range all[:min(budget, len(all))] {
			want += p
		}
		var b Builder
		var tree Tree
		b.Build(&tree, 0, rows(vocab, full...), Options{Budget: budget})
		if got := expected(&tree); math.Abs(got-want) > 1e-4 {
			t.Fatalf("E = %v, best is %v", got, want)
		}
		if tree.Nodes() != min(budget, len(all)) {
			t.Fatalf("%d nodes of %d", tree.Nodes(), budget)
		}
		// The seeded tree has the same size and is never worse than the chain.
		b.Build(&tree, 0, rows(vocab, full...), Options{Budget: budget, ChainSeed: true})
		seeded, nodes := expected(&tree), tree.Nodes()
		b.Build(&tree, 0, rows(vocab, full...), Options{Budget: budget, Width: 1})
		if seeded < expected(&tree)-1e-5 || seeded > want+1e-4 || nodes != min(budget, len(all)) {
			t.Fatalf("seeded E = %v with %d nodes, chain %v, best %v", seeded, nodes, expected(&tree), want)
		}
	})
}

func FuzzSet(f *testing.F) {
	f.Add([]byte{1, 0, 2, 1, 3, 1})
	f.Add([]byte{1, 0, 1, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		var tokens, parents []int32
		var logprobs []float32
		for i := 0; i+1 < len(data); i += 2 {
			tokens = append(tokens, int32(int8(data[i])))
			parents = append(parents, int32(int8(data[i+1])))
			logprobs = append(logprobs, -float32(i))
		}
		limits := Limits{Vocab: 100, Nodes: 40, Depth: 15}
		var tree Tree
		if tree.Set(5, tokens, parents, logprobs, limits) != nil {
			return
		}
		seen := map[[2]int32]bool{}
		for i := 1; i < tree.Len(); i++ {
			key := [2]int32{tree.Parents[i], tree.Tokens[i]}
			if seen[key] || tree.Parents[i] >= int32(i) || tree.Depths[i] > 15 || tree.Tokens[i] >= 100 {
				t.Fatalf("accepted %v %v", tokens, parents)
			}
			seen[key] = true
			if tree.Child(tree.Parents[i], tree.Tokens[i]) != int32(i) {
				t.Fatalf("child of %v not found", key)
			}
		}
	})
}
