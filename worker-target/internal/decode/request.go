package decode

import (
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/worker-target/internal/constraint"
	"github.com/tandem-inference/tandem/worker-target/internal/decode/output"
	"github.com/tandem-inference/tandem/worker-target/internal/decode/reuse"
	"github.com/tandem-inference/tandem/worker-target/internal/decode/speculate"
)

// Request is a checked request.
type Request struct {
	ID        string
	Prompt    []int32
	Committed []int32 // generated before, part of Max
	Sampler   engine.Sampler
	Max       int
	Stop      []int32
	Mode      tandemv1.SpeculationMode
	Budget    int // 0 = the worker's choice
	Block     int // 0 = the draft's; of lookup: as long as pays
	// TopLogprobs: -1 = no log-probabilities, 0 = of chosen tokens only.
	TopLogprobs    int
	PromptLogprobs bool
	Constraint     *constraint.Constraint // nil = anything may be chosen
	Reuse          reuse.Request
	Priority       int   // requests with a higher one give up their memory later
	Place          Place // nil = the request keeps its slot and its memory also while its client does not read
	Arrived        time.Time
	// Watch names the request to those who watch the worker, 0 = it is not shown.
	Watch uint64
}

// Sink receives a request's output.
type Sink = output.Sink

// Result of a request that ended by itself.
type Result struct {
	Reason    tandemv1.FinishReason
	StopToken int32 // -1 = none
	// CloseKind is unspecified without a constraint of reasoning.
	CloseKind tandemv1.CloseKind
}

// Stats of a request, also of one that failed.
type Stats struct {
	Wait          time.Duration // for memory, or for another request that reads the same prompt
	CachedTokens  int           // of the prompt, restored
	Restore       time.Duration
	PrefillTokens int // read: those of the prompt that were not restored, and those of an earlier worker
	SavedTokens   int // of the longest state that was stored
	Prefill       time.Duration
	FirstToken    time.Duration // from arrival
	Decode        time.Duration // from the first to the last token
	Emitted       int
	Steps         int // verify steps, plain ones included
	Plain         int // steps without a tree
	Verify        time.Duration
	Preemptions   int // times that the request gave up its memory for others
	ReadAgain     int // tokens that it read again after that
	speculate.Stats
}

// Timings of the request that arrived at the given time and ends now.
func (s *Stats) Timings(arrived time.Time) *tandemv1.Timings {
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return &tandemv1.Timings{
		RestoreMs: ms(s.Restore), PrefillMs: ms(s.Prefill), TtftMs: ms(s.FirstToken), DecodeMs: ms(s.Decode),
		TotalMs:     ms(time.Since(arrived)),
		VerifySteps: int64(s.Steps), DraftedTokens: int64(s.Drafted), AcceptedTokens: int64(s.Accepted),
		LookupDraftedTokens: int64(s.LookDrafted), LookupAcceptedTokens: int64(s.LookAccepted),
		DraftWaitMs: ms(s.DraftWait), VerifyMs: ms(s.Verify), SpeculationDegraded: s.Degraded,
	}
}
