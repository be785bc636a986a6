// Package joint puts proposals for several sequences into one pass of a draft's engine, which then reads its weights
// once for all of them (package leader).
package joint

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/leader"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

const (
	// recent is how many passes back a sequence may have asked to count as one that asks again soon.
	recent = 3
	// A pass waits for such sequences no longer than a waitShare of the last pass, and than mostWait.
	waitShare = 0.25
	mostWait  = 2 * time.Millisecond
	// Waiting stops when it brings somebody in fewer than leastPaid of the tries, and is tried again every retry passes.
	leastPaid = 0.3
	retry     = 32
	// follow is the weight of the newest try in the mean of tries.
	follow = 0.2
)

// Counts of an Engine since its start.
type Counts struct {
	// Passes of the engine that made proposals, and Proposals of them: several in a joint pass.
	Passes, Proposals uint64
}

// Engine is a draft's engine whose Propose may be called by many goroutines and puts their calls together. Everything
// else goes through.
type Engine struct {
	engine.Draft
	rows int // of features in a joint pass, at most

	mu     sync.Mutex
	queue  leader.Queue[part, *part]
	asked  map[engine.Sequence]uint64 // the pass in which a sequence asked last
	passes uint64
	took   time.Duration // of the last pass with proposals
	counts Counts

	// Of the leader.
	timer    *time.Timer
	paid     float64 // share of the waits that brought somebody
	skipped  int     // passes since the last wait
	members  []*part
	features []engine.FeatureRows
	requests []engine.DraftRequest
	result   engine.DraftResult
}

// part is a call that waits for its turn.
type part struct {
	leader.Place
	ctx      context.Context
	features []engine.FeatureRows
	requests []engine.DraftRequest
	result   *engine.DraftResult
	err      error
}

// rows of features that a part appends.
func (p *part) rows() int {
	n := 0
	for i := range p.features {
		n += int(p.features[i].Rows)
	}
	return n
}

// New wraps an engine.
func New(inner engine.Draft) *Engine {
	e := &Engine{Draft: inner, rows: max(1, inner.Info().MaxBatchRows), asked: map[engine.Sequence]uint64{},
		timer: time.NewTimer(time.Hour), paid: 1}
	e.queue = leader.New[part](&e.mu)
	e.timer.Stop()
	return e
}

// Counts returns what was counted so far; none for a nil Engine.
func (e *Engine) Counts() Counts {
	if e == nil {
		return Counts{}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.counts
}

// FreeSequence implements engine.Draft: nobody waits for the sequence any more.
func (e *Engine) FreeSequence(ctx context.Context, s engine.Sequence) error {
	e.mu.Lock()
	delete(e.asked, s)
	e.mu.Unlock()
	return e.Draft.FreeSequence(ctx, s)
}

// Propose implements engine.Draft. The times of the result are the call's share of the pass. A call whose context ends
// while it waits changes nothing; one that shares a pass is not interrupted any more, since others need the pass.
func (e *Engine) Propose(ctx context.Context, features []engine.FeatureRows, requests []engine.DraftRequest,
	result *engine.DraftResult) error {
	e.mu.Lock()
	p := e.queue.Take()
	p.ctx, p.features, p.requests, p.result = ctx, features, requests, result
	e.queue.Enter(p)
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
	return p.err
}

// lead runs one pass, of which p is the first part, and makes the next part the leader.
func (e *Engine) lead(p *part) {
	e.await(p)
	e.compose(p)
	e.run()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, m := range e.members {
		if m != p {
			e.queue.End(m)
		}
	}
	clear(e.members)
	e.queue.Next()
}

// await gives sequences that asked lately a moment to ask again: targets whose requests share a step ask nearly at the
// same time.
func (e *Engine) await(p *part) {
	if len(p.requests) == 0 {
		return
	}
	e.mu.Lock()
	wanted, there := e.expected(p), e.asking()
	limit := min(time.Duration(waitShare*float64(e.took)), mostWait)
	e.mu.Unlock()
	if there >= wanted {
		return
	}
	if e.paid < leastPaid && e.skipped < retry {
		e.skipped++
		return
	}
	e.skipped = 0
	before := there
	e.timer.Reset(limit)
	defer e.timer.Stop()
	for waiting := true; waiting && there < wanted; {
		select {
		case <-e.queue.Arrived:
			e.mu.Lock()
			there = e.asking()
			e.mu.Unlock()
		case <-e.timer.C:
			waiting = false
		case <-p.ctx.Done():
			waiting = false
		}
	}
	won := 0.0
	if there > before {
		won = 1
	}
	e.paid += follow * (won - e.paid)
}

// expected is the number of sequences that asked lately, with those of p. The caller holds mu.
func (e *Engine) expected(p *part) int {
	n := 1
	for s, pass := range e.asked {
		if s != p.requests[0].Sequence && e.passes-pass < recent {
			n++
		}
	}
	return n
}

// asking is the number of waiting parts with proposals. The caller holds mu.
func (e *Engine) asking() int {
	n := 0
	for _, p := range e.queue.Waiting {
		if len(p.requests) > 0 {
			n++
		}
	}
	return n
}

// compose chooses the parts of a pass: p, and if it asks, all others that ask, as far as their features fit. Rows
// without a question are catching up: they come in large pieces, so each takes a pass of its own, in its turn.
func (e *Engine) compose(p *part) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.members = append(e.members[:0], p)
	rows := p.rows()
	e.queue.Waiting = slices.DeleteFunc(e.queue.Waiting, func(q *part) bool {
		if q == p {
			return true
		}
		n := q.rows()
		if len(p.requests) == 0 || len(q.requests) == 0 || q.ctx.Err() != nil || rows+n > e.rows {
			return false
		}
		q.Queued = false
		rows += n
		e.members = append(e.members, q)
		return true
	})
}

// run runs the pass and gives each part its error.
func (e *Engine) run() {
	start := time.Now()
	alone := len(e.members) == 1
	if !alone {
		err := e.together()
		alone = err != nil && engine.Refused(err)
		if !alone {
			for _, m := range e.members {
				m.err = err
			}
		}
	}
	if alone {
		for _, m := range e.members {
			m.err = e.one(m, len(e.members) > 1)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	asked := false
	for _, m := range e.members {
		for i := range m.requests {
			asked = true
			if m.err == nil {
				e.asked[m.requests[i].Sequence] = e.passes + 1
				e.counts.Proposals++
			}
		}
	}
	if asked {
		e.passes++
		e.counts.Passes++
		e.took = time.Since(start)
	}
}

// together runs all parts in one call and hands out the results.
func (e *Engine) together() error {
	e.features, e.requests = e.features[:0], e.requests[:0]
	for _, m := range e.members {
		e.features = append(e.features, m.features...)
		e.requests = append(e.requests, m.requests...)
	}
	// One of many that leaves must not end the pass of the others.
	err := e.Draft.Propose(context.Background(), e.features, e.requests, &e.result)
	clear(e.features)
	if err != nil {
		return err
	}
	r, at, share := &e.result, 0, int64(len(e.members))
	for _, m := range e.members {
		n := len(m.requests) * r.Positions * r.Stride
		out := m.result
		out.Stride, out.Positions = r.Stride, r.Positions
		out.EngineNanos, out.AppendNanos = r.EngineNanos/share, r.AppendNanos/share
		out.IDs = append(out.IDs[:0], r.IDs[at:at+n]...)
		out.Logprobs = append(out.Logprobs[:0], r.Logprobs[at:at+n]...)
		at += n
	}
	return nil
}

// one runs a part by itself; again says that it was in a pass that was refused. That one changed nothing if it was
// refused for its features, and appended them all if it was refused for its questions.
func (e *Engine) one(m *part, again bool) error {
	features := m.features
	if again && len(features) > 0 {
		length, err := e.SequenceLength(m.ctx, features[0].Sequence)
		if err != nil {
			return err
		}
		if length > int(features[0].Position) {
			features = nil
		}
	}
	return e.Draft.Propose(m.ctx, features, m.requests, m.result)
}
