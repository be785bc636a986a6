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
	// mostWorth in tokens of a round's time: a draft that hung once must not rule its kind of requests out.
	mostWorth = 4 * prefixWeight
	// mostCatchUp of the time of catching up, in times of a proposal, counts against a draft in requests that begin alike. More would
	// rule out kinds with long prompts for what late trials took: in a simulation of the demonstration texts with 400 tokens more of
	// prompt, all of it costs tool calls 3 %.
	mostCatchUp = 2
)

// kept is the part of what the best plan of a round promises, in tokens a second, that such rounds have brought. Estimates of what a
// draft does next lean on what it did before, and texts change: a function begins with what its question says and goes on with what
// the draft does not know. That a proposal went wrong early says more than that its first half was right, how much more is learnt.
func (p *Policy) kept() float64 {
	g := p.m.promises[p.stands]
	return clamp((g.accepted+promiseWeight)/(g.promised+promiseWeight), leastKept, 1)
}

// outlook is the tokens a second that the best plan is expected to bring where a token costs token seconds without the draft. Nothing
// but how others did speaks of a request's first round, so what those brought that began alike counts as it is; of later rounds the
// request knows something itself, and theirs say how far such promises are kept.
func (p *Policy) outlook(best estimate, token float64) float64 {
	unit, lean := best.speed(), p.kept()
	if p.stands == untried {
		unit, lean = 1/token, lean*best.speed()*token
	}
	return unit * p.m.prefixes.mean(&p.opening, p.stands, lean)
}

// settle compares what a round with a proposal, whose step took verify seconds, brought with what was promised.
func (p *Policy) settle(r *Round, verify float64) {
	if p.speed == 0 {
		return
	}
	if !p.m.started { // a draft that has just started takes long for its first proposal, which says nothing about others
		p.m.started = true
		return
	}
	tokens := float64(len(r.Path) + r.Beyond)
	promised := p.speed * (verify + (r.Draft + r.CatchUp).Seconds())
	g := &p.m.promises[p.stands]
	g.fade(1 - 1.0/promiseMemory)
	g.promised += promised
	g.accepted += tokens
	p.remember(r, verify, promised)
}

// remember keeps what a round brought for requests that begin alike. While rounds draft no plain step shows what those cost just now,
// so in a slow minute of the machine time is scaled back to what the round's step was expected to take. Lookup has some tokens for
// less than others, above all where a text quotes: what the round's own would have taken without the draft is known.
func (p *Policy) remember(r *Round, verify, promised float64) {
	c := &p.m.costs
	tokens, token := float64(len(r.Path)+r.Beyond), p.tokenCost(r.Length)
	if p.shadow.tokens > 0 {
		tokens = p.shadow.rounds * c.plainRound(r.Length) / token
	}
	usual := clamp(c.round(r.Rows, r.Length)/verify, 1.0/outlier, outlier)
	// A draft that a request starts with is sent the prompt while the target reads it; one that is tried late is waited for until it
	// has read all, which says little about the next request.
	wait := (r.Draft + r.CatchUp).Seconds()
	if d := c.draft(r.Plan.Block); d > 0 && r.CatchUp > 0 {
		wait = min(wait, mostCatchUp*d)
	}
	worth := min((verify+wait)*usual/token, mostWorth)
	if p.stands == untried {
		p.starting = true
		p.m.prefixes.add(&p.opening, untried, worth, tokens)
		return
	}
	p.m.prefixes.add(&p.opening, p.stands, promised*usual, tokens)
	if p.starting {
		p.m.prefixes.more(&p.opening, untried, worth, tokens)
	}
}

// stand notes how a proposal did: path is the part of tree that the target chose itself.
func (p *Policy) stand(t *ddtree.Tree, path []int32) {
	p.stands = poorly
	if right := len(path) - 1; right == t.Depth() || 4*right >= 3*(p.block-1) {
		p.stands = well
	}
}
