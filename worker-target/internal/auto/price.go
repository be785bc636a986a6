package auto

// mostWeight bounds what a second of another request counts in seconds of one's own, and one's own in those of others.
const mostWeight = 4

// flow is how fast requests get tokens: running means of their rounds.
type flow struct {
	tokens, seconds float64
}

func (f *flow) observe(tokens, seconds float64) {
	follow(&f.tokens, tokens)
	follow(&f.seconds, seconds)
}

// speed is in tokens a second, 0 = not known.
func (f *flow) speed() float64 {
	if f.seconds == 0 {
		return 0
	}
	return f.tokens / f.seconds
}

// waiting is the weight of the other requests' time, in seconds of this request for a second of the step: all of them
// wait for the time that rows add, and would get tokens meanwhile.
func (p *Policy) waiting() float64 {
	weight := 1.0
	if own, all := p.flow.speed(), p.m.flow.speed(); own > 0 && all > 0 {
		weight = clamp(all/own, 1.0/mostWeight, mostWeight)
	}
	return weight * p.m.costs.otherRequests
}

// price is the cost of a round of so many rows for all requests of its step, in seconds of this one: the round's time,
// and the time that the rows beyond one add to the others' rounds.
func (p *Policy) price(rows, length int) float64 {
	return p.m.costs.round(rows, length) + p.surcharge(rows, length)
}

// surcharge is the part of the price that others pay.
func (p *Policy) surcharge(rows, length int) float64 {
	c := &p.m.costs
	return p.waiting() * (c.round(rows, length) - c.round(1, length))
}

// barePrice is the price of a round of so many rows among other rounds without a draft.
func (p *Policy) barePrice(rows, length int) float64 {
	c := &p.m.costs
	s := c.bareRound(rows, length)
	return s + p.waiting()*(s-c.plainRound(length))
}
