package auto

import (
	"math"
	"slices"

	"github.com/tandem-inference/tandem/services/ddtree"
)

const (
	depths = 32 // deeper positions share the last rate
	// memory of running rates, in observations: a request follows a change within its last 24 rounds, a worker within 400.
	requestMemory = 24
	workerMemory  = 400
	// seedWeight is how many observations the worker's estimate counts in a new request.
	seedWeight = 6
	// prior is the acceptance assumed of a draft of which nothing is known: worth a try, soon corrected.
	prior, priorWeight = 0.7, 2
)

// rate is a running share of hits.
type rate struct {
	hits, seen float64
}

func (r *rate) add(hit bool) {
	r.seen++
	if hit {
		r.hits++
	}
}

func (r *rate) fade(keep float64) {
	r.hits *= keep
	r.seen *= keep
}

// seed scales r down to at most weight observations.
func (r rate) seed(weight float64) rate {
	if r.seen <= weight {
		return r
	}
	return rate{hits: r.hits * weight / r.seen, seen: weight}
}

// gauge compares what the draft promised of nodes whose parents were accepted with how many of them were.
type gauge struct {
	promised, accepted float64
}

// classEdges divide the log-probabilities of a node given its parent.
var classEdges = [...]float32{-0.02, -0.1, -0.3, -0.7, -1.2, -2, -3, -4.5}

const classes = len(classEdges) + 1

func class(w float32) int {
	for i, edge := range classEdges {
		if w >= edge {
			return i
		}
	}
	return len(classEdges)
}

// shape is scratch: which nodes of a tree are on the draft's own chain (first choices all the way).
type shape struct {
	best    [ddtree.MaxNodes + 1]int32 // most probable child, 0 = leaf
	onChain [ddtree.MaxNodes + 1]bool
}

func (s *shape) read(t *ddtree.Tree) {
	n := t.Len()
	clear(s.best[:n])
	for i := 1; i < n; i++ {
		if b := &s.best[t.Parents[i]]; *b == 0 || t.Logprobs[i] > t.Logprobs[*b] {
			*b = int32(i)
		}
	}
	s.onChain[0] = true
	for i := 1; i < n; i++ {
		s.onChain[i] = s.onChain[t.Parents[i]] && s.best[t.Parents[i]] == int32(i)
	}
}

// beliefs are what is known of a draft's quality.
type beliefs struct {
	chain, tree [depths]rate
	// Marginals of a block draft hold for its own chain; on branches they promise too much. So each has its own gauges.
	onChain, offChain [classes]gauge
	treeRows          float64 // running mean of the rows of a cut tree, 0 = none yet
}

func (b *beliefs) seeded() beliefs {
	s := *b
	for d := range s.chain {
		s.chain[d] = s.chain[d].seed(seedWeight)
		s.tree[d] = s.tree[d].seed(seedWeight)
	}
	for i := range classes {
		s.onChain[i] = s.onChain[i].seed()
		s.offChain[i] = s.offChain[i].seed()
	}
	return s
}

// chainRate is P(the draft's first choice at depth d is accepted | all before were). Unknown depths lean on the one before.
func (b *beliefs) chainRates(out *[depths]float64) {
	lean := prior
	for d := range out {
		r := b.chain[d]
		out[d] = (r.hits + lean*priorWeight) / (r.seen + priorWeight)
		lean = out[d]
	}
}

// treeRates is P(some node at depth d is accepted | its parent was). A tree holds the chain, so what is unknown leans on
// the chain's rate and a third of what it misses.
func (b *beliefs) treeRates(chain, out *[depths]float64) {
	for d := range out {
		r := b.tree[d]
		lean := chain[d] + (1-chain[d])/3
		out[d] = (r.hits + lean*priorWeight) / (r.seen + priorWeight)
	}
}

// expected is 1 + sum of products of the first n rates: tokens a round commits, bonus included.
func expected(rates *[depths]float64, n int) float64 {
	e, product := 1.0, 1.0
	for d := range n {
		product *= rates[min(d, depths-1)]
		e += product
	}
	return e
}

func (g gauge) seed() gauge {
	if g.promised <= seedWeight {
		return g
	}
	return gauge{promised: seedWeight, accepted: g.accepted * seedWeight / g.promised}
}

func (b *beliefs) gauge(s *shape, t *ddtree.Tree, i int32) (g *gauge, w float32) {
	w = t.Logprobs[i] - t.Logprobs[t.Parents[i]]
	if s.onChain[i] {
		return &b.onChain[class(w)], w
	}
	return &b.offChain[class(w)], w
}

// conditional is the corrected probability of node i given that its parent is accepted.
func (b *beliefs) conditional(s *shape, t *ddtree.Tree, i int32) float64 {
	const weight = 1 // of the assumption that the draft is right about itself, in promised nodes
	g, w := b.gauge(s, t, i)
	return min(1, math.Exp(float64(w))*(g.accepted+weight)/(g.promised+weight))
}

// observe learns from one verified tree.
func (b *beliefs) observe(s *shape, t *ddtree.Tree, path []int32, memory float64) {
	// Every rate fades, tested or not: what has not been seen for long leans on its neighbours again.
	keep := 1 - 1/memory
	for d := range depths {
		b.chain[d].fade(keep)
		b.tree[d].fade(keep)
	}
	chain := true
	for i, node := range path {
		if s.best[node] == 0 {
			break
		}
		d := min(i, depths-1)
		hit := i+1 < len(path)
		b.tree[d].add(hit)
		if chain {
			chain = hit && path[i+1] == s.best[node]
			b.chain[d].add(chain)
		}
	}
	// Only children of accepted nodes were put to the test.
	for i := int32(1); int(i) < t.Len(); i++ {
		if !slices.Contains(path, t.Parents[i]) {
			continue
		}
		g, w := b.gauge(s, t, i)
		g.promised = g.promised*keep + math.Exp(float64(w))
		g.accepted *= keep
		if slices.Contains(path, i) {
			g.accepted++
		}
	}
}
