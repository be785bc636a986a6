package speculate

import (
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
)

// Request holds the properties of a request that speculation depends on.
type Request struct {
	ID          string
	Prompt      []int32
	Mode        tandemv1.SpeculationMode
	Budget      int  // nodes of trees
	Block       int  // 0 = the draft's; of prompt lookup: as long as pays
	Max         int  // output tokens, those of an earlier worker included
	Left        int  // of Max, still wanted
	Constrained bool // a constraint extends proposals itself
	Vocab       int
	TreeRows    int // the most rows of a draft tree, anchor included
	Rows        int // the most rows of a step
}

// At is a request's position between two steps.
type At struct {
	Anchor int32 // the newest token, not in the sequence yet
	Length int   // positions in the sequence
	Left   int   // tokens still wanted
	Free   int   // positions that the context has left
}

// limit is the largest useful block. Its rows are the tokens that it can commit: more than are wanted are of no use,
// and all rows must fit the context.
func (a At) limit() int { return min(a.Left, a.Free) }

// planner picks the kind and size of a request's proposals.
type planner struct {
	cfg    *Config
	model  *auto.Model
	req    Request
	policy *auto.Policy // nil while neither prompt lookup nor a draft is used
	block  int          // the draft's
}

func (p *planner) start(cfg *Config, model *auto.Model, r Request) {
	*p = planner{cfg: cfg, model: model, req: r}
}

// request returns what was started.
func (p *planner) request() *Request { return &p.req }

// speculates makes the policy of a request that is going to use proposals.
func (p *planner) speculates() {
	if p.policy == nil {
		p.policy = p.model.NewRequest(0, p.req.TreeRows, p.req.Prompt)
	}
}

// learns returns the policy, to learn from rounds; nil when the request uses no proposals.
func (p *planner) learns() *auto.Policy { return p.policy }

// attach plans with a draft of blocks of so many rows from now on. It reports whether the draft is held: not used at
// first.
func (p *planner) attach(block int, at At) (held bool) {
	p.block = block
	p.speculates()
	p.policy.Attach(block)
	return p.automatic() && p.policy.Held(at.Length, at.limit())
}

// automatic reports whether the policy chooses.
func (p *planner) automatic() bool {
	switch p.req.Mode {
	case tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN, tandemv1.SpeculationMode_SPECULATION_MODE_TREE,
		tandemv1.SpeculationMode_SPECULATION_MODE_OFF, tandemv1.SpeculationMode_SPECULATION_MODE_LOOKUP:
		return false
	}
	return true
}

// drafts reports whether the request wants a draft at all.
func (p *planner) drafts() bool {
	switch p.req.Mode {
	case tandemv1.SpeculationMode_SPECULATION_MODE_OFF, tandemv1.SpeculationMode_SPECULATION_MODE_LOOKUP:
		return false
	}
	return true
}

// looksUp reports whether the request uses prompt lookup.
func (p *planner) looksUp() bool {
	if p.req.Left <= 1 {
		return false
	}
	return p.req.Mode == tandemv1.SpeculationMode_SPECULATION_MODE_LOOKUP || p.automatic() && !p.cfg.NoLookup
}

// off reports whether a round at a place has nothing to gain from proposals.
func (p *planner) off(at At) bool {
	return p.req.Mode == tandemv1.SpeculationMode_SPECULATION_MODE_OFF || at.limit() < 2
}

// extends returns the size of the draft's block and how many tokens may be added after a whole one to a tree of so many
// rows. A constraint extends proposals itself.
func (p *planner) extends(at At, rows int) (block, limit int) {
	if p.req.Constrained {
		return p.block, 0
	}
	return p.block, min(p.width(at)-rows, at.Left-p.block)
}

// width is the most rows of a step at a place.
func (p *planner) width(at At) int { return min(p.req.TreeRows, p.req.Rows, at.Free) }

// without plans a round without a draft; the newest matched tokens stood in the text before.
func (p *planner) without(at At, matched int) auto.Plan {
	if matched == 0 {
		return auto.Plan{Kind: auto.Plain}
	}
	block := min(at.limit(), p.width(at))
	if p.req.Mode != tandemv1.SpeculationMode_SPECULATION_MODE_LOOKUP || p.req.Block < 2 {
		return p.policy.WithoutDraft(at.Length, block, matched)
	}
	if block = min(block, p.req.Block); block < 2 {
		return auto.Plan{Kind: auto.Plain}
	}
	return auto.Plan{Kind: auto.Lookup, Block: block, Budget: block - 1}
}

// with plans a round of a request that has a draft.
func (p *planner) with(at At, matched int) auto.Plan {
	rows := p.width(at)
	block := p.block
	if p.req.Block >= 2 {
		block = min(block, p.req.Block)
	}
	block = min(block, at.limit())
	var plan auto.Plan
	switch p.req.Mode {
	case tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN:
		plan = auto.Plan{Kind: auto.Chain, Block: block, Budget: block - 1}
	case tandemv1.SpeculationMode_SPECULATION_MODE_TREE:
		plan = auto.Plan{Kind: auto.Tree, Block: block, Budget: p.req.Budget}
	default:
		plan = p.policy.Next(at.Length, at.limit(), matched)
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
