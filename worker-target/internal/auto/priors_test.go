package auto

import (
	"math/rand/v2"
	"testing"

	"github.com/tandem-inference/tandem/services/ddtree"
)

func TestPrefixesAreBounded(t *testing.T) {
	s := newPriors()
	first := s.open([]int32{1, 2, 3, 4})
	for i := range int32(3 * mostPriors) {
		s.add(&first, untried, 30, 90) // in use all the time
		o := s.open([]int32{-1, i, i, i, i, i, i, i})
		s.add(&o, untried, 30, 10)
		if len(s.all) > mostPriors || len(s.index) != len(s.all) {
			t.Fatalf("%d prefixes, %d of them found by their hash, want at most %d", len(s.all), len(s.index), mostPriors)
		}
	}
	if !s.has(&first, untried) {
		t.Error("a prefix in use was forgotten")
	}
	old := s.open([]int32{-1, 0, 0, 0, 0, 0, 0, 0})
	if s.has(&old, untried) {
		t.Error("the oldest prefix is still known")
	}
}

// TestPrefixesLean: requests lean on the longest prefix that they share with others, and what those saw counts once.
func TestPrefixesLean(t *testing.T) {
	s := newPriors()
	prompt := func(tail int32) []int32 {
		p := make([]int32, 20)
		p[10] = tail
		return p
	}
	good, bad := s.open(prompt(1)), s.open(prompt(2))
	for range 50 {
		s.add(&good, untried, 10, 30)
		s.add(&bad, untried, 10, 5)
	}
	fresh, foreign, short := s.open(prompt(3)), s.open([]int32{7, 7, 7, 7, 7}), s.open([]int32{0, 0})
	for _, test := range []struct {
		name   string
		o      promptPrefix
		lo, hi float64
	}{
		{"good", good, 2.9, 3}, {"bad", bad, .5, .6}, {"as both begin", fresh, 1.4, 2.1}, {"foreign", foreign, 1.5, 1.5},
		{"short", short, 1.5, 1.5},
	} {
		if got := s.mean(&test.o, untried, 1.5); got < test.lo || got > test.hi {
			t.Errorf("%s: %.2f, want %.2f to %.2f", test.name, got, test.lo, test.hi)
		}
	}
	one := s.open(make([]int32, 64))
	s = newPriors()
	s.add(&one, untried, priorWeight, 0)
	if got := s.mean(&one, untried, 2); got != 1 {
		t.Errorf("one round in five prefixes: %v, want that of one round, 1", got)
	}
}

// TestPrefixFollowsChanges: requests with one prefix lose clearly less than requests that share no prefix, while their
// draft is bad, after it has become good, and after it has become bad again. They start as the draft last was.
func TestPrefixFollowsChanges(t *testing.T) {
	const tokens, seeds = 60, 4
	type losses struct{ bad, good, badAgain float64 } // share of time lost against the best fixed plan, summed over seeds
	measure := func(prompt func(request int32) []int32) (lost losses, startsBad, startsGood int) {
		for seed := range uint64(seeds) {
			w := shared()
			w.rng = rand.New(rand.NewPCG(seed, 2))
			m := calibrated(w)
			n := int32(0)
			request := func() []int32 { n++; return prompt(n) }
			run := func(rate float64, requests int) (spent float64) {
				for range requests {
					spent += w.ask(m, text{tokens: tokens, rate: rate, prompt: request()})
					w.ask(m, text{tokens: tokens, lead: tokens, known: .97}) // others keep the worker's trust in its draft
				}
				return spent
			}
			drafts := func() int {
				if m.NewRequest(worldBlock, worldRows, request()).Next(100, worldBlock, 0).Kind.Drafts() {
					return 1
				}
				return 0
			}
			plain := w.fixed(Plan{}, 60*tokens)
			run(.4, 60)
			lost.bad += run(.4, 60)/plain - 1
			startsBad += drafts()
			run(.97, 120)
			spent := run(.97, 60)
			w.truth, w.says = ranks(.97), ranks(.97)
			lost.good += spent/w.bestFixed(60*tokens) - 1
			startsGood += drafts()
			lost.badAgain += run(.4, 60)/plain - 1
		}
		return lost, startsBad, startsGood
	}
	alike, startsBad, startsGood := measure(func(int32) []int32 { return []int32{1, 2, 3, 4, 5, 6, 7, 8} })
	apart, _, _ := measure(func(request int32) []int32 { return []int32{-request, 2, 3, 4, 5, 6, 7, 8} })
	t.Logf("lost in %d runs, by requests with one prefix %.3f, by others %.3f", seeds, alike, apart)
	const clearly = 0.9
	if alike.bad > clearly*apart.bad || alike.good > clearly*apart.good || alike.badAgain > clearly*apart.badAgain {
		t.Errorf("requests with one prefix lost %.3f, others %.3f", alike, apart)
	}
	if startsBad > 0 || startsGood < seeds {
		t.Errorf("%d of %d start with a draft that was bad, %d with one that was good", startsBad, seeds, startsGood)
	}
}

// TestColdStart: the first proposal of all takes as long as a draft needs that has just started; requests with the
// prefix of the one that waited for it are not held back for that.
func TestColdStart(t *testing.T) {
	w := shared()
	w.noise = 0
	m := calibrated(w)
	prompt := []int32{1, 2, 3, 4, 5}
	p := m.NewRequest(worldBlock, worldRows, prompt)
	plan := p.Next(100, worldBlock, 0)
	var tree ddtree.Tree
	var b ddtree.Builder
	w.truth, w.says = ranks(1), ranks(.95)
	w.propose(&tree, &b, plan)
	p.Observe(&Round{Plan: plan, Length: 100, Rows: tree.Len(), Verify: ms(w.verify(tree.Len())), CatchUp: ms(200),
		Tree: &tree, Path: w.walk(&tree)})
	w.run(p, 40)
	p = m.NewRequest(worldBlock, worldRows, prompt)
	if held, plan := p.Held(100, worldBlock), p.Next(100, worldBlock, 0); held || !plan.Kind.Drafts() {
		t.Errorf("held back: %v, starts with %+v", held, plan)
	}
}

// TestHeld: a request is held back from its draft where those with its prefix lost by drafting, and only there; what is
// told before the first round is what that round then does.
func TestHeld(t *testing.T) {
	w := shared()
	m := calibrated(w)
	good, bad, foreign := []int32{1, 1, 1, 1}, []int32{2, 2, 2, 2}, []int32{3, 3, 3, 3}
	if m.NewRequest(worldBlock, worldRows, bad).Held(100, worldBlock) {
		t.Error("held back by a worker without measurements")
	}
	for range 40 {
		w.ask(m, text{tokens: 60, lead: 60, known: .97, prompt: good})
		w.ask(m, text{tokens: 60, rate: .3, prompt: bad})
	}
	for _, test := range []struct {
		name   string
		prompt []int32
		held   bool
	}{{"good", good, false}, {"bad", bad, true}, {"foreign", foreign, false}} {
		p := m.NewRequest(worldBlock, worldRows, test.prompt)
		if got := p.Held(100, worldBlock); got != test.held {
			t.Errorf("%s: held %v, want %v", test.name, got, test.held)
		}
		if plan := p.Next(100, worldBlock, 0); test.held && (plan.Kind != Plain || plan.Probe) {
			t.Errorf("%s: held back, and then %+v", test.name, plan)
		}
		p = m.NewRequest(worldBlock, worldRows, test.prompt)
		if !p.Held(100, 1) {
			t.Errorf("%s: one token more, and not held back from the draft", test.name)
		}
	}
}

// TestPrefixInASlowMinute: while rounds draft, no plain step shows that the machine has become slow; good drafts must
// not look bad for it.
func TestPrefixInASlowMinute(t *testing.T) {
	w := shared()
	w.noise = 0
	w.truth, w.says = ranks(.97), ranks(.97)
	m := calibrated(w)
	prompt := []int32{1, 2, 3, 4, 5}
	w.run(m.NewRequest(worldBlock, worldRows, prompt), 100)
	verify, draft := w.verify, w.draft
	w.verify = func(rows int) float64 { return 3 * verify(rows) }
	w.draft = func(block int) float64 { return 3 * draft(block) }
	const requests = 5
	for i := range requests {
		p := m.NewRequest(worldBlock, worldRows, prompt)
		if plan := p.Next(100, worldBlock, 0); !plan.Kind.Drafts() {
			t.Errorf("request %d of a slow minute starts with %+v", i, plan)
		}
		w.run(p, worldBlock)
	}
}
