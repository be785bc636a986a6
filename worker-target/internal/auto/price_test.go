package auto

import (
	"testing"
	"time"

	"github.com/tandem-inference/tandem/services/ddtree"
)

// busy is a model after steps of so many requests at once, in which each got so many tokens a step. Rows cost a quarter
// of a plain step.
func busy(requests, tokens int) *Model {
	m := New()
	for _, rows := range rowBins {
		m.SetVerify(rows, ms(7.5+2.5*float64(rows)))
	}
	p := m.NewRequest(0, worldRows, nil)
	for range 200 {
		r := &Round{Length: 100, Rows: tokens, OtherRequests: requests - 1, Others: requests - 1}
		r.Path = make([]int32, tokens)
		r.Verify = ms(7.5 + 2.5*float64(r.Rows+r.Others))
		r.Wall = r.Verify + time.Microsecond
		p.Observe(r)
	}
	return m
}

// TestRowsArePricedForAll: what rows add to a step counts once for each request that waits for it, so that a lookup
// that pays alone is not used among eight.
func TestRowsArePricedForAll(t *testing.T) {
	const length, limit, matched = 100, 8, 4 // a match of 4 is right in 7 of 10 cases: 0.7 tokens for a quarter of a step
	for _, test := range []struct {
		requests int
		want     Kind
	}{{1, Lookup}, {2, Lookup}, {8, Plain}} {
		m := busy(test.requests, 1)
		p := m.NewRequest(0, worldRows, nil)
		if plan := p.WithoutDraft(length, limit, matched); plan.Kind != test.want {
			t.Errorf("%d requests: plan %+v, want kind %v", test.requests, plan, test.want)
		}
		c := &m.costs
		want := c.round(5, length) + float64(test.requests-1)*(c.round(5, length)-c.round(1, length))
		if got := p.price(5, length); got < 0.999*want || got > 1.001*want {
			t.Errorf("%d requests: 5 rows are priced at %.1f ms, want %.1f", test.requests, 1e3*got, 1e3*want)
		}
		if got, plain := p.price(1, length), c.plainRound(length); got != plain {
			t.Errorf("%d requests: a plain round is priced at %v, takes %v", test.requests, got, plain)
		}
	}
}

// TestFasterOthersCostMore: a request that gets fewer tokens than the others pays more for the time that it takes from
// them, up to mostWeight times.
func TestFasterOthersCostMore(t *testing.T) {
	for _, test := range []struct {
		others int // tokens a step
		weight float64
	}{{1, 1}, {3, 3}, {16, mostWeight}} {
		m := busy(2, test.others)
		p := m.NewRequest(0, worldRows, nil)
		p.flow = flow{tokens: m.flow.tokens / float64(test.others), seconds: m.flow.seconds}
		if got := p.waiting(); got < 0.999*test.weight || got > 1.001*test.weight {
			t.Errorf("others with %d tokens a step: a second of theirs counts %.2f, want %.2f", test.others, got, test.weight)
		}
	}
}

// TestTreesShrinkBesideOthers: a draft's proposal is cut to fewer rows where others wait for them.
func TestTreesShrinkBesideOthers(t *testing.T) {
	rows := func(requests int) int {
		m := busy(requests, 1)
		p := m.NewRequest(worldBlock, worldRows, nil)
		w := &world{says: []float64{.9, .05}}
		plan := Plan{Kind: Chain, Block: worldBlock, Budget: worldBlock - 1}
		var tree ddtree.Tree
		var b ddtree.Builder
		w.propose(&tree, &b, plan)
		p.Cut(&tree, plan, 100)
		return tree.Len()
	}
	alone, four := rows(1), rows(4)
	if four >= alone {
		t.Errorf("a chain is cut to %d rows alone, to %d among four requests", alone, four)
	}
}

// TestPlainRequestsCount: requests that never draft count, too.
func TestPlainRequestsCount(t *testing.T) {
	m := busy(1, 1)
	for range 200 {
		m.ObservePlain(&Round{Length: 100, Rows: 1, OtherRequests: 3, Others: 3, Verify: ms(17.5), Wall: ms(17.6)})
	}
	if p := m.NewRequest(0, worldRows, nil); p.waiting() < 2.99 || p.waiting() > 3.01 {
		t.Errorf("3 other requests count as %.2f", p.waiting())
	}
}
