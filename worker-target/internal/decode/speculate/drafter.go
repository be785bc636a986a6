package speculate

import (
	"context"
	"time"

	"github.com/tandem-inference/tandem/services/ddtree"
	"github.com/tandem-inference/tandem/worker-target/internal/drafts"
)

// Drafter is the draft of one request; *drafts.Link implements it.
type Drafter interface {
	// Fed reports that the ring has new rows.
	Fed()
	// Ready reports whether asking makes sense now.
	Ready() bool
	Ask(a drafts.Ask)
	Wait(ctx context.Context, tree *ddtree.Tree) drafts.Outcome
	// Poll returns the answer without waiting; ok is false while there is none.
	Poll(tree *ddtree.Tree) (outcome drafts.Outcome, ok bool)
	// Work is the time that the draft's engine and its tree took for the last proposal, 0 = not known.
	Work() time.Duration
	// Forget gives up the answer to the last Ask.
	Forget()
	Close()
}

// Drafts opens drafters; *drafts.Manager, wrapped, implements it.
type Drafts interface {
	// Known reports whether any draft was ever named.
	Known() bool
	// Capture is what features the engine delivers now, nil for none.
	Capture() *drafts.Capture
	// Open starts the draft of a request. A held one is sent nothing before the first question.
	Open(ctx context.Context, id string, ring *drafts.Ring, capture *drafts.Capture, vocab int, held bool) Drafter
}

// Config of speculation, the same for all requests.
type Config struct {
	// NoLookup keeps automatic speculation from prompt lookup.
	NoLookup bool
	// Proposals are waited for at least MinDeadline, or four times the expected time, at most MaxDeadline.
	MinDeadline, MaxDeadline time.Duration
}

// Stats of a request's speculation.
type Stats struct {
	Drafted      int // draft tokens verified
	Accepted     int
	LookDrafted  int // of Drafted and Accepted: proposed by prompt lookup
	LookAccepted int
	DraftWait    time.Duration
	Late         int // proposals that missed their deadline
	Malformed    int
	Lost         int // rounds that wanted a draft and had none
	Degraded     bool
}
