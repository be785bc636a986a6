package speculate

import (
	"slices"

	"github.com/tandem-inference/tandem/services/ddtree"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"github.com/tandem-inference/tandem/worker-target/internal/decode/text"
)

// extension is the nodes that prompt lookup adds to a draft's proposal: a chain below the best node at the end of the
// draft's block. They are the last nodes of the tree.
type extension struct {
	n    int
	path []int32
	keep []bool
}

func (x *extension) reset() { x.n = 0 }

// nodes is the number of nodes added.
func (x *extension) nodes() int { return x.n }

// add extends tree, a proposal of blocks of block rows, by at most limit tokens, as far as they are worth their rows
// at a context of length positions.
func (x *extension) add(tree *ddtree.Tree, t *text.Text, policy *auto.Policy, block, limit, length int) {
	depth, leaf := block-1, int32(0)
	for i, d := range tree.Depths {
		if int(d) == depth && (leaf == 0 || tree.Logprobs[i] > tree.Logprobs[leaf]) {
			leaf = int32(i)
		}
	}
	limit = min(limit, ddtree.MaxNodes-tree.Nodes(), ddtree.MaxDepth-depth)
	if leaf == 0 || limit < 1 {
		return
	}
	x.path = x.path[:0]
	for node := leaf; node != 0; node = tree.Parents[node] {
		x.path = append(x.path, tree.Tokens[node])
	}
	slices.Reverse(x.path)
	tokens, matched := t.After(x.path, limit)
	x.n = policy.Extend(tree, leaf, matched, len(tokens), length)
	text.Append(tree, leaf, tokens[:x.n])
}

// remove takes the added nodes off the tree again and returns how many of them are on path.
func (x *extension) remove(tree *ddtree.Tree, path []int32) (onPath int) {
	if x.n == 0 {
		return 0
	}
	own := tree.Len() - x.n
	x.keep = x.keep[:0]
	for i := range tree.Len() {
		x.keep = append(x.keep, i < own)
	}
	tree.Keep(x.keep)
	for i := len(path) - 1; int(path[i]) >= own; i-- {
		onPath++
	}
	return onPath
}
