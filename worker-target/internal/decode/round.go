package decode

import (
	"context"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engineplugin"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"github.com/tandem-inference/tandem/worker-target/internal/drafts"
)

// ask plans the next round, which starts from the anchor, and asks the draft when the plan needs it.
func (r *run) ask(ctx context.Context) error {
	r.asked = false
	r.plan = auto.Plan{Kind: auto.Plain}
	// The block's rows are the tokens it can commit: more than are wanted are of no use. All rows must fit the context.
	limit := min(r.req.Max-r.out, r.info.MaxContext-r.length)
	if r.req.Guide != nil && r.certain() {
		return nil
	}
	if r.req.Mode == tandemv1.SpeculationMode_SPECULATION_MODE_OFF || limit < 2 {
		return nil
	}
	if r.sound.on {
		r.plan = r.sound.plan
		return nil
	}
	var plan auto.Plan
	if r.link != nil {
		plan = r.choosePlan(limit)
	} else {
		if r.drafts != nil && r.req.Mode != tandemv1.SpeculationMode_SPECULATION_MODE_LOOKUP {
			r.missing()
		}
		plan = r.unassisted(limit)
	}
	switch {
	case plan.Sound:
		if err := r.listen(ctx, plan); err != nil {
			return err
		}
		if !r.sound.on {
			plan = r.unassisted(limit)
		}
	case plan.Kind.Drafts() && !r.link.Ready():
		r.missing()
		plan = r.unassisted(limit)
	}
	r.plan = plan
	if !plan.Kind.Drafts() {
		return nil
	}
	r.asked = true
	r.askedAt = time.Now()
	if err := r.fetch(ctx); err != nil {
		return err
	}
	r.link.Ask(drafts.Ask{
		Anchor: r.anchor, Position: r.length, Mode: mode(plan.Kind), Block: plan.Block, Budget: plan.Budget, Deadline: r.deadline(plan.Block),
	})
	return nil
}

func (r *run) automatic() bool {
	switch r.req.Mode {
	case tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN, tandemv1.SpeculationMode_SPECULATION_MODE_TREE, tandemv1.SpeculationMode_SPECULATION_MODE_OFF,
		tandemv1.SpeculationMode_SPECULATION_MODE_LOOKUP:
		return false
	}
	return true
}

func mode(k auto.Kind) tandemv1.SpeculationMode {
	if k == auto.Tree {
		return tandemv1.SpeculationMode_SPECULATION_MODE_TREE
	}
	return tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN
}

// missing counts a round that wanted a draft and has none. In automatic mode a worker that was never given one is complete.
func (r *run) missing() {
	r.stats.Lost++
	r.warm = false
	if !r.automatic() || r.drafts.Known() {
		r.stats.Degraded = true
	}
}

// catchUp is how many times the shortest deadline the first proposal after a loss may take.
const catchUp = 5

// deadline of a proposal. The first of a request has the prompt's features to catch up with and gets the longest one. After a
// loss there are features to send again, but the draft may as well be hung: some more than usual, not all.
func (r *run) deadline(block int) time.Duration {
	switch {
	case r.warm:
		return r.model.Deadline(block, r.cfg.MinDeadline, r.cfg.MaxDeadline)
	case r.stats.Lost > 0:
		return r.model.Deadline(block, min(catchUp*r.cfg.MinDeadline, r.cfg.MaxDeadline), r.cfg.MaxDeadline)
	}
	return r.cfg.MaxDeadline
}

// width is the most rows of the next step.
func (r *run) width() int {
	return min(r.info.MaxTreeRows, r.info.MaxBatchRows, r.info.MaxContext-r.length)
}

// unassisted picks the plan of a round without a draft; limit is the largest useful block.
func (r *run) unassisted(limit int) auto.Plan {
	matched := r.matched()
	if matched == 0 {
		return auto.Plan{Kind: auto.Plain}
	}
	block := min(limit, r.width())
	if r.req.Mode != tandemv1.SpeculationMode_SPECULATION_MODE_LOOKUP || r.req.Block < 2 {
		return r.policy.Bare(r.length, block, matched)
	}
	if block = min(block, r.req.Block); block < 2 {
		return auto.Plan{Kind: auto.Plain}
	}
	return auto.Plan{Kind: auto.Lookup, Block: block, Budget: block - 1}
}

// choosePlan picks kind, block and budget of a request with a link to a draft; limit is the largest useful block.
func (r *run) choosePlan(limit int) auto.Plan {
	rows := r.width()
	block := r.capture.Block
	if r.req.Block >= 2 {
		block = min(block, r.req.Block)
	}
	block = min(block, limit)
	var plan auto.Plan
	switch r.req.Mode {
	case tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN:
		plan = auto.Plan{Kind: auto.Chain, Block: block, Budget: block - 1}
	case tandemv1.SpeculationMode_SPECULATION_MODE_TREE:
		budget := r.req.Budget
		if budget <= 0 {
			budget = r.cfg.TreeBudget
		}
		plan = auto.Plan{Kind: auto.Tree, Block: block, Budget: budget}
	default:
		plan = r.policy.Next(r.length, limit, r.matched())
	}
	plan.Budget = min(plan.Budget, rows-1)
	if plan.Kind == auto.Chain || plan.Kind == auto.Lookup {
		plan.Block = min(plan.Block, plan.Budget+1)
	}
	if plan.Kind != auto.Plain && (plan.Block < 2 || plan.Budget < 1) {
		return auto.Plan{Kind: auto.Plain}
	}
	return plan
}

// decode runs one round: wait for the proposal, verify, walk, ask for the next, emit.
func (r *run) decode(ctx context.Context) (tandemv1.FinishReason, error) {
	var waited time.Duration
	proposed, prolonged := false, 0
	r.tree.Reset(r.anchor)
	if r.plan.Kind == auto.Lookup {
		r.lookUp()
	}
	if r.asked {
		outcome := r.link.Wait(ctx, &r.tree)
		waited = time.Since(r.askedAt)
		r.stats.DraftWait += waited
		switch outcome {
		case drafts.Proposed:
			proposed = true
			if r.automatic() {
				r.policy.Cut(&r.tree, r.plan, r.length)
				prolonged = r.prolong()
			}
		case drafts.Late:
			r.stats.Late++
			r.stats.Degraded = true
		case drafts.Malformed:
			r.stats.Malformed++
			r.missing()
		case drafts.Lost:
			r.missing()
		}
		if !proposed {
			r.tree.Reset(r.anchor)
		}
	}
	if r.link == nil {
		r.attach(ctx, r.length)
	}
	if r.sound.on {
		r.hear()
	}

	added := false
	if r.req.Guide != nil {
		added = r.fit()
	}
	if err := r.makeRoom(ctx); err != nil {
		return 0, err
	}
	r.startStep()
	kept, keeps := r.wantKept(), r.keeps()
	if err := r.rows(); err != nil {
		return 0, err
	}
	// The anchor alone is kept whatever the step chooses: committing it at once saves the engine the replay of its state.
	r.group[0].Rows, r.group[0].Commit = r.tree.Len(), r.tree.Len() == 1
	start := time.Now()
	err := r.engine.Step(ctx, &r.step, &r.result)
	if err != nil {
		return 0, err
	}
	wall := time.Since(start)
	verify := time.Duration(r.result.EngineNanos)
	if verify <= 0 {
		verify = wall
	}
	n := r.tree.Len()
	featured := kept
	if r.link != nil && !keeps {
		featured += n
	}
	if err := r.checkResult(featured); err != nil {
		return 0, err
	}

	if r.req.Guide != nil {
		r.walk()
	} else {
		r.path = r.tree.Walk(r.result.Tokens, r.path)
	}
	r.stats.Verify += wall
	r.stats.Steps++
	r.stats.Drafted += n - 1
	if n == 1 {
		r.stats.Plain++
	}
	before := r.length
	reason := r.accept()
	if r.sound.on && !r.sound.rest {
		r.sound.chosen = append(r.sound.chosen, r.tokens...)
	}
	// Draft tokens behind a stop token were accepted by the walk but never leave the worker.
	accepted := min(len(r.path)-1, len(r.tokens))
	r.stats.Accepted += accepted
	looked := r.plan.Kind == auto.Lookup
	beyond := r.shorten(prolonged)
	if looked {
		r.stats.LookDrafted += n - 1
		r.stats.LookAccepted += accepted
	} else {
		r.stats.LookDrafted += prolonged
		r.stats.LookAccepted += max(0, accepted-(len(r.path)-1-beyond))
	}
	r.learnLooks(before)
	switch {
	case r.policy != nil && (n == 1 || r.asked || looked || r.sound.on):
		r.observe(before, n, beyond, verify, wall, waited, proposed, added)
	case n == 1:
		r.model.ObservePlain(before, r.others(n), verify, wall)
	}
	if reason == tandemv1.FinishReason_FINISH_REASON_UNSPECIFIED {
		if featured > 0 {
			r.ring.AppendRows(r.result.Features, kept)
			if !keeps {
				r.ring.AppendPath(r.result.Features[kept*r.capture.Width:], r.path)
			}
			r.link.Fed()
		}
		err = r.ask(ctx)
	}
	if lost := r.flush(); err == nil {
		err = lost
	}
	return reason, err
}

// rows fills the step with the tree's rows.
func (r *run) rows() error {
	features := uint32(0)
	switch {
	case r.keeps():
		features = engineplugin.WantKeep
	case r.link != nil:
		features = engineplugin.WantFeatures
	}
	for i := range r.tree.Len() {
		row := engineplugin.Row{
			Token: r.tree.Tokens[i], Position: int32(r.length) + r.tree.Depths[i], Parent: r.tree.Parents[i], Mask: -1,
		}
		if r.req.Guide == nil {
			r.choose(&row)
		} else if err := r.limit(&row, r.states[i]); err != nil {
			return err
		}
		row.Want |= features
		r.step.Rows = append(r.step.Rows, row)
	}
	return nil
}

// accept emits what the path's rows chose, in order, and advances the sequence by the path.
func (r *run) accept() tandemv1.FinishReason {
	r.begin()
	for _, row := range r.path {
		r.length++
		if reason := r.emit(int(row)); reason != tandemv1.FinishReason_FINISH_REASON_UNSPECIFIED {
			return reason
		}
	}
	return tandemv1.FinishReason_FINISH_REASON_UNSPECIFIED
}

// others is the number of rows of other requests in the last step, which had rows of this one.
func (r *run) others(rows int) int { return max(0, r.result.BatchRows-rows) }

// observe teaches the model what the round cost and brought; beyond tokens of the path are those that lookup added to a draft's. A tree
// with nodes that the guide added says nothing about the draft.
func (r *run) observe(length, rows, beyond int, verify, wall, waited time.Duration, proposed, added bool) {
	plan := r.plan
	if !r.asked && !plan.Sound && (plan.Kind != auto.Lookup || rows == 1) {
		plan = auto.Plan{Kind: auto.Plain}
	}
	r.round = auto.Round{Plan: plan, Length: length, Rows: rows, Others: r.others(rows), Verify: verify, Wall: wall}
	if r.asked {
		if r.warm || !proposed {
			r.round.Draft = waited
		} else {
			r.round.CatchUp = waited
		}
		r.warm = r.warm || proposed
	}
	switch {
	case added:
	case proposed:
		r.round.Tree, r.round.Path, r.round.Beyond = &r.tree, r.path[:len(r.path)-beyond], beyond
	case rows > 1:
		r.round.Path = r.path
	}
	r.policy.Observe(&r.round)
	if r.sound.rest {
		r.endRest(added)
	}
}
