package prefix

import (
	"slices"

	"github.com/tandem-inference/tandem/services/prefixhash"
)

// node is the end of an edge in a radix tree over token ids. A node other than a root has an entry or at least two
// children.
type node struct {
	parent   *node
	edge     []int32 // tokens from the parent
	children map[int32]*node
	entry    *Entry
}

// match walks down from a root as far as tokens go and calls found at every entry on the way, with its depth. It
// returns the last node that tokens contain whole, its depth, and how far they go into the edge of one of its children.
func (n *node) match(tokens []int32, found func(*Entry)) (last *node, depth int, child *node, into int) {
	for {
		if n.entry != nil && found != nil {
			found(n.entry)
		}
		if depth == len(tokens) {
			return n, depth, nil, 0
		}
		next := n.children[tokens[depth]]
		if next == nil {
			return n, depth, nil, 0
		}
		into = prefixhash.Common(next.edge, tokens[depth:])
		if into < len(next.edge) {
			return n, depth, next, into
		}
		n, depth = next, depth+into
	}
}

// nearest returns the entry of tokens, the rows of the longest entry on the way that has any, and how many tokens the
// tree's edges lack.
func (n *node) nearest(tokens []int32) (known *Entry, base *Rows, missing int) {
	_, depth, _, into := n.match(tokens, func(e *Entry) {
		if e.length == len(tokens) {
			known = e
		}
		if e.rows != nil {
			base = e.rows
		}
	})
	return known, base, len(tokens) - depth - into
}

// insert returns the node of tokens, which it makes if need be, and how many tokens its edges add to the tree.
func (n *node) insert(tokens []int32) (at *node, added int) {
	last, depth, child, into := n.match(tokens, nil)
	if into > 0 {
		last = child.split(into)
		depth += into
	}
	if depth == len(tokens) {
		return last, 0
	}
	rest := slices.Clone(tokens[depth:])
	at = &node{parent: last, edge: rest}
	last.adopt(at)
	return at, len(rest)
}

// adopt makes a child of n.
func (n *node) adopt(child *node) {
	if n.children == nil {
		n.children = map[int32]*node{}
	}
	child.parent = n
	n.children[child.edge[0]] = child
}

// split cuts the edge of n after so many tokens and returns the new node between n and its parent.
func (n *node) split(tokens int) *node {
	middle := &node{edge: slices.Clone(n.edge[:tokens])} // clones: an edge that goes does not stay in memory for its part
	n.parent.adopt(middle)
	n.edge = slices.Clone(n.edge[tokens:])
	middle.adopt(n)
	return middle
}

// prune takes n, which has no entry any more, out of the tree unless its children need it, and returns how many tokens
// the tree's edges have less.
func (n *node) prune() (less int) {
	switch {
	case n.parent == nil || n.entry != nil:
		return 0
	case len(n.children) == 0:
		parent := n.parent
		delete(parent.children, n.edge[0])
		n.parent = nil
		return len(n.edge) + parent.prune()
	case len(n.children) == 1:
		for _, child := range n.children {
			child.edge = slices.Concat(n.edge, child.edge)
			n.parent.adopt(child)
		}
		n.parent = nil
	}
	return 0
}

// tokens are those from the root on.
func (n *node) tokens() []int32 {
	var edges [][]int32
	for ; n != nil; n = n.parent {
		edges = append(edges, n.edge)
	}
	slices.Reverse(edges)
	return slices.Concat(edges...)
}

// before is the length of the longest entry above n, 0 if there is none.
func (n *node) before() int {
	for n = n.parent; n != nil; n = n.parent {
		if n.entry != nil {
			return n.entry.length
		}
	}
	return 0
}
