package auto

import "github.com/tandem-inference/tandem/services/ddtree"

// outcome is the result of the draft's last round in a request.
type outcome uint8

const (
	untried outcome = iota
	well            // right to the end of what was verified, or nearly
	poorly
	outcomes
)

const (
	// calibrationMemory is the number of rounds over which a worker compares predicted with real speeds, calibrationWeight
	// the weight, in tokens, of the assumption that predictions are right.
	calibrationMemory, calibrationWeight = 60, 12
	leastCorrection                      = 0.5 // lower bound: one request is never ruled out by others alone
	// mostCost bounds a round's time, in tokens: a draft that hung once must not rule out its kind of requests.
	mostCost = 4 * priorWeight
	// mostCatchUp is the most time of catching up, in multiples of a proposal's time, that counts against a draft in
	// the prior. More would rule out kinds with long prompts because their late trials took long: in a simulation of
	// the demonstration texts with 400 more prompt tokens, counting all of it costs tool calls 3 %.
	mostCatchUp = 2
)

// correction is the share of the best plan's predicted speed that such rounds have reached, at most 1. Estimates of a
// draft's next round lean on its last ones, and texts change: a function begins with the words of its question and
// continues with words that the draft does not predict. A proposal that was wrong early is stronger evidence than one
// whose first half was right; how much stronger is learnt.
func (p *Policy) correction() float64 {
	g := p.m.calibration[p.last]
	return clamp((g.accepted+calibrationWeight)/(g.predicted+calibrationWeight), leastCorrection, 1)
}

// outlook is the expected speed of the best plan in tokens a second, where a token takes token seconds without the
// draft. A request's first round has no evidence but the prior, which counts as it is: it compares the same tokens. In
// later rounds the request has estimates of its own, and the prior corrects them.
//
// A round with the draft stands where decoding without it has a plain round: where lookup has a match, either uses it.
// That plain round commits fewer tokens than decoding without the draft does on average in its time. The difference
// counts as tokens of the draft's round.
func (p *Policy) outlook(best estimate, token float64) float64 {
	saved := (p.bare() - 1) / best.seconds
	if p.last == untried {
		lean := (p.correction()*best.speed() + saved) * token
		return p.m.priors.mean(&p.promptPrefix, untried, lean) / token
	}
	return best.speed()*p.m.priors.mean(&p.promptPrefix, p.last, p.correction()) + saved
}

// settle compares the tokens of a round with a proposal, whose step had a price of so many seconds, with the predicted
// ones.
func (p *Policy) settle(r *Round, price float64) {
	if p.speed == 0 {
		return
	}
	if !p.m.started { // a draft that has just started takes long for its first proposal, which predicts nothing of others
		p.m.started = true
		return
	}
	tokens := float64(len(r.Path) + r.Extended)
	predicted := p.speed * (price + (r.Draft + r.CatchUp).Seconds())
	g := &p.m.calibration[p.last]
	g.fade(1 - 1.0/calibrationMemory)
	g.predicted += predicted
	g.accepted += tokens
	p.remember(r, price, predicted)
}

// remember adds a round to the prior of the request's prefix. While rounds draft, no plain step shows the present time
// of one; so in a slow minute of the machine the time is scaled back to the expected time of the round's step. Prompt
// lookup gets some tokens for less than others, above all where a text quotes; the time of the round's own tokens
// without the draft is known.
func (p *Policy) remember(r *Round, price, predicted float64) {
	c := &p.m.costs
	tokens, token := float64(len(r.Path)+r.Extended), p.tokenCost(r.Length)
	if p.shadow.tokens > 0 {
		tokens = p.shadow.rounds * c.plainRound(r.Length) / token
	}
	usual := clamp(p.price(r.Rows, r.Length)/price, 1.0/outlier, outlier)
	// A draft that is used from the start reads the prompt while the target does. A late trial waits until the draft
	// has read everything, which predicts little of the next request.
	wait := (r.Draft + r.CatchUp).Seconds()
	if d := c.draft(r.Plan.Block); d > 0 && r.CatchUp > 0 {
		wait = min(wait, mostCatchUp*d)
	}
	worth := min((price+wait)*usual/token, mostCost)
	if p.last == untried {
		p.starting = true
		p.m.priors.add(&p.promptPrefix, untried, worth, tokens)
		return
	}
	p.m.priors.add(&p.promptPrefix, p.last, predicted*usual, tokens)
	if p.starting {
		p.m.priors.more(&p.promptPrefix, untried, worth, tokens)
	}
}

// noteOutcome stores the outcome of a proposal; path is the part of the tree that the target chose.
func (p *Policy) noteOutcome(t *ddtree.Tree, path []int32) {
	p.last = poorly
	if right := len(path) - 1; right == t.Depth() || 4*right >= 3*(p.block-1) {
		p.last = well
	}
}
