package auto

import (
	"math"
	"slices"

	"github.com/tandem-inference/tandem/services/ddtree"
)

const (
	depths = 32 // deeper positions share the last rate
	// memory of running rates, in observations: a request follows a change within its last 16 rounds, a worker within 400.
	requestMemory = 16
	workerMemory  = 400
	// The draft's own probabilities in the last claimMemory proposals, corrected by the results of earlier ones, count
	// as claimWeight times as many tests: a proposal that is right by luck seldom has high probabilities.
	claimMemory, claimWeight = 2, 2
	// branches is the assumed share of the first choice's misses that a tree contains.
	branches = 1.0 / 3
	// seedWeight is how many predicted nodes the worker's gauges count in a new request.
	seedWeight = 6
	// minRate and maxRate bound the rate assumed at a depth that a request has not seen.
	minRate, maxRate = 0.02, 0.995
	// defaultRate is the acceptance rate assumed of a new draft: high enough for a trial, and soon corrected.
	defaultRate, defaultWeight = 0.7, 2
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

// lean counts a test that was not made, with its expected result.
func (r *rate) lean(p float64) {
	r.seen++
	r.hits += p
}

func (r *rate) fade(keep float64) {
	r.hits *= keep
	r.seen *= keep
}

// gauge compares predicted with accepted counts: of nodes whose parents were accepted, or of tokens of rounds.
type gauge struct {
	predicted, accepted float64
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

// acceptance holds the estimates of a draft's quality.
type acceptance struct {
	chain, tree [depths]rate
	claims      [depths]rate // of a request: the draft's probabilities of its own chain
	// Marginals of a block draft hold for its own chain; on branches they predict too much. So each has its own gauges.
	onChain, offChain [classes]gauge
	treeRows          float64 // running mean of the rows of a cut tree, 0 = none yet
}

// fresh returns the start of a new request: the worker's gauges, and no rates of its own.
func (b *acceptance) fresh() acceptance {
	s := acceptance{treeRows: b.treeRows}
	for i := range classes {
		s.onChain[i] = b.onChain[i].seed()
		s.offChain[i] = b.offChain[i].seed()
	}
	return s
}

// rates are acceptance rates by depth: P(accepted | the one before was), for the draft's first choice and for any node.
type rates struct {
	chain, tree [depths]float64
}

// workerRates are those of all requests. A depth that was hardly seen leans on the one before; a tree holds the chain,
// so an unknown rate of trees leans on the chain's rate plus a share of its misses.
func (b *acceptance) workerRates(out *rates) {
	lean := defaultRate
	for d := range depths {
		out.chain[d] = b.chain[d].mean(lean)
		lean = out.chain[d]
		out.tree[d] = b.tree[d].mean(lean + (1-lean)*branches)
	}
}

// requestRates are those of a request with the estimates b on a worker with the rates base. A depth that the request
// has not seen leans on the worker's rate, scaled by the request's rate at the depth before: texts differ in how well a
// draft predicts them, and a text that it predicts badly at the first position it predicts badly at the later ones too.
func (b *acceptance) requestRates(base, out *rates) {
	lean(&b.chain, &b.claims, 0, &base.chain, &out.chain)
	lean(&b.tree, &b.claims, branches, &base.tree, &out.tree)
}

func lean(own, claims *[depths]rate, more float64, base, out *[depths]float64) {
	scale := 1.0
	for d := range depths {
		r, c := own[d], claims[d]
		r.hits += claimWeight * (c.hits + more*(c.seen-c.hits))
		r.seen += claimWeight * c.seen
		out[d] = r.mean(clamp(base[d]*scale, minRate, maxRate))
		scale = out[d] / max(base[d], minRate)
	}
}

// mean of a running rate that leans on another where it has seen little.
func (r rate) mean(lean float64) float64 {
	return (r.hits + lean*defaultWeight) / (r.seen + defaultWeight)
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
	if g.predicted <= seedWeight {
		return g
	}
	return gauge{predicted: seedWeight, accepted: g.accepted * seedWeight / g.predicted}
}

func (b *acceptance) gauge(s *shape, t *ddtree.Tree, i int32) (g *gauge, w float32) {
	w = t.Logprobs[i] - t.Logprobs[t.Parents[i]]
	if s.onChain[i] {
		return &b.onChain[class(w)], w
	}
	return &b.offChain[class(w)], w
}

// conditional is the corrected probability of node i given that its parent is accepted.
func (b *acceptance) conditional(s *shape, t *ddtree.Tree, i int32) float64 {
	const weight = 1 // of the assumption that the draft is well calibrated, in predicted nodes
	g, w := b.gauge(s, t, i)
	return min(1, math.Exp(float64(w))*(g.accepted+weight)/(g.predicted+weight))
}

// claim adds the probabilities of a proposal's own chain.
func (b *acceptance) claim(rates []float64) {
	for d := range depths {
		b.claims[d].fade(1 - 1.0/claimMemory)
	}
	for d, p := range rates {
		b.claims[min(d, depths-1)].lean(p)
	}
}

// observe updates the estimates with one verified tree. cut is the corrected probability of the first node that was cut
// from the draft's chain, below 0 when none was: where the walk reached the cut, it replaces the test that was not
// made. Without it, a draft of which only confident nodes are kept would look good at depths that are always cut.
func (b *acceptance) observe(s *shape, t *ddtree.Tree, path []int32, cut, memory float64) {
	// Every rate fades, tested or not: a rate that was not tested for long leans on its neighbours again.
	keep := 1 - 1/memory
	for d := range depths {
		b.chain[d].fade(keep)
		b.tree[d].fade(keep)
	}
	chain := true
	for i, node := range path {
		d := min(i, depths-1)
		if s.best[node] == 0 {
			if chain && cut >= 0 {
				b.chain[d].lean(cut)
				b.tree[d].lean(cut)
			}
			break
		}
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
		g.predicted = g.predicted*keep + math.Exp(float64(w))
		g.accepted *= keep
		if slices.Contains(path, i) {
			g.accepted++
		}
	}
}
