package auto

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tandem-inference/tandem/services/ddtree"
	"github.com/tandem-inference/tandem/worker-target/internal/lookup"
)

// goldenText is a text of the demonstration models, with what a greedy chain of 16 commits in each round of it.
type goldenText struct {
	Kind          string
	IDs, Greedy   []int32
	AcceptLengths []int  `json:"accept_lengths"`
	known         []bool // by token: the draft predicts it once it has those before
}

func goldenTexts(t *testing.T) []goldenText {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "..", "tests", "testdata", "golden", "tandem-tiny-q4km.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Cases []goldenText }
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	for i := range file.Cases {
		c := &file.Cases[i]
		// Texts that did not end of themselves are cut where their last token stands first, as bench/rounds asks for them.
		c.Greedy = c.Greedy[:slices.Index(c.Greedy, c.Greedy[len(c.Greedy)-1])+1]
		c.known = []bool{true}
		for _, n := range c.AcceptLengths {
			for j := range n {
				c.known = append(c.known, j < n-1 || n == worldBlock)
			}
		}
	}
	return file.Cases
}

// The demonstration cluster on two processors, after a log of its rounds, in ms.
const (
	goldenFeatures = 0.03  // features of a step while a draft is attached
	goldenReload   = 0.12  // weights that left the caches, in steps beside a draft
	goldenFirst    = 0.6   // what the first proposal takes longer, and for every token of the prompt
	goldenCatchUp  = 0.006 //
	// share by which steps are slower while the draft reads a prompt that it was sent without being asked
	goldenReading = 0.77
	goldenIdle    = 128 // features that are so many are sent without being asked for
)

func goldenWorld() *world {
	return &world{
		verify:     func(rows int) float64 { return 0.5 + 0.11*float64(rows) },
		draft:      func(block int) float64 { return 1.0 + 0.02*float64(block) },
		probeExtra: 1.3, noise: 0.25, rng: rand.New(rand.NewPCG(1, 2)),
	}
}

// goldenCard is a 27B model on an H200 (native/SPEED.md, "A round at true shapes"), as if these were its texts and
// its draft.
func goldenCard() *world {
	rows, took := []float64{1, 16, 23, 32, 64}, []float64{5.77, 6.98, 8.14, 9.9, 20}
	return &world{
		verify: func(n int) float64 {
			i := 1
			for i < len(rows)-1 && float64(n) > rows[i] {
				i++
			}
			return took[i-1] + (took[i]-took[i-1])*(float64(n)-rows[i-1])/(rows[i]-rows[i-1])
		},
		draft:      func(block int) float64 { return 1.1 + 0.01*float64(block) },
		probeExtra: 1, noise: 0.02, rng: rand.New(rand.NewPCG(1, 2)),
	}
}

// reading is a request for a known text.
type reading struct {
	*world
	p      *Policy
	text   goldenText
	index  lookup.Index
	at     int // tokens known
	ms     float64
	asked  bool    // the draft has answered before
	beside bool    // the step before ran beside the draft's work
	unread float64 // how long the draft has to read before it can propose
	sent   bool    // it was given the prompt without being asked, and reads beside plain steps
	rows   int     // of the last step
	// Of the next step: other requests, and their rows.
	otherRequests, others int
	// noLookup: nothing is predicted by prompt lookup.
	noLookup bool
	// A probe: the proposal, its plan and place, and how long the draft still works on it.
	probe   *ddtree.Tree
	plan    Plan
	soundAt int
	works   float64
}

// open begins a request of whose prompt the policy sees prompt, with so many tokens more for the draft to read.
func (w *world) open(m *Model, text goldenText, block int, prompt []int32, more int) *reading {
	r := &reading{world: w, p: m.NewRequest(block, 64, prompt), text: text, at: 1}
	r.index.Extend(text.IDs)
	r.index.Append(text.Greedy[0])
	n := len(text.IDs) + more
	r.unread = goldenCatchUp * float64(n)
	r.sent = block > 0 && n >= goldenIdle && !r.p.Held(n, r.left()+1)
	return r
}

func (r *reading) left() int { return len(r.text.Greedy) - r.at }

// propose is what the draft proposes: sure of nearly all that is right, less sure of what is wrong.
func (r *reading) propose(plan Plan) *ddtree.Tree {
	var t ddtree.Tree
	t.Reset(0)
	logprob, node := 0.0, int32(0)
	for i := r.at; i < r.at+plan.Block-1; i++ {
		token, says := int32(math.MaxInt32-1), .3+.5*r.rng.Float64()
		if i < len(r.text.Greedy) && (i >= len(r.text.known) || r.text.known[i]) {
			token, says = r.text.Greedy[i], 1-.02*r.rng.Float64()
			if r.rng.IntN(4) == 0 {
				says = .5 + .5*r.rng.Float64()
			}
		}
		logprob += math.Log(says)
		node = t.Add(token, node, float32(logprob))
	}
	return &t
}

// follow is the part of t that the text from a token on takes.
func (r *reading) follow(t *ddtree.Tree, from, to int) []int32 {
	path := []int32{0}
	for _, token := range r.text.Greedy[from:to] {
		next := t.Child(path[len(path)-1], token)
		if next < 0 {
			break
		}
		path = append(path, next)
	}
	return path
}

// round runs a round of a plan.
func (r *reading) round(plan Plan) {
	length := r.index.Len()
	round := Round{Plan: plan, Length: length}
	var t ddtree.Tree
	t.Reset(0)
	wait := 0.0
	beside := r.probe != nil
	switch {
	case plan.Probe && r.probe == nil:
		r.probe, r.plan, r.soundAt, r.works = r.propose(plan), plan, r.at, r.draft(plan.Block)+r.unread
		r.unread, beside = 0, true
	case plan.Kind == Lookup:
		for i, token := range r.index.Propose(nil, plan.Budget) {
			t.Add(token, int32(i), 0)
		}
	case plan.Kind.Drafts():
		t = *r.propose(plan)
		if wait = r.draft(plan.Block); r.asked {
			round.Draft = ms(wait)
		} else {
			wait += goldenFirst + r.unread
			round.CatchUp = ms(wait)
		}
		r.unread, r.asked, beside = 0, true, true
		r.p.Cut(&t, plan, length)
		round.Tree = &t
	}
	whole := t // with what lookup adds
	if round.Tree != nil && t.Nodes() == r.p.block-1 && !r.noLookup {
		whole = ddtree.Tree{}
		if err := whole.Set(0, t.Tokens[1:], t.Parents[1:], t.Logprobs[1:],
			ddtree.Limits{Vocab: math.MaxInt32, Nodes: t.Nodes(), Depth: t.Nodes()}); err != nil {
			panic(err)
		}
		leaf := int32(t.Nodes())
		found, matched := r.index.Behind(t.Tokens[1:], nil, r.left()-t.Nodes())
		for _, token := range found[:r.p.Extend(&t, leaf, matched, len(found), length)] {
			leaf = whole.Add(token, leaf, 0)
		}
	}
	round.Rows, round.OtherRequests, round.Others, r.rows = whole.Len(), r.otherRequests, r.others, whole.Len()
	path := r.follow(&whole, r.at, len(r.text.Greedy))
	if round.Tree != nil {
		round.Path = path[:min(len(path), t.Len())]
		round.Extended = len(path) - len(round.Path)
	}
	took := r.verify(round.Rows + r.others)
	reads := r.sent && r.unread > 0
	beside = beside || reads
	if beside || r.beside {
		took += goldenReload
	}
	if r.p.block > 0 {
		took += goldenFeatures * (1 + float64(round.Rows)/8)
	}
	took *= math.Exp(r.noise*r.rng.NormFloat64() - r.noise*r.noise/2)
	if reads {
		took += goldenReading * min(took, r.unread)
		r.unread = max(0, r.unread-took)
	}
	if r.probe != nil {
		took += r.probeExtra * min(took, r.works)
		r.works -= took
	}
	r.beside = beside
	round.Verify = ms(took)
	r.ms += took + wait
	n := min(len(path), r.left())
	looked := make([]Prediction, 0, n)
	for _, token := range r.text.Greedy[r.at : r.at+n] {
		next, ok := r.index.Next()
		looked = append(looked, Prediction{Matched: r.index.Matched(), Right: ok && next == token})
		r.index.Append(token)
	}
	r.at += n
	if !r.noLookup {
		r.p.ObserveLookup(looked, length)
	}
	r.p.Observe(&round)
	if r.probe != nil && r.works <= 0 {
		path := r.follow(r.probe, r.soundAt, r.at)
		r.p.Probed(r.probe, min(len(path), r.at-r.soundAt, r.probe.Nodes()), path, r.index.Len())
		r.probe = nil
	}
}

// goldenTraffic is the order in which the texts are asked for and what the policy sees of their prompts.
type goldenTraffic struct {
	shuffled bool
	prompt   func(rng *rand.Rand, ids []int32) []int32
	more     int           // tokens after them that the draft reads too
	machine  func() *world // nil = goldenWorld
}

func known(_ *rand.Rand, ids []int32) []int32 { return ids }

func unseen(*rand.Rand, []int32) []int32 { return nil }

// newPrompt begins as the chat template does and goes on as no other.
func newPrompt(rng *rand.Rand, ids []int32) []int32 {
	prompt := slices.Clone(ids)
	for i := range prompt[3:] {
		prompt[3+i] = rng.Int32N(8000)
	}
	return prompt
}

// oneClient is new after 64 tokens that all requests share.
func oneClient(rng *rand.Rand, ids []int32) []int32 {
	return append(make([]int32, 64), newPrompt(rng, ids)...)
}

// goldenSpeeds are the speeds of the texts' kinds in 20 turns, times plain decoding.
func goldenSpeeds(t *testing.T, texts []goldenText, block int, traffic goldenTraffic) map[string]float64 {
	w := goldenWorld()
	if traffic.machine != nil {
		w = traffic.machine()
	}
	m := calibrated(w)
	order := slices.Clone(texts)
	spent, plain, rounds := map[string]float64{}, map[string]float64{},
		map[string]*[kinds]int{"fn": {}, "tools": {}, "qa": {}}
	for range 20 {
		if traffic.shuffled {
			w.rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		}
		for _, g := range order {
			r := w.open(m, g, block, traffic.prompt(w.rng, g.IDs), traffic.more)
			for r.left() > 0 {
				plan := r.plan
				if r.probe == nil {
					plan = r.p.Next(r.index.Len(), r.left()+1, r.index.Matched())
				}
				rounds[g.Kind][plan.Kind]++
				r.round(plan)
			}
			spent[g.Kind] += r.ms
			plain[g.Kind] += float64(len(g.Greedy)-1) * w.verify(1)
		}
	}
	speeds := map[string]float64{}
	for _, kind := range []string{"fn", "tools", "qa"} {
		speeds[kind] = plain[kind] / spent[kind]
		t.Logf("%-5s %.3f times plain decoding, rounds %v", kind, speeds[kind], *rounds[kind])
	}
	return speeds
}

// TestGoldenTexts: the texts of the demonstration models, in turns and with their noise, in a cluster with a draft that
// predicts questions and tool calls and in one without a draft, and on a card where wide steps are cheap. What fixed
// lookups reach there: functions 1.26, tools 1.24, questions 1.00.
func TestGoldenTexts(t *testing.T) {
	texts := goldenTexts(t)
	for _, test := range []struct {
		name    string
		block   int
		traffic goldenTraffic
		least   map[string]float64 // times plain decoding
	}{
		{"no draft", 0, goldenTraffic{prompt: known}, map[string]float64{"fn": 1.23, "tools": 1.14, "qa": 0.985}},
		{"draft", worldBlock, goldenTraffic{prompt: known}, map[string]float64{"fn": 1.13, "tools": 1.58, "qa": 2.2}},
		{"draft, prompts unseen", worldBlock, goldenTraffic{prompt: unseen},
			map[string]float64{"fn": 1.02, "tools": 1.58, "qa": 2.2}},
		{"draft, new prompts", worldBlock, goldenTraffic{prompt: newPrompt},
			map[string]float64{"fn": 1.02, "tools": 1.58, "qa": 2.2}},
		{"draft, one client", worldBlock, goldenTraffic{prompt: oneClient},
			map[string]float64{"fn": 1.02, "tools": 1.58, "qa": 2.2}},
		{"draft, long prompts", worldBlock, goldenTraffic{prompt: known, more: 400},
			map[string]float64{"fn": 1.11, "tools": 1.25, "qa": 1.9}},
		{"draft, shuffled", worldBlock, goldenTraffic{shuffled: true, prompt: known},
			map[string]float64{"fn": 1.12, "tools": 1.58, "qa": 2.2}},
		{"draft, shuffled, prompts unseen", worldBlock, goldenTraffic{shuffled: true, prompt: unseen},
			map[string]float64{"fn": 1.02, "tools": 1.58, "qa": 2.2}},
		{"draft, shuffled, new prompts", worldBlock, goldenTraffic{shuffled: true, prompt: newPrompt},
			map[string]float64{"fn": 1.02, "tools": 1.58, "qa": 2.2}},
		{"draft, shuffled, one client", worldBlock, goldenTraffic{shuffled: true, prompt: oneClient},
			map[string]float64{"fn": 1.02, "tools": 1.58, "qa": 2.2}},
		// Without lookup after the draft's proposals tool calls reach 7.2.
		{"card", worldBlock, goldenTraffic{prompt: known, machine: goldenCard},
			map[string]float64{"fn": 1.9, "tools": 7.45, "qa": 9.6}},
		{"card, new prompts", worldBlock, goldenTraffic{prompt: newPrompt, machine: goldenCard},
			map[string]float64{"fn": 1.88, "tools": 7.35, "qa": 9.6}},
	} {
		t.Run(test.name, func(t *testing.T) {
			speeds := goldenSpeeds(t, texts, test.block, test.traffic)
			for kind, least := range test.least {
				if speeds[kind] < least {
					t.Errorf("%s: %.3f times plain decoding, want %.2f", kind, speeds[kind], least)
				}
			}
		})
	}
}
