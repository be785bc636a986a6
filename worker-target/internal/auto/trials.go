package auto

import (
	"math"

	"github.com/tandem-inference/tandem/services/ddtree"
)

// Held reports whether a request that has not begun, at a context of length tokens and with a largest useful block of
// limit rows, will first be decoded without the draft. No features are sent to such a draft until it is asked.
func (p *Policy) Held(length, limit int) bool {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	block := min(p.block, limit, p.maxRows)
	if block < 2 {
		return true
	}
	if p.m.costs.plainRound(length) == 0 || !p.m.priors.has(&p.promptPrefix, p.last) {
		return false
	}
	best, _, _ := p.drafted(block, length)
	_, without := p.compare(best, p.tokenCost(length))
	return without
}

// compare returns the outlook of the best plan with a draft, and whether decoding without it, at token seconds a token,
// is better.
func (p *Policy) compare(best estimate, token float64) (outlook float64, without bool) {
	need := stay / token
	if p.plain {
		need = enter / token
	}
	outlook = p.outlook(best, token)
	return outlook, outlook < need
}

// hold begins decoding without the draft. A request whose prior is against the draft waits longer before it tries it.
func (p *Policy) hold(length int) {
	p.least = leastGap
	if p.m.priors.has(&p.promptPrefix, p.last) {
		p.least = int(clamp(lateRounds*p.failed(length), leastGap, mostGap))
	}
	p.gap = max(p.gap, p.least)
}

// failed is what a round with the draft's whole block costs beyond a plain round, in plain rounds: what is lost where
// it commits one token.
func (p *Policy) failed(length int) float64 {
	c := &p.m.costs
	return (c.draft(p.block)+p.price(min(p.block, p.maxRows), length))/max(c.plainRound(length), 1e-9) - 1
}

// instead plans a trial for a request that is faster without the draft, at token seconds a token, than with the best of
// the other plans, at an expected outlook tokens a second. The draft is still tested now and then, because it may have
// improved: by a probe, or by a round of that plan where the two models slow each other down so much that waiting for
// the draft is cheaper.
func (p *Policy) instead(best estimate, probe Plan, token, outlook float64, length, limit int) (trial Plan, ok bool) {
	if p.tried {
		p.tried = false
		if best.speed()*token < hopeless {
			p.gap = min(2*p.gap, mostGap)
		} else {
			p.gap = p.least
		}
	}
	cost, blind := p.expectedProbeCost(probe.Block), best.seconds-best.tokens*token
	if p.since < p.gap || !p.affords(min(cost, best.seconds*(1-outlook*token)), length) {
		return trial, false
	}
	p.since, p.trying = 0, true
	if full := min(p.block, p.maxRows); probe.Block > 1 && limit >= full &&
		(p.m.costs.doubtful(full, length) || p.m.costs.doubtfulDraft(full)) {
		// The times against the draft are from the start or old: the whole block is measured in a round that waits for it.
		return Plan{Kind: Chain, Block: full, Budget: full - 1, Trial: true}, true
	}
	if blind >= cost {
		return probe, true
	}
	if p.m.probeCost > 0 { // or one slow hour would rule probes out for good
		p.m.probeCost += forget * (probeCostShare*p.m.costs.draft(probe.Block) - p.m.probeCost)
	}
	p.speed = best.speed()
	return best.plan, true
}

// measure plans a round for a time that is hardly known and may hide the better plan: a plain step, or the draft's
// whole block. Plans in use measure themselves. ok is false while there is none, or the ledger does not pay for it.
func (p *Policy) measure(block, length int, best estimate) (plan Plan, ok bool) {
	c := &p.m.costs
	if c.doubtful(1, length) {
		// It costs a step and commits one token, which the best plan does in less time.
		if cost := c.plainRound(length) - 1/best.speed(); p.affords(cost, length) {
			p.charge(cost, length)
			return Plan{Kind: Plain}, true
		}
		return Plan{}, false
	}
	if block < min(p.block, p.maxRows) || best.plan.Kind == Tree || best.plan.Block == block ||
		!c.doubtful(block, length) && !c.doubtfulDraft(block) {
		return Plan{}, false
	}
	if !p.affords(c.draft(block)+p.price(block, length)-1/best.speed(), length) {
		return Plan{}, false
	}
	p.speed = 0
	return Plan{Kind: Chain, Block: block, Budget: block - 1, Trial: true}, true
}

// reprice drops the conclusions from times that turned out far too long: priors, calibration and the costs of probes.
func (m *Model) reprice() {
	clear(m.priors.index)
	m.priors.all = m.priors.all[:0]
	m.calibration, m.losing, m.probeCost, m.wasted = [outcomes]gauge{}, rate{}, 0, 0
}

// trialShare is the part of the time of plain rounds that may be spent on probes and trials. To try n times as often
// costs n trials, and finds a draft that has improved in 1/n of the time. The sum is least where n falls with the root
// of a trial's cost, so that their share of the time rises with it.
func (p *Policy) trialShare(length int) float64 {
	share := mostTrialShare
	if p.m.wasted >= fewTrials {
		share *= math.Sqrt(clamp(p.failed(length)/dearTrial, 0, 1))
	}
	if p.m.wasted >= wastedTrials {
		share = min(share, wastedShare)
	}
	return share
}

// affords reports whether the ledger allows a trial at a cost. A cost above the ledger's bound is allowed by a
// full ledger.
func (p *Policy) affords(cost float64, length int) bool {
	return p.m.credit >= min(cost, p.ceiling(length))
}

// expectedProbeCost is the expected cost of a probe in seconds.
func (p *Policy) expectedProbeCost(block int) float64 {
	if p.m.probeCost > 0 {
		return p.m.probeCost
	}
	return probeCostShare * p.m.costs.draft(block)
}

// probeFirst decides whether a request without a prior starts with a probe. A first round costs a draft's time and a
// wide step for one token when the draft predicts the text badly; a probe costs the draft's time when it predicts
// it well.
func (p *Policy) probeFirst(first estimate, plainCost float64) bool {
	draft := p.m.costs.draft(first.plan.Block)
	if draft == 0 {
		return false // its first round measures it
	}
	losing := p.m.losing.mean(1 - defaultRate)
	blind := losing * (first.seconds - plainCost)
	return (1-losing)*draft+p.expectedProbeCost(first.plan.Block) < blind
}

// charge books the cost of a probe or trial (or, below 0, its gain). Debt ends at one round of the most expensive plan:
// a proposal that hung for a second must not stop drafting for a minute.
func (p *Policy) charge(cost float64, length int) {
	debt := p.m.costs.draft(p.block) + p.price(p.maxRows, length)
	p.m.credit = max(min(p.m.credit-cost, p.ceiling(length)), -debt)
}

// Probed ends a probe at a context of length tokens. chain is the proposal, nil when none came. Its first tested nodes
// were compared with what the target chose, in plain steps and perhaps in one verify step of the rest; path are those
// of them that it chose, root first. chain is cut to what was tested.
func (p *Policy) Probed(chain *ddtree.Tree, tested int, path []int32, length int) {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	p.charge(p.probeExtra, length)
	follow(&p.m.probeCost, clamp(p.probeExtra, leastProbeCost, outlier*max(p.m.probeCost, p.m.costs.draft(p.block))))
	p.probeExtra = 0
	p.cut = -1
	if chain == nil || tested == 0 {
		return
	}
	p.read(chain)
	if n := chain.Len(); tested < n-1 {
		p.cut = p.local.conditional(&p.shape, chain, int32(tested+1))
		keep := p.keep[:n]
		for i := range keep {
			keep[i] = i <= tested
		}
		chain.Keep(keep)
	}
	p.learn(chain, path, length)
}

// ceiling of the ledger.
func (p *Policy) ceiling(length int) float64 {
	return creditRounds * (p.m.costs.draft(p.block) + p.price(p.block, length))
}
