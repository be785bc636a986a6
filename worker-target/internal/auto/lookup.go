package auto

import "github.com/tandem-inference/tandem/services/ddtree"

// Prediction is one committed token as prompt lookup predicted it.
type Prediction struct {
	Matched int  // tokens of the match, 0 = there was none
	Right   bool // the token is the one that followed the match
}

// matchedEdges divide matches by their length.
var matchedEdges = [...]int{3, 4, 5, 6, 8, 12, 16, 24}

const matches = len(matchedEdges) + 1

// matchDefaults are assumed of a new worker: the values of functions and tool calls of the
// demonstration models.
var matchDefaults = [matches]float64{.5, .6, .7, .75, .8, .85, .88, .9, .95}

const (
	// matchWeight is how many tests a default counts, ownWeight how many the worker's rate of a class counts in a new
	// request. Requests are short, and one repetitive text makes long matches look better than they are: less weight
	// costs functions 3 %.
	matchWeight, ownWeight = 4, 16
	// mostAssumed bounds a rate that a request has not shown itself, for the same reason.
	mostAssumed = 0.92
	// A request follows a change within so many matches, its pace within so many tokens; workerMemory holds for a worker.
	matchMemory, paceMemory = 64, 64
	// paceWeight is how many plain rounds the worker's pace counts in a new request.
	paceWeight = 8
	// leastGain in tokens is the least predicted gain of a proposal over plain decoding.
	leastGain = 0.02
)

func matchClass(matched int) int {
	for i, edge := range matchedEdges {
		if matched < edge {
			return i
		}
	}
	return len(matchedEdges)
}

// lookups holds the estimates of prompt lookup. The position in a proposal needs no rates of its own: a token after j
// right ones of a proposal has a match that is j tokens longer.
type lookups struct {
	right [matches]rate
	all   gauge // right ones against those that the worker's rates predicted
	pace  pace
}

// pace is the speed of decoding without a draft, with the best mix of plain rounds and lookup, relative to plain
// decoding alone. It is counted along every text, whatever plan runs: the proposal of lookup, and how much of it is
// right, is known without running it.
type pace struct {
	tokens, rounds float64 // rounds in units of a plain one
}

func (c *pace) fade(keep float64) {
	c.tokens *= keep
	c.rounds *= keep
}

func (c *pace) mean(lean float64) float64 {
	return (c.tokens + lean*paceWeight) / (c.rounds + paceWeight)
}

// shadow is the hypothetical round of decoding without a draft.
type shadow struct {
	left int // tokens that it may still commit
	// The tokens of the current round: their number, and the plain rounds that decoding without a draft would have taken.
	tokens int
	rounds float64
}

// matchRates are the probabilities that the token after a match comes again, by the match's class.
func (p *Policy) matchRates(out *[matches]float64) {
	scale := (p.lookups.all.accepted + matchWeight) / (p.lookups.all.predicted + matchWeight)
	for i := range out {
		base := p.m.lookups.right[i].weigh(matchDefaults[i], matchWeight)
		out[i] = p.lookups.right[i].weigh(clamp(base*scale, minRate, mostAssumed), ownWeight)
	}
}

// bare is the speed of decoding without a draft in units of plain decoding, at least 1: where lookup does not pay it is
// not used.
func (p *Policy) bare() float64 {
	return max(1, p.lookups.pace.mean(p.m.lookups.pace.mean(1)))
}

// reach returns the lookup proposal, at most most tokens, that gains most where a second is worth speed tokens:
// committed tokens less speed times its time. It returns a plain round when no proposal gains more than one.
func (p *Policy) reach(rates *[matches]float64, matched, most, length int, speed float64) (best estimate) {
	c := &p.m.costs
	plain := c.plainRound(length)
	best = estimate{plan: Plan{Kind: Plain}, tokens: 1, seconds: plain}
	gain := 1 - speed*plain + leastGain
	if matched == 0 {
		return best
	}
	tokens, product := 1.0, 1.0
	for k := 1; k <= most; k++ {
		product *= rates[matchClass(matched+k-1)]
		if product < minRate {
			break
		}
		tokens += product
		seconds := p.barePrice(k+1, length)
		if g := tokens - speed*seconds; g > gain {
			gain = g
			best = estimate{plan: Plan{Kind: Lookup, Block: k + 1, Budget: k}, tokens: tokens, seconds: seconds}
		}
	}
	return best
}

// Extend returns how many lookup tokens (at most most) to append after leaf, the last node of the proposal; matched is
// the length of lookup's match there. They need no draft time where the draft has filled its block, and a text that is
// predicted to the end of the block often goes on beyond it. At other nodes lookup does not pay: in a simulation of the
// demonstration texts on two processors, rows for its own choice against the draft's cost tool calls 3 %.
func (p *Policy) Extend(t *ddtree.Tree, leaf int32, matched, most, length int) (n int) {
	if p.speed == 0 || matched == 0 {
		return 0
	}
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	var rates [matches]float64
	p.matchRates(&rates)
	p.shape.read(t)
	chance := 1.0
	for node := leaf; node != 0; node = t.Parents[node] {
		chance *= p.local.conditional(&p.shape, t, node)
	}
	for ; n < most; n++ {
		chance *= rates[matchClass(matched+n)]
		rows := t.Len() + n
		if chance < max(minRate, p.speed*(p.price(rows+1, length)-p.price(rows, length))) {
			break
		}
	}
	return n
}

// ObserveLookup learns from the tokens of a round, in order; length is the context before it.
func (p *Policy) ObserveLookup(looked []Prediction, length int) {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	c := &p.m.costs
	plain := c.plainRound(length)
	var rates [matches]float64
	p.matchRates(&rates)
	p.shadow.tokens, p.shadow.rounds = len(looked), 0
	for _, l := range looked {
		rounds := 0.0
		if p.shadow.left == 0 && plain > 0 {
			e := p.reach(&rates, l.Matched, p.maxRows-1, length, p.bare()/plain)
			p.shadow.left = e.plan.Budget + 1
			rounds = e.seconds / plain
		}
		p.shadow.rounds += rounds
		p.shadow.left--
		if !l.Right || p.shadow.left < 0 {
			p.shadow.left = 0
		}
		if plain > 0 {
			p.lookups.pace.add(rounds, paceMemory)
			p.m.lookups.pace.add(rounds, workerMemory)
		}
		if l.Matched == 0 {
			continue
		}
		i := matchClass(l.Matched)
		p.lookups.all.fade(1 - 1.0/matchMemory)
		p.lookups.all.predicted += p.m.lookups.right[i].weigh(matchDefaults[i], matchWeight)
		if l.Right {
			p.lookups.all.accepted++
		}
		for _, b := range []struct {
			r      *rate
			memory float64
		}{{&p.lookups.right[i], matchMemory}, {&p.m.lookups.right[i], workerMemory}} {
			b.r.fade(1 - 1/b.memory)
			b.r.add(l.Right)
		}
	}
}

// add counts one token and the rounds that end with it.
func (c *pace) add(rounds, memory float64) {
	c.fade(1 - 1/memory)
	c.tokens++
	c.rounds += rounds
}

func (g *gauge) fade(keep float64) {
	g.predicted *= keep
	g.accepted *= keep
}

// weigh is the mean of a running rate that leans on another with a weight.
func (r rate) weigh(lean, weight float64) float64 {
	return (r.hits + lean*weight) / (r.seen + weight)
}

// WithoutDraft plans a round for which there is no draft: plain, or a lookup after a match of so many tokens.
func (p *Policy) WithoutDraft(length, limit, matched int) Plan {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	return p.without(length, limit, matched)
}

func (p *Policy) without(length, limit, matched int) Plan {
	plain := p.m.costs.plainRound(length)
	if matched == 0 || plain == 0 {
		return Plan{Kind: Plain}
	}
	return p.lookupPlan(limit, matched, length, p.bare()/plain).plan
}

// lookupPlan is the best round without a draft where a second is worth speed tokens.
func (p *Policy) lookupPlan(limit, matched, length int, speed float64) estimate {
	if matched == 0 {
		return estimate{plan: Plan{Kind: Plain}, tokens: 1, seconds: p.m.costs.plainRound(length)}
	}
	var rates [matches]float64
	p.matchRates(&rates)
	return p.reach(&rates, matched, min(limit, p.maxRows)-1, length, speed)
}

// bareRound is the time of a round of so many rows among other rounds without a draft.
func (c *costs) bareRound(rows, length int) float64 {
	s := c.step(rows+c.otherRows(), length)
	if s == 0 {
		return 0
	}
	return max(s-c.reload(length)+c.hop, c.plainRound(length))
}

// reload is how much longer a step of any width beside a draft takes (as in the table) than one among steps without a
// draft: weights that left the caches are read again.
func (c *costs) reload(length int) float64 {
	if p := c.plain[bucket(length)]; p > 0 && c.otherRows() == 0 {
		return max(0, c.step(1, length)-p)
	}
	return 0
}

// observeBare updates the times with a step of a round without a draft that followed another such round.
func (c *costs) observeBare(rows, length int, seconds float64) (wrong bool) {
	if rows == 1 {
		c.observePlain(length, seconds)
		return false
	}
	return c.observeStep(rows, length, seconds+c.reload(length))
}
