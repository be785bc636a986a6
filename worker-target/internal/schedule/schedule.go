package schedule

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

const (
	// company is how long after its last step a sequence is still expected to want another one soon.
	company = 4
	// patience is the share of a step's time up to which the mean pause between a request's steps is waited out for the steps of
	// others: who comes too late waits for a whole step.
	patience = 0.6
	// worth is the share of its own time that a step may add to a joint one.
	worth = 0.85
	// mostPatience bounds the wait.
	mostPatience = 3 * time.Millisecond
	// follow is the weight of a new measurement in running means.
	follow = 0.25
)

// Engine is an engine whose Steps may be called by many goroutines and are put together. Everything else goes through.
type Engine struct {
	engine.Engine
	rows  int // of a joint step, at most
	costs Costs

	mu      sync.Mutex
	free    []*part
	queue   []*part
	busy    bool // somebody leads
	arrived chan struct{}
	states  map[engine.Sequence]state
	steps   uint64        // joint steps so far
	took    time.Duration // of the last one
	pause   time.Duration // running mean of the time between a sequence's steps

	// Of the leader.
	timer  *time.Timer
	taken  []*part
	joint  engine.Step
	result engine.StepResult
}

// state is when a sequence had rows in a step last.
type state struct {
	step  uint64 // the joint step's number
	ended time.Time
}

// part is a step that waits for its turn.
type part struct {
	ctx    context.Context
	step   *engine.Step
	result *engine.StepResult
	turn   chan bool // true: lead; false: done
	err    error
	queued bool // nobody has taken it up yet
}

// Costs are the expected times of steps, 0 = not known; *auto.Model knows them.
type Costs interface {
	// Verify is the engine's time of a step of so many rows on a context of length positions.
	Verify(rows, length int) time.Duration
	// Hop is the time that a step takes beyond that, whatever its rows.
	Hop() time.Duration
}

// New wraps an engine whose steps cost so much.
func New(inner engine.Engine, costs Costs) *Engine {
	info := inner.Info()
	e := &Engine{
		Engine: inner, rows: info.MaxBatchRows, costs: costs,
		states: map[engine.Sequence]state{}, arrived: make(chan struct{}, 1), timer: time.NewTimer(time.Hour),
	}
	e.timer.Stop()
	return e
}

// Step implements engine.Engine. result.BatchRows is the number of rows of all steps that ran together.
func (e *Engine) Step(ctx context.Context, step *engine.Step, result *engine.StepResult) error {
	e.mu.Lock()
	p := e.part()
	p.ctx, p.step, p.result, p.err, p.queued = ctx, step, result, nil, true
	e.queue = append(e.queue, p)
	e.observePause(step)
	lead := !e.busy
	if lead {
		e.busy, p.queued = true, false
	}
	e.mu.Unlock()
	if !lead {
		select {
		case e.arrived <- struct{}{}:
		default:
		}
		select {
		case lead = <-p.turn:
		case <-ctx.Done():
			if e.leave(p) {
				e.done(p)
				return rpcerr.From(ctx.Err())
			}
			lead = <-p.turn // somebody has it in work, or made us the leader just now
		}
	}
	if lead {
		e.lead(p)
	}
	err := p.err
	e.done(p)
	return err
}

// part takes one that is not in use. The caller holds mu.
func (e *Engine) part() *part {
	if n := len(e.free); n > 0 {
		p := e.free[n-1]
		e.free = e.free[:n-1]
		return p
	}
	return &part{turn: make(chan bool, 1)}
}

// done takes a part back.
func (e *Engine) done(p *part) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p.ctx, p.step, p.result = nil, nil, nil
	e.free = append(e.free, p)
}

// leave takes a part out of the queue, if it is still there.
func (e *Engine) leave(p *part) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, q := range e.queue {
		if q == p && p.queued {
			e.queue = append(e.queue[:i], e.queue[i+1:]...)
			return true
		}
	}
	return false
}

// observePause learns how long sequences pause between their steps. The caller holds mu.
func (e *Engine) observePause(step *engine.Step) {
	if len(step.Rows) == 0 || len(step.Groups) == 0 {
		return
	}
	s, ok := e.states[step.Groups[0].Sequence]
	if !ok {
		return
	}
	pause := time.Since(s.ended)
	if e.pause == 0 {
		e.pause = pause
	}
	// One that comes much later has waited for its client.
	e.pause += time.Duration(follow * float64(min(pause, 4*e.pause+time.Microsecond)-e.pause))
}

// await gives others, who had steps a moment ago, the time to come.
func (e *Engine) await(p *part) {
	if !e.joins(p.step) || !e.gains(p.step, p.step, len(p.step.Rows)) {
		return
	}
	e.mu.Lock()
	limit := min(2*e.pause, mostPatience)
	wanted := 0
	if float64(e.pause) <= patience*float64(e.took) {
		for _, s := range e.states {
			if e.steps-s.step < company {
				wanted++
			}
		}
	}
	there := len(e.queue)
	e.mu.Unlock()
	if there >= wanted {
		return
	}
	e.timer.Reset(limit)
	defer e.timer.Stop()
	for there < wanted {
		select {
		case <-e.arrived:
		case <-e.timer.C:
			return
		case <-p.ctx.Done():
			return
		}
		e.mu.Lock()
		there = len(e.queue)
		e.mu.Unlock()
	}
}

// joins reports whether a step may run together with others. Prompt pieces run alone: what they cost beside decode rows
// is not known.
func (e *Engine) joins(s *engine.Step) bool {
	if len(s.Rows) == 0 || size(s) > e.rows || len(s.HiddenIn) > 0 {
		return false
	}
	for i := range s.Groups {
		if s.Groups[i].Kind == engine.KindPrompt {
			return false
		}
	}
	return true
}

// size is what counts against the most rows of a step: its rows, and those whose kept features it reads.
func size(s *engine.Step) int { return len(s.Rows) + keptRows(s) }

// gains reports whether a step is better run together with others of so many rows, of which first is one. Requests come again
// and again, so what counts is the time of all their steps: rows must cost clearly less than they cost alone.
func (e *Engine) gains(first, step *engine.Step, rows int) bool {
	length := int(first.Rows[0].Position)
	own, before, after := e.costs.Verify(len(step.Rows), length), e.costs.Verify(rows, length), e.costs.Verify(rows+len(step.Rows), length)
	if own == 0 || before == 0 || after == 0 {
		return true // reading weights once is what decides, until it is known better
	}
	return float64(after-before) < worth*float64(own+e.costs.Hop())
}

// take takes p and all that fit to it out of the queue, in order of arrival. The caller holds mu.
func (e *Engine) take(p *part) []*part {
	e.taken = append(e.taken[:0], p)
	rows, all, features, joins := len(p.step.Rows), size(p.step), p.step.Features, e.joins(p.step)
	left := e.queue[:0]
	for _, q := range e.queue {
		switch {
		case q == p:
		case joins && q.ctx.Err() == nil && e.joins(q.step) && all+size(q.step) <= e.rows &&
			(features == q.step.Features || features == engine.FeatureNone || q.step.Features == engine.FeatureNone) &&
			e.gains(p.step, q.step, rows):
			q.queued = false
			rows += len(q.step.Rows)
			all += size(q.step)
			features = max(features, q.step.Features)
			e.taken = append(e.taken, q)
		default:
			left = append(left, q)
		}
	}
	clear(e.queue[len(left):])
	e.queue = left
	return e.taken
}

// lead runs the step of p together with others, then makes the next one the leader.
func (e *Engine) lead(p *part) {
	e.await(p)
	e.mu.Lock()
	together := e.take(p)
	e.mu.Unlock()
	start := time.Now()
	if len(together) == 1 {
		p.err = e.alone(p)
	} else if err := e.together(together); refused(err) {
		for _, q := range together { // only the one at fault fails
			q.err = e.alone(q)
		}
	} else {
		for _, q := range together {
			q.err = err
		}
	}
	now := time.Now()
	e.mu.Lock()
	e.steps++
	e.took = now.Sub(start)
	for _, q := range together {
		for i := range q.step.Groups {
			if g := &q.step.Groups[i]; g.Rows > 0 {
				e.states[g.Sequence] = state{e.steps, now}
			}
		}
		if q != p {
			q.turn <- false
		}
	}
	// From here on the list of parts is the next leader's.
	if len(e.queue) > 0 {
		e.queue[0].queued = false
		e.queue[0].turn <- true
	} else {
		e.busy = false
	}
	e.mu.Unlock()
}

// alone runs one part as it is.
func (e *Engine) alone(p *part) error {
	p.result.BatchRows = len(p.step.Rows)
	return e.Engine.Step(p.ctx, p.step, p.result)
}

// together runs several parts as one step, whose groups and rows are theirs one after the other.
func (e *Engine) together(list []*part) error {
	j := &e.joint
	*j = engine.Step{Groups: j.Groups[:0], Rows: j.Rows[:0], Masks: j.Masks[:0]}
	for _, p := range list {
		from, masks := len(j.Rows), int32(j.NMasks)
		j.Groups = append(j.Groups, p.step.Groups...)
		j.Rows = append(j.Rows, p.step.Rows...)
		for i := range j.Rows[from:] {
			if m := &j.Rows[from+i].Mask; *m >= 0 {
				*m += masks
			}
		}
		j.Masks = append(j.Masks, p.step.Masks...)
		j.NMasks += p.step.NMasks
		j.Features = max(j.Features, p.step.Features)
	}
	// Whoever gives up does not take the others with him: the step is short.
	if err := e.Engine.Step(context.WithoutCancel(list[0].ctx), j, &e.result); err != nil {
		return err
	}
	out := newSplitter(&e.result, j)
	for _, p := range list {
		out.next(p.step, p.result)
	}
	return nil
}

// refused reports whether a step failed before it changed anything.
func refused(err error) bool {
	switch rpcerr.Code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.ResourceExhausted, codes.FailedPrecondition:
		return true
	}
	return false
}

// FreeSequence implements engine.Engine.
func (e *Engine) FreeSequence(ctx context.Context, s engine.Sequence) error {
	e.mu.Lock()
	delete(e.states, s)
	e.mu.Unlock()
	return e.Engine.FreeSequence(ctx, s)
}
