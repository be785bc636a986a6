package auto

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/tandem-inference/tandem/services/ddtree"
)

// text is a kind of request: its length, and how well the draft predicts it along the way.
type text struct {
	tokens int
	lead   int     // tokens at the start
	known  float64 // acceptance of the draft's first choice there
	rate   float64 // and after them
	prompt []int32
}

// ranks are chances of a draft's candidates when the first is right with probability p: a third of what it misses
// is second.
func ranks(p float64) []float64 { return []float64{p, (1 - p) / 3, (1 - p) / 8, (1 - p) / 16} }

// shared is a machine of two processors that target and draft share, in units of a plain step, after measurements of
// the demonstration models: a plain step beside a draft takes more than twice its time, and the one after it is
// slower too.
func shared() *world {
	return &world{
		verify:     func(rows int) float64 { return 0.84 + 0.16*float64(rows) },
		draft:      func(block int) float64 { return 1.2 + 0.055*float64(block) },
		probeExtra: 1.3, after: 0.4, noise: 0.3, rng: rand.New(rand.NewPCG(1, 2)),
	}
}

// ask runs one request and returns its time.
func (w *world) ask(m *Model, t text) float64 {
	w.along = func(done int) {
		w.truth = ranks(t.rate)
		if done < t.lead {
			w.truth = ranks(t.known)
		}
		w.says = w.truth
	}
	defer func() { w.along = nil }()
	spent, _ := w.run(m.NewRequest(worldBlock, worldRows, t.prompt), t.tokens)
	return spent
}

// TestRegretOfTexts: questions and tool calls, which the draft predicts exactly, take turns with functions, of which it
// predicts how they begin. Lengths and rates are those of the demonstration models. A function is best decoded plainly
// after its first round; the others must not suffer for what functions teach.
func TestRegretOfTexts(t *testing.T) {
	rates := []float64{.3, .45, .55, .6, .65, .72}
	slack := map[byte]float64{'f': 1.03, 'q': 1.04, 'c': 1.04}
	for name, cycle := range map[string]string{
		"functions": "f", "in turn": "qfcf", "in blocks": "qqqqqqqqqqqqccccccccccccffffffffffffffff",
	} {
		t.Run(name, func(t *testing.T) {
			w := shared()
			m := calibrated(w)
			spent, best := map[byte]float64{}, map[byte]float64{}
			for i := range 800 {
				kind := cycle[i%len(cycle)]
				var x text
				switch kind {
				case 'q':
					x = text{tokens: 58, lead: 58, known: .98}
				case 'c':
					x = text{tokens: 25, lead: 25, known: .97}
				case 'f':
					x = text{tokens: 10 + int(50*w.rng.ExpFloat64()), lead: 5 + w.rng.IntN(6), known: .93,
						rate: rates[w.rng.IntN(len(rates))]}
				}
				spent[kind] += w.ask(m, x)
				if kind == 'f' {
					best[kind] += w.fixed(Plan{}, x.tokens)
				} else {
					best[kind] += w.bestFixed(x.tokens)
				}
			}
			for kind := range best {
				t.Logf("%c: %.0f, best plan %.0f (%.3f)", kind, spent[kind], best[kind], spent[kind]/best[kind])
				if spent[kind] > slack[kind]*best[kind] {
					t.Errorf("%c: took %.0f, the best plan %.0f, allowed %.2f times that", kind, spent[kind], best[kind], slack[kind])
				}
			}
		})
	}
}

// TestGoodLater: a draft that predicts the second half of a text is taken up there, also on a worker that has seen it
// fail often.
func TestGoodLater(t *testing.T) {
	w := shared()
	m := calibrated(w)
	for range 30 {
		w.ask(m, text{tokens: 60, rate: .4})
	}
	const requests, half = 40, 300
	var spent, best, plain float64
	for range requests {
		spent += w.ask(m, text{tokens: 2 * half, lead: half, known: .4, rate: .97})
		w.truth = ranks(.97)
		w.says = w.truth
		plain += w.fixed(Plan{}, half)
		best += w.fixed(Plan{}, half) + w.bestFixed(half)
	}
	t.Logf("%.0f, best plans %.0f (%.3f), plain %.0f", spent, best, spent/best, 2*plain)
	if spent > 1.15*best {
		t.Errorf("took %.0f, the best plan of each half %.0f", spent, best)
	}
}

// TestTries: where target and draft share processors, trials are rounds that wait for the draft, else probes; on a
// draft that is hopeless they become rare.
func TestTries(t *testing.T) {
	for _, test := range []struct {
		name       string
		probeExtra float64
		rate       float64
		sounds     bool
	}{{"shared", 1.3, .6, false}, {"apart", 0, .6, true}, {"hopeless", 1.3, .05, true}} {
		t.Run(test.name, func(t *testing.T) {
			w := shared()
			w.probeExtra = test.probeExtra
			w.truth = ranks(test.rate)
			w.says = w.truth
			m := calibrated(w)
			p := m.NewRequest(worldBlock, worldRows, nil)
			w.run(p, 1000)
			probes, rounds := 0, 0
			const tokens = 5000
			for done := 0; done < tokens; {
				p.m.credit = math.Inf(1) // the gap alone decides
				plan := p.Next(100, worldBlock, 0)
				switch {
				case plan.Probe:
					probes++
				case plan.Kind != Plain:
					rounds++
				}
				_, n := w.round(p, plan, tokens-done)
				done += n
			}
			t.Logf("%d probes, %d rounds", probes, rounds)
			if test.sounds != (probes > rounds) {
				t.Errorf("%d probes, %d rounds", probes, rounds)
			}
			if most := tokens / mostGap * 3 / 2; test.rate < .1 && probes+rounds > most {
				t.Errorf("a hopeless draft is tried %d times in %d tokens, want at most %d", probes+rounds, tokens, most)
			}
		})
	}
}

// TestRightProbes: requests that begin with a probe which was right as far as it went do not make later ones begin so.
func TestRightProbes(t *testing.T) {
	w := shared()
	w.truth = ranks(1)
	w.says = w.truth
	m := calibrated(w)
	m.costs.drafts[worldBlock] = w.draft(worldBlock) / 1e3
	for range startMemory {
		var chain ddtree.Tree
		var b ddtree.Builder
		w.propose(&chain, &b, Plan{Kind: Chain, Block: worldBlock, Budget: worldBlock - 1})
		m.NewRequest(worldBlock, worldRows, nil).Probed(&chain, 2, []int32{0, 1, 2}, 100)
	}
	if losing := m.losing.mean(0); losing > 0 {
		t.Errorf("%.2f of the first proposals count as lost", losing)
	}
}
