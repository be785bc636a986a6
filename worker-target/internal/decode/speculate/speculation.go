package speculate

import (
	"context"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/ddtree"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"github.com/tandem-inference/tandem/worker-target/internal/decode/text"
	"github.com/tandem-inference/tandem/worker-target/internal/drafts"
)

// answer is the output that a text has room for at once; a longer one lets its index grow.
const answer = 4096

// Speculation is that of one request after another. Its memory is kept between them.
type Speculation struct {
	cfg       Config
	model     *auto.Model
	text      *text.Text
	planner   planner
	exchange  exchange
	probe     probe
	extension extension
	plan      auto.Plan
	tree      ddtree.Tree // of the round
	proposed  bool        // by the draft that the round waited for
	round     auto.Round
	stats     *Stats
}

// New returns the speculation of a slot. It looks proposals up in t, which the caller keeps up to date.
func New(cfg Config, model *auto.Model, d Drafts, t *text.Text) *Speculation {
	return &Speculation{cfg: cfg, model: model, text: t, exchange: newExchange(d, cfg.MinDeadline, cfg.MaxDeadline)}
}

// Start begins a request, whose figures go to stats, and its text.
func (s *Speculation) Start(r Request, stats *Stats) {
	s.planner.start(&s.cfg, s.model, r)
	s.exchange.start(s.planner.automatic(), stats)
	s.probe.reset()
	s.plan, s.stats = auto.Plan{Kind: auto.Plain}, stats
	s.text.Stop()
	if s.planner.looksUp() {
		s.text.Start(len(r.Prompt) + min(r.Max, answer))
		s.planner.speculates()
	}
}

// Close ends a request.
func (s *Speculation) Close() { s.exchange.close() }

// Capture returns the features that a draft of the request needs; nil when none is attached, when the request has one
// already, or when it does not want one. left is the number of tokens still wanted.
func (s *Speculation) Capture(left int) *drafts.Capture {
	if s.exchange.attached() || !s.planner.drafts() || left <= 1 {
		return nil
	}
	return s.exchange.capture()
}

// Attach adds a draft that reads ring to the request, and returns it.
func (s *Speculation) Attach(ctx context.Context, ring *drafts.Ring, capture *drafts.Capture, at At) Drafter {
	held := s.planner.attach(capture.Block, at)
	r := s.planner.request()
	return s.exchange.open(ctx, r.ID, ring, capture, r.Vocab, held)
}

// Plan plans the next round. It reports whether the draft is to be asked: then the caller brings the ring of features
// up to the anchor and calls Ask. certain reports that the next token is certain.
func (s *Speculation) Plan(at At, certain bool) (ask bool) {
	s.plan = auto.Plan{Kind: auto.Plain}
	s.exchange.begin(false)
	switch {
	case certain || s.planner.off(at):
		return false
	case s.probe.running():
		s.plan = s.probe.planned()
		return false
	}
	matched := s.text.Matched()
	if !s.exchange.attached() {
		if s.planner.drafts() {
			s.exchange.missing()
		}
		s.plan = s.planner.without(at, matched)
		return false
	}
	plan := s.planner.with(at, matched)
	ask = plan.Probe || plan.Kind.Drafts()
	if ask && !s.exchange.ready() {
		if !plan.Probe {
			s.exchange.missing()
		}
		plan, ask = s.planner.without(at, matched), false
	}
	s.plan = plan
	s.exchange.begin(plan.Kind.Drafts())
	return ask
}

// Proposers of a round's tree.
const (
	ProposerNone       = "none"
	ProposerDraft      = "draft"
	ProposerLookup     = "lookup"
	ProposerConstraint = "constraint"
)

// Proposer says whose proposal the round's tree is, before Observe.
func (s *Speculation) Proposer() string {
	switch {
	case s.tree.Len() == 1:
		return ProposerNone
	case s.plan.Kind == auto.Lookup:
		return ProposerLookup
	case s.proposed || s.probe.verifies():
		return ProposerDraft
	}
	return ProposerConstraint
}

// Waited is how long the round waited for its proposal, the reading of features for the question included.
func (s *Speculation) Waited() time.Duration { return s.exchange.waited }

// Extended is the number of nodes at the end of the round's tree that prompt lookup added to the draft's proposal.
// Observe takes them away.
func (s *Speculation) Extended() int { return s.extension.nodes() }

// DraftWork is the time that the draft itself took for the proposal that the round waited for; 0 = there was none.
func (s *Speculation) DraftWork() time.Duration {
	if !s.proposed {
		return 0
	}
	return s.exchange.link.Work()
}

// Ask sends the draft the question that Plan announced. span is the id of the round's span, 0 = it has none.
func (s *Speculation) Ask(at At, span uint64) {
	mode := tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN
	if s.plan.Kind == auto.Tree {
		mode = tandemv1.SpeculationMode_SPECULATION_MODE_TREE
	}
	deadline := s.exchange.deadline(s.model, s.plan.Block)
	if s.plan.Probe {
		s.probe.start(s.plan, deadline)
	}
	s.exchange.ask(drafts.Ask{
		Anchor: at.Anchor, Position: at.Length, Mode: mode, Block: s.plan.Block, Budget: s.plan.Budget, Deadline: deadline,
		Span: span,
	})
}

// Asked reports whether the round waits for a proposal.
func (s *Speculation) Asked() bool { return s.exchange.waits() }

// Wait returns the tree of the round, after waiting for the draft if it was asked. The caller may change the tree and
// then calls Changed.
func (s *Speculation) Wait(ctx context.Context, at At) *ddtree.Tree {
	s.tree.Reset(at.Anchor)
	s.extension.reset()
	s.proposed = false
	switch {
	case s.plan.Kind == auto.Lookup:
		s.text.Propose(&s.tree, s.plan.Budget)
	case s.exchange.waits():
		if s.proposed = s.exchange.wait(ctx, &s.tree); !s.proposed {
			s.tree.Reset(at.Anchor)
		} else if s.planner.automatic() {
			s.shape(at)
		}
	case s.probe.running():
		s.poll(at)
	}
	return &s.tree
}

// shape cuts a proposal to what is worth its rows and extends it by prompt lookup.
func (s *Speculation) shape(at At) {
	policy := s.planner.learns()
	policy.Cut(&s.tree, s.plan, at.Length)
	if s.text.On() {
		block, limit := s.planner.extends(at, s.tree.Len())
		s.extension.add(&s.tree, s.text, policy, block, limit, at.Length)
	}
}

// poll takes the answer to a probe.
func (s *Speculation) poll(at At) {
	s.probe.poll(&s.exchange, s.planner.learns(), &s.tree, at.Length)
	switch {
	case s.probe.verifies():
		s.plan = s.probe.planned()
		s.plan.Kind = auto.Chain
	case !s.probe.running():
		s.plan = auto.Plan{Kind: auto.Plain}
	}
}

// Changed ends a probe whose plan is upset because the constraint changed the round's tree.
func (s *Speculation) Changed(at At) {
	if s.probe.running() {
		s.probe.cancel(&s.exchange, s.planner.learns(), at.Length)
		s.plan = auto.Plan{Kind: auto.Plain}
	}
}

// Verified is what a step made of a round's tree.
type Verified struct {
	Before, After int     // positions in the sequence before and after the round
	Path          []int32 // nodes of the tree that the target chose, root first
	Tokens        []int32 // committed: fewer than Path when the answer ended on the way
	Added         bool    // the constraint added nodes: the round says nothing about the draft
	Others        int     // rows of other requests' rounds that ran in the same step
	OtherRequests int     // those requests
	Beside        int     // rows of prompts that did
	// Verify is the engine's time for the step, Wall that of the whole call.
	Verify, Wall time.Duration
}

// round is what the policy learns from: a round of a plan with so many rows.
func (v *Verified) round(plan auto.Plan, rows int) auto.Round {
	return auto.Round{
		Plan: plan, Length: v.Before, Rows: rows, Others: v.Others, OtherRequests: v.OtherRequests, Beside: v.Beside,
		Verify: v.Verify, Wall: v.Wall,
	}
}

// Observe counts the results of the round and updates the policy.
func (s *Speculation) Observe(v *Verified) {
	rows := s.tree.Len()
	s.probe.choose(v.Tokens)
	extended := s.extension.nodes()
	beyond := s.extension.remove(&s.tree, v.Path)
	s.count(v, rows, extended, beyond)
	s.ObserveText(v.Before)
	switch {
	case s.planner.learns() != nil && (rows == 1 || s.exchange.waits() || s.plan.Kind == auto.Lookup || s.probe.running()):
		s.learn(v, rows, beyond)
	case rows == 1:
		r := v.round(auto.Plan{Kind: auto.Plain}, rows)
		s.model.ObservePlain(&r)
	}
}

// ObserveText updates the policy with what prompt lookup would have predicted of the newest tokens, which began at a
// length of so many positions.
func (s *Speculation) ObserveText(length int) {
	if predictions := s.text.Predictions(); len(predictions) > 0 {
		s.planner.learns().ObserveLookup(predictions, length)
	}
}

// count counts the tokens of a round. Draft tokens after a stop token are on the path but never leave the worker.
func (s *Speculation) count(v *Verified, rows, extended, beyond int) {
	accepted := min(len(v.Path)-1, len(v.Tokens))
	s.stats.Drafted += rows - 1
	s.stats.Accepted += accepted
	if s.plan.Kind == auto.Lookup {
		s.stats.LookDrafted += rows - 1
		s.stats.LookAccepted += accepted
	} else {
		s.stats.LookDrafted += extended
		s.stats.LookAccepted += max(0, accepted-(len(v.Path)-1-beyond))
	}
}

// learn reports the cost and result of a round of so many rows to the policy. beyond is the number of nodes at the end
// of the path that prompt lookup added to the draft's.
func (s *Speculation) learn(v *Verified, rows, beyond int) {
	plan := s.plan
	if !s.exchange.waits() && !plan.Probe && (plan.Kind != auto.Lookup || rows == 1) {
		plan = auto.Plan{Kind: auto.Plain}
	}
	s.round = v.round(plan, rows)
	if s.exchange.waits() {
		s.round.Draft, s.round.CatchUp = s.exchange.times(s.proposed)
	}
	switch {
	case v.Added:
	case s.proposed:
		s.round.Tree, s.round.Path, s.round.Extended = &s.tree, v.Path[:len(v.Path)-beyond], beyond
	case rows > 1:
		s.round.Path = v.Path
	}
	policy := s.planner.learns()
	policy.Observe(&s.round)
	if s.probe.verifies() {
		s.probe.decide(policy, s.tree.Nodes(), v.Path, v.Added, v.After)
		s.plan = auto.Plan{Kind: auto.Plain}
	}
}
