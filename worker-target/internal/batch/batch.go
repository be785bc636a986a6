package batch

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-inference/tandem/services/engineplugin"
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
	engineplugin.Engine
	rows  int // of a joint step, at most
	costs Costs
	paced atomic.Bool

	mu      sync.Mutex
	free    []*part
	queue   []*part
	busy    bool // somebody leads
	arrived chan struct{}
	states  map[engineplugin.Sequence]*state
	steps   uint64        // joint steps so far
	took    time.Duration // of the last one
	pause   time.Duration // running mean of the time between a sequence's steps

	// Of the leader.
	timer  *time.Timer
	taken  []*part
	joint  engineplugin.Step
	result engineplugin.StepResult
	paths  []int32
}

// state is what is known of a sequence.
type state struct {
	base  int32   // of its rows in the last step that held it
	owed  []int32 // rows of that step that were to be committed by it and are not yet
	step  uint64  // joint step that held it last
	ended time.Time
}

// part is a step that waits for its turn.
type part struct {
	ctx    context.Context
	step   *engineplugin.Step
	result *engineplugin.StepResult
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
func New(engine engineplugin.Engine, costs Costs) *Engine {
	info := engine.Info()
	e := &Engine{
		Engine: engine, rows: min(info.MaxTreeRows, info.MaxBatchRows), costs: costs,
		states: map[engineplugin.Sequence]*state{}, arrived: make(chan struct{}, 1), timer: time.NewTimer(time.Hour),
	}
	e.timer.Stop()
	return e
}

// Step implements engineplugin.Engine. result.BatchRows is the number of rows of all steps that ran together.
func (e *Engine) Step(ctx context.Context, step *engineplugin.Step, result *engineplugin.StepResult) error {
	if e.paced.Load() && e.plain(step) {
		result.BatchRows = len(step.Rows)
		return e.Engine.Step(ctx, step, result)
	}
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

// plain reports whether the engine knows the rows that a step commits by the numbers that the step uses, and is owed nothing.
func (e *Engine) plain(step *engineplugin.Step) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	owes := func(q engineplugin.Sequence) bool {
		s := e.states[q]
		return s != nil && (s.base != 0 || len(s.owed) > 0)
	}
	for i := range step.Rows {
		if owes(step.Rows[i].Sequence) {
			return false
		}
	}
	for i := range step.Commits {
		if owes(step.Commits[i].Sequence) {
			return false
		}
	}
	for i := range step.Kept {
		if owes(step.Kept[i].Sequence) {
			return false
		}
	}
	return true
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
func (e *Engine) observePause(step *engineplugin.Step) {
	if len(step.Rows) == 0 {
		return
	}
	s := e.states[step.Rows[0].Sequence]
	if s == nil || s.ended.IsZero() {
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
			if !s.ended.IsZero() && e.steps-s.step < company {
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

// joins reports whether a step may run together with others.
func (e *Engine) joins(s *engineplugin.Step) bool {
	return len(s.Rows) > 0 && len(s.Rows) <= e.rows && len(s.HiddenIn) == 0
}

// gains reports whether a step is better run together with others of so many rows, of which first is one. Requests come again
// and again, so what counts is the time of all their steps: rows must cost clearly less than they cost alone.
func (e *Engine) gains(first, step *engineplugin.Step, rows int) bool {
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
	rows, features, joins := len(p.step.Rows), p.step.Features, e.joins(p.step)
	left := e.queue[:0]
	for _, q := range e.queue {
		switch {
		case q == p:
		case joins && q.ctx.Err() == nil && e.joins(q.step) && rows+len(q.step.Rows) <= e.rows &&
			(features == q.step.Features || features == engineplugin.FeatureNone || q.step.Features == engineplugin.FeatureNone) &&
			e.gains(p.step, q.step, rows):
			q.queued = false
			rows += len(q.step.Rows)
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
	var err error
	if len(together) == 1 {
		err = e.alone(p)
	} else {
		err = e.together(together)
	}
	now := time.Now()
	e.mu.Lock()
	e.steps++
	e.took = now.Sub(start)
	for _, q := range together {
		q.err = err
		for i := range q.step.Rows {
			if s := e.states[q.step.Rows[i].Sequence]; s != nil {
				s.step, s.ended = e.steps, now
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

// alone runs one part as it is, but for what the engine does not know: where the sequence's rows were, and what it is owed.
func (e *Engine) alone(p *part) error {
	e.start()
	e.commits(p.step)
	step := p.step
	if len(e.joint.Commits) > 0 {
		e.joint.Kept, e.joint.Rows, e.joint.Masks, e.joint.HiddenIn = step.Kept, step.Rows, step.Masks, step.HiddenIn
		e.joint.Prefill, e.joint.NMasks, e.joint.Features = step.Prefill, step.NMasks, step.Features
		step = &e.joint
		defer func() { e.joint.Kept, e.joint.Rows, e.joint.Masks, e.joint.HiddenIn = nil, nil, nil, nil }()
	}
	start := time.Now()
	if err := e.Engine.Step(p.ctx, step, p.result); err != nil {
		return err
	}
	// An engine that states more time than passed plays a part for each sequence. Its steps are neither joined, which would
	// make all wait for the slowest, nor kept apart.
	if time.Duration(p.result.EngineNanos) > 2*time.Since(start)+time.Millisecond {
		e.paced.Store(true)
	}
	p.result.BatchRows = len(p.step.Rows)
	e.placed(p.step, 0, false)
	return nil
}

// together runs several parts as one step.
func (e *Engine) together(list []*part) error {
	e.start()
	j := &e.joint
	j.Prefill = true
	for _, p := range list {
		e.commits(p.step)
		j.Kept = append(j.Kept, p.step.Kept...)
		j.Prefill = j.Prefill && p.step.Prefill
	}
	for _, p := range list {
		base, masks := int32(len(j.Rows)), int32(j.NMasks)
		for _, row := range p.step.Rows {
			if row.Parent >= 0 {
				row.Parent += base
			}
			if row.Mask >= 0 {
				row.Mask += masks
			}
			j.Rows = append(j.Rows, row)
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
		e.placed(p.step, int32(out.row), p.step.Prefill && !j.Prefill)
		out.next(p.step, p.result)
	}
	return nil
}

// start empties the joint step.
func (e *Engine) start() {
	e.joint = engineplugin.Step{Commits: e.joint.Commits[:0], Kept: e.joint.Kept[:0], Rows: e.joint.Rows[:0], Masks: e.joint.Masks[:0]}
	e.paths = e.paths[:0]
}

// commits adds what a step commits, and what its sequences are owed, in the engine's numbers.
func (e *Engine) commits(step *engineplugin.Step) {
	for i := range step.Rows {
		e.settle(step.Rows[i].Sequence)
	}
	for i := range step.Kept {
		e.settle(step.Kept[i].Sequence)
	}
	for i := range step.Commits {
		c := &step.Commits[i]
		e.settle(c.Sequence)
		e.commit(c.Sequence, c.Path, e.state(c.Sequence).base)
	}
}

func (e *Engine) commit(q engineplugin.Sequence, path []int32, base int32) {
	from := len(e.paths)
	for _, row := range path {
		e.paths = append(e.paths, row+base)
	}
	// Earlier paths keep the memory they have when this one grows.
	e.joint.Commits = append(e.joint.Commits, engineplugin.Commit{Sequence: q, Path: e.paths[from:len(e.paths):len(e.paths)]})
}

// settle commits what a sequence is owed.
func (e *Engine) settle(q engineplugin.Sequence) {
	if s := e.state(q); len(s.owed) > 0 {
		e.commit(q, s.owed, 0)
		s.owed = s.owed[:0]
	}
}

// placed notes where the rows of a step were, and that those of a committing step are still to be committed.
func (e *Engine) placed(step *engineplugin.Step, base int32, owed bool) {
	for i := range step.Rows {
		s := e.state(step.Rows[i].Sequence)
		s.base = base
		if owed {
			s.owed = append(s.owed, base+int32(i))
		}
	}
}

// state of a sequence. Only the leader, and calls that are the sequence's own, use what it holds.
func (e *Engine) state(q engineplugin.Sequence) *state {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.states[q]
	if s == nil {
		s = &state{}
		e.states[q] = s
	}
	return s
}
