package auto

import "github.com/tandem-inference/tandem/services/ddtree"

// standing is what the draft's last round in a request was.
type standing uint8

const (
	untried standing = iota
	well             // right to the end of what was verified, or nearly
	poorly
	standings
)

const (
	// promiseMemory is the number of rounds over which a worker remembers what became of promises, promiseWeight the tokens that
	// the assumption counts that they are kept.
	promiseMemory, promiseWeight = 60, 12
	leastKept                    = 0.5 // no round is given up for what others did
)

// kept is the part of what the best plan of a round promises, in tokens a second, that such rounds have brought. Estimates of what a
// draft does next lean on what it did before, and texts change: a function begins with what its question says and goes on with what
// the draft does not know. That a proposal went wrong early says more than that its first half was right, how much more is learnt.
func (p *Policy) kept() float64 {
	g := p.m.promises[p.stands]
	return clamp((g.accepted+promiseWeight)/(g.promised+promiseWeight), leastKept, 1)
}

// settle compares what a round with a proposal brought in so many seconds with what was promised.
func (p *Policy) settle(tokens, seconds float64) {
	if p.speed == 0 {
		return
	}
	g := &p.m.promises[p.stands]
	g.fade(1 - 1.0/promiseMemory)
	g.promised += p.speed * seconds
	g.accepted += tokens
}

// stand notes how a proposal did: path is the part of tree that the target chose itself.
func (p *Policy) stand(t *ddtree.Tree, path []int32) {
	p.stands = poorly
	if right := len(path) - 1; right == t.Depth() || 4*right >= 3*(p.block-1) {
		p.stands = well
	}
}
