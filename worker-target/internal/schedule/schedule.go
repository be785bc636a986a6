package schedule

import (
	"context"
	"sync"
	"time"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/leader"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// Costs are the expected times of steps in the engine, 0 = not known; *auto.Model learns them.
type Costs interface {
	// Verify is the time of a step of so many rows of rounds on a context of length positions.
	Verify(rows, length int) time.Duration
	// Hop is the time that a step takes beyond that, whatever its rows.
	Hop() time.Duration
	// Prompt is the time of rows of prompts: of a step of their own, or what they add to one of rounds.
	Prompt(rows, length int, withRounds bool) time.Duration
	// ObservePrompt learns from a step with rows of prompts, of which they took so long.
	ObservePrompt(rows, length int, withRounds bool, took time.Duration)
}

// Options of an Engine.
type Options struct {
	Costs Costs
	// MaxTokenGap is how long a running stream may wait between two tokens while prompts are read; 0 = gapSteps times its
	// own step, at least LeastGap.
	MaxTokenGap time.Duration
	turns       bool // prompts of a key are read in turns, not the shortest first: for comparison
}

// Engine joins the Steps that many goroutines call. All other calls go to the engine unchanged.
type Engine struct {
	engine.Target
	options Options
	costs   Costs
	rows    int // of a joint step, at most
	unit    int // pieces of KindPrompt are cut at multiples of it

	mu      sync.Mutex
	queue   leader.Queue[part, *part] // pieces stay until their last rows run, or start where steps follow each other
	streams streams
	keys    keys
	steps   uint64        // composed steps so far
	took    time.Duration // of the last one
	pause   time.Duration // running mean of the time between a stream's steps

	flight *flight // the step that is composed; of the leader, where there is one
	slack  float64 // see leastSlack
	timer  *time.Timer

	line line
}

// flight is a composed step.
type flight struct {
	mix    mix
	joint  engine.Step
	result engine.StepResult

	// Where steps follow each other.
	passed       func()
	inFirst      bool          // it is in the first stage
	front, ended chan struct{} // closed when the flight before it, and this one, has ended
	errs         []error       // of its cuts
}

// class says how a part may be composed.
type class uint8

const (
	round class = iota // runs whole, joined with others where that saves time
	piece              // committed rows of a prompt or of a replay, which may be cut
	solo               // runs alone
)

// part is a step that waits for its turn.
type part struct {
	leader.Place
	ctx     context.Context
	step    *engine.Step
	result  *engine.StepResult
	request *request // nil = not known
	class   class
	came    time.Time
	served  time.Time // when its newest rows ran, came before
	done    int       // rows that ran
	started int       // rows that ran or run now
	flying  int       // steps that run rows of it, where steps follow each other
	err     error
	over    bool
}

// left is the number of rows that have not started.
func (p *part) left() int { return len(p.step.Rows) - p.started }

// New wraps an engine.
func New(inner engine.Target, o Options) *Engine {
	info := inner.Info()
	e := &Engine{
		Target: inner, options: o, costs: o.Costs, rows: info.MaxBatchRows, unit: promptUnit,
		streams: streams{}, keys: keys{all: map[uint64]float64{}}, timer: time.NewTimer(time.Hour),
		flight: &flight{}, slack: leastSlack, line: line{depth: info.Depth},
	}
	e.queue = leader.New[part](&e.mu)
	if info.PromptRows == 0 {
		e.unit = decodeUnit
	}
	if e.line.depth > 1 {
		e.flight = e.spare()
	}
	e.timer.Stop()
	return e
}

// Step implements engine.Target. result says in BatchRows and BatchRounds what ran together.
func (e *Engine) Step(ctx context.Context, step *engine.Step, result *engine.StepResult) error {
	return e.submit(ctx, nil, step, result)
}

// submit runs a step of a request together with those of others.
func (e *Engine) submit(ctx context.Context, r *request, step *engine.Step, result *engine.StepResult) error {
	if e.line.depth > 1 {
		return e.land(r, e.hand(ctx, r, step, result))
	}
	e.mu.Lock()
	p := e.enter(ctx, r, step, result)
	lead := e.queue.Lead(p)
	e.mu.Unlock()
	defer e.queue.Return(p)
	if !lead {
		var left bool
		if lead, left = e.queue.Wait(ctx, p); left {
			return rpcerr.From(ctx.Err())
		}
	}
	if lead {
		e.lead(p)
	}
	r.note(p)
	return p.err
}

// enter puts a step into the queue. The caller holds mu.
func (e *Engine) enter(ctx context.Context, r *request, step *engine.Step, result *engine.StepResult) *part {
	now, ran := time.Now(), r.ranOf(step)
	p := e.queue.Take()
	p.ctx, p.step, p.result, p.request, p.class = ctx, step, result, r, e.classOf(step)
	p.came, p.served, p.done, p.started = now, now, ran, ran
	e.queue.Enter(p)
	if n := len(e.queue.Waiting); p.class == piece {
		e.keys.enter(p.key(), e.queue.Waiting[:n-1])
	} else {
		e.observePause(p)
	}
	return p
}

// classOf says how a step may be composed.
func (e *Engine) classOf(s *engine.Step) class {
	switch {
	case len(s.Rows) == 0 || size(s) > e.rows:
		return solo
	case len(s.Groups) == 1 && s.Groups[0].Commit && (len(s.Rows) > 1 || s.Groups[0].Kind == engine.KindPrompt):
		return piece
	}
	return round
}

// lead composes and runs steps until p is over, then makes another part the leader.
func (e *Engine) lead(p *part) {
	for {
		e.await(p)
		e.mu.Lock()
		e.compose(p, time.Now())
		e.mu.Unlock()
		if len(e.flight.mix.cuts) > 0 {
			e.run(p)
		}
		if p.over {
			break
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.queue.Next()
}

// run runs the composed step. leader is the part of the goroutine that runs it.
func (e *Engine) run(leader *part) {
	f := e.flight
	start := time.Now()
	e.runFlight(f, func(i int, err error) { f.mix.cuts[i].p.err = err })
	now := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.observePrompt(f, now.Sub(start))
	e.steps++
	e.took = now.Sub(start)
	for _, c := range f.mix.cuts {
		if c.p.err == nil {
			c.p.done += c.n
			c.p.started = c.p.done
		}
		c.p.served = now
		if c.p.err == nil && c.p.left() > 0 {
			c.p.Queued = c.p != leader
			continue
		}
		e.ran(c.p, f.mix.base, now)
		if c.p.class == piece {
			e.queue.Remove(c.p)
		}
		e.end(c.p, leader)
	}
}

// end wakes a part's goroutine: the part is over. The caller holds mu.
func (e *Engine) end(p, leader *part) {
	p.over = true
	if p != leader {
		e.queue.End(p)
	}
}

// runFlight runs a composed step; failed gets the errors of its cuts.
func (e *Engine) runFlight(f *flight, failed func(i int, err error)) {
	cuts := f.mix.cuts
	err := e.runCuts(f, cuts, f.passed)
	switch {
	case err == nil:
	case len(cuts) > 1 && engine.Refused(err):
		f.mix.alone = true
		for i := range cuts { // only the one at fault fails
			failed(i, e.runCuts(f, cuts[i:i+1], nil))
		}
	default:
		for i := range cuts {
			failed(i, err)
		}
	}
}

// observePrompt learns from a step with rows of prompts, which took so long as a whole. The caller holds mu.
func (e *Engine) observePrompt(f *flight, wall time.Duration) {
	m := &f.mix
	if m.prompt == 0 || m.alone || m.cuts[0].p.err != nil {
		return
	}
	prompt := e.costs.Prompt(m.prompt, m.promptLength, m.rounds > 0)
	if prompt > 0 {
		e.observeSlack(wall, m.base+prompt+e.costs.Hop())
	}
	took := time.Duration(f.result.EngineNanos)
	if c := m.cuts[0]; c.whole() && len(m.cuts) == 1 {
		took = time.Duration(c.p.result.EngineNanos)
	}
	if took <= 0 {
		took = wall
	}
	e.costs.ObservePrompt(m.prompt, m.promptLength, m.rounds > 0, took-m.base)
}

// runCuts runs cuts of parts as one step. passed becomes the step's.
func (e *Engine) runCuts(f *flight, cuts []cut, passed func()) error {
	if len(cuts) == 1 && cuts[0].whole() {
		p := cuts[0].p
		p.result.BatchRows, p.result.PromptRows, p.result.BatchRounds = len(p.step.Rows), 0, 1
		if p.class == piece {
			p.result.PromptRows, p.result.BatchRounds = len(p.step.Rows), 0
		}
		p.step.Passed = passed
		err := e.Target.Step(p.ctx, p.step, p.result)
		p.step.Passed = nil
		return err
	}
	// A request that is cancelled does not cancel the others: the step is short.
	ctx := cuts[0].p.ctx
	if len(cuts) > 1 {
		ctx = context.WithoutCancel(ctx)
	}
	f.join(cuts)
	f.joint.Passed = passed
	if err := e.Target.Step(ctx, &f.joint, &f.result); err != nil {
		return err
	}
	if f.front != nil {
		<-f.front // the results of a piece are put together in order
	}
	out := newSplitter(&f.result, &f.joint)
	for _, c := range cuts {
		if c.p.class == piece {
			out.prompt += c.n
		} else {
			out.rounds++
		}
	}
	for _, c := range cuts {
		out.next(c)
	}
	return nil
}

// join puts cuts one after the other into one step.
func (f *flight) join(cuts []cut) {
	j := &f.joint
	*j = engine.Step{
		Groups: j.Groups[:0], Rows: j.Rows[:0], Masks: j.Masks[:0], HiddenIn: j.HiddenIn[:0], Hidden: cuts[0].p.step.Hidden,
	}
	for _, c := range cuts {
		from, step := len(j.Rows), c.p.step
		j.Groups = append(j.Groups, step.Groups...)
		j.Rows = append(j.Rows, step.Rows[c.from:c.from+c.n]...)
		j.Features = max(j.Features, step.Features)
		hidden := len(step.HiddenIn) / len(step.Rows)
		j.HiddenIn = append(j.HiddenIn, step.HiddenIn[c.from*hidden:(c.from+c.n)*hidden]...)
		if c.p.class == piece {
			g := &j.Groups[len(j.Groups)-1]
			g.Rows = c.n
			if c.from > 0 { // its first cut did that
				g.Path, g.Kept = nil, engine.KeptRange{}
			}
		}
		masked := false
		for i := range j.Rows[from:] {
			r := &j.Rows[from+i]
			if c.from > 0 {
				r.Parent -= int32(c.from) // that of the first row is the tip
			}
			if r.Mask >= 0 {
				masked = true
				r.Mask += int32(j.NMasks)
			}
		}
		if masked {
			j.Masks = append(j.Masks, step.Masks...)
			j.NMasks += step.NMasks
		}
	}
}

// FreeSequence implements engine.Target.
func (e *Engine) FreeSequence(ctx context.Context, s engine.Sequence) error {
	e.mu.Lock()
	delete(e.streams, s)
	e.mu.Unlock()
	return e.Target.FreeSequence(ctx, s)
}
