package auto

import (
	"sync"
	"time"

	"github.com/tandem-inference/tandem/services/ddtree"
)

const (
	// mostTrialShare of the time of plain rounds may be spent on probes and trials.
	mostTrialShare = 0.03
	// A trial of a request that decodes without the draft is wasted if it commits less than useful times what plain
	// decoding makes in its time. After fewTrials of them in a row, that part falls with the cost of a failed trial where
	// that is below dearTrial plain rounds (trials.go). After wastedTrials it is wastedShare at most. Raising the counts
	// finds an improved draft sooner, and costs more with one that never improves.
	useful, fewTrials, dearTrial, wastedTrials, wastedShare = 2, 8, 3, 128, mostTrialShare / 2
	// creditRounds caps the ledger, in chain rounds, so that the savings of an hour of good drafts are not spent on the
	// first request that the draft predicts badly.
	creditRounds = 0.5
	// stay and enter are how much faster than plain decoding a speculative plan must look to be kept or to be started:
	// the best of many estimates is biased upwards, and near break-even there is little to gain.
	stay, enter = 1.05, 1.08
	// staleRounds after which a plan that looks nearly as good is tried again.
	staleRounds = 64
	// startMemory is the number of requests over which a worker averages the success of first proposals.
	startMemory = 30
	// probeCostShare of a draft's time is the assumed cost of a probe before one was measured: both models work at the
	// same time.
	probeCostShare = 0.5
	// A request that decodes plainly tries its draft again after so many tokens, twice as many each time that its draft
	// still looks hopelessly slow against plain decoding.
	leastGap, mostGap = 2, 256
	hopeless          = 0.65
	// forget is the share of the measured cost of probes that decays with every trial that was preferred to one.
	forget = 1.0 / 32
	// leastProbeCost is the cost of a probe that took nothing, in seconds: 0 would mean that none was measured.
	leastProbeCost = 1e-9
)

// Kind of a plan.
type Kind uint8

// Kinds of plans.
const (
	Plain Kind = iota
	Chain
	Tree
	Lookup // a chain of the tokens that followed the newest ones earlier in the text
	kinds
)

// Drafts reports whether rounds of the kind wait for a draft.
func (k Kind) Drafts() bool { return k == Chain || k == Tree }

// Plan of one round.
type Plan struct {
	Kind   Kind
	Block  int // rows of the draft's block or of the lookup, anchor included
	Budget int // nodes without the root
	// Trial is a round of a plan that has not been the best for a long time. It is verified whole.
	Trial bool
	// Probe, with Plain: a chain of Block is asked for and not waited for. The tokens that plain decoding chooses
	// meanwhile show how much of the proposal is right. With Chain: the round that verifies the rest of such a proposal.
	// See package auto, probes.
	Probe bool
}

// Round holds the measurements of one finished round. Tree and Path are nil when no proposal was verified; the rest of
// a probe has a Path without a Tree.
type Round struct {
	Plan   Plan
	Length int // context length before the round
	Rows   int
	Others int // rows of other requests that ran together with these
	// OtherRequests is the number of those requests.
	OtherRequests int
	// Beside are the rows of prompts that ran in the same step. If there are any, the step's time is not used
	// for estimates.
	Beside int
	// Verify is the engine's time for the step, Wall that of the whole call.
	Verify, Wall time.Duration
	// Draft is the time waited for the proposal, also for one that came too late. CatchUp is that time where the draft
	// first had to read the features of a prompt or of a gap: it hardly predicts the time of the next proposal.
	Draft, CatchUp time.Duration
	Tree           *ddtree.Tree
	Path           []int32
	// right tokens after the path where lookup lengthened the proposal; Tree and Path are the draft's part
	Extended int
}

// tokens is how many tokens the round committed.
func (r *Round) tokens() int { return max(1, len(r.Path)+r.Extended) }

// Model holds a worker's estimates: costs of the machine, quality of its drafts, and the ledger of probes and trials.
// Safe for concurrent use.
type Model struct {
	mu         sync.Mutex
	costs      costs
	flow       flow
	prompts    promptCosts
	acceptance acceptance
	lookups    lookups
	credit     float64 // seconds
	wasted     int     // trials in a row that were not useful
	// losing is the share of requests whose first proposal was not worth its time.
	losing    rate
	probeCost float64 // running mean of the seconds that a probe costs, 0 = none measured
	started   bool    // a draft's first proposal was seen
	// calibration compares predicted with real speeds, by the outcome of the draft's last round.
	calibration [outcomes]gauge
	priors      priors // gains of drafts by prompt prefix
	state       state  // for reports
}

// New returns a model without measurements.
func New() *Model { return &Model{priors: newPriors()} }

// SetVerify stores a calibrated time of a step of rows rows on a short context. Call it with rising row counts.
func (m *Model) SetVerify(rows int, d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.costs.set(rows, d.Seconds())
}

// Verify is the expected time of a step.
func (m *Model) Verify(rows, length int) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Duration(m.costs.step(rows, length) * float64(time.Second))
}

// Hop is the time of a step beyond the engine's: the round trip to it, 0 = none was measured.
func (m *Model) Hop() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Duration(m.costs.hop * float64(time.Second))
}

// ObservePlain learns from a round of one row of a request that never drafts.
func (m *Model) ObservePlain(r *Round) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.costs.observeOthers(r.OtherRequests, r.Others)
	m.flow.observe(1, r.Verify.Seconds()+m.costs.hop)
	if r.Beside > 0 {
		return
	}
	if r.Others > 0 {
		m.costs.observeStep(1+r.Others, r.Length, r.Verify.Seconds())
		return
	}
	m.costs.observePlain(r.Length, r.Verify.Seconds())
	m.costs.observeHop((r.Wall - r.Verify).Seconds())
}

// Policy plans the rounds of one request. Not safe for concurrent use.
type Policy struct {
	m            *Model
	block        int // the draft's block size
	maxRows      int
	promptPrefix promptPrefix
	local        acceptance
	flow         flow
	lookups      lookups
	shadow       shadow
	plain        bool // the last plan went without the draft by choice
	starting     bool // drafts since the first proposal
	tested       bool // a proposal of this request was put to the test
	last         outcome
	speed        float64 // predicted tokens a second of the round's plan, 0 = none that counts
	probeExtra   float64 // seconds that the running probe took beyond plain decoding of the same tokens
	plains       int     // rounds without a draft in a row
	since        int     // of them since the draft was last tried against decoding without it
	gap          int     // of them before it is tried again
	least        int     // the least that gap falls back to
	trying       bool    // the plan tries it
	tried        bool    // its outcome has not changed the gap yet
	after        bool    // the next plain step pays for a trial: the draft's weights are in the caches
	idle         [kinds]int
	shape        shape
	cut          float64   // conditional probability of the first node cut from the chain in this round, < 0 for none
	claims       []float64 // probabilities of the draft's own chain, by depth, corrected
	// Scratch of Cut: nodes in falling probability, probabilities, nodes to keep.
	order []int32
	p     [ddtree.MaxNodes + 1]float64
	keep  [ddtree.MaxNodes + 1]bool
}

// NewRequest starts the policy of a request for a draft with blocks of block rows, 0 while there is none (more than
// MaxBlock are not used); maxRows is the widest verify step. It starts from the prior of prompts with the same prefix.
func (m *Model) NewRequest(block, maxRows int, prompt []int32) *Policy {
	m.mu.Lock()
	defer m.mu.Unlock()
	return &Policy{
		m: m, flow: m.flow, block: min(max(block, 0), MaxBlock), maxRows: min(max(maxRows, 1), MaxBlock),
		promptPrefix: m.priors.open(prompt), local: m.acceptance.fresh(), gap: leastGap, least: leastGap, cut: -1,
		claims: make([]float64, 0, ddtree.MaxNodes+1), order: make([]int32, 0, ddtree.MaxNodes+1),
	}
}

// Attach adds a draft with blocks of block rows to the request; more than MaxBlock are not used.
func (p *Policy) Attach(block int) { p.block = min(max(block, 0), MaxBlock) }

// estimate is a plan with its expected tokens and the seconds that it costs: the price of its rows included.
type estimate struct {
	plan            Plan
	tokens, seconds float64
}

func (e estimate) speed() float64 { return e.tokens / e.seconds }

// Next plans a round at a context of length tokens; limit is the largest useful block (tokens still wanted, plus one),
// and the newest matched tokens stood in the text before.
//
// Draft and plain decoding are available in every round, matches in some only. So plans are not compared by their own
// speed alone: the draft must beat the mean speed of decoding without it, and a match is used when it gains over the
// plan without it.
func (p *Policy) Next(length, limit, matched int) Plan {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	block := min(p.block, limit, p.maxRows)
	if block < 2 {
		return p.without(length, limit, matched)
	}
	c := &p.m.costs
	plainCost := c.plainRound(length)
	if plainCost == 0 { // nothing measured yet: a chain measures both costs
		return Plan{Kind: Chain, Block: block, Budget: block - 1}
	}
	best, second, chain := p.drafted(block, length)
	p.speed = 0
	token := p.tokenCost(length)
	outlook, without := p.compare(best, token)
	p.m.state.note(length, best.plan.Block, outlook*token)
	probe := Plan{Kind: Plain, Probe: true, Block: chain.plan.Block, Budget: chain.plan.Budget}
	plan := best.plan
	p.trying = false
	if without {
		if !p.plain {
			p.hold(length)
		}
		p.plain, p.starting = true, false
		if trial, ok := p.instead(best, probe, token, outlook, length, limit); ok {
			return trial
		}
		return p.without(length, limit, matched)
	}
	p.plain = false
	if trial, ok := p.measure(block, length, best); ok {
		return trial
	}
	if e := p.lookupPlan(limit, matched, length, outlook); e.plan.Kind == Lookup && e.speed() > outlook {
		return e.plan
	}
	switch {
	case !p.tested && !p.m.priors.has(&p.promptPrefix, p.last) && p.probeFirst(chain, plainCost):
		return probe
	case second.seconds > 0 && p.idle[second.plan.Kind] > staleRounds && second.speed() > 0.7*best.speed():
		if p.affords(second.seconds-second.tokens/best.speed(), length) {
			plan = second.plan
			plan.Trial = true
			return plan
		}
	}
	p.speed = best.speed()
	return plan
}

// drafted estimates the plans that ask the draft: the best, the best of the other kind, and the best chain.
func (p *Policy) drafted(block, length int) (best, second, chain estimate) {
	c := &p.m.costs
	var base, own rates
	p.m.acceptance.workerRates(&base)
	p.local.requestRates(&base, &own)
	for b := 4; ; b *= 2 {
		b = min(b, block)
		e := estimate{
			plan:   Plan{Kind: Chain, Block: b, Budget: b - 1},
			tokens: expected(&own.chain, b-1), seconds: c.draft(b) + p.price(b, length),
		}
		if best.seconds == 0 || e.speed() > best.speed() {
			best = e
		}
		if b == block {
			break
		}
	}
	chain = best
	if p.maxRows <= block {
		return best, second, chain
	}
	rows := p.local.treeRows
	if rows == 0 {
		rows = float64(min(p.maxRows, block+block/2-1))
	}
	tree := estimate{
		plan:   Plan{Kind: Tree, Block: block, Budget: p.maxRows - 1},
		tokens: expected(&own.tree, block-1), seconds: c.draft(block) + p.price(int(rows+0.5), length),
	}
	if tree.speed() > chain.speed() {
		return tree, chain, chain
	}
	return chain, tree, chain
}

// tokenCost is the time in seconds of a token that is decoded without the draft.
func (p *Policy) tokenCost(length int) float64 { return p.m.costs.plainRound(length) / p.bare() }

// Cut shortens a proposed tree to the nodes that are worth their verify time; a trial is verified whole.
func (p *Policy) Cut(t *ddtree.Tree, plan Plan, length int) {
	p.cut = -1
	p.read(t)
	if t.Len() <= 2 || plan.Trial {
		return
	}
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	p.trim(t, p.m.costs.draft(plan.Block), length, 2)
}

// read notes the probabilities of the draft's own chain before the proposal is cut.
func (p *Policy) read(t *ddtree.Tree) {
	p.shape.read(t)
	p.claims = p.claims[:0]
	for node := p.shape.best[0]; node != 0; node = p.shape.best[node] {
		p.claims = append(p.claims, p.local.conditional(&p.shape, t, node))
	}
}

// Rest shortens the rest of a proposal that a probe found right so far. The draft's time is spent already: only the
// step counts, against plain decoding.
func (p *Policy) Rest(t *ddtree.Tree, length int) {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	p.trim(t, 0, length, 1)
	p.cut = -1
}

// trim keeps the nodes with the most tokens a second for a draft that took so many seconds, least rows at least.
func (p *Policy) trim(t *ddtree.Tree, draft float64, length, least int) {
	n := t.Len()
	c := &p.m.costs
	if c.round(1, length) == 0 {
		return
	}
	p.shape.read(t)
	p.p[0] = 1
	p.order = p.order[:0]
	for i := int32(1); int(i) < n; i++ {
		p.p[i] = p.p[t.Parents[i]] * p.local.conditional(&p.shape, t, i)
		// Insertion sort, stable, so that parents stay before children of the same probability.
		p.order = append(p.order, i)
		j := len(p.order) - 1
		for ; j > 0 && p.p[p.order[j-1]] < p.p[i]; j-- {
			p.order[j] = p.order[j-1]
		}
		p.order[j] = i
	}
	tokens, bestSpeed, bestRows := 1.0, 0.0, least
	if least == 1 {
		bestSpeed = 1 / (draft + c.plainRound(length))
	}
	for i, node := range p.order {
		tokens += p.p[node]
		if speed := tokens / (draft + p.price(i+2, length)); speed > bestSpeed {
			bestSpeed, bestRows = speed, i+2
		}
	}
	if bestRows == n {
		return
	}
	keep := p.keep[:n]
	clear(keep)
	for _, node := range p.order[:bestRows-1] {
		keep[node] = true
	}
	for node := p.shape.best[0]; node != 0; node = p.shape.best[node] {
		if !keep[node] {
			p.cut = p.local.conditional(&p.shape, t, node)
			break
		}
	}
	t.Keep(keep)
}

// Observe updates the estimates with a finished round of any mode.
func (p *Policy) Observe(r *Round) {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	c := &p.m.costs
	verify, wall := r.Verify.Seconds(), r.Wall.Seconds()
	if r.Beside > 0 { // what the round would have taken without them
		verify = c.step(r.Rows+r.Others, r.Length)
		wall = verify + c.hop
	}
	c.observeOthers(r.OtherRequests, r.Others)
	p.flow.observe(float64(r.tokens()), verify+c.hop+r.Draft.Seconds())
	p.m.flow.observe(float64(r.tokens()), verify+c.hop+r.Draft.Seconds())
	if !r.Plan.Kind.Drafts() {
		p.plains++
		p.since++
	} else {
		p.plains = 0
	}
	if p.block > 1 {
		p.m.state.done(r.Plan, r.tokens(), r.Plan.Trial || p.trying)
	}
	if r.Plan.Probe {
		// The draft works at the same time: the step gives no plain time, but the cost of the probe, less the gain of
		// its rest.
		p.probeExtra += max(wall, verify) + p.surcharge(r.Rows, r.Length) -
			float64(max(1, len(r.Path)))*p.tokenCost(r.Length)
		if r.Rows > 1 && r.Beside == 0 {
			c.observeStep(r.Rows+r.Others, r.Length, verify)
		}
		return
	}
	if r.Rows > 0 && r.Beside == 0 {
		p.observeStep(r, verify, wall)
	}
	if r.Rows > 0 {
		verify += c.hop
	}
	price := verify + p.surcharge(r.Rows, r.Length)
	for k := range p.idle {
		p.idle[k]++
	}
	p.idle[r.Plan.Kind] = 0
	if !r.Plan.Kind.Drafts() {
		if p.after {
			p.after = false
			p.charge(price-p.barePrice(r.Rows, r.Length), r.Length)
		}
		if p.block > 0 { // a request without a draft earns no trials for those with one
			p.m.credit = min(p.m.credit+p.trialShare(r.Length)*verify, p.ceiling(r.Length))
		}
		return
	}
	p.observeDrafted(r, verify, price)
}

// observeStep learns the time of the round's step, in seconds: the engine's (verify) and that of the whole call (wall).
// The caller holds Model.mu.
func (p *Policy) observeStep(r *Round, verify, wall float64) {
	c := &p.m.costs
	// Steps among others without a draft have times of their own. They are many: in the table they would outweigh the
	// times of wide steps right after a draft has used the machine.
	var wrong bool
	if p.plains > 1 && r.Others == 0 {
		wrong = c.observeBare(r.Rows, r.Length, verify)
	} else {
		wrong = c.observeStep(r.Rows+r.Others, r.Length, verify)
	}
	if wrong {
		p.m.reprice()
	}
	c.observeHop(wall - verify)
}

// observeDrafted learns from a round that waited for the draft: the draft's time, the proposal's outcome, and what the
// round gives to the ledger or takes from it. verify is the seconds of the step with its hop, price those for all
// requests. The caller holds Model.mu.
func (p *Policy) observeDrafted(r *Round, verify, price float64) {
	if r.Draft > 0 && p.m.costs.observeDraft(r.Plan.Block, r.Draft.Seconds()) {
		p.m.reprice()
	}
	tokens := 1.0
	if r.Tree != nil {
		tokens = float64(len(r.Path) + r.Extended)
		p.settle(r, price)
		p.learn(r.Tree, r.Path, r.Length)
		if r.Plan.Kind == Tree {
			follow(&p.local.treeRows, float64(r.Tree.Len()))
			follow(&p.m.acceptance.treeRows, float64(r.Tree.Len()))
		}
	}
	if r.Plan.Trial || p.trying {
		p.after = true
		p.charge(price+(r.Draft+r.CatchUp).Seconds()-tokens*p.tokenCost(r.Length), r.Length)
	} else {
		// Speculation that gains adds the same share, which pays for trials of other plans.
		p.m.credit = min(p.m.credit+mostTrialShare*(verify+r.Draft.Seconds()), p.ceiling(r.Length))
	}
}

// learn updates the estimates with the outcome of a proposal; path is the part of the tree that the target chose.
func (p *Policy) learn(t *ddtree.Tree, path []int32, length int) {
	c := &p.m.costs
	if !p.tested {
		p.tested = true
		p.m.losing.fade(1 - 1.0/startMemory)
		worth := (c.draft(p.block) + p.price(t.Len(), length)) / max(c.plainRound(length), 1e-9)
		p.m.losing.add(float64(len(path)) < worth && len(path)-1 < t.Nodes()) // a probe that was right tests a few nodes only
	}
	if p.trying {
		took := (c.draft(p.block) + p.price(t.Len(), length)) / max(c.plainRound(length), 1e-9) // in plain rounds
		if p.m.wasted++; float64(len(path)) > useful*took {
			p.m.wasted = 0
		}
	}
	p.tried = p.tried || p.trying
	p.noteOutcome(t, path)
	p.shape.read(t)
	p.local.claim(p.claims)
	p.claims = p.claims[:0]
	p.local.observe(&p.shape, t, path, p.cut, requestMemory)
	p.m.acceptance.observe(&p.shape, t, path, p.cut, workerMemory)
	p.cut = -1
}

func follow(mean *float64, x float64) {
	if *mean == 0 {
		*mean = x
		return
	}
	*mean += learn * (x - *mean)
}
