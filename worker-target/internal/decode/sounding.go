package decode

import (
	"context"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/ddtree"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"github.com/tandem-inference/tandem/worker-target/internal/drafts"
)

// sounding is a proposal that was asked for and is not waited for: decoding goes on plainly, and what it chooses shows what the
// proposal is worth.
type sounding struct {
	on      bool
	plan    auto.Plan
	askedAt time.Time
	limit   time.Duration // after which no answer is expected any more
	chosen  []int32       // tokens chosen since the question
	chain   ddtree.Tree   // the proposal
	path    []int32       // of chain: what was chosen
	rest    bool          // the round in work verifies what is left of chain
	matched int           // nodes of chain that were chosen before that
}

// listen begins a sounding as plan wants it. A draft that is not there or owes an answer is left alone.
func (r *run) listen(ctx context.Context, plan auto.Plan) error {
	s := &r.sound
	if !r.link.Ready() {
		return nil
	}
	if err := r.fetch(ctx); err != nil {
		return err
	}
	s.on, s.rest, s.plan, s.askedAt, s.chosen = true, false, plan, time.Now(), s.chosen[:0]
	s.limit = r.deadline(plan.Block)
	r.link.Ask(drafts.Ask{
		Anchor: r.anchor, Position: r.length, Mode: tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN,
		Block: plan.Block, Budget: plan.Budget, Deadline: s.limit,
	})
	return nil
}

// hear looks whether the draft has answered. A proposal that was right so far leaves its rest in r.tree, to be verified now.
func (r *run) hear() {
	s := &r.sound
	outcome, ok := r.link.Poll(&s.chain)
	if !ok {
		if len(s.chosen) > s.plan.Budget || time.Since(s.askedAt) > s.limit {
			r.link.Forget()
			r.endSounding(nil, 0)
		}
		return
	}
	if outcome != drafts.Proposed {
		if outcome == drafts.Malformed {
			r.stats.Malformed++
		}
		r.endSounding(nil, 0)
		return
	}
	r.warm = true
	s.path = append(s.path[:0], 0)
	for _, token := range s.chosen {
		next := s.chain.Child(s.path[len(s.path)-1], token)
		if next < 0 {
			break
		}
		s.path = append(s.path, next)
	}
	matched := len(s.path) - 1
	if matched < len(s.chosen) || matched == s.chain.Nodes() {
		r.endSounding(&s.chain, min(matched+1, s.chain.Nodes()))
		return
	}
	s.chain.Below(s.path[matched], &r.tree)
	r.policy.Rest(&r.tree, r.length)
	if r.tree.Len() == 1 {
		r.endSounding(&s.chain, matched)
		return
	}
	s.rest, s.matched = true, matched
	r.plan = s.plan
	r.plan.Kind = auto.Chain
}

// endRest ends a sounding whose rest was verified: r.path is what the target chose of it. Where a guide put nodes of its own
// among them, only what was chosen before counts.
func (r *run) endRest(added bool) {
	s := &r.sound
	if added {
		r.endSounding(&s.chain, s.matched)
		return
	}
	for range r.path[1:] {
		s.path = append(s.path, int32(len(s.path)))
	}
	r.endSounding(&s.chain, min(s.matched+r.tree.Nodes(), len(s.path)))
}

// endSounding tells the policy what a sounding brought: how many nodes of chain were compared with choices of the target.
func (r *run) endSounding(chain *ddtree.Tree, tested int) {
	r.sound.on, r.sound.rest = false, false
	r.plan = auto.Plan{Kind: auto.Plain}
	r.policy.Sounded(chain, tested, r.sound.path, r.length)
}
