package auto

import (
	"math/rand/v2"
	"testing"
)

// copies makes what lookup sees of n tokens of a text: a match begins after starts of the tokens without one, its next
// token is right with the chance that right gives for its length, and a wrong one ends it.
func copies(rng *rand.Rand, n int, starts float64, right func(matched int) float64) []Prediction {
	looked := make([]Prediction, n)
	matched := 0
	for i := range looked {
		looked[i] = Prediction{Matched: matched, Right: matched > 0 && rng.Float64() < right(matched)}
		switch {
		case looked[i].Right:
			matched++
		case rng.Float64() < starts:
			matched = 2
		default:
			matched = 0
		}
	}
	return looked
}

// read decodes the tokens of a text, as run does.
func (w *world) read(p *Policy, looked []Prediction) (total float64, rounds [kinds]int) {
	for len(looked) > 0 {
		plan := p.Next(100, len(looked), looked[0].Matched)
		rounds[plan.Kind]++
		var took float64
		var tokens int
		if plan.Kind == Lookup {
			took, tokens = w.lookupRound(looked, plan.Budget)
			p.Observe(&Round{Plan: plan, Length: 100, Rows: plan.Block, Verify: ms(took)})
		} else {
			took, tokens = w.round(p, plan, len(looked))
		}
		tokens = min(tokens, len(looked))
		p.ObserveLookup(looked[:tokens], 100)
		looked = looked[tokens:]
		total += took
	}
	return total, rounds
}

// lookUp is one round with a proposal of k tokens: its time and the tokens it commits.
func (w *world) lookupRound(looked []Prediction, k int) (took float64, tokens int) {
	for tokens < min(k, len(looked)-1) && looked[tokens].Right {
		tokens++
	}
	return w.step(1 + k), tokens + 1
}

// readFixed is the time of a text with lookups of k tokens wherever there is a match.
func (w *world) readFixed(looked []Prediction, k int) (total float64) {
	for len(looked) > 0 {
		n := min(k, len(looked)-1)
		if looked[0].Matched == 0 {
			n = 0
		}
		took, tokens := w.lookupRound(looked, n)
		total += took
		looked = looked[tokens:]
	}
	return total
}

func TestRegretWithLookup(t *testing.T) {
	good, bad := []float64{.85, .08, .03}, []float64{.06, .03, .02}
	chance := func(p float64) func(int) float64 { return func(int) float64 { return p } }
	growing := func(matched int) float64 { return min(.97, .4+.08*float64(matched)) }
	for _, test := range []struct {
		name   string
		starts float64
		right  func(int) float64
		truth  []float64 // of the draft, nil = there is none
		slack  float64   // allowed time over the best fixed plan
	}{
		{"useless, no draft", .5, chance(.05), nil, 1.01},
		{"useless, bad draft", .5, chance(.05), bad, 1.04},
		{"useless, good draft", .5, chance(.05), good, 1.04},
		{"rare, no draft", .02, growing, nil, 1.01},
		{"fair, no draft", .3, growing, nil, 1.01},
		{"fair, bad draft", .3, growing, bad, 1.04},
		{"fair, good draft", .3, growing, good, 1.01},
		{"verbatim, no draft", 1, chance(.995), nil, 1.10},
		{"verbatim, bad draft", 1, chance(.995), bad, 1.10},
		{"verbatim, good draft", 1, chance(.995), good, 1.10},
	} {
		for name, verify := range map[string]func(int) float64{"flat": flat, "medium": medium, "steep": steep} {
			t.Run(test.name+", "+name, func(t *testing.T) {
				const n = 6000
				w := &world{verify: verify, draft: dear, truth: test.truth, says: test.truth, probeExtra: .5,
					rng: rand.New(rand.NewPCG(1, 2))}
				looked := copies(w.rng, n, test.starts, test.right)
				best := w.fixed(Plan{}, n)
				block := 0
				if test.truth != nil {
					block, best = worldBlock, w.bestFixed(n)
				}
				plain := w.fixed(Plan{}, n)
				for _, k := range []int{1, 2, 3, 5, 7, 11, 15, 23, 31} {
					best = min(best, w.readFixed(looked, k))
				}
				got, rounds := w.read(calibrated(w).NewRequest(block, worldRows, nil), looked)
				start := 20 * w.verify(worldRows) // for learning from nothing
				if block > 0 {
					start += 20 * w.draft(worldBlock)
				}
				t.Logf("%.0f ms, best fixed plan %.0f ms (%.3f), plain %.0f ms, rounds %v", got, best, got/best, plain, rounds)
				if got > best*test.slack+start {
					t.Errorf("took %.0f ms, best fixed plan %.0f ms, allowed %.0f ms", got, best, best*test.slack+start)
				}
			})
		}
	}
}

// TestUselessLookup: short requests on a worker whose lookups are known to be useless lose next to nothing.
func TestUselessLookup(t *testing.T) {
	w := &world{verify: medium, rng: rand.New(rand.NewPCG(3, 4))}
	m := calibrated(w)
	useless := func(int) float64 { return .03 }
	w.read(m.NewRequest(0, worldRows, nil), copies(w.rng, 500, .5, useless))
	const requests, tokens = 100, 50
	var got float64
	for range requests {
		ms, _ := w.read(m.NewRequest(0, worldRows, nil), copies(w.rng, tokens, .5, useless))
		got += ms
	}
	if plain := w.fixed(Plan{}, requests*tokens); got > 1.005*plain {
		t.Errorf("took %.0f ms, plain decoding %.0f ms", got, plain)
	}
}

// TestLookupFollowsChanges: within one text lookup turns from good to useless and back.
func TestLookupFollowsChanges(t *testing.T) {
	w := &world{verify: medium, rng: rand.New(rand.NewPCG(5, 6))}
	p := calibrated(w).NewRequest(0, worldRows, nil)
	for i, right := range []float64{.97, .03, .97, .03} {
		looked := copies(w.rng, 400, .5, func(int) float64 { return right })
		best := min(w.fixed(Plan{}, len(looked)), w.readFixed(looked, 7), w.readFixed(looked, 15), w.readFixed(looked, 31))
		got, rounds := w.read(p, looked)
		t.Logf("part %d: %.0f ms, best fixed plan %.0f ms (%.3f), rounds %v", i, got, best, got/best, rounds)
		if got > 1.04*best+15*w.verify(worldRows) {
			t.Errorf("part %d: took %.0f ms, best fixed plan %.0f ms, rounds %v", i, got, best, rounds)
		}
	}
}

func TestLookupNoAllocation(t *testing.T) {
	w := &world{verify: medium, rng: rand.New(rand.NewPCG(1, 1))}
	p := calibrated(w).NewRequest(0, worldRows, nil)
	looked := []Prediction{{Matched: 3, Right: true}, {Matched: 4, Right: true}, {Matched: 5}}
	if n := testing.AllocsPerRun(100, func() {
		plan := p.Next(100, 16, 7)
		p.Observe(&Round{Plan: plan, Length: 100, Rows: plan.Budget + 1, Verify: 1e6})
		p.ObserveLookup(looked, 100)
	}); n > 0 {
		t.Errorf("%v allocations a round", n)
	}
}

// TestDraftReplacesPlainRounds: where lookup gains much, a round with the draft is compared with the plain round in its
// place, at the speed of decoding without the draft. It need not be as fast as that speed itself.
func TestDraftReplacesPlainRounds(t *testing.T) {
	m := calibrated(goldenCard())
	p := m.NewRequest(worldBlock, worldBlock, nil)
	p.last, p.lookups.pace = poorly, pace{tokens: 1.6e6, rounds: 1e6} // lookup makes 1.6 times plain decoding
	plain := m.costs.plainRound(100)
	token := p.tokenCost(100)
	for _, test := range []struct {
		tokens  float64
		without bool
	}{{1.7, true}, {1.9, false}} {
		// A round of 1.43 plain ones costs 0.43 * 1.6 = 0.69 tokens more than a plain one, and with the margin 0.80.
		best := estimate{tokens: test.tokens, seconds: 1.43 * plain}
		if _, without := p.compare(best, token); without != test.without {
			t.Errorf("rounds of %.1f tokens: without the draft %v, want %v", test.tokens, without, test.without)
		}
	}
}
