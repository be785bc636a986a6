package auto

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
)

var ablationFile = flag.String("ablation", "", "write the figures of TestAblation to this file, as JSON")

// part is a part of the policy that is taken away: before every plan, or by what the request does not get.
type part struct {
	name     string
	plan     func(m *Model, p *Policy, next func() Plan) Plan // nil = next alone
	noLookup bool
	noDraft  bool
	noPrompt bool // no prior: the policy sees no prompt
	frozen   bool // times of steps stay those of the start
	chains   bool // no wider steps than a chain's
}

func uncalibrated(m *Model, _ *Policy, next func() Plan) Plan {
	clear(m.calibration[:])
	return next()
}

var parts = []part{
	{name: "all parts"},
	{name: "lookup", noLookup: true},
	{name: "draft", noDraft: true},
	{name: "corrected times", frozen: true},
	{name: "calibration", plan: uncalibrated},
	{name: "priors", noPrompt: true},
	{name: "calibration and priors", noPrompt: true, plan: uncalibrated},
	{name: "probes and trials", plan: func(_ *Model, p *Policy, next func() Plan) Plan {
		p.since = 0
		return next()
	}},
	{name: "narrowing with load", plan: func(m *Model, _ *Policy, next func() Plan) Plan {
		m.costs.others, m.costs.otherRequests = 0, 0
		return next()
	}},
	{name: "price of waiting", plan: func(m *Model, _ *Policy, next func() Plan) Plan {
		m.costs.otherRequests = 0
		return next()
	}},
	{name: "trees", chains: true},
}

// setting is a machine, a draft and traffic in which parts are taken away.
type setting struct {
	name    string
	machine func() *world
	wrong   float64 // times of wide steps at the start, times the true ones
	clients int
	unseen  bool // no prompt has a prior: all are new
	later   bool // the draft predicts nothing in the first half of the turns, which do not count
	without []string
}

var settings = []setting{
	{name: "demonstration cluster", machine: goldenWorld, wrong: 1, clients: 1,
		without: []string{"lookup", "calibration", "priors", "calibration and priors", "probes and trials"}},
	{name: "demonstration cluster, new prompts", machine: goldenWorld, wrong: 1, clients: 1, unseen: true,
		without: []string{"calibration"}},
	{name: "card", machine: goldenCard, wrong: 1, clients: 1,
		without: []string{"lookup", "draft", "calibration", "priors", "calibration and priors", "probes and trials"}},
	{name: "card, start measured wide steps as 3 times as long", machine: goldenCard, wrong: 3, clients: 1,
		without: []string{"corrected times"}},
	{name: "cluster, the draft improves", machine: goldenWorld, wrong: 1, clients: 1, later: true,
		without: []string{"probes and trials"}},
	{name: "card, the draft improves", machine: goldenCard, wrong: 1, clients: 1, later: true,
		without: []string{"probes and trials"}},
	{name: "card, 4 requests at a time", machine: goldenCard, wrong: 1, clients: 4,
		without: []string{"narrowing with load", "price of waiting", "lookup", "draft"}},
	{name: "card, 8 requests at a time", machine: goldenCard, wrong: 1, clients: 8,
		without: []string{"narrowing with load", "price of waiting", "lookup", "draft"}},
}

// speed is the texts' decoding with a part taken away, times plain decoding with the same number of clients.
func (s *setting) speed(texts []goldenText, without *part, seed uint64) float64 {
	const turns = 12
	w := s.machine()
	w.rng = rand.New(rand.NewPCG(seed, 2))
	m := New()
	for _, rows := range rowBins {
		took := w.verify(rows)
		if rows > 1 {
			took *= s.wrong
		}
		m.SetVerify(rows, ms(took))
	}
	start := m.costs.times
	type traffic struct {
		text   goldenText
		counts bool
	}
	var waiting []traffic
	for turn := range turns {
		order := slices.Clone(texts)
		w.rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for _, g := range order {
			early := s.later && turn < turns/2
			if early {
				g.known = make([]bool, len(g.Greedy)+1)
			}
			waiting = append(waiting, traffic{g, !early})
		}
	}
	type client struct {
		*reading
		counts bool
	}
	open := make([]client, 0, s.clients)
	var spent, plain float64
	for {
		for len(open) < s.clients && len(waiting) > 0 {
			next := waiting[0]
			waiting = waiting[1:]
			prompt, block := next.text.IDs, worldBlock
			if without.noPrompt || s.unseen {
				prompt = nil
			}
			if without.noDraft {
				block = 0
			}
			r := w.open(m, next.text, block, prompt, 0)
			r.noLookup, r.rows = without.noLookup, 1
			open = append(open, client{r, next.counts})
		}
		if len(open) < s.clients { // fewer at a time than the setting says
			return plain / spent
		}
		rows := 0
		for _, r := range open {
			rows += r.rows
		}
		for _, r := range open {
			r.otherRequests, r.others = len(open)-1, rows-r.rows
			before, at := r.ms, r.at
			s.round(m, r.reading, without)
			if without.frozen {
				m.costs.times = start
			}
			if r.counts {
				spent += (r.ms - before) / float64(s.clients)
				plain += float64(r.at-at) * w.verify(s.clients) / float64(s.clients)
			}
		}
		open = slices.DeleteFunc(open, func(r client) bool { return r.left() <= 0 })
	}
}

func (s *setting) round(m *Model, r *reading, without *part) {
	plan := r.plan
	if r.probe == nil {
		next := func() Plan {
			matched := r.index.Matched()
			if r.noLookup {
				matched = 0
			}
			return r.p.Next(r.index.Len(), r.left()+1, matched)
		}
		if without.plan == nil {
			plan = next()
		} else {
			plan = without.plan(m, r.p, next)
		}
	}
	r.round(plan)
}

// treeSpeed is the decoding of a text whose next token is the draft's first choice with probability first and one of
// the next two in most other cases, times plain decoding.
func treeSpeed(machine func() *world, first float64, without *part, seed uint64) float64 {
	const tokens = 3000
	w := machine()
	w.rng = rand.New(rand.NewPCG(seed, 2))
	w.truth = []float64{first, .6 * (1 - first), .2 * (1 - first)}
	w.says = w.truth
	rows := worldRows
	if without.chains {
		rows = worldBlock
	}
	spent, _ := w.run(calibrated(w).NewRequest(worldBlock, rows, nil), tokens)
	return tokens * w.verify(1) / spent
}

// row is a line of the table: the medians of the seeds, and the least and the most of their quotients.
type row struct {
	Setting string  `json:"setting"`
	Without string  `json:"without"`
	All     float64 `json:"all_parts_times_plain"`
	Less    float64 `json:"without_times_plain"`
	Gain    float64 `json:"gain"`
	Least   float64 `json:"least_gain"`
	Most    float64 `json:"most_gain"`
}

// TestAblation takes parts of the policy away, one at a time, and compares speeds in virtual time: with equal seeds, in
// turns. Parts that bring much must go on to, and none may cost much. The table:
//
//	go test -run TestAblation -v ./worker-target/internal/auto
func TestAblation(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes under the race detector, and has one goroutine")
	}
	const seeds = 7
	texts := goldenTexts(t)
	least := map[string]float64{
		"card, calibration and priors":  0.99,
		"demonstration cluster, lookup": 1.08, "demonstration cluster, priors": 1.03,
		"demonstration cluster, new prompts, calibration":                     1.015,
		"card, start measured wide steps as 3 times as long, corrected times": 1.15,
		"cluster, the draft improves, probes and trials":                      1.05,
		"card, first choice right in 50 %, trees":                             1.25,
		"card, 4 requests at a time, price of waiting":                        1.02,
		"card, 4 requests at a time, lookup":                                  1,
		"card, 8 requests at a time, price of waiting":                        1.1,
		"card, 8 requests at a time, lookup":                                  1,
	}
	var rows []row
	compare := func(t *testing.T, name, without string, speed func(*part, uint64) float64) {
		taken := &parts[slices.IndexFunc(parts, func(p part) bool { return p.name == without })]
		var all, less, gains []float64
		for seed := range uint64(seeds) {
			a, b := speed(&parts[0], seed), speed(taken, seed)
			all, less, gains = append(all, a), append(less, b), append(gains, a/b)
		}
		for _, list := range [][]float64{all, less, gains} {
			slices.SortFunc(list, cmp.Compare[float64])
		}
		r := row{name, without, all[seeds/2], less[seeds/2], gains[seeds/2], gains[0], gains[seeds-1]}
		want, ok := least[name+", "+without]
		if !ok {
			want = 0.95
		}
		if r.Gain < want {
			t.Errorf("%s: with %s %.3f times plain decoding, without it %.3f", name, without, r.All, r.Less)
		}
		rows = append(rows, r)
	}
	for _, s := range settings {
		for _, without := range s.without {
			t.Run(s.name+", "+without, func(t *testing.T) {
				compare(t, s.name, without, func(p *part, seed uint64) float64 { return s.speed(texts, p, seed) })
			})
		}
	}
	for _, first := range []float64{.5, .7, .9} {
		name := fmt.Sprintf("card, first choice right in %.0f %%", 100*first)
		t.Run(name, func(t *testing.T) {
			compare(t, name, "trees", func(p *part, seed uint64) float64 { return treeSpeed(goldenCard, first, p, seed) })
		})
	}
	var table strings.Builder
	for _, r := range rows {
		fmt.Fprintf(&table, "| %s | %s | %.3f | %.3f | %.3f | %.3f–%.3f |\n", r.Setting, r.Without, r.All, r.Less, r.Gain,
			r.Least, r.Most)
	}
	t.Logf("\n| Setting | Without | All parts | Without it | Gain | Least–most |\n|---|---|---|---|---|---|\n%s", &table)
	if *ablationFile != "" {
		data, err := json.MarshalIndent(map[string]any{"seeds": seeds, "rows": rows}, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(*ablationFile, append(data, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
