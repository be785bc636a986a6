package speculate

import (
	"time"

	"github.com/tandem-inference/tandem/services/ddtree"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
)

// probe is a proposal that was asked for and is not waited for. Plain decoding continues, and its tokens show how much
// of the proposal is right; the rest of a proposal that is right so far is verified.
type probe struct {
	active  bool
	plan    auto.Plan
	askedAt time.Time
	limit   time.Duration // after which no answer is expected any more
	chosen  []int32       // tokens chosen since the question
	chain   ddtree.Tree   // the proposal
	path    []int32       // of chain: what was chosen
	rest    bool          // this round verifies what is left of chain
	matched int           // nodes of chain that were chosen before that
}

// reset forgets the probe of an earlier request.
func (p *probe) reset() { p.active = false }

// running reports whether there is a probe.
func (p *probe) running() bool { return p.active }

// verifies reports whether the round verifies the rest of the probe's proposal.
func (p *probe) verifies() bool { return p.active && p.rest }

// start begins the probe of a plan.
func (p *probe) start(plan auto.Plan, limit time.Duration) {
	p.active, p.rest, p.plan, p.askedAt, p.limit, p.chosen = true, false, plan, time.Now(), limit, p.chosen[:0]
}

// planned is the plan of the rounds beside the probe.
func (p *probe) planned() auto.Plan { return p.plan }

// choose notes the tokens of a round beside the probe.
func (p *probe) choose(tokens []int32) {
	if p.active && !p.rest {
		p.chosen = append(p.chosen, tokens...)
	}
}

// poll takes the draft's answer if it is there, and ends a probe that is decided. What is left of a proposal that is
// right so far is put into tree, to be verified now. length is that of the sequence.
func (p *probe) poll(e *exchange, policy *auto.Policy, tree *ddtree.Tree, length int) {
	proposed, answered := e.poll(&p.chain)
	if !answered {
		if len(p.chosen) > p.plan.Budget || time.Since(p.askedAt) > p.limit {
			p.cancel(e, policy, length)
		}
		return
	}
	if !proposed {
		p.end(policy, nil, 0, length)
		return
	}
	matched := p.match()
	if matched < len(p.chosen) || matched == p.chain.Nodes() {
		p.end(policy, &p.chain, min(matched+1, p.chain.Nodes()), length)
		return
	}
	p.chain.Below(p.path[matched], tree)
	policy.Rest(tree, length)
	if tree.Len() == 1 {
		p.end(policy, &p.chain, matched, length)
		return
	}
	p.rest, p.matched = true, matched
}

// match follows the chosen tokens down the proposal and returns how many of its nodes they are.
func (p *probe) match() int {
	p.path = append(p.path[:0], 0)
	for _, token := range p.chosen {
		next := p.chain.Child(p.path[len(p.path)-1], token)
		if next < 0 {
			break
		}
		p.path = append(p.path, next)
	}
	return len(p.path) - 1
}

// cancel ends the probe undecided. An answer that is still to come is given up.
func (p *probe) cancel(e *exchange, policy *auto.Policy, length int) {
	if !p.rest {
		e.forget()
	}
	p.end(policy, nil, 0, length)
}

// decide ends the probe whose rest was verified: nodes of it were, and path is what the target chose. Where a
// constraint put nodes of its own among them, only what was chosen before counts.
func (p *probe) decide(policy *auto.Policy, nodes int, path []int32, added bool, length int) {
	if added {
		p.end(policy, &p.chain, p.matched, length)
		return
	}
	for range path[1:] {
		p.path = append(p.path, int32(len(p.path)))
	}
	p.end(policy, &p.chain, min(p.matched+nodes, len(p.path)), length)
}

// end reports the probe's result to the policy: how many nodes of chain were compared with choices of the target.
func (p *probe) end(policy *auto.Policy, chain *ddtree.Tree, tested, length int) {
	p.active, p.rest = false, false
	policy.Probed(chain, tested, p.path, length)
}
