package speculate

import (
	"context"
	"time"

	"github.com/tandem-inference/tandem/services/ddtree"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"github.com/tandem-inference/tandem/worker-target/internal/drafts"
)

// catchUp is how many times the shortest deadline the first proposal after a loss may take.
const catchUp = 5

// exchange is the questions to a request's draft and its answers.
type exchange struct {
	drafts    Drafts  // nil = the worker uses none
	link      Drafter // nil = none is attached
	automatic bool
	stats     *Stats
	warm      bool // a proposal of this stream arrived: its time is the draft's, not that of catching up
	asked     bool // by this round, which waits for the answer
	askedAt   time.Time
	waited    time.Duration

	shortest, longest time.Duration // deadlines
}

// newExchange returns one with the settings of all requests; d is nil when the worker uses no drafts.
func newExchange(d Drafts, shortest, longest time.Duration) exchange {
	return exchange{drafts: d, shortest: shortest, longest: longest}
}

// start begins a request without a draft.
func (e *exchange) start(automatic bool, stats *Stats) {
	*e = exchange{drafts: e.drafts, automatic: automatic, stats: stats, shortest: e.shortest, longest: e.longest}
}

// capture returns what features drafts need, nil when none is attached to the worker.
func (e *exchange) capture() *drafts.Capture {
	if e.drafts == nil {
		return nil
	}
	return e.drafts.Capture()
}

// open adds a draft to the request.
func (e *exchange) open(ctx context.Context, id string, ring *drafts.Ring, capture *drafts.Capture, vocab int,
	held bool) Drafter {
	e.link = e.drafts.Open(ctx, id, ring, capture, vocab, held)
	return e.link
}

// attached reports whether the request has a draft.
func (e *exchange) attached() bool { return e.link != nil }

func (e *exchange) close() {
	if e.link != nil {
		e.link.Close()
		e.link = nil
	}
}

// ready reports whether asking makes sense now.
func (e *exchange) ready() bool { return e.link.Ready() }

// missing counts a round that wanted a draft and has none. In automatic mode a worker that was never given one is
// complete.
func (e *exchange) missing() {
	if e.drafts == nil {
		return
	}
	e.stats.Lost++
	e.warm = false
	if !e.automatic || e.drafts.Known() {
		e.stats.Degraded = true
	}
}

// deadline of a proposal. The first of a request has the prompt's features to catch up with and gets the longest one.
// After a loss features must be sent again, but the draft may also hang: such a proposal gets somewhat more than the
// usual time, not the longest.
func (e *exchange) deadline(model *auto.Model, block int) time.Duration {
	switch {
	case e.warm:
		return model.Deadline(block, e.shortest, e.longest)
	case e.stats.Lost > 0:
		return model.Deadline(block, min(catchUp*e.shortest, e.longest), e.longest)
	}
	return e.longest
}

// begin starts a round; asks reports whether it is going to ask and to wait. The wait counts from here: features that
// are read for the question are part of its price.
func (e *exchange) begin(asks bool) {
	e.asked, e.waited = asks, 0
	if asks {
		e.askedAt = time.Now()
	}
}

// waits reports whether the round waits for a proposal.
func (e *exchange) waits() bool { return e.asked }

// ask sends a question.
func (e *exchange) ask(q drafts.Ask) { e.link.Ask(q) }

// wait waits for the proposal that the round asked for.
func (e *exchange) wait(ctx context.Context, tree *ddtree.Tree) (proposed bool) {
	outcome := e.link.Wait(ctx, tree)
	e.waited = time.Since(e.askedAt)
	e.stats.DraftWait += e.waited
	switch outcome {
	case drafts.Proposed:
		return true
	case drafts.Late:
		e.stats.Late++
		e.stats.Degraded = true
	case drafts.Malformed:
		e.stats.Malformed++
		e.missing()
	case drafts.Lost:
		e.missing()
	}
	return false
}

// times splits the round's wait: draft is the time of a proposal, catchUp that of one which says little about the next,
// because the draft had the features of a prompt or of a gap to read.
func (e *exchange) times(proposed bool) (draft, catchUp time.Duration) {
	if e.warm || !proposed {
		return e.waited, 0
	}
	e.warm = true
	return 0, e.waited
}

// poll takes the answer to a question that is not waited for, if it is there.
func (e *exchange) poll(tree *ddtree.Tree) (proposed, answered bool) {
	outcome, answered := e.link.Poll(tree)
	if !answered {
		return false, false
	}
	switch outcome {
	case drafts.Proposed:
		e.warm = true
	case drafts.Malformed:
		e.stats.Malformed++
	}
	return outcome == drafts.Proposed, true
}

// forget gives up the answer to the last question.
func (e *exchange) forget() { e.link.Forget() }
