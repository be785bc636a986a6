package speculate

import (
	"context"
	"reflect"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/ddtree"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"github.com/tandem-inference/tandem/worker-target/internal/drafts"
)

const (
	chain  = tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN
	tree   = tandemv1.SpeculationMode_SPECULATION_MODE_TREE
	lookup = tandemv1.SpeculationMode_SPECULATION_MODE_LOOKUP
)

// TestPlan: proposals are as large as the request says, and no larger than draft, engine, context and answer allow.
func TestPlan(t *testing.T) {
	type plan = auto.Plan
	for name, c := range map[string]struct {
		req        Request // without the engine's bounds: 64 rows
		left, free int     // 0 = plenty
		matched    int     // of a request without a draft
		want       plan
	}{
		"chain":              {req: Request{Mode: chain}, want: plan{Kind: auto.Chain, Block: 16, Budget: 15}},
		"chain of 4":         {req: Request{Mode: chain, Block: 4}, want: plan{Kind: auto.Chain, Block: 4, Budget: 3}},
		"no longer block":    {req: Request{Mode: chain, Block: 40}, want: plan{Kind: auto.Chain, Block: 16, Budget: 15}},
		"end of the answer":  {req: Request{Mode: chain}, left: 3, want: plan{Kind: auto.Chain, Block: 3, Budget: 2}},
		"end of the context": {req: Request{Mode: chain}, free: 5, want: plan{Kind: auto.Chain, Block: 5, Budget: 4}},
		"narrow engine":      {req: Request{Mode: chain, Rows: 8}, want: plan{Kind: auto.Chain, Block: 8, Budget: 7}},
		"engine of one row":  {req: Request{Mode: chain, Rows: 1}, want: plan{Kind: auto.Plain}},
		"tree":               {req: Request{Mode: tree, Budget: 22}, want: plan{Kind: auto.Tree, Block: 16, Budget: 22}},
		"tree of 40":         {req: Request{Mode: tree, Budget: 40}, want: plan{Kind: auto.Tree, Block: 16, Budget: 40}},
		"tree, narrow engine": {req: Request{Mode: tree, Budget: 22, TreeRows: 9},
			want: plan{Kind: auto.Tree, Block: 16, Budget: 8}},
		"lookup": {req: Request{Mode: lookup, Block: 7}, matched: 3, want: plan{Kind: auto.Lookup, Block: 7, Budget: 6}},
		"lookup at the end": {req: Request{Mode: lookup, Block: 7}, matched: 3, left: 4,
			want: plan{Kind: auto.Lookup, Block: 4, Budget: 3}},
		"nothing to look up": {req: Request{Mode: lookup, Block: 7}, matched: 0, want: plan{Kind: auto.Plain}},
	} {
		t.Run(name, func(t *testing.T) {
			or := func(n, otherwise int) int {
				if n == 0 {
					return otherwise
				}
				return n
			}
			c.req.Rows, c.req.TreeRows, c.req.Left = or(c.req.Rows, 64), or(c.req.TreeRows, 64), or(c.left, 100)
			at := At{Length: 10, Left: or(c.left, 100), Free: or(c.free, 100)}
			var p planner
			p.start(&Config{}, auto.New(), c.req)
			var got auto.Plan
			if c.req.Mode == lookup {
				p.speculates()
				got = p.without(at, c.matched)
			} else {
				p.attach(16, at)
				got = p.with(at, 0)
			}
			if got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
}

// drafter answers as it is told.
type drafter struct {
	outcome drafts.Outcome
	known   bool
}

func (d *drafter) Fed()                                                {}
func (d *drafter) Ready() bool                                         { return true }
func (d *drafter) Ask(drafts.Ask)                                      {}
func (d *drafter) Wait(context.Context, *ddtree.Tree) drafts.Outcome   { return d.outcome }
func (d *drafter) Poll(*ddtree.Tree) (o drafts.Outcome, answered bool) { return d.outcome, true }
func (d *drafter) Forget()                                             {}
func (d *drafter) Work() time.Duration                                 { return 0 }
func (d *drafter) Close()                                              {}
func (d *drafter) Known() bool                                         { return d.known }
func (d *drafter) Capture() *drafts.Capture                            { return nil }
func (d *drafter) Open(context.Context, string, *drafts.Ring, *drafts.Capture, int, bool) Drafter {
	return d
}

// TestOutcomes: what a draft's answers count as, and how long the next one is waited for.
func TestOutcomes(t *testing.T) {
	const shortest, longest = 20 * time.Millisecond, 400 * time.Millisecond
	for name, c := range map[string]struct {
		outcome   drafts.Outcome
		automatic bool // and no draft was ever named
		want      Stats
		deadline  time.Duration // of the next
	}{
		"proposed": {outcome: drafts.Proposed, deadline: shortest},
		"late":     {outcome: drafts.Late, want: Stats{Late: 1, Degraded: true}, deadline: longest},
		"lost":     {outcome: drafts.Lost, want: Stats{Lost: 1, Degraded: true}, deadline: catchUp * shortest},
		"malformed": {outcome: drafts.Malformed, want: Stats{Malformed: 1, Lost: 1, Degraded: true},
			deadline: catchUp * shortest},
		"lost, none was named": {outcome: drafts.Lost, automatic: true, want: Stats{Lost: 1}, deadline: catchUp * shortest},
	} {
		t.Run(name, func(t *testing.T) {
			model := auto.New()
			model.NewRequest(8, 64, nil).Observe(&auto.Round{ // a proposal takes a millisecond
				Plan: auto.Plan{Kind: auto.Chain, Block: 8, Budget: 7}, Length: 10, Rows: 8,
				Verify: time.Millisecond, Wall: time.Millisecond, Draft: time.Millisecond,
			})
			d := &drafter{outcome: c.outcome, known: !c.automatic}
			e := newExchange(d, shortest, longest)
			for range 2 { // what an earlier request counted does not count
				var stats Stats
				e.start(c.automatic, &stats)
				e.open(t.Context(), "", nil, nil, 0, false)
				if got := e.deadline(model, 8); got != longest {
					t.Errorf("the first proposal is waited for %v", got)
				}
				e.begin(true)
				proposed := e.wait(t.Context(), nil)
				if proposed != (c.outcome == drafts.Proposed) {
					t.Errorf("proposed %v", proposed)
				}
				if _, catchUp := e.times(proposed); (catchUp > 0) != proposed {
					t.Errorf("catching up took %v", catchUp)
				}
				if got := e.deadline(model, 8); got != c.deadline {
					t.Errorf("the next proposal is waited for %v, want %v", got, c.deadline)
				}
				stats.DraftWait = 0
				if stats != c.want {
					t.Errorf("%+v, want %+v", stats, c.want)
				}
			}
		})
	}
}

// TestExtensionIsRemoved: what prompt lookup added is taken off the tree before the policy learns from it.
func TestExtensionIsRemoved(t *testing.T) {
	var draft ddtree.Tree
	for name, c := range map[string]struct {
		path   []int32
		beyond int
	}{"none": {[]int32{0, 1}, 0}, "one": {[]int32{0, 1, 2, 4}, 1}, "both": {[]int32{0, 1, 2, 4, 5}, 2},
		"another branch": {[]int32{0, 3}, 0}} {
		t.Run(name, func(t *testing.T) {
			draft.Reset(1)
			a := draft.Add(2, 0, -1)
			leaf := draft.Add(3, a, -2)
			draft.Add(4, 0, -3)
			x := extension{n: 2}
			draft.Add(6, draft.Add(5, leaf, -2), -2)
			if got := x.remove(&draft, c.path); got != c.beyond || draft.Len() != 4 || draft.Depth() != 2 {
				t.Errorf("%d nodes on the path, want %d; %d rows left", got, c.beyond, draft.Len())
			}
		})
	}
}

// TestRoundsCountOtherRequests: the policy learns of the other requests of a step and of their rows, whatever drafts.
func TestRoundsCountOtherRequests(t *testing.T) {
	v := Verified{Before: 10, Others: 7, OtherRequests: 2, Beside: 64, Verify: 3 * time.Millisecond,
		Wall: 4 * time.Millisecond}
	want := auto.Round{
		Plan: auto.Plan{Kind: auto.Plain}, Length: 10, Rows: 1, Others: 7, OtherRequests: 2, Beside: 64,
		Verify: 3 * time.Millisecond, Wall: 4 * time.Millisecond,
	}
	if got := v.round(auto.Plan{Kind: auto.Plain}, 1); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
