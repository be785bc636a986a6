package decode

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"github.com/tandem-inference/tandem/worker-target/internal/decode/output"
	"github.com/tandem-inference/tandem/worker-target/internal/decode/reuse"
	"github.com/tandem-inference/tandem/worker-target/internal/piece"
	"github.com/tandem-inference/tandem/worker-target/internal/prefix"
)

// witness is an engine that records the logits of the first row that chooses a token, and may end a request's context
// before a step.
type witness struct {
	engine.Target
	first  []float32
	rows   int // that ran
	cancel context.CancelFunc
	steps  int // left until cancel
}

func (w *witness) Step(ctx context.Context, step *engine.Step, result *engine.StepResult) error {
	if w.cancel != nil {
		if w.steps--; w.steps < 0 {
			w.cancel()
		}
	}
	w.rows += len(step.Rows)
	last := len(step.Rows) - 1
	seen := w.first != nil || last < 0 || step.Rows[last].Want&engine.WantToken == 0
	if !seen {
		step.Rows[last].Want |= engine.WantLogits
	}
	err := w.Target.Step(ctx, step, result)
	if !seen && err == nil {
		w.first = slices.Clone(result.Logits)
	}
	return err
}

// outcome is what a request gave.
type outcome struct {
	tokens []int32
	first  []float32
	read   output.Prefill
	rows   int
	err    error
}

type prefilled struct {
	recording
	read output.Prefill
}

func (p *prefilled) Prefilled(read output.Prefill) error {
	p.read = read
	return nil
}

// ask runs a request on a slot. With cancelAfter >= 0 it is cancelled after so many steps.
func ask(t testing.TB, slot *Slot, e engine.Target, r Request, cancelAfter int) outcome {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := &witness{Target: e}
	if cancelAfter >= 0 {
		w.cancel, w.steps = cancel, cancelAfter
	}
	r.Arrived, r.TopLogprobs = time.Now(), 0
	var stats Stats
	var sink prefilled
	_, err := slot.Run(ctx, w, &r, &sink, &stats)
	if err != nil && cancelAfter < 0 {
		t.Fatal(err)
	}
	return outcome{tokens: sink.tokens, first: w.first, read: sink.read, rows: w.rows, err: err}
}

// bits compares floats as they are in memory.
func bits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

// same holds an outcome to that of a run without a cache.
func same(t testing.TB, what string, cold, got outcome) {
	t.Helper()
	switch {
	case !bits(cold.first, got.first):
		t.Fatalf("%s, %d of %d tokens from the cache: logits of the first new row differ", what, got.read.Cached, got.read.Tokens)
	case !slices.Equal(cold.tokens, got.tokens):
		t.Fatalf("%s, %d of %d tokens from the cache: the answer is %v, want %v", what, got.read.Cached, got.read.Tokens, got.tokens, cold.tokens)
	}
}

// chats makes conversations of tokens.
type chats struct {
	random  *rand.Rand
	markers piece.Markers
	vocab   int
	longest int  // tokens of a prompt
	spread  bool // prompts that end in another message than before have all lengths modulo piece.Grid, one after the other
	turns   int  // of those
	list    [][]message
}

// message is one with header and end.
type message []int32

func (c *chats) words(n int) []int32 {
	list := make([]int32, n)
	for i := range list {
		for ok := false; !ok; {
			list[i] = int32(c.random.IntN(c.vocab))
			ok = !slices.Contains(c.markers.Ends, list[i]) && !slices.Contains(c.markers.Headers, list[i])
		}
	}
	return list
}

func (c *chats) message(n int) message {
	return slices.Concat(c.markers.Headers[:1], c.words(max(1, n)), c.markers.Ends[:1])
}

// prompt is a conversation with the header of an answer.
func (c *chats) prompt(list []message) []int32 {
	var p []int32
	for _, m := range list {
		p = append(p, m...)
	}
	return append(p, c.markers.Headers[0], 5)
}

// next changes the conversations as clients do and returns the next prompt.
func (c *chats) next(answer []int32) (what string, prompt []int32) {
	random := c.random
	if len(c.list) == 0 {
		c.list = append(c.list, []message{c.message(20 + random.IntN(500))})
	}
	i := random.IntN(len(c.list))
	list := slices.Clone(c.list[i])
	switch random.IntN(10) {
	case 0:
		what = "another conversation"
		list = append(list[:1:1], c.message(10+random.IntN(60)))
		c.list = append(c.list, list)
		i = len(c.list) - 1
	case 1:
		what, list = "an edit", append(list, c.message(30))
		k := random.IntN(len(list))
		list[k] = c.message(10 + random.IntN(120))
	case 2:
		what = "a branch"
		list = append(list[:1+random.IntN(len(list))], c.message(10+random.IntN(150)))
	case 3:
		what = "the same again"
	case 4:
		what = "a result of a tool"
		list = append(list, c.message(3), c.message(100+random.IntN(600)))
	case 5, 6:
		// Every length modulo 64 and 512: the end is near a multiple.
		what, list = "a length", append(list, c.message(1))
		grid := []int{piece.Unit, piece.Grid}[random.IntN(2)]
		short := (grid - len(c.prompt(list))%grid + random.IntN(9) - 4 + grid) % grid
		list = append(list[:len(list)-1], c.message(1+short))
	default:
		what = "the next turn"
		list = append(list, slices.Concat(c.markers.Headers[:1], []int32{5}, answer, c.markers.Ends[:1]),
			c.message(10+random.IntN(90)))
	}
	for len(c.prompt(list)) > c.longest {
		list = append(list[:1:1], c.message(40))
	}
	if c.spread && what != "the same again" {
		// 73 is odd: all lengths modulo piece.Unit come up in as many turns.
		short := (c.turns*73 - len(c.prompt(list))) % piece.Grid
		last := &list[len(list)-1]
		*last = slices.Concat((*last)[:len(*last)-1], c.words((short+piece.Grid)%piece.Grid), c.markers.Ends[:1])
		c.turns++
	}
	c.list[i] = list
	return what, c.prompt(list)
}

// hitIsCold runs rounds of conversations with a cache and without one.
type hitIsCold struct {
	chats
	e            engine.Target
	cold, warm   *Slot
	cache        *prefix.Cache
	answer       []int32
	hits, rounds int
	cancelled    int
	demoted      int
}

func newHitIsCold(t testing.TB, e engine.Target, markers piece.Markers, longest int, seed uint64) *hitIsCold {
	t.Helper()
	cache := prefix.New(prefix.Config{Bytes: 1 << 30, Slots: 12})
	cache.Use(e)
	t.Cleanup(cache.Close)
	cfg := Config{Markers: markers}
	warm := cfg
	warm.Prefixes, warm.PrefillChunk = shared{cache, e}, 192
	return &hitIsCold{
		chats: chats{random: rand.New(rand.NewPCG(seed, 1)), markers: markers, vocab: e.Info().Vocab, longest: longest},
		e:     e, cache: cache, cold: NewSlot(cfg, auto.New(), nil), warm: NewSlot(warm, auto.New(), nil),
	}
}

// shared makes the cache that of e whatever wraps it.
type shared struct {
	*prefix.Cache
	e engine.Target
}

func (s shared) Relieve(engine.Target) bool { return s.Cache.Relieve(s.e) }

func (h *hitIsCold) round(t testing.TB) {
	t.Helper()
	what, prompt := h.next(h.answer)
	r := Request{Prompt: prompt, Sampler: engine.DefaultSampler(), Max: 1 + h.random.IntN(12),
		Mode: tandemv1.SpeculationMode_SPECULATION_MODE_LOOKUP}
	if h.random.IntN(3) == 0 {
		r.Sampler.Temperature, r.Sampler.Seed = 1.2, h.random.Uint64()
	}
	if h.random.IntN(4) == 0 {
		r.Reuse.Hints = []int32{int32(1 + h.random.IntN(len(prompt)))}
	}
	h.rounds++
	if h.random.IntN(5) == 0 {
		h.cancelled++
		ask(t, h.warm, h.e, r, h.random.IntN(6))
	}
	for h.random.IntN(4) == 0 && h.cache.Relieve(h.e) { // pages of what is stored are short now and then
		h.demoted++
	}
	choices := 1 + h.random.IntN(2)
	for choice := range choices {
		r.Sampler.Choice = int32(choice)
		cold, got := ask(t, h.cold, h.e, r, -1), ask(t, h.warm, h.e, r, -1)
		same(t, what, cold, got)
		if read := got.read; read.Tokens != len(prompt) || read.Cached+got.rows < len(prompt) ||
			read.Cached+read.Saved > len(prompt) {
			t.Fatalf("%s: %+v for a prompt of %d, %d rows ran", what, read, len(prompt), got.rows)
		}
		if got.read.Cached > 0 {
			h.hits++
		}
		h.answer = got.tokens
	}
}

// fakeMarkers are tokens of a fake engine.
var fakeMarkers = piece.Markers{Ends: []int32{1}, Headers: []int32{2}}

func newFake(t testing.TB, o enginefake.Options, open engine.OpenOptions) *engine.GuardedTarget {
	t.Helper()
	open.ModelPath, open.MaxSequences = "target", 16
	open.KVTypeK, open.KVTypeV = engine.KVDefault, engine.KVDefault
	e, err := enginefake.New(o).OpenTarget(t.Context(), open, nil)
	if err != nil {
		t.Fatal(err)
	}
	fake, guard := e.(*enginefake.Target), engine.GuardTarget(e, engine.GuardConfig{})
	t.Cleanup(func() {
		if sequences, snapshots := fake.Leaks(); len(sequences)+len(snapshots) > 0 {
			t.Errorf("sequences %v and snapshots %v are left", sequences, snapshots)
		}
		_ = guard.Close()
	})
	return guard
}

// TestHitIsCold: conversations with a cache have the bits of those without one, where the bits of a prompt depend on
// its cuts and where they do not.
func TestHitIsCold(t *testing.T) {
	for name, rows := range map[string]int{"prompts with bits of their own": 64, "one contract": 0} {
		t.Run(name, func(t *testing.T) {
			h := newHitIsCold(t, newFake(t, enginefake.Options{PromptRows: rows}, engine.OpenOptions{}), fakeMarkers, 3000,
				uint64(rows))
			for range 400 {
				h.round(t)
			}
			s := h.cache.Stats()
			t.Logf("%d rounds, %d hits, %d cancelled, %d demoted, %+v", h.rounds, h.hits, h.cancelled, h.demoted, s)
			if h.hits < h.rounds/2 || s.Evictions == 0 || s.Failures > 0 || h.demoted == 0 {
				t.Errorf("%d hits in %d rounds, %+v", h.hits, h.rounds, s)
			}
		})
	}
}

// TestHitIsColdOnCPU is TestHitIsCold with the demonstration target.
func TestHitIsColdOnCPU(t *testing.T) {
	e, words := newCPU(t, engine.OpenOptions{MaxSequences: 8, MaxContext: 4096})
	h := newHitIsCold(t, e, piece.MarkersOf(words), 900, 3)
	rounds := 50
	if testing.Short() {
		rounds = 24
	}
	for range rounds {
		h.round(t)
	}
	t.Logf("%d rounds, %d hits, %d cancelled, %+v", h.rounds, h.hits, h.cancelled, h.cache.Stats())
	if h.hits < h.rounds/2 {
		t.Errorf("%d hits in %d rounds", h.hits, h.rounds)
	}
}

// BenchmarkHitIsCold is the same for as many rounds as are wanted: -bench HitIsCold -benchtime 1000x.
func BenchmarkHitIsCold(b *testing.B) {
	e, words := newCPU(b, engine.OpenOptions{MaxSequences: 8, MaxContext: 4096})
	h := newHitIsCold(b, e, piece.MarkersOf(words), 1500, 5)
	for b.Loop() {
		h.round(b)
	}
	b.Logf("%d rounds, %d hits, %d cancelled, %+v", h.rounds, h.hits, h.cancelled, h.cache.Stats())
}

// only finds entries of one length.
type only struct {
	shared
	length int
}

func (o *only) Find(ctx context.Context, space string, tokens []int32, fits func(int) bool) *prefix.Entry {
	return o.shared.Find(ctx, space, tokens, func(n int) bool { return n == o.length && fits(n) })
}

// everyBorder reads a prompt cold and from every border, in steps of any size.
func everyBorder(t *testing.T, e engine.Target, markers piece.Markers, prompt []int32) {
	t.Helper()
	cache := prefix.New(prefix.Config{Bytes: 1 << 30, Slots: 1000})
	cache.Use(e)
	t.Cleanup(cache.Close)
	borders := markers.Cut(prompt, piece.Cuts{}).Borders
	r := Request{Prompt: prompt, Sampler: engine.DefaultSampler(), Max: 4,
		Mode: tandemv1.SpeculationMode_SPECULATION_MODE_OFF}
	for _, b := range borders {
		r.Reuse.Hints = append(r.Reuse.Hints, int32(b))
	}
	cold := ask(t, NewSlot(Config{Markers: markers}, auto.New(), nil), e, r, -1)
	find := &only{shared: shared{cache, e}}
	for _, chunk := range []int{64, 192, 0} {
		slot := NewSlot(Config{Markers: markers, PrefillChunk: chunk, Prefixes: find}, auto.New(), nil)
		for _, find.length = range append([]int{0}, borders...) {
			got := ask(t, slot, e, r, -1)
			if got.read.Cached != find.length {
				t.Fatalf("%d tokens come from the cache, want %d", got.read.Cached, find.length)
			}
			same(t, "from a border", cold, got)
		}
	}
}

// TestEveryBorderIsCanonical: a prompt that is read from any of its borders has the bits of the cold one.
func TestEveryBorderIsCanonical(t *testing.T) {
	c := chats{random: rand.New(rand.NewPCG(1, 2)), markers: fakeMarkers, vocab: 64}
	prompt := c.prompt([]message{c.message(300), c.message(90), c.message(1200), c.message(40), c.message(70),
		c.message(62)})
	everyBorder(t, newFake(t, enginefake.Options{PromptRows: 64}, engine.OpenOptions{}), fakeMarkers, prompt)
	t.Run("cpu", func(t *testing.T) {
		e, words := newCPU(t, engine.OpenOptions{MaxSequences: 8, MaxContext: 4096})
		c := chats{random: rand.New(rand.NewPCG(1, 2)), markers: piece.MarkersOf(words), vocab: e.Info().Vocab}
		everyBorder(t, e, c.markers, c.prompt([]message{c.message(100), c.message(700), c.message(40), c.message(70)}))
	})
}

// TestForeignBorder: a state at the grid of a prompt that another prompt cuts before it, because its message ends
// there, is not used.
func TestForeignBorder(t *testing.T) {
	e := newFake(t, enginefake.Options{PromptRows: 64}, engine.OpenOptions{})
	cache := prefix.New(prefix.Config{Bytes: 1 << 30, Slots: 10})
	cache.Use(e)
	t.Cleanup(cache.Close)
	c := chats{random: rand.New(rand.NewPCG(1, 2)), markers: fakeMarkers, vocab: 64}
	// ends 2 before the grid, header 3 after
	text := slices.Concat(c.message(piece.Grid-4), c.words(3), []int32{2}, c.words(80))
	short := text[:piece.Grid+1]
	slot := NewSlot(Config{Markers: fakeMarkers, Prefixes: shared{cache, e}}, auto.New(), nil)
	r := Request{Prompt: short, Sampler: engine.DefaultSampler(), Max: 1}
	if got := ask(t, slot, e, r, -1); got.read.Saved != piece.Grid {
		t.Fatalf("the short prompt saves %d tokens", got.read.Saved)
	}
	cold := ask(t, NewSlot(Config{Markers: fakeMarkers}, auto.New(), nil), e,
		Request{Prompt: text, Sampler: r.Sampler, Max: 1}, -1)
	r.Prompt = text
	got := ask(t, slot, e, r, -1)
	same(t, "a longer prompt", cold, got)
	if got.read.Cached != 0 {
		t.Errorf("%d tokens come from the cache", got.read.Cached)
	}
	r.Prompt = short
	if got := ask(t, slot, e, r, -1); got.read.Cached != piece.Grid {
		t.Errorf("the short prompt takes %d tokens", got.read.Cached)
	}
}

var _ reuse.Cache = shared{}
