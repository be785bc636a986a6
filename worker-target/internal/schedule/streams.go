package schedule

import (
	"time"

	"github.com/tandem-inference/tandem/services/engine"
)

const (
	// recentSteps: a stream is expected to step again soon if it stepped within the last 4 steps. Raising it waits for
	// more streams that do not come.
	recentSteps = 4
	// maxWaitShare: a step waits for other streams if their mean pause is at most this share of a step's time. A stream
	// that comes later waits for a whole step anyway.
	maxWaitShare = 0.6
	// maxWait bounds the wait.
	maxWait = 3 * time.Millisecond
	// follow is the weight of a new measurement in running means.
	follow = 0.25
	// gapSteps and LeastGap give the longest gap between two tokens of a stream where none is set.
	gapSteps = 4
	LeastGap = 50 * time.Millisecond
	// streamMemory is how long after its last step a stream counts as running: longer than the longest wait for a
	// draft, short enough that a client which does not read does not slow prompts down for long.
	streamMemory = time.Second
	// pauseShare is the part of the gap that a stream's own pause may use up: prompts do not make up for a longer wait
	// for its draft or its reader.
	pauseShare = 0.25
)

// streams holds those sequences that have chosen a token.
type streams map[engine.Sequence]stream

// stream holds the measurements of a running stream.
type stream struct {
	step  uint64 // the number of its last step
	ended time.Time
	own   time.Duration // of a step of its round and those it is joined with, without prompts
}

// gapOf is the longest gap between two tokens of a stream.
func (e *Engine) gapOf(s *stream) time.Duration {
	if e.options.MaxTokenGap > 0 {
		return e.options.MaxTokenGap
	}
	return max(LeastGap, gapSteps*s.own)
}

// longestGap is the longest of all running streams.
func (e *Engine) longestGap(now time.Time) (longest time.Duration) {
	for _, s := range e.streams {
		if now.Sub(s.ended) < streamMemory {
			longest = max(longest, e.gapOf(&s))
		}
	}
	return longest
}

// room is the time that the composed step may take so that no running stream waits longer than it may. A stream that is
// not in the step waits for it, then for its own. Without a running stream there is no bound. The caller holds mu.
func (e *Engine) room(now time.Time) (room time.Duration, bounded bool) {
	const no = time.Duration(1<<63 - 1)
	room = no
	limit := func(s *stream, came time.Time, after time.Duration) {
		gap := e.gapOf(s)
		since := came.Add(-time.Duration(pauseShare * float64(gap)))
		if s.ended.After(since) {
			since = s.ended
		}
		room = min(room, since.Add(gap).Sub(now)-after)
	}
	for _, c := range e.flight.mix.cuts {
		if s, ok := e.streams[c.p.step.Groups[0].Sequence]; ok {
			limit(&s, c.p.came, 0)
		}
	}
	// Rounds that are not joined run one after the other.
	after := time.Duration(0)
	for _, p := range e.queue.Waiting {
		if p.class == round {
			s := e.streams[p.step.Groups[0].Sequence]
			after += max(s.own, e.ownStep(len(p.step.Rows), int(p.step.Rows[0].Position)))
			limit(&s, p.came, after)
		}
	}
	for sequence, s := range e.streams {
		if now.Sub(s.ended) < streamMemory && !e.waits(sequence) {
			limit(&s, now, after+s.own)
		}
	}
	return room, room < no
}

// waits reports whether a sequence has a round in the step or in the queue.
func (e *Engine) waits(s engine.Sequence) bool {
	for _, c := range e.flight.mix.cuts {
		if c.p.step.Groups[0].Sequence == s {
			return true
		}
	}
	for _, p := range e.queue.Waiting {
		if len(p.step.Groups) > 0 && p.step.Groups[0].Sequence == s {
			return true
		}
	}
	return false
}

// ownStep is the expected time of a step of rounds.
func (e *Engine) ownStep(rows, length int) time.Duration {
	return e.costs.Verify(rows, length) + e.costs.Hop()
}

// ran notes that a part ran to its end, in a step whose rounds were expected to take base. The caller holds mu.
func (e *Engine) ran(p *part, base time.Duration, now time.Time) {
	if p.class == solo || p.err != nil {
		return
	}
	if p.class == piece && p.step.Rows[len(p.step.Rows)-1].Want&engine.WantToken == 0 {
		return
	}
	s := stream{e.steps, now, base + e.costs.Hop()}
	if p.class == piece {
		s.own = e.ownStep(1, int(p.step.Rows[0].Position)+len(p.step.Rows))
	}
	for i := range p.step.Groups {
		if g := &p.step.Groups[i]; g.Rows > 0 {
			e.streams[g.Sequence] = s
		}
	}
}

// observePause learns how long streams pause between their steps. The caller holds mu.
func (e *Engine) observePause(p *part) {
	if p.class != round {
		return
	}
	s, ok := e.streams[p.step.Groups[0].Sequence]
	if !ok {
		return
	}
	pause := p.came.Sub(s.ended)
	if e.pause == 0 {
		e.pause = pause
	}
	// One that comes much later has waited for its client.
	e.pause += time.Duration(follow * float64(min(pause, 4*e.pause+time.Microsecond)-e.pause))
}

// await waits for streams that had steps a moment ago, where a step with them is better than one without: because
// joining rows saves time, or because the step will be long.
func (e *Engine) await(p *part) {
	e.mu.Lock()
	limit := min(2*e.pause, maxWait)
	wanted := 0
	if p.class != solo && float64(e.pause) <= maxWaitShare*float64(e.took) {
		for _, s := range e.streams {
			if e.steps-s.step < recentSteps {
				wanted++
			}
		}
	}
	there := e.roundsThere()
	if there < wanted && p.class == round {
		if n := len(p.step.Rows); !e.gains(int(p.step.Rows[0].Position), n, n) {
			wanted = 0
		}
	}
	e.mu.Unlock()
	if there >= wanted {
		return
	}
	e.timer.Reset(limit)
	defer e.timer.Stop()
	for there < wanted {
		select {
		case <-e.queue.Arrived:
		case <-e.timer.C:
			return
		case <-p.ctx.Done():
			return
		}
		e.mu.Lock()
		there = e.roundsThere()
		e.mu.Unlock()
	}
}

// roundsThere counts the rounds in the queue. The caller holds mu.
func (e *Engine) roundsThere() (n int) {
	for _, p := range e.queue.Waiting {
		if p.class == round {
			n++
		}
	}
	return n
}
