package auto

import (
	"fmt"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
)

// heldTokens is the number of tokens without the draft, though there is one, after which automatic speculation counts
// as held back. Fewer would report every text that a draft predicts badly.
const heldTokens = 512

// Report holds a worker's current estimates of speculation. Times are in milliseconds, 0 = not known.
type Report struct {
	// Verify are the times of steps by rows at the context used last, Draft that of a proposal of the block used last.
	Verify map[int]float64
	Draft  float64
	Block  int
	// Prompt are the times of steps of prompt rows at that context, Beside what such rows add to a step of rounds.
	Prompt, Beside map[int]float64
	// Hop is what a step takes beyond the engine's time.
	Hop float64
	// Accepted is the share of a proposal's first, and of its fourth token that is assumed of a new request.
	First, Fourth float64
	// Outlook is the speed of the best plan with the draft, with what lookups gain beside it, divided by that of decoding
	// without it, as estimated for the newest round.
	Outlook float64
	// Bare is the speed of decoding without the draft, lookup included, divided by that of plain steps.
	Bare float64
	// Held reports that the draft has not been used for long because decoding without it is estimated to be faster;
	// Without are the tokens decoded since it was.
	Held    bool
	Without int
}

// reported are the row counts of Report.Verify.
var reported = [...]int{1, 2, 4, 8, 16, 24, 32, 64}

// reportedPrompts are those of Report.Prompt and Report.Beside.
var reportedPrompts = [...]int{64, 128, 256, 512}

// state of the worker, for reports. Guarded by Model.mu.
type state struct {
	length, block, without int
	outlook                float64
}

// note stores the estimates that a round was planned on.
func (s *state) note(length, block int, outlook float64) {
	s.length, s.block, s.outlook = length, block, outlook
}

// done counts the tokens of a round of a request that has a draft: a round that drafts because that is faster ends
// holding back.
func (s *state) done(plan Plan, tokens int, trial bool) {
	switch {
	case !plan.Kind.Drafts() || trial || plan.Probe:
		s.without += tokens
	default:
		s.without = 0
	}
}

// Report returns the current estimates.
func (m *Model) Report() Report {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &m.costs
	r := Report{
		Verify: map[int]float64{}, Prompt: map[int]float64{}, Beside: map[int]float64{},
		Block: m.state.block, Draft: 1e3 * c.draft(m.state.block), Hop: 1e3 * c.hop,
		Outlook: m.state.outlook, Bare: max(1, m.lookups.pace.mean(1)), Held: m.state.without >= heldTokens,
		Without: m.state.without,
	}
	for _, rows := range reported {
		r.Verify[rows] = 1e3 * c.step(rows, m.state.length)
	}
	for _, rows := range reportedPrompts {
		r.Prompt[rows] = 1e3 * m.promptTime(rows, m.state.length, false)
		r.Beside[rows] = 1e3 * m.promptTime(rows, m.state.length, true)
	}
	if p := c.plain[bucket(m.state.length)]; p > 0 {
		r.Verify[1] = min(r.Verify[1], 1e3*p)
	}
	var base rates
	m.acceptance.workerRates(&base)
	r.First, r.Fourth = base.chain[0], base.chain[3]
	return r
}

// Why returns in words why the draft is not used, or what it is used for.
func (r Report) Why() string {
	if r.Block < 2 {
		return "no round with a draft was planned yet"
	}
	return fmt.Sprintf("drafting is expected to be %.2f times as fast as decoding without it: a proposal takes %.1f ms, "+
		"a step of 16 rows %.1f ms, one of 1 row %.1f ms; "+
		"%.0f %% of first and %.0f %% of fourth tokens are right", r.Outlook, r.Draft, r.Verify[16], r.Verify[1],
		100*r.First, 100*r.Fourth)
}

// Message returns the report for heartbeats.
func (r Report) Message() *tandemv1.AutoSpeculation {
	m := &tandemv1.AutoSpeculation{
		DraftMs: r.Draft, DraftBlock: int32(r.Block), HopMs: r.Hop, FirstAccepted: r.First, FourthAccepted: r.Fourth,
		Outlook: r.Outlook, WithoutDraft: r.Bare, HeldBack: r.Held, TokensSinceDraft: int64(r.Without), Reason: r.Why(),
	}
	for _, rows := range reported {
		m.Steps = append(m.Steps, &tandemv1.StepTime{Rows: int32(rows), Ms: r.Verify[rows]})
	}
	for _, rows := range reportedPrompts {
		m.Prompts = append(m.Prompts, &tandemv1.StepTime{Rows: int32(rows), Ms: r.Prompt[rows]})
		m.PromptsBeside = append(m.PromptsBeside, &tandemv1.StepTime{Rows: int32(rows), Ms: r.Beside[rows]})
	}
	return m
}
