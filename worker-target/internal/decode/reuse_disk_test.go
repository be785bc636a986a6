package decode

import (
	"math/rand/v2"
	"slices"
	"testing"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"github.com/tandem-inference/tandem/worker-target/internal/disk"
	"github.com/tandem-inference/tandem/worker-target/internal/piece"
	"github.com/tandem-inference/tandem/worker-target/internal/prefix"
)

// onDisk returns a cache with files in a folder, as a worker has that begins with this engine.
func onDisk(t *testing.T, dir string, e engine.Target, interval int) *prefix.Cache {
	t.Helper()
	store, err := disk.Open(disk.Config{Dir: dir, Budget: 1 << 30, Owner: "model"})
	if err != nil {
		t.Fatal(err)
	}
	cache := prefix.New(prefix.Config{Bytes: 1 << 30, Slots: 1000,
		Disk: &prefix.Disk{Store: store, MinTokens: 64, ColdMax: 1 << 20, Interval: interval}})
	cache.Use(e)
	t.Cleanup(cache.Close)
	return cache
}

// diskIsCold runs first turns, then restarts: second turns start from disk and have the tokens and the logits of cold
// ones. The prompts have lengths + base tokens, so that every edge of a page occurs.
func diskIsCold(t *testing.T, open func() engine.Target, markers piece.Markers, vocab, base int, lengths []int) {
	t.Helper()
	c := chats{random: rand.New(rand.NewPCG(3, 4)), markers: markers, vocab: vocab}
	request := func(prompt []int32) Request {
		return Request{Prompt: prompt, Sampler: engine.DefaultSampler(), Max: 8,
			Mode: tandemv1.SpeculationMode_SPECULATION_MODE_OFF}
	}
	dir, first := t.TempDir(), open()
	var prompts [][]int32
	for _, n := range lengths {
		cache := onDisk(t, dir, first, 0)
		slot := NewSlot(Config{Markers: markers, Prefixes: shared{cache, first}}, auto.New(), nil)
		prompt := c.prompt([]message{c.message(base / 2), c.message(base/2 + n)})
		answer := ask(t, slot, first, request(prompt), -1).tokens
		prompts = append(prompts, slices.Concat(prompt, answer, c.words(20+c.random.IntN(100))))
		cache.Close() // everything is written
	}
	second := open()
	cache := onDisk(t, dir, second, 0)
	slot := NewSlot(Config{Markers: markers, Prefixes: shared{cache, second}}, auto.New(), nil)
	plain := NewSlot(Config{Markers: markers}, auto.New(), nil)
	for i, prompt := range prompts {
		got, cold := ask(t, slot, second, request(prompt), -1), ask(t, plain, second, request(prompt), -1)
		if got.read.Cached == 0 {
			t.Errorf("a prompt of base + %d tokens is read whole", lengths[i])
		}
		same(t, "after a restart", cold, got)
	}
	if s, _ := cache.DiskStats(); s.Hits != uint64(len(prompts)) || s.Damaged != 0 {
		t.Errorf("%+v", s)
	}
}

func TestDiskIsCold(t *testing.T) {
	every := make([]int, 64)
	for i := range every {
		every[i] = i
	}
	for name, c := range map[string]struct{ promptRows, window int }{
		"one contract": {}, "two contracts": {promptRows: 64}, "a window": {promptRows: 64, window: 128},
	} {
		t.Run(name, func(t *testing.T) {
			open := func() engine.Target {
				return newFake(t, enginefake.Options{PromptRows: c.promptRows}, engine.OpenOptions{AttentionWindow: c.window})
			}
			diskIsCold(t, open, fakeMarkers, 64, 400, every)
		})
	}
	few := []int{0, 1, 55, 63}
	lengths := []int{0, 1, 2, 21, 31, 32, 33, 43, 54, 55, 56, 57, 62, 63}
	if testing.Short() {
		lengths = few
	}
	for name, c := range map[string]struct {
		window, base int
		lengths      []int
	}{"cpu": {base: 200, lengths: lengths}, "cpu, a window": {window: 128, base: 330, lengths: few}} {
		t.Run(name, func(t *testing.T) {
			var vocab int
			var markers piece.Markers
			open := func() engine.Target {
				e, words := newCPU(t, engine.OpenOptions{MaxSequences: 4, MaxContext: 2048, KVPositions: 32768,
					AttentionWindow: c.window})
				vocab, markers = e.Info().Vocab, piece.MarkersOf(words)
				return e
			}
			_ = open()
			diskIsCold(t, open, markers, vocab, c.base, c.lengths)
		})
	}
}

// TestLongPromptsLeaveStates: of a prompt that is cut off, as by a crash, the last state of the interval is on disk.
func TestLongPromptsLeaveStates(t *testing.T) {
	open := func() engine.Target { return newFake(t, enginefake.Options{PromptRows: 64}, engine.OpenOptions{}) }
	c := chats{random: rand.New(rand.NewPCG(5, 4)), markers: fakeMarkers, vocab: 64}
	prompt := c.message(4000)
	dir, e := t.TempDir(), open()
	cache := onDisk(t, dir, e, 1200)
	slot := NewSlot(Config{Markers: fakeMarkers, Prefixes: shared{cache, e}, PrefillChunk: 512}, auto.New(), nil)
	r := Request{Prompt: prompt, Sampler: engine.DefaultSampler(), Max: 1}
	if got := ask(t, slot, e, r, 5); got.err == nil { // 2560 tokens were read
		t.Fatal("the request was not cut off")
	}
	cache.Close()
	e = open()
	cache = onDisk(t, dir, e, 1200)
	slot = NewSlot(Config{Markers: fakeMarkers, Prefixes: shared{cache, e}}, auto.New(), nil)
	got, cold := ask(t, slot, e, r, -1), ask(t, NewSlot(Config{Markers: fakeMarkers}, auto.New(), nil), e, r, -1)
	if got.read.Cached != 1536 { // the first border 1200 tokens from the start
		t.Errorf("%d tokens come from disk", got.read.Cached)
	}
	same(t, "after a crash", cold, got)
}
