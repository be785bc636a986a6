package schedule

import (
	"slices"
	"time"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

const (
	// mostAdded is the most time that a part may add to a joint step, as a share of the time of its own step. Raising
	// it joins more parts and saves less by each.
	mostAdded = 0.85
	// promptUnit is the number of rows from a piece's start at multiples of which a piece may be cut without any change
	// of bits: the chunk of the delta rule, the tile of attention.
	promptUnit = 64
	// decodeUnit is that of rows with the bits of decoding, which may be cut anywhere: fewer rows keep the gaps of slow
	// machines, at more steps a prompt.
	decodeUnit = 8
	// leastSlack and mostSlack bound how much longer than expected a step with prompt rows is planned to take. Between
	// them the slack follows the 99th percentile of what steps took over what was expected: each that took longer
	// raises it by slackUp, each other one lowers it by a 99th of that. Raising them keeps gaps shorter where other
	// programs disturb the machine, at smaller cuts.
	leastSlack, mostSlack = 1.25, 3
	slackUp               = 0.25
)

// cut is the rows of a part that run in one step.
type cut struct {
	p       *part
	from, n int
}

// whole reports whether a cut is the whole part.
func (c *cut) whole() bool { return c.n == len(c.p.step.Rows) }

// mix is a composed step.
type mix struct {
	cuts   []cut
	size   int // counts against the most rows of a step
	rounds int // rows of rounds
	prompt int // rows of pieces
	// promptLength is the context length of the first piece, roundLength that of the first round.
	promptLength, roundLength int
	base                      time.Duration // the rounds' expected time in the engine
	features                  engine.FeatureEncoding
	pieces                    []*part // in the order in which they are served
	alone                     bool    // the cuts ran each on its own
	share                     int     // most parts of rounds, 0 = as many as gain
	others                    bool    // rounds wait that the step leaves out
}

func (m *mix) reset() { *m = mix{cuts: m.cuts[:0], pieces: m.pieces[:0]} }

// add adds rows of a part.
func (m *mix) add(p *part, n int) {
	p.Queued = false
	m.cuts = append(m.cuts, cut{p, p.started, n})
	m.size += n
	if p.started == 0 {
		m.size += keptRows(p.step)
	}
	m.features = max(m.features, p.step.Features)
}

// fits reports whether a part may be in the step, as far as encodings and room for n of its rows go.
func (m *mix) fits(p *part, n, most int) bool {
	if len(m.cuts) > 0 && p.step.Hidden != m.cuts[0].p.step.Hidden {
		return false
	}
	f := p.step.Features
	if f != m.features && f != engine.FeatureNone && m.features != engine.FeatureNone {
		return false
	}
	if p.started == 0 {
		n += keptRows(p.step)
	}
	return m.size+n <= most
}

// size is what counts against the most rows of a step: its rows, and those whose kept features it reads.
func size(s *engine.Step) int { return len(s.Rows) + keptRows(s) }

// compose fills the mix of e.flight with the next step. It stays empty when the requests of all parts were cancelled.
// The caller holds mu.
func (e *Engine) compose(leader *part, now time.Time) {
	m := &e.flight.mix
	m.reset()
	e.sweep(leader)
	if e.addRounds(); len(m.cuts) == 1 && m.cuts[0].p.class == solo {
		return
	}
	e.addPieces(now)
}

// sweep ends the parts whose requests were cancelled.
func (e *Engine) sweep(leader *part) {
	e.queue.Waiting = slices.DeleteFunc(e.queue.Waiting, func(p *part) bool {
		err := p.ctx.Err()
		if err == nil || p.err != nil {
			return false
		}
		p.err = rpcerr.From(err)
		if p.flying > 0 {
			return false
		}
		e.end(p, leader)
		return true
	})
}

// addRounds takes the rounds of the step out of the queue: the first one, and those that run faster with it.
func (e *Engine) addRounds() {
	m := &e.flight.mix
	e.queue.Waiting = slices.DeleteFunc(e.queue.Waiting, func(p *part) bool {
		n := len(p.step.Rows)
		switch {
		case p.class == piece:
			return false
		case len(m.cuts) == 0:
			m.add(p, n)
			if p.class == round {
				m.rounds, m.roundLength = n, int(p.step.Rows[0].Position)
			}
			return true
		case m.share > 0 && len(m.cuts) >= m.share:
			return false
		case m.cuts[0].p.class == round && p.class == round && m.fits(p, n, e.rows) && e.gains(m.roundLength, n, m.rounds):
			m.add(p, n)
			m.rounds += n
			return true
		}
		return false
	})
	if m.rounds > 0 {
		m.base = e.costs.Verify(m.rounds, m.roundLength)
	}
}

// gains reports whether n rows are better run together with others, rows in all, at a context of length positions.
// Requests return for every step, so the time of all their steps counts: rows must cost clearly less than alone.
func (e *Engine) gains(length, n, rows int) bool {
	own, before, after := e.costs.Verify(n, length), e.costs.Verify(rows, length), e.costs.Verify(rows+n, length)
	if own == 0 || before == 0 || after == 0 {
		return true // without measurements, reading the weights once decides
	}
	return float64(after-before) < mostAdded*float64(own+e.costs.Hop())
}

// addPieces fills the step up with rows of prompts. Pieces stay in the queue.
func (e *Engine) addPieces(now time.Time) {
	m := &e.flight.mix
	for _, p := range e.queue.Waiting {
		behind := func(q *part) bool { return q.sequence() == p.sequence() }
		if p.class == piece && !slices.ContainsFunc(m.pieces, behind) {
			m.pieces = append(m.pieces, p)
		}
	}
	if len(m.pieces) == 0 {
		return
	}
	if len(m.pieces) > 1 {
		slices.SortStableFunc(m.pieces, func(a, b *part) int { return e.before(a, b, now) })
	}
	free, bounded := e.room(now)
	for _, p := range m.pieces {
		room := free
		if bounded && p.replay() {
			room = max(room, m.base+e.longestGap(now))
		}
		if !m.fits(p, 1, e.rows) || p.err != nil {
			continue
		}
		if e.line.depth > 1 && len(m.cuts) > 0 {
			break
		}
		most := e.rows - m.size
		if p.started == 0 {
			most -= keptRows(p.step)
		}
		n := e.rowsOf(p, min(p.left(), most), room, bounded)
		if n == 0 && m.prompt == 0 &&
			(m.rounds == 0 && !m.others || p.replay() || now.Sub(p.served) >= e.longestGap(now)) {
			n = e.down(p, min(p.left(), most, e.unitOf(p)))
		}
		if n == 0 || m.prompt > 0 && !e.gainsPrompt(p, n) {
			continue
		}
		if m.prompt == 0 {
			m.promptLength = int(p.step.Rows[p.started].Position)
		}
		m.add(p, n)
		m.prompt += n
		e.keys.serve(p.key(), n)
	}
}

// rowsOf is how many of at most `most` rows of a piece the step may take within its room.
func (e *Engine) rowsOf(p *part, most int, room time.Duration, bounded bool) int {
	n := e.down(p, most)
	if !bounded || n == 0 || e.within(n, p, room) {
		return n
	}
	// The largest multiple of the unit that is within the room.
	unit := e.unitOf(p)
	low, high := 0, (n+unit-1)/unit // low is, high is not
	for high-low > 1 {
		if mid := (low + high) / 2; e.within(mid*unit, p, room) {
			low = mid
		} else {
			high = mid
		}
	}
	return low * unit
}

// within reports whether the step with n rows more of prompts takes at most room, in 99 of 100 cases.
func (e *Engine) within(n int, p *part, room time.Duration) bool {
	m := &e.flight.mix
	length := m.promptLength
	if m.prompt == 0 {
		length = int(p.step.Rows[p.started].Position)
	}
	prompt := e.costs.Prompt(m.prompt+n, length, m.rounds > 0)
	return e.slack*float64(m.base+prompt+e.costs.Hop()) <= float64(room)
}

// observeSlack learns from a step with prompt rows how much longer steps take than expected.
func (e *Engine) observeSlack(took, expected time.Duration) {
	switch {
	case expected <= 0:
	case float64(took) > e.slack*float64(expected):
		e.slack = min(e.slack+slackUp, mostSlack)
	default:
		e.slack = max(e.slack-slackUp/99, leastSlack)
	}
}

// unitOf is the number of rows at multiples of which a piece may be cut.
func (e *Engine) unitOf(p *part) int {
	if p.step.Groups[0].Kind == engine.KindPrompt {
		return e.unit
	}
	return decodeUnit
}

// down is n cut down to where the piece may be cut.
func (e *Engine) down(p *part, n int) int {
	if n == p.left() {
		return n
	}
	return n - n%e.unitOf(p)
}

// gainsPrompt reports whether n rows of another prompt are better run in the step than in one of their own.
func (e *Engine) gainsPrompt(p *part, n int) bool {
	m := &e.flight.mix
	own := e.costs.Prompt(n, int(p.step.Rows[p.started].Position), false)
	before := e.costs.Prompt(m.prompt, m.promptLength, m.rounds > 0)
	after := e.costs.Prompt(m.prompt+n, m.promptLength, m.rounds > 0)
	if own == 0 || before == 0 || after == 0 {
		return true
	}
	return float64(after-before) < mostAdded*float64(own+e.costs.Hop())
}
