package text

import (
	"slices"
	"testing"

	"github.com/tandem-inference/tandem/services/ddtree"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
)

// TestText: what stood in prompt or output before is proposed, and each new token is compared with its prediction
// before it counts itself.
func TestText(t *testing.T) {
	var x Text
	for name, c := range map[string]struct {
		prompt, tokens []int32
		right          []bool  // of tokens, each predicted by those before
		proposed       []int32 // after them, three at most
	}{
		"new": {prompt: []int32{1, 2, 3}, tokens: []int32{4, 5}, right: []bool{false, false}},
		"in the prompt": {prompt: []int32{1, 2, 3, 4, 9, 1, 2}, tokens: []int32{3, 4}, right: []bool{true, true},
			proposed: []int32{9, 1, 2}},
		"in the output": {prompt: []int32{1}, tokens: []int32{5, 6, 7, 5, 6, 7},
			right: []bool{false, false, false, false, false, true}, proposed: []int32{5, 6, 7}},
		"goes on": {prompt: []int32{1, 2, 3, 4, 9, 1, 2}, tokens: []int32{5}, right: []bool{false}},
	} {
		t.Run(name, func(t *testing.T) {
			x.Start(4)
			x.Read(c.prompt)
			x.Begin()
			for _, token := range c.tokens {
				x.Add(token)
			}
			right := func(l auto.Prediction) bool { return l.Right }
			var got []bool
			for _, look := range x.Predictions() {
				got = append(got, right(look))
			}
			if !slices.Equal(got, c.right) {
				t.Errorf("predicted %v, want %v", got, c.right)
			}
			var tree ddtree.Tree
			tree.Reset(c.tokens[len(c.tokens)-1])
			x.Propose(&tree, 3)
			if !slices.Equal(tree.Tokens[1:], c.proposed) || tree.Depth() != len(c.proposed) ||
				(x.Matched() > 0) != (len(c.proposed) > 0) {
				t.Errorf("proposed %v at a match of %d, want %v", tree.Tokens[1:], x.Matched(), c.proposed)
			}
		})
	}
	x.Stop()
	x.Begin()
	x.Add(1)
	if x.On() || x.Matched() != 0 || len(x.Predictions()) != 0 {
		t.Error("a text that is off predicts")
	}
}

// TestAfter: prompt lookup goes on after a path that continues the text, and leaves the text as it is.
func TestAfter(t *testing.T) {
	var x Text
	x.Start(4)
	x.Read([]int32{1, 2, 3, 4, 5, 9})
	for range 2 {
		if tokens, matched := x.After([]int32{2, 3}, 2); !slices.Equal(tokens, []int32{4, 5}) || matched != 2 {
			t.Errorf("%v after a match of %d", tokens, matched)
		}
		if tokens, matched := x.After([]int32{7, 8}, 2); len(tokens) != 0 || matched != 0 {
			t.Errorf("%v after a match of %d", tokens, matched)
		}
	}
	var tree ddtree.Tree
	tree.Reset(9)
	leaf := tree.Add(2, 0, -1)
	Append(&tree, leaf, []int32{4, 5})
	if !slices.Equal(tree.Parents, []int32{-1, 0, 1, 2}) || tree.Logprobs[3] >= tree.Logprobs[2] ||
		tree.Logprobs[2] >= -1 {
		t.Errorf("parents %v, log-probabilities %v", tree.Parents, tree.Logprobs)
	}
}
