package ddtree

import "slices"

// Candidates are the ranked candidates of a block draft: position d (0-based, d+1 tokens after the anchor) holds
// IDs[d*Stride+r] for ranks r = 0.. in falling probability, with their log-probabilities under the whole vocabulary. An
// id below 0 ends a position's list; a position without candidates ends the block.
type Candidates struct {
	IDs       []int32
	Logprobs  []float32
	Stride    int
	Positions int
}

// width is the number of candidates at position d, at most k.
func (c *Candidates) width(d, k int) int {
	row := c.IDs[d*c.Stride:][:min(c.Stride, k)]
	for r, id := range row {
		if id < 0 {
			return r
		}
	}
	return len(row)
}

// Options choose the shape of a tree.
type Options struct {
	// Budget is the number of nodes without the root, at most MaxNodes; 0 gives the root alone.
	Budget int
	// Width is the number of candidates used per position, 0 = all. 1 gives a chain.
	Width int
	// ChainSeed puts the most probable token of every position into the tree first, as far as the budget goes, so that
	// the tree is never worse than the chain of the same draft.
	ChainSeed bool
}

// candidate is a node that may be added next.
type candidate struct {
	w      float32
	parent int32
	rank   int32
}

// Builder builds trees. The zero value is ready; reuse it to avoid allocation.
type Builder struct {
	heap   []candidate
	ranks  []int32 // rank of each node among its position's candidates
	widths [MaxDepth]int32
	tree   *Tree
}

// Build fills t with the tree of the candidates under the anchor.
//
// Best-first expansion: a heap holds nodes that could be added, keyed by cumulative log-probability. Popping one adds
// it and pushes its next sibling and its first child, so that with a budget of M at most 2M candidates are ever pushed.
func (b *Builder) Build(t *Tree, anchor int32, c *Candidates, o Options) {
	t.Reset(anchor)
	b.tree = t
	b.heap = b.heap[:0]
	b.ranks = append(b.ranks[:0], 0)
	budget := min(o.Budget, MaxNodes)
	k := o.Width
	if k <= 0 {
		k = c.Stride
	}
	positions := min(c.Positions, MaxDepth)
	for d := range positions {
		if b.widths[d] = int32(c.width(d, k)); b.widths[d] == 0 {
			positions = d
			break
		}
	}
	if budget <= 0 || positions == 0 {
		return
	}
	if o.ChainSeed {
		var parent int32
		var cum float32
		for d := range min(positions, budget) {
			row := c.Logprobs[d*c.Stride:]
			cum += row[0]
			if b.widths[d] > 1 {
				b.push(candidate{w: cum - row[0] + row[1], parent: parent, rank: 1})
			}
			parent = t.add(c.IDs[d*c.Stride], parent, cum)
			b.ranks = append(b.ranks, 0)
		}
	} else {
		b.push(candidate{w: c.Logprobs[0]})
	}
	for len(b.heap) > 0 && t.Nodes() < budget {
		x := b.pop()
		d := t.Depths[x.parent] // 0-based position of the new node
		row := c.Logprobs[int(d)*c.Stride:]
		i := t.add(c.IDs[int(d)*c.Stride+int(x.rank)], x.parent, x.w)
		b.ranks = append(b.ranks, x.rank)
		if x.rank+1 < b.widths[d] {
			b.push(candidate{w: x.w - row[x.rank] + row[x.rank+1], parent: x.parent, rank: x.rank + 1})
		}
		if int(d)+1 < positions {
			b.push(candidate{w: x.w + c.Logprobs[(int(d)+1)*c.Stride], parent: i})
		}
	}
}

// before orders candidates: larger sums first, equal sums by rank tuple.
func (b *Builder) before(x, y candidate) bool {
	if x.w != y.w {
		return x.w > y.w
	}
	var bufX, bufY [MaxDepth]int32
	return slices.Compare(b.tuple(x, &bufX), b.tuple(y, &bufY)) < 0
}

// tuple writes the ranks of a candidate's path into buf.
func (b *Builder) tuple(x candidate, buf *[MaxDepth]int32) []int32 {
	d := b.tree.Depths[x.parent]
	buf[d] = x.rank
	for i, p := d-1, x.parent; i >= 0; i, p = i-1, b.tree.Parents[p] {
		buf[i] = b.ranks[p]
	}
	return buf[:d+1]
}

func (b *Builder) push(x candidate) {
	b.heap = append(b.heap, x)
	h := b.heap
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !b.before(h[i], h[up]) {
			return
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
}

func (b *Builder) pop() candidate {
	h := b.heap
	top := h[0]
	last := len(h) - 1
	h[0] = h[last]
	b.heap = h[:last]
	h = b.heap
	for i := 0; ; {
		child := 2*i + 1
		if child >= len(h) {
			return top
		}
		if child+1 < len(h) && b.before(h[child+1], h[child]) {
			child++
		}
		if !b.before(h[child], h[i]) {
			return top
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
}
