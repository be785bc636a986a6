package auto

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/services/ddtree"
)

// world is a machine and a draft with known costs and quality, in which a policy can be run against fixed plans.
type world struct {
	verify func(rows int) float64 // milliseconds
	draft  func(block int) float64
	// truth[r] is the probability that the target chooses the draft's rank r, says[r] what the draft claims.
	truth, says []float64
	rng         *rand.Rand
	// probeExtra is the share of a draft's time by which it slows the target down when both work.
	probeExtra float64
	// after is the share by which the step after a draft's work is slower: weights left the cache. noise is the deviation
	// of the logarithm of measured steps.
	after, noise float64
	drafted      bool           // a draft was at work just now
	along        func(done int) // sets truth and says for a position in the text; nil = they do not change
}

const worldBlock, worldRows = 16, 32

func (w *world) propose(t *ddtree.Tree, b *ddtree.Builder, plan Plan) {
	n := plan.Block - 1
	c := &ddtree.Candidates{Stride: len(w.says), Positions: n}
	for range n {
		for r, p := range w.says {
			c.IDs = append(c.IDs, int32(r))
			c.Logprobs = append(c.Logprobs, float32(math.Log(p)))
		}
	}
	o := ddtree.Options{Budget: plan.Budget, ChainSeed: true}
	if plan.Kind == Chain {
		o.Width = 1
	}
	b.Build(t, 0, c, o)
}

func (w *world) walk(t *ddtree.Tree) []int32 {
	path := []int32{0}
	for {
		x := w.rng.Float64()
		token := int32(-1)
		for r, p := range w.truth {
			if x -= p; x < 0 {
				token = int32(r)
				break
			}
		}
		next := t.Child(path[len(path)-1], token)
		if token < 0 || next < 0 {
			return path
		}
		path = append(path, next)
	}
}

func ms(x float64) time.Duration { return time.Duration(x * float64(time.Millisecond)) }

// run decodes n tokens under the policy and returns milliseconds and rounds by kind.
func (w *world) run(p *Policy, n int) (total float64, rounds [kinds]int) {
	for done := 0; done < n; {
		if w.along != nil {
			w.along(done)
		}
		plan := p.Next(100, min(worldBlock, n-done), 0)
		rounds[plan.Kind]++
		ms, tokens := w.round(p, plan, n-done)
		total += ms
		done += tokens
	}
	return total, rounds
}

// round runs one plan where n tokens are wanted.
func (w *world) round(p *Policy, plan Plan, n int) (total float64, tokens int) {
	if plan.Probe {
		return w.probe(p, plan, n)
	}
	var t ddtree.Tree
	var b ddtree.Builder
	r := Round{Plan: plan, Length: 100, Rows: 1}
	if plan.Kind != Plain {
		w.propose(&t, &b, plan)
		p.Cut(&t, plan, 100)
		r.Tree, r.Rows, r.Path = &t, t.Len(), w.walk(&t)
		r.Draft = ms(w.draft(plan.Block))
	}
	r.Verify = ms(w.step(r.Rows))
	p.Observe(&r)
	return (r.Verify + r.Draft).Seconds() * 1e3, max(1, len(r.Path))
}

// step is the time of a step on an idle machine, as measured.
func (w *world) step(rows int) float64 {
	took := w.verify(rows)
	if w.drafted && rows == 1 {
		took *= 1 + w.after
	}
	w.drafted = rows > 1
	return took * math.Exp(w.noise*w.rng.NormFloat64()-w.noise*w.noise/2)
}

// sound decodes plainly while the draft works, at most n tokens, then verifies what is left of a proposal that
// was right.
func (w *world) probe(p *Policy, plan Plan, n int) (total float64, tokens int) {
	var t, rest ddtree.Tree
	var b ddtree.Builder
	w.propose(&t, &b, Plan{Kind: Chain, Block: plan.Block, Budget: plan.Budget})
	path := w.walk(&t)
	for draft := w.draft(plan.Block); total < draft && tokens < n; tokens++ {
		step := w.step(1) + w.probeExtra*min(w.verify(1), draft-total)
		total += step
		p.Observe(&Round{Plan: plan, Length: 100, Rows: 1, Verify: ms(step)})
	}
	w.drafted = true
	if tokens >= n || tokens >= len(path) || tokens+1 >= t.Len() {
		p.Probed(&t, min(tokens, len(path), t.Len()-1), path[:min(tokens+1, len(path))], 100)
		return total, tokens
	}
	rest.Reset(t.Tokens[tokens])
	at := int32(tokens)
	parents := make([]int32, 0, 16)
	for i := range t.Len() - tokens - 1 {
		parents = append(parents, int32(i))
	}
	var logprobs []float32
	for _, lp := range t.Logprobs[tokens+1:] {
		logprobs = append(logprobs, lp-t.Logprobs[at])
	}
	if err := rest.Set(t.Tokens[tokens], t.Tokens[tokens+1:], parents, logprobs,
		ddtree.Limits{Vocab: 8, Nodes: 31, Depth: 31}); err != nil {
		panic(err)
	}
	p.Rest(&rest, 100)
	rows := rest.Len()
	step := w.step(rows)
	got := min(len(path)-tokens, rows)
	plan.Kind = Chain
	p.Observe(&Round{Plan: plan, Length: 100, Rows: rows, Verify: ms(step), Path: path[:got]})
	p.Probed(&t, min(tokens+rows-1, len(path), t.Len()-1), path[:min(tokens+got, len(path))], 100)
	return total + step, tokens + got
}

// fixed is the time that one plan takes for n tokens.
func (w *world) fixed(plan Plan, n int) (total float64) {
	var t ddtree.Tree
	var b ddtree.Builder
	for done := 0; done < n; {
		if plan.Kind == Plain {
			total += w.verify(1)
			done++
			continue
		}
		w.propose(&t, &b, plan)
		total += w.verify(t.Len()) + w.draft(plan.Block)
		done += len(w.walk(&t))
	}
	return total
}

func (w *world) bestFixed(n int) float64 {
	best := math.Inf(1)
	for _, plan := range []Plan{
		{}, {Kind: Chain, Block: 4, Budget: 3}, {Kind: Chain, Block: 8, Budget: 7}, {Kind: Chain, Block: 16, Budget: 15},
		{Kind: Tree, Block: 16, Budget: 22}, {Kind: Tree, Block: 16, Budget: 31}, {Kind: Tree, Block: 16, Budget: 8},
	} {
		best = min(best, w.fixed(plan, n))
	}
	return best
}

func calibrated(w *world) *Model {
	m := New()
	for _, rows := range []int{1, 2, 4, 8, 16, 24, 32} {
		m.SetVerify(rows, ms(w.verify(rows)))
	}
	return m
}

func flat(rows int) float64      { return 10 + 0.1*float64(rows) }
func steep(rows int) float64     { return 2 + 8*float64(rows) }
func medium(rows int) float64    { return 8 + 2*float64(rows) }
func cheap(int) float64          { return 2 }
func dear(int) float64           { return 12 }
func perBlock(block int) float64 { return 1 + 0.5*float64(block) }

func TestRegret(t *testing.T) {
	good := []float64{.85, .08, .03, .01}
	fair := []float64{.6, .15, .08, .04}
	bad := []float64{.06, .03, .02, .01}
	for _, test := range []struct {
		name          string
		verify, draft func(int) float64
		truth, says   []float64
		slack         float64 // allowed time over the best fixed plan
	}{
		{"good draft, wide steps cheap", flat, cheap, good, good, 1.04},
		{"fair draft, wide steps cheap", flat, cheap, fair, fair, 1.04},
		{"fair draft, medium steps", medium, perBlock, fair, fair, 1.04},
		{"good draft, steep steps", steep, cheap, good, good, 1.04},
		{"overconfident draft", medium, perBlock, fair, []float64{.97, .01, .005, .002}, 1.04},
		{"modest draft", medium, perBlock, good, []float64{.4, .2, .1, .05}, 1.04},
		{"bad draft", medium, dear, bad, good, 1.04},
		{"bad draft, steep steps", steep, dear, bad, bad, 1.04},
		{"bad draft, but free", flat, func(int) float64 { return 0.05 }, bad, bad, 1.04},
	} {
		t.Run(test.name, func(t *testing.T) {
			const n = 6000
			w := &world{verify: test.verify, draft: test.draft, truth: test.truth, says: test.says, probeExtra: .5,
				rng: rand.New(rand.NewPCG(1, 2))}
			best := w.bestFixed(n)
			m := calibrated(w)
			got, rounds := w.run(m.NewRequest(worldBlock, worldRows, nil), n)
			// A constant for learning from nothing: twenty of the dearest rounds.
			start := 20 * (w.verify(worldRows) + w.draft(worldBlock))
			t.Logf("%.0f ms, best fixed plan %.0f ms (%.3f), plain %.0f ms, rounds %v", got, best, got/best,
				w.fixed(Plan{}, n), rounds)
			if got > best*test.slack+start {
				t.Errorf("took %.0f ms, best fixed plan %.0f ms, allowed %.0f ms", got, best, best*test.slack+start)
			}
		})
	}
}

// TestProbesAreBounded: a worker whose draft is known to be useless loses at most 3 % and a few rounds over
// many requests.
func TestProbesAreBounded(t *testing.T) {
	bad := []float64{.05, .03}
	w := &world{verify: medium, draft: dear, truth: bad, says: bad, probeExtra: .5, rng: rand.New(rand.NewPCG(3, 4))}
	m := calibrated(w)
	w.run(m.NewRequest(worldBlock, worldRows, nil), 500)
	var got float64
	const requests, tokens = 100, 50
	for range requests {
		ms, _ := w.run(m.NewRequest(worldBlock, worldRows, nil), tokens)
		got += ms
	}
	plain := w.fixed(Plan{}, requests*tokens)
	round := w.verify(worldRows) + w.draft(worldBlock)
	if got > 1.03*plain+4*round {
		t.Errorf("took %.0f ms, plain decoding %.0f ms", got, plain)
	}
}

// TestFollowsChanges: a draft that turns bad costs little, one that turns good again is taken up.
func TestFollowsChanges(t *testing.T) {
	good, bad := []float64{.9, .05}, []float64{.04, .03}
	w := &world{verify: medium, draft: dear, truth: good, says: good, rng: rand.New(rand.NewPCG(5, 6))}
	m := calibrated(w)
	p := m.NewRequest(worldBlock, worldRows, nil)
	w.run(p, 1000)

	w.truth = bad
	got, _ := w.run(p, 3000)
	plain := w.fixed(Plan{}, 3000)
	round := w.verify(worldRows) + w.draft(worldBlock)
	t.Logf("bad: %.0f ms, plain %.0f ms", got, plain)
	if got > 1.04*plain+30*round {
		t.Errorf("bad phase took %.0f ms, plain decoding %.0f ms", got, plain)
	}

	w.truth = good
	w.run(p, 3000) // until probes have shown it
	got, rounds := w.run(p, 2000)
	best := w.bestFixed(2000)
	t.Logf("good again: %.0f ms, best %.0f ms, rounds %v", got, best, rounds)
	if got > 1.15*best {
		t.Errorf("good phase took %.0f ms, best plan %.0f ms, rounds %v", got, best, rounds)
	}
}

// TestForgivesAHang: a draft that turned good while one of its proposals hung is asked again soon: within some hundred
// plain tokens, not after the many thousands that would repay a second at 3 %.
func TestForgivesAHang(t *testing.T) {
	bad := []float64{.06, .03, .02, .01}
	w := &world{verify: medium, draft: dear, truth: bad, says: bad, probeExtra: .5, rng: rand.New(rand.NewPCG(11, 12))}
	m := calibrated(w)
	p := m.NewRequest(worldBlock, worldRows, nil)
	w.run(p, 400) // plain, with probes
	for hung := false; !hung; {
		plan := p.Next(100, worldBlock, 0)
		if hung = plan.Probe; hung { // the machine swapped for a second
			p.Observe(&Round{Plan: plan, Length: 100, Rows: 1, Verify: ms(1200)})
			p.Probed(nil, 0, nil, 100)
			break
		}
		p.Observe(&Round{Plan: plan, Length: 100, Rows: 1, Verify: ms(w.verify(1))})
	}
	asked := 0
	for range 800 {
		plan := p.Next(100, worldBlock, 0)
		if plan.Probe || plan.Kind != Plain {
			asked++
			p.Probed(nil, 0, nil, 100)
			plan = Plan{}
		}
		p.Observe(&Round{Plan: plan, Length: 100, Rows: 1, Verify: ms(w.verify(1))})
	}
	if asked == 0 {
		t.Error("the draft is not asked within 800 tokens of a proposal that hung for 1.2 s")
	}
}

// TestSeeds: a request starts where the worker's last ones ended.
func TestSeeds(t *testing.T) {
	bad := []float64{.05, .03}
	w := &world{verify: medium, draft: dear, truth: bad, says: bad, probeExtra: .5, rng: rand.New(rand.NewPCG(7, 8))}
	m := calibrated(w)
	w.run(m.NewRequest(worldBlock, worldRows, nil), 1000)
	m.credit = 0
	if plan := m.NewRequest(worldBlock, worldRows, nil).Next(100, worldBlock, 0); plan.Kind != Plain {
		t.Errorf("first plan of a new request is %+v", plan)
	}
}

func TestCosts(t *testing.T) {
	var c costs
	if c.step(4, 100) != 0 || c.draft(16) != 0 {
		t.Error("an empty model has times")
	}
	c.set(1, 1)
	c.set(8, 2)
	if got := c.step(64, 0); got != 16 {
		t.Errorf("beyond the calibration: %v, want in proportion", got)
	}
	for range 200 {
		c.observeStep(6, 100, 5)
		c.observeStep(1, 20000, 9)
	}
	if got := c.step(6, 100); math.Abs(got-5) > 0.1 {
		t.Errorf("step(6) = %v after measurements of 5", got)
	}
	if got := c.step(1, 30000); math.Abs(got-9) > 0.1 {
		t.Errorf("long step = %v after measurements of 9", got)
	}
	if got := c.step(1, 100); got > 1.5 {
		t.Errorf("long context changed the short one to %v", got)
	}
	for range 50 {
		c.observeDraft(16, 3)
	}
	if got := c.draft(8); got != 3 {
		t.Errorf("draft(8) = %v, want that of the nearest block", got)
	}
}

func TestDeadline(t *testing.T) {
	m := New()
	floor, ceiling := 20*time.Millisecond, 400*time.Millisecond
	if d := m.Deadline(16, floor, ceiling); d != ceiling {
		t.Errorf("unknown draft: %v", d)
	}
	for _, test := range []struct{ draft, want time.Duration }{
		{time.Millisecond, floor}, {30 * time.Millisecond, 120 * time.Millisecond}, {time.Second, ceiling},
	} {
		m.costs.drafts[16] = test.draft.Seconds()
		if d := m.Deadline(16, floor, ceiling); d != test.want {
			t.Errorf("draft of %v: deadline %v, want %v", test.draft, d, test.want)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	fair := []float64{.6, .15, .08, .04}
	w := &world{verify: medium, draft: cheap, truth: fair, says: fair, rng: rand.New(rand.NewPCG(1, 1))}
	p := calibrated(w).NewRequest(worldBlock, worldRows, make([]int32, 64))
	var tree, scratch ddtree.Tree
	var b ddtree.Builder
	w.propose(&tree, &b, Plan{Kind: Tree, Block: 16, Budget: 31})
	scratch.Reset(0)
	if n := testing.AllocsPerRun(100, func() {
		plan := p.Next(100, 16, 0)
		if err := scratch.Set(0, tree.Tokens[1:], tree.Parents[1:], tree.Logprobs[1:],
			ddtree.Limits{Vocab: 8, Nodes: 31, Depth: 15}); err != nil {
			t.Fatal(err)
		}
		p.Cut(&scratch, plan, 100)
		p.Observe(&Round{Plan: plan, Length: 100, Rows: scratch.Len(), Verify: time.Millisecond,
			Tree: &scratch, Path: []int32{0}})
	}); n > 0 {
		t.Errorf("%v allocations a round", n)
	}
}

// TestMixedRequests: short requests of two kinds take turns, one that the draft predicts well and one that it does not.
// Each starts from what was learnt of both, so that the bad ones cannot know at once; they must find out within a
// few rounds.
func TestMixedRequests(t *testing.T) {
	good, poor := []float64{.97, .01}, []float64{.5, .12, .05}
	verify := func(rows int) float64 { return 0.9 + 0.13*float64(rows) }
	w := &world{verify: verify, draft: func(int) float64 { return 1.3 }, probeExtra: .5, rng: rand.New(rand.NewPCG(9, 9))}
	m := calibrated(w)
	const requests, tokens = 60, 60
	var spent, plain, best [2]float64
	for i := range requests {
		kind := i % 2
		w.truth = [][]float64{good, poor}[kind]
		w.says = w.truth
		ms, _ := w.run(m.NewRequest(worldBlock, worldRows, nil), tokens)
		spent[kind] += ms
		plain[kind] += w.fixed(Plan{}, tokens)
		best[kind] += w.bestFixed(tokens)
	}
	for kind, name := range []string{"good", "poor"} {
		t.Logf("%s: %.0f ms, best %.0f ms, plain %.0f ms", name, spent[kind], best[kind], plain[kind])
		if spent[kind] > 1.18*best[kind] {
			t.Errorf("%s requests took %.0f ms, the best plan %.0f ms", name, spent[kind], best[kind])
		}
	}
}
