package decode

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/ddtree"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/testwait"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"github.com/tandem-inference/tandem/worker-target/internal/drafts"
	"github.com/tandem-inference/tandem/worker-target/internal/piece"
	"github.com/tandem-inference/tandem/worker-target/internal/prefix"
)

// cached returns a slot with a cache on an engine, and that cache.
func cached(t testing.TB, e engine.Target, d Drafts, rows int) (*Slot, *prefix.Cache) {
	t.Helper()
	cache := prefix.New(prefix.Config{Bytes: 1 << 30, Slots: 100})
	cache.Use(e)
	t.Cleanup(cache.Close)
	return NewSlot(Config{Markers: fakeMarkers, Prefixes: shared{cache, e}, RingRows: rows}, auto.New(), d), cache
}

func fakeChats(seed uint64) *chats {
	return &chats{random: rand.New(rand.NewPCG(seed, 1)), markers: fakeMarkers, vocab: 64}
}

func greedy(prompt []int32, most int) Request {
	return Request{Prompt: prompt, Sampler: engine.DefaultSampler(), Max: most,
		Mode: tandemv1.SpeculationMode_SPECULATION_MODE_OFF}
}

// TestTurns: the next turn reads what is new, from the end of the answer where every cut has the same bits, else from
// the last border; the same prompt again from its last border; another conversation from the end of the system text.
func TestTurns(t *testing.T) {
	for _, rows := range []int{0, 64} {
		e := newFake(t, enginefake.Options{PromptRows: rows}, engine.OpenOptions{})
		slot, _ := cached(t, e, nil, 0)
		c := fakeChats(1)
		list := []message{c.message(700), c.message(100)}
		first := ask(t, slot, e, greedy(c.prompt(list), 20), -1)
		system, question := len(list[0]), len(list[0])+len(list[1])
		if got := first.read; got.Cached != 0 || got.Saved != question {
			t.Errorf("%d prompt rows: a cold prompt of borders up to %d: %+v", rows, question, got)
		}
		again := ask(t, slot, e, greedy(c.prompt(list), 20), -1)
		same(t, "again", first, again)
		if got := again.read; got.Cached != question || got.Saved != 0 {
			t.Errorf("%d prompt rows: the same prompt: %+v", rows, got)
		}
		list = append(list, slices.Concat([]int32{2, 5}, first.tokens, []int32{1}), c.message(30))
		want := question
		if rows == 0 {
			want = question + 2 + 19 // the newest token is not in the sequence yet
		}
		if got := ask(t, slot, e, greedy(c.prompt(list), 20), -1).read; got.Cached != want {
			t.Errorf("%d prompt rows: the next turn takes %d tokens, want %d", rows, got.Cached, want)
		}
		other := []message{list[0], c.message(50)}
		if got := ask(t, slot, e, greedy(c.prompt(other), 20), -1).read; got.Cached != system {
			t.Errorf("%d prompt rows: another conversation takes %d tokens, want %d", rows, got.Cached, system)
		}
	}
}

// TestAnswerEnds: the state after an answer holds what the caller got, whether a stop token, its length or a
// constraint's end ended it, in steps of one row and of many.
func TestAnswerEnds(t *testing.T) {
	next := func(history []int32) (int32, bool) { return (history[len(history)-1] + 1) % 9, true }
	for _, mode := range []tandemv1.SpeculationMode{tandemv1.SpeculationMode_SPECULATION_MODE_OFF,
		tandemv1.SpeculationMode_SPECULATION_MODE_LOOKUP} {
		for most := 1; most < 30; most++ {
			for _, stop := range [][]int32{nil, {7}} {
				e := newFake(t, enginefake.Options{Next: next}, engine.OpenOptions{})
				slot, _ := cached(t, e, nil, 0)
				prompt := []int32{0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2, 3}
				r := greedy(prompt, most)
				r.Mode, r.Stop = mode, stop
				got := ask(t, slot, e, r, -1)
				held := len(prompt) + len(got.tokens)
				if stop == nil || most < 4 {
					held-- // the newest token is not in the sequence
				}
				r.Prompt = slices.Concat(prompt, got.tokens, []int32{20, 21})
				again := ask(t, slot, e, r, -1)
				if again.read.Cached != held {
					t.Fatalf("%v, %d tokens, stop %v: %d tokens are taken, want %d", mode, most, stop, again.read.Cached, held)
				}
				same(t, "after an answer", ask(t, NewSlot(Config{}, auto.New(), nil), e, r, -1), again)
			}
		}
	}
}

// TestHitIsLookedUpIn: prompt lookup finds what stands in the restored part of the prompt.
func TestHitIsLookedUpIn(t *testing.T) {
	next := func(history []int32) (int32, bool) { return 3 + (history[len(history)-1]-2)%60, true }
	e := newFake(t, enginefake.Options{Next: next}, engine.OpenOptions{})
	slot, cache := cached(t, e, nil, 0)
	r := greedy(nil, 30)
	for i := range piece.Grid + 20 { // what is read of it does not repeat itself
		r.Prompt = append(r.Prompt, int32(3+i%60))
	}
	r.Mode = tandemv1.SpeculationMode_SPECULATION_MODE_LOOKUP
	r.Block = 8 // what pays is measured, this is not
	var of [2]Stats
	for i := range of {
		if _, err := slot.Run(t.Context(), e, &r, &prefilled{}, &of[i]); err != nil {
			t.Fatal(err)
		}
	}
	if cache.Stats().Hits != 1 || of[0].LookAccepted == 0 || of[1].LookAccepted != of[0].LookAccepted ||
		of[1].Steps != of[0].Steps {
		t.Errorf("cold %+v, with a hit %+v", of[0], of[1])
	}
}

// TestGivingUpKeepsTheLastBorder: what a client that gives up has had read is there for the next.
func TestGivingUpKeepsTheLastBorder(t *testing.T) {
	e := newFake(t, enginefake.Options{PromptRows: 64}, engine.OpenOptions{})
	slot, cache := cached(t, e, nil, 0)
	prompt := fakeChats(1).words(3000)
	if got := ask(t, slot, e, greedy(prompt, 5), 3); got.err == nil {
		t.Fatal("it was not cancelled")
	}
	if got := ask(t, slot, e, greedy(prompt, 5), -1); got.read.Cached != 3*piece.Grid {
		t.Errorf("%d tokens are taken, want those of three pieces", got.read.Cached)
	}
	// Borders 5, 4, 3 and 1 are about 512·2^k tokens before the end; others are gone.
	if s := cache.Stats(); s.Entries != 4 {
		t.Errorf("%+v", s)
	}
	// An answer that was cancelled leaves no state of its own.
	e = newFake(t, enginefake.Options{}, engine.OpenOptions{})
	slot, cache = cached(t, e, nil, 0)
	if got := ask(t, slot, e, greedy(prompt[:40], 50), 20); got.err == nil {
		t.Fatal("it was not cancelled")
	}
	if s := cache.Stats(); s.Entries != 0 {
		t.Errorf("%+v", s)
	}
}

// tight is an engine whose steps and restores are refused on demand.
type tight struct {
	engine.Target
	mu        sync.Mutex // guards snapshots and demoted
	snapshots int        // that hold pages
	demoted   map[engine.Snapshot]bool
	most      int // snapshots that hold pages with which steps are refused
	refused   int
	restore   error
}

func (e *tight) NewSnapshot(ctx context.Context, s engine.Sequence) (engine.Snapshot, error) {
	p, err := e.Target.NewSnapshot(ctx, s)
	if err == nil {
		e.count(1)
	}
	return p, err
}

func (e *tight) FreeSnapshot(ctx context.Context, p engine.Snapshot) error {
	err := e.Target.FreeSnapshot(ctx, p)
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.demoted[p] {
		e.snapshots--
	}
	return err
}

func (e *tight) DemoteSnapshot(ctx context.Context, p engine.Snapshot) error {
	err := e.Target.DemoteSnapshot(ctx, p)
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil && !e.demoted[p] {
		if e.demoted == nil {
			e.demoted = map[engine.Snapshot]bool{}
		}
		e.demoted[p] = true
		e.snapshots--
	}
	return err
}

// count adds to the number of snapshots and returns it.
func (e *tight) count(n int) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.snapshots += n
	return e.snapshots
}

func (e *tight) RestoreSnapshot(ctx context.Context, p engine.Snapshot, s engine.Sequence) error {
	if e.restore != nil {
		_ = e.Target.RestoreSnapshot(ctx, p, s) // and then it fails
		return e.restore
	}
	return e.Target.RestoreSnapshot(ctx, p, s)
}

func (e *tight) Step(ctx context.Context, step *engine.Step, result *engine.StepResult) error {
	if e.most > 0 && e.count(0) > e.most {
		e.refused++
		return rpcerr.ResourceExhausted("no pages are left")
	}
	return e.Target.Step(ctx, step, result)
}

// TestStepWithoutRoom: a step that is refused for want of pages runs once stored states have made room. They stay.
func TestStepWithoutRoom(t *testing.T) {
	e := &tight{Target: newFake(t, enginefake.Options{PromptRows: 64}, engine.OpenOptions{})}
	slot, cache := cached(t, e, nil, 0)
	c := fakeChats(1)
	ask(t, slot, e, greedy(c.prompt([]message{c.message(700), c.message(600), c.message(600)}), 1), -1)
	before := cache.Stats().Entries
	testwait.Until(t, "states that were given up are freed", func() bool { return e.count(0) == before })
	other := greedy(c.prompt([]message{c.message(30)}), 9)
	cold := ask(t, NewSlot(Config{Markers: fakeMarkers}, auto.New(), nil), e, other, -1)
	e.most = 2
	got := ask(t, slot, e, other, -1)
	same(t, "without room", cold, got)
	// The step is tried once more for each state that makes room, and perhaps while one is still on its way to the host.
	if s := cache.Stats(); before <= 2 || s.Entries != before || e.count(0) != 2 || e.refused < before-2 ||
		e.refused > 2*(before-2) {
		t.Errorf("%d entries before, %d after, %d steps refused", before, s.Entries, e.refused)
	}
	// Where there is nothing left to give up the request fails with the engine's reason.
	e.most = 1
	e.count(100)
	r := greedy(c.prompt([]message{c.message(30)}), 9)
	var stats Stats
	if _, err := slot.Run(t.Context(), e, &r, &prefilled{}, &stats); rpcerr.Code(err).String() != "ResourceExhausted" {
		t.Errorf("the error is %v", err)
	}
}

// TestRestoreFails: a state that cannot be restored costs time only, once.
func TestRestoreFails(t *testing.T) {
	e := &tight{Target: newFake(t, enginefake.Options{}, engine.OpenOptions{})}
	slot, cache := cached(t, e, nil, 0)
	c := fakeChats(1)
	r := greedy(c.prompt([]message{c.message(700), c.message(100)}), 9)
	cold := ask(t, slot, e, r, -1)
	e.restore = rpcerr.DataLoss("a checksum is wrong")
	got := ask(t, slot, e, r, -1)
	same(t, "after a failed restore", cold, got)
	if s := cache.Stats(); got.read.Cached != 0 || got.rows < len(r.Prompt) || s.Failures != 1 {
		t.Errorf("%+v of the prompt, %d rows, %+v", got.read, got.rows, s)
	}
	e.restore = nil
	if got := ask(t, slot, e, r, -1); got.read.Cached != len(r.Prompt)-2 {
		t.Errorf("afterwards %d tokens are taken", got.read.Cached)
	}
}

// TestOffAndPromptLogprobs: who wants no reuse gets none and leaves nothing; who needs every row reads every row.
func TestOffAndPromptLogprobs(t *testing.T) {
	e := newFake(t, enginefake.Options{}, engine.OpenOptions{})
	slot, cache := cached(t, e, nil, 0)
	c := fakeChats(1)
	r := greedy(c.prompt([]message{c.message(700), c.message(100)}), 9)
	off := r
	off.Reuse.Off = true
	cold := ask(t, slot, e, off, -1)
	if s := cache.Stats(); s.Entries != 0 || s.Lookups != 0 {
		t.Errorf("%+v", s)
	}
	scored := r
	scored.PromptLogprobs, scored.Reuse.SaveOnly = true, true
	for range 2 {
		got := ask(t, slot, e, scored, -1)
		same(t, "with log-probabilities of the prompt", cold, got)
		if got.read.Cached != 0 || len(got.read.Logprobs) != len(r.Prompt)-1 {
			t.Errorf("%d tokens are taken, %d are scored", got.read.Cached, len(got.read.Logprobs))
		}
	}
	if got := ask(t, slot, e, r, -1); got.read.Cached != len(r.Prompt)-2 {
		t.Errorf("%d tokens are taken", got.read.Cached)
	}
	if got := ask(t, slot, e, off, -1); got.read.Cached != 0 {
		t.Errorf("off takes %d tokens", got.read.Cached)
	}
	apart := r
	apart.Reuse.Space = "another"
	if got := ask(t, slot, e, apart, -1); got.read.Cached != 0 {
		t.Errorf("another name space takes %d tokens", got.read.Cached)
	}
}

// ready is a drafter that is there from the start and notes the ring at its first question.
type ready struct {
	flaky
	before []int // positions of the ring at the first question: first, next
	capt   *drafts.Capture
	right  bool // its guesses are those of newWatched's text
}

func (r *ready) Poll(tree *ddtree.Tree) (drafts.Outcome, bool) {
	return r.Wait(context.Background(), tree), true
}

func (r *ready) Wait(ctx context.Context, tree *ddtree.Tree) drafts.Outcome {
	if !r.right {
		return r.flaky.Wait(ctx, tree)
	}
	tokens, parents, logprobs := []int32{}, []int32{}, []float32{}
	for i := range int32(min(5, r.ask.Block-1, r.ask.Budget)) {
		tokens, parents, logprobs = append(tokens, (r.ask.Anchor+1+i)%9), append(parents, i),
			append(logprobs, -0.1*float32(i+1))
	}
	if err := tree.Set(r.ask.Anchor, tokens, parents, logprobs,
		ddtree.Limits{Vocab: 64, Nodes: r.ask.Budget, Depth: r.ask.Block - 1}); err != nil {
		return drafts.Malformed
	}
	return drafts.Proposed
}

func (r *ready) Ready() bool              { return true }
func (r *ready) Capture() *drafts.Capture { return r.capt }
func (r *ready) Open(ctx context.Context, id string, ring *drafts.Ring, c *drafts.Capture, vocab int,
	held bool) Drafter {
	r.before = nil
	r.flaky.Open(ctx, id, ring, c, vocab, held)
	return r
}

func (r *ready) Ask(a drafts.Ask) {
	if r.before == nil {
		first, next := r.ring.Span()
		r.before = []int{first, next}
	}
	r.flaky.Ask(a)
}

// TestHitFeedsTheDraft: after a hit the ring holds the features of the restored tokens, as a cold run computes them,
// when the first question is asked; pages that neighbours have are shared.
func TestHitFeedsTheDraft(t *testing.T) {
	for _, rows := range []int{128, 4096} {
		e := newWatched(t, 0)
		width := 2 * e.Info().FeatureRaw
		d := &ready{flaky: flaky{t: t, random: rand.New(rand.NewPCG(1, 1)), width: width}}
		d.capt = d.flaky.Capture()
		slot, cache := cached(t, e, d, rows)
		c := fakeChats(3)
		list := []message{c.message(300), c.message(100)}
		r := greedy(c.prompt(list), 12)
		r.Mode = tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN
		answer := ask(t, slot, e, r, -1).tokens
		bytes := cache.Stats().Bytes
		list = append(list, slices.Concat([]int32{2, 5}, answer, []int32{1}), c.message(40))
		r.Prompt = c.prompt(list)
		got := ask(t, slot, e, r, -1)
		if held := len(list[0]) + len(list[1]) + 2 + len(answer) - 1; got.read.Cached != held || d.before == nil ||
			d.before[1] != len(r.Prompt) {
			t.Fatalf("%d rows: %+v, the ring at the first question %v", rows, got.read, d.before)
		}
		first, next := d.ring.Span()
		if want := max(0, got.read.Cached-rows+piece.Unit); d.before[0] > want {
			t.Errorf("%d rows: the ring begins at %d, want at most %d", rows, d.before[0], want)
		}
		have, n, _ := d.ring.Copy(nil, first, next-first)
		all := slices.Concat(r.Prompt, got.tokens)
		if want := featuresOf(t, e, all[:first+n])[first*width:]; string(have) != string(want) {
			t.Errorf("%d rows: features %d..%d in the ring are not those of a cold run", rows, first, next)
		}
		t.Logf("%d rows: the ring was %v, %d bytes after one request, %+v after two", rows, d.before, bytes, cache.Stats())
		// Another kind of features is of no use.
		d.flaky.width = 2 * width
		d.capt = &drafts.Capture{Encoding: engine.FeatureRawF32, Width: 2 * width, Block: d.capt.Block}
		if got := ask(t, slot, e, r, -1); got.read.Cached == 0 || d.before[0] != max(got.read.Cached, len(r.Prompt)-rows) {
			t.Errorf("%d rows: with another draft the ring begins at %d after %d tokens", rows, d.before[0], got.read.Cached)
		}
	}
}

// TestAnswerFeedsTheDraft: features of an answer that ends within a block are stored up to its last token.
func TestAnswerFeedsTheDraft(t *testing.T) {
	for stop := range int32(9) {
		e := newWatched(t, 0)
		d := &ready{flaky: flaky{t: t, width: 2 * e.Info().FeatureRaw}, right: true}
		d.capt = d.flaky.Capture()
		slot, _ := cached(t, e, d, 4096)
		r := greedy([]int32{4, 5, 6, 7, 8, 0}, 60)
		r.Mode, r.Stop = tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN, []int32{stop}
		answer := ask(t, slot, e, r, -1).tokens
		held := len(r.Prompt) + len(answer)
		r.Prompt = slices.Concat(r.Prompt, answer, []int32{30, 31})
		got := ask(t, slot, e, r, -1)
		asked := d.before != nil && d.before[0] == 0
		if got.read.Cached != held || asked != (len(got.tokens) > 0) {
			t.Errorf("stop %d: %d tokens are taken, want %d; the ring at the first question %v", stop, got.read.Cached, held, d.before)
		}
	}
}
