package ddtree

import (
	"errors"
	"fmt"
)

// MaxNodes bounds the nodes of a tree without its root: an engine verifies at most 128 rows of a sequence at a time.
const MaxNodes = 127

// MaxDepth bounds the positions of a block after its anchor.
const MaxDepth = 127

// ErrMalformed is wrapped by every error about a proposal that does not describe a tree.
var ErrMalformed = errors.New("malformed draft tree")

// Tree is a draft tree. All slices have the same length, index 0 is the root.
type Tree struct {
	// Tokens of the nodes; Tokens[0] is the anchor.
	Tokens []int32
	// Parents as node indices, smaller than the node's own; Parents[0] is -1.
	Parents []int32
	// Depths below the root; siblings share a position.
	Depths []int32
	// Logprobs are cumulative log-probabilities of the paths under the draft; Logprobs[0] is 0.
	Logprobs []float32

	// Children as linked lists: first child of a node and next sibling, 0 = none (the root is nobody's child).
	first, next []int32
}

// Reset makes t a tree of the anchor alone.
func (t *Tree) Reset(anchor int32) {
	t.Tokens = append(t.Tokens[:0], anchor)
	t.Parents = append(t.Parents[:0], -1)
	t.Depths = append(t.Depths[:0], 0)
	t.Logprobs = append(t.Logprobs[:0], 0)
	t.first = append(t.first[:0], 0)
	t.next = append(t.next[:0], 0)
}

// Len is the number of rows to verify: nodes and root.
func (t *Tree) Len() int { return len(t.Tokens) }

// Nodes is the number of draft tokens.
func (t *Tree) Nodes() int { return max(0, len(t.Tokens)-1) }

// Depth is the length of the longest path below the root.
func (t *Tree) Depth() int {
	var deepest int32
	for _, d := range t.Depths {
		deepest = max(deepest, d)
	}
	return int(deepest)
}

// add appends a node and returns its index.
func (t *Tree) add(token, parent int32, logprob float32) int32 {
	i := int32(len(t.Tokens))
	t.Tokens = append(t.Tokens, token)
	t.Parents = append(t.Parents, parent)
	t.Depths = append(t.Depths, t.Depths[parent]+1)
	t.Logprobs = append(t.Logprobs, logprob)
	t.first = append(t.first, 0)
	t.next = append(t.next, t.first[parent])
	t.first[parent] = i
	return i
}

// Add appends a node that a proposal did not have and returns its index; a child that is there already is returned as
// it is. The caller keeps within MaxNodes and MaxDepth.
func (t *Tree) Add(token, parent int32, logprob float32) int32 {
	if c := t.Child(parent, token); c >= 0 {
		return c
	}
	return t.add(token, parent, logprob)
}

// Child returns the child of node that holds token, or -1.
func (t *Tree) Child(node, token int32) int32 {
	for c := t.first[node]; c != 0; c = t.next[c] {
		if t.Tokens[c] == token {
			return c
		}
	}
	return -1
}

// Walk follows the target's choices: choices[i] is the token that the target chose after row i. It appends the accepted
// rows to path[:0], root first. The tokens to emit are those of path[1:], then the bonus choices[path[len(path)-1]].
func (t *Tree) Walk(choices, path []int32) []int32 {
	path = append(path[:0], 0)
	var cur int32
	for {
		child := t.Child(cur, choices[cur])
		if child < 0 {
			return path
		}
		cur = child
		path = append(path, cur)
	}
}

// Limits are what a proposal from the wire is held to.
type Limits struct {
	Vocab int // token ids are below this
	Nodes int // most nodes without the root
	Depth int // longest path
}

// Set makes t the tree of a proposal: nodes 1..n with their parents (0 = anchor) and cumulative log-probabilities. The
// proposal comes from another process, so everything about it is checked; on error t is the anchor alone.
func (t *Tree) Set(anchor int32, tokens, parents []int32, logprobs []float32, limits Limits) error {
	t.Reset(anchor)
	if err := t.set(tokens, parents, logprobs, limits); err != nil {
		t.Reset(anchor)
		return err
	}
	return nil
}

func (t *Tree) set(tokens, parents []int32, logprobs []float32, limits Limits) error {
	switch {
	case len(parents) != len(tokens):
		return fmt.Errorf("%w: %d tokens but %d parents", ErrMalformed, len(tokens), len(parents))
	case len(logprobs) != len(tokens):
		return fmt.Errorf("%w: %d tokens but %d log-probabilities", ErrMalformed, len(tokens), len(logprobs))
	case len(tokens) > min(limits.Nodes, MaxNodes):
		return fmt.Errorf("%w: %d nodes, at most %d were asked for", ErrMalformed, len(tokens), min(limits.Nodes, MaxNodes))
	}
	for i, token := range tokens {
		parent := parents[i]
		switch {
		case token < 0 || int(token) >= limits.Vocab:
			return fmt.Errorf("%w: node %d holds token %d, the vocabulary has %d", ErrMalformed, i+1, token, limits.Vocab)
		case parent < 0 || int(parent) > i:
			return fmt.Errorf("%w: node %d has parent %d", ErrMalformed, i+1, parent)
		case int(t.Depths[parent]) >= min(limits.Depth, MaxDepth):
			return fmt.Errorf("%w: node %d is deeper than %d", ErrMalformed, i+1, min(limits.Depth, MaxDepth))
		case t.Child(parent, token) >= 0:
			return fmt.Errorf("%w: node %d repeats token %d under parent %d", ErrMalformed, i+1, token, parent)
		case logprobs[i] != logprobs[i] || logprobs[i] > 0:
			return fmt.Errorf("%w: node %d has log-probability %v", ErrMalformed, i+1, logprobs[i])
		}
		t.add(token, parent, logprobs[i])
	}
	return nil
}

// Keep drops every node for which keep is false, and whatever hangs from it. keep[0] is ignored: the root stays.
// Indices change; order does not.
func (t *Tree) Keep(keep []bool) {
	var moved [MaxNodes + 1]int32
	n := t.Len()
	// Appending to the truncated slices overwrites entry i only after it was read: the write index never passes i.
	t.Reset(t.Tokens[0])
	for i := 1; i < n; i++ {
		token, parent, logprob := t.Tokens[:n][i], t.Parents[:n][i], t.Logprobs[:n][i]
		if !keep[i] || moved[parent] < 0 {
			moved[i] = -1
			continue
		}
		moved[i] = t.add(token, moved[parent], logprob)
	}
}

// Below makes out the part of t below node: node is its root, log-probabilities count from there. out must not be t.
func (t *Tree) Below(node int32, out *Tree) {
	var moved [MaxNodes + 1]int32
	out.Reset(t.Tokens[node])
	for i := node + 1; int(i) < t.Len(); i++ {
		parent := t.Parents[i]
		if parent != node && (parent < node || moved[parent] == 0) {
			continue
		}
		moved[i] = out.add(t.Tokens[i], moved[parent], t.Logprobs[i]-t.Logprobs[node])
	}
}
