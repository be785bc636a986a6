package auto

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// disturbed is a model whose steps were timed while other programs ran: some widths seem several times as slow as
// they are.
func disturbed(w *world, rng *rand.Rand) *Model {
	m := New()
	for _, rows := range []int{1, 2, 4, 8, 16, 24, 32} {
		factor := 1.0
		if rng.IntN(3) > 0 {
			factor = 2 + 3*rng.Float64()
		}
		m.SetVerify(rows, ms(factor*w.verify(rows)))
	}
	if rng.IntN(2) > 0 { // so were the draft's first proposals
		m.costs.drafts[worldBlock] = (2 + 3*rng.Float64()) * w.draft(worldBlock) / 1e3
	}
	return m
}

// serveTexts runs the texts in turns for so many ms of the machine's time and returns tokens a second, and the part of
// the rounds that asked the draft.
func serveTexts(w *world, m *Model, texts []goldenText, block int, ms float64) (speed, drafted float64) {
	spent, tokens, rounds, asked := 0.0, 0, 0, 0
	for i := 0; spent < ms; i++ {
		g := texts[i%len(texts)]
		r := w.open(m, g, block, g.IDs, 0)
		for r.left() > 0 {
			plan := r.plan
			if r.probe == nil {
				plan = r.p.Next(r.index.Len(), r.left()+1, r.index.Matched())
			}
			rounds++
			if plan.Kind.Drafts() {
				asked++
			}
			r.round(plan)
		}
		spent += r.ms
		tokens += len(g.Greedy)
	}
	return float64(tokens) / spent * 1e3, float64(asked) / float64(rounds)
}

// TestDisturbedStart: whatever the steps seemed to take while they were timed, after three seconds of requests decoding
// is as fast as after a start on an idle machine, and the draft is asked as often.
func TestDisturbedStart(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes under the race detector, and has one goroutine")
	}
	texts := goldenTexts(t)
	questions := slices.DeleteFunc(slices.Clone(texts), func(g goldenText) bool { return g.Kind == "fn" })
	for _, test := range []struct {
		name    string
		machine func() *world
		texts   []goldenText
	}{
		{"processors", goldenWorld, texts}, {"processors, texts that the draft predicts", goldenWorld, questions},
		{"card", goldenCard, texts},
	} {
		t.Run(test.name, func(t *testing.T) {
			after := func(model func(w *world) *Model) (speed, drafted float64) {
				w := test.machine()
				m := model(w)
				serveTexts(w, m, test.texts, worldBlock, 3000)
				return serveTexts(w, m, test.texts, worldBlock, 20000)
			}
			want, share := after(calibrated)
			t.Logf("idle start: %.0f tokens/s, %.0f %% of the rounds drafted", want, 100*share)
			for seed := range uint64(20) {
				got, drafted := after(func(w *world) *Model { return disturbed(w, rand.New(rand.NewPCG(seed, 9))) })
				t.Logf("start %d: %.3f of that, %.0f %% drafted", seed, got/want, 100*drafted)
				if got < 0.95*want || drafted < 0.8*share {
					t.Errorf("start %d: %.0f tokens/s and %.0f %% drafted, after an idle start %.0f and %.0f %%", seed, got,
						100*drafted, want, 100*share)
				}
			}
		})
	}
}

// TestHungFirstProposal: a first proposal that ran into its deadline while programs started is not the price of those
// that follow.
func TestHungFirstProposal(t *testing.T) {
	texts := slices.DeleteFunc(goldenTexts(t), func(g goldenText) bool { return g.Kind == "fn" })
	speed := func(hung float64) float64 {
		w := goldenWorld()
		m := calibrated(w)
		if hung > 0 {
			m.costs.observeDraft(worldBlock, hung)
		}
		serveTexts(w, m, texts, worldBlock, 3000)
		got, _ := serveTexts(w, m, texts, worldBlock, 10000)
		return got
	}
	want := speed(0)
	for _, hung := range []float64{.02, .1, .4, 2} {
		if got := speed(hung); got < 0.95*want {
			t.Errorf("after a first proposal of %.0f ms: %.0f tokens/s, without it %.0f", 1e3*hung, got, want)
		} else {
			t.Logf("after a first proposal of %.0f ms: %.3f of the speed without it", 1e3*hung, got/want)
		}
	}
}

// TestUselessDraft: a draft that is never right costs at most 1.5 % of plain decoding once a worker has seen it for
// three seconds, also after a disturbed start and where trials are cheap.
func TestUselessDraft(t *testing.T) {
	bad := []float64{.05, .03}
	for _, test := range []struct {
		name          string
		verify, draft func(int) float64
	}{
		{"medium steps, dear draft", medium, dear}, {"steep steps", steep, dear},
		{"processors", goldenWorld().verify, goldenWorld().draft},
		// Rounds cost little more than plain steps here, so trials never look hopeless and use their whole share.
		{"card", goldenCard().verify, goldenCard().draft},
	} {
		t.Run(test.name, func(t *testing.T) {
			for seed := range uint64(10) {
				w := &world{verify: test.verify, draft: test.draft, truth: bad, says: bad, probeExtra: .5,
					rng: rand.New(rand.NewPCG(seed, 4))}
				m := disturbed(w, rand.New(rand.NewPCG(seed, 9)))
				request := func() float64 {
					took, _ := w.run(m.NewRequest(worldBlock, worldRows, nil), 400)
					return took
				}
				for warm := 0.0; warm < 3000; warm += request() {
				}
				got, plain := 0.0, 0.0
				for range 50 {
					got += request()
					plain += 400 * w.verify(1)
				}
				t.Logf("start %d: %.4f times plain decoding", seed, got/plain)
				if got > 1.015*plain {
					t.Errorf("start %d: %.0f ms, plain decoding %.0f ms", seed, got, plain)
				}
			}
		})
	}
}

// TestUselessDraftAtFirst: a worker's second to fourth requests are hardly slower for a draft that is never right, also
// where they are short, their prompts new, and trials so cheap that one is made every few tokens. So it is measured by
// bench/served27, of which these times are, in ms: a 27B model on an H200 through HTTP. A plain token takes 5.76, a
// round with a chain of 16 takes 8.75 and one with a tree of 22 takes 9.64; the draft's part is 1.73.
func TestUselessDraftAtFirst(t *testing.T) {
	const seeds, requests, tokens, plain, chain, tree = 40, 3, 95, 5.76, 7.02, 7.91
	bad := []float64{.01, .01}
	spent := 0.0
	for seed := range uint64(seeds) {
		w := &world{truth: bad, says: bad, probeExtra: .5, rng: rand.New(rand.NewPCG(seed, 4))}
		w.draft = func(int) float64 { return 1.73 }
		w.verify = func(rows int) float64 {
			if rows <= worldBlock {
				return plain + (chain-plain)*float64(rows-1)/(worldBlock-1)
			}
			return chain + (tree-chain)*float64(rows-worldBlock)/7
		}
		m := calibrated(w)
		w.run(m.NewRequest(worldBlock, worldRows, nil), tokens)
		for range requests {
			took, _ := w.run(m.NewRequest(worldBlock, worldRows, nil), tokens)
			spent += took / (seeds * requests)
		}
	}
	t.Logf("%.4f times plain decoding", spent/(tokens*plain))
	if spent > 1.015*tokens*plain {
		t.Errorf("a request takes %.0f ms, plain decoding %.0f ms", spent, tokens*plain)
	}
}
