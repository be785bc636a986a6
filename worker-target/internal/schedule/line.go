package schedule

import (
	"context"
	"slices"
	"time"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// Steps follow each other through an engine in stages (engine.Info.Depth): the next one is composed when the first
// stage has run the one before it. There is then no leader: a caller that queues a step, and every step that has passed
// the first stage or has ended, starts the next one (dispatch), on a goroutine that ends with the step.
//
// Rounds and pieces take turns and never share a step, since a step of one piece alone may follow the one before it
// without its result. A step has no more rounds than its share of the running streams: with as many streams as stages
// each has a step of its own, and all stages work.

// line holds the steps in an engine in stages. Guarded by Engine.mu.
type line struct {
	depth  int           // stages; up to 1, steps run one at a time
	busy   bool          // a step is in the first stage
	flying int           // steps in the engine
	rounds int           // parts of class round in them
	turn   bool          // the newest step was one of rounds: a piece is next
	newest chan struct{} // closed when the newest step has ended
	free   []*flight
}

// Submit hands over a step that commits rows of one sequence. It may be called before the ones before it of that
// sequence have ended: when one of them fails, so do those after it. The function that it returns waits for the end of
// the step and returns how many of its rows ran, fewer than all after an error.
func (v *view) Submit(ctx context.Context, step *engine.Step, result *engine.StepResult) func() (rows int, err error) {
	p := v.hand(ctx, &v.request, step, result)
	return func() (int, error) {
		v.wait(p)
		defer v.queue.Return(p)
		return p.done, p.err
	}
}

// hand puts a step into the queue of an engine in stages. The caller calls land.
func (e *Engine) hand(ctx context.Context, r *request, step *engine.Step, result *engine.StepResult) *part {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.enter(ctx, r, step, result)
	e.dispatch()
	return p
}

// land waits for the end of a step of a request that was handed over.
func (e *Engine) land(r *request, p *part) error {
	e.wait(p)
	defer e.queue.Return(p)
	r.note(p)
	return p.err
}

// wait waits for the end of a step that was handed over.
func (e *Engine) wait(p *part) {
	select {
	case <-e.queue.Turn(p):
	case <-p.ctx.Done():
		if !e.leave(p) {
			<-e.queue.Turn(p)
		}
	}
}

// leave takes a part out of the queue if no step runs it, and fails the pieces after it.
func (e *Engine) leave(p *part) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.queue.Leave(p) {
		return false
	}
	p.err = rpcerr.From(p.ctx.Err())
	e.failBehind(p)
	return true
}

// dispatch starts the next step, if the first stage is free. The caller holds mu.
func (e *Engine) dispatch() {
	l := &e.line
	if l.busy || l.flying > l.depth {
		return
	}
	if e.flight == nil {
		e.flight = e.spare()
	}
	f := e.flight
	if e.composeNext(time.Now()); len(f.mix.cuts) == 0 {
		return
	}
	e.flight = nil
	l.busy, f.inFirst = true, true
	l.flying++
	l.turn = f.mix.cuts[0].p.class != piece
	f.front, f.ended = l.newest, make(chan struct{})
	l.newest = f.ended
	for _, c := range f.mix.cuts {
		c.p.flying++
		c.p.Queued = false
		if c.p.started += c.n; c.p.class == round {
			l.rounds++
		} else if c.p.left() == 0 {
			e.queue.Remove(c.p)
		}
	}
	go e.fly(f)
}

// spare returns a flight that is not in use. The caller holds mu.
func (e *Engine) spare() *flight {
	l := &e.line
	if n := len(l.free); n > 0 {
		f := l.free[n-1]
		l.free = l.free[:n-1]
		return f
	}
	f := &flight{}
	f.passed = func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.pass(f)
		e.dispatch()
	}
	return f
}

// pass notes that a step is no longer in the first stage. The caller holds mu.
func (e *Engine) pass(f *flight) {
	if f.inFirst {
		f.inFirst, e.line.busy = false, false
	}
}

// fly runs a composed step to its end.
func (e *Engine) fly(f *flight) {
	start := time.Now()
	f.errs = append(f.errs[:0], make([]error, len(f.mix.cuts))...)
	e.runFlight(f, func(i int, err error) { f.errs[i] = err })
	if f.front != nil {
		<-f.front // steps end in the order in which they began
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	e.pass(f)
	e.line.flying--
	e.steps++
	e.took = now.Sub(start)
	if f.errs[0] == nil {
		// Time spent waiting for others in later stages is not part of its own time.
		e.observePrompt(f, min(now.Sub(start), time.Duration(f.nanos())))
	}
	for i, c := range f.mix.cuts {
		e.endCut(c, f.errs[i], f.mix.base, now)
	}
	close(f.ended)
	e.line.free = append(e.line.free, f)
	e.dispatch()
}

// nanos is the time that the engine's stages worked on a step.
func (f *flight) nanos() int64 {
	if c := f.mix.cuts[0]; len(f.mix.cuts) == 1 && c.whole() {
		return c.p.result.EngineNanos
	}
	return f.result.EngineNanos
}

// endCut ends a cut of a part, and the part with its last one. The caller holds mu.
func (e *Engine) endCut(c cut, err error, base time.Duration, now time.Time) {
	p := c.p
	p.flying--
	p.served = now
	if p.class == round {
		e.line.rounds--
	}
	if err == nil {
		p.done += c.n
	} else if p.err == nil {
		p.err = err
	}
	switch {
	case p.err == nil && p.done < len(p.step.Rows):
		p.Queued = p.flying == 0
	case p.flying == 0:
		if p.err == nil {
			e.ran(p, base, now)
		} else {
			e.failBehind(p)
		}
		e.queue.Remove(p)
		e.end(p, nil)
	}
}

// failBehind fails the pieces that wait after one of the same sequence that failed. The caller holds mu.
func (e *Engine) failBehind(p *part) {
	if p.class != piece {
		return
	}
	e.queue.Waiting = slices.DeleteFunc(e.queue.Waiting, func(q *part) bool {
		if q == p || q.class != piece || q.flying > 0 || q.sequence() != p.sequence() {
			return false
		}
		q.err = p.err
		e.end(q, nil)
		return true
	})
}

// sequence is that of a piece.
func (p *part) sequence() engine.Sequence { return p.step.Groups[0].Sequence }

// composeNext composes the next step of an engine in stages: rounds, or one piece. The caller holds mu.
func (e *Engine) composeNext(now time.Time) {
	m := &e.flight.mix
	m.reset()
	e.sweep(nil)
	rounds, pieces := 0, false
	for _, p := range e.queue.Waiting {
		if p.class == piece {
			pieces = true
		} else {
			rounds++
		}
	}
	m.others = rounds > 0
	if pieces && (rounds == 0 || e.line.turn) {
		e.addPieces(now)
	}
	if len(m.cuts) == 0 && rounds > 0 {
		m.share = e.share(rounds, now)
		e.addRounds()
	}
}

// share returns how many rounds a step may take so that as many are left for each other stage. waiting: rounds in
// the queue.
func (e *Engine) share(waiting int, now time.Time) int {
	running := 0
	for _, s := range e.streams {
		if now.Sub(s.ended) < streamMemory {
			running++
		}
	}
	running = max(running, waiting+e.line.rounds)
	return (running + e.line.depth - 1) / e.line.depth
}
