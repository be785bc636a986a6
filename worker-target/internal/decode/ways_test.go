package decode

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/engine/staged"
	"github.com/tandem-inference/tandem/services/gguf/gguftest"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"github.com/tandem-inference/tandem/worker-target/internal/disk"
	"github.com/tandem-inference/tandem/worker-target/internal/inflight"
	"github.com/tandem-inference/tandem/worker-target/internal/peers"
	"github.com/tandem-inference/tandem/worker-target/internal/piece"
	"github.com/tandem-inference/tandem/worker-target/internal/prefix"
	"github.com/tandem-inference/tandem/worker-target/internal/schedule"
)

const (
	// conversationsOf is how many conversations TestEveryWayIsCold has on each engine, where it is set.
	conversationsOf = "TANDEM_TEST_CONVERSATIONS"
	contract        = "contract"
	mostChoices     = 3
	never           = 1 << 30 // steps until a request is cancelled that is not
)

// way is one in which the state of a prompt may come about.
type way struct {
	name         string
	asked, hits  int
	read, cached int // tokens
}

func (w *way) count(o outcome) {
	w.asked++
	w.read += o.read.Tokens - o.read.Cached
	w.cached += o.read.Cached
	if o.read.Cached > 0 {
		w.hits++
	}
}

// ways gives every prompt of random conversations to several workers, whose states come about in different ways.
type ways struct {
	chats
	t       testing.TB
	open    func() engine.Target
	markers piece.Markers
	dir     string

	first, second   engine.Target // second starts from files and from what first sends
	third           engine.Target // reads ahead
	plain           engine.Target // of cold, which keeps nothing and could not make room
	cold            *Slot
	memory, ahead   *prefix.Cache
	choices         []*Slot // on memory, at a time
	reader          *Slot   // on ahead
	client          *peers.Client
	fetched         *prefix.Cache // what the worker has that fetches
	fetcher         *Slot
	inMemory, after way
	fromPeer, early way
	coldly          way
	cancelled       int
}

func newWays(t testing.TB, open func() engine.Target, markers piece.Markers, longest int, seed uint64) *ways {
	t.Helper()
	w := &ways{
		t: t, open: open, markers: markers, dir: t.TempDir(), inMemory: way{name: "in memory"},
		after: way{name: "after a restart"}, fromPeer: way{name: "from a peer"}, early: way{name: "read ahead"},
		coldly: way{name: "cold"},
	}
	w.first = schedule.New(open(), schedule.Options{Costs: auto.New()})
	w.chats = chats{random: rand.New(rand.NewPCG(seed, 1)), markers: markers, vocab: w.first.Info().Vocab,
		longest: longest, spread: true}
	w.plain = open()
	w.cold = w.slot(nil, w.plain)
	w.third = open()
	w.memory, w.ahead = w.cache(w.first, 40, nil), w.cache(w.third, 40, nil)
	readings := inflight.New()
	for range mostChoices {
		w.choices = append(w.choices, NewSlot(Config{Markers: markers, Prefixes: shared{w.memory, w.first},
			PrefillChunk: 192, Readings: readings}, auto.New(), nil))
	}
	w.reader = w.slot(w.ahead, w.third)
	w.client = peers.NewClient(peers.Config{
		Dial: w.serve(), MaxRowBytes: 1 << 30, Read: func(engine.Info, int, int) time.Duration { return time.Minute },
	})
	t.Cleanup(w.client.Close)
	w.restart()
	return w
}

func (w *ways) slot(cache *prefix.Cache, e engine.Target) *Slot {
	cfg := Config{Markers: w.markers}
	if cache != nil {
		cfg.Prefixes = shared{cache, e}
	}
	return NewSlot(cfg, auto.New(), nil)
}

func (w *ways) cache(e engine.Target, slots int, d *prefix.Disk) *prefix.Cache {
	c := prefix.New(prefix.Config{Bytes: 1 << 30, Slots: slots, Disk: d})
	c.Use(e)
	w.t.Cleanup(c.Close)
	return c
}

// serve sends the states in memory to who asks.
func (w *ways) serve() func(string) (*grpc.ClientConn, error) {
	listener := bufconn.Listen(1 << 20)
	g := grpc.NewServer(rpcerr.ServerOptions(nil)...)
	tandemv1.RegisterPeerServiceServer(g, peers.NewServer(peers.Deps{
		Prefixes: w.memory, Busy: func() bool { return false },
		Engine:    func() (engine.Info, string, error) { return w.first.Info(), contract, nil },
		Isolation: func(string, string) error { return nil },
	}))
	var group sync.WaitGroup
	group.Go(func() { _ = g.Serve(listener) })
	w.t.Cleanup(func() {
		g.Stop()
		group.Wait()
	})
	return func(string) (*grpc.ClientConn, error) {
		return grpc.NewClient("passthrough:///peer", append(rpcerr.DialOptions(),
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				return listener.DialContext(ctx)
			}))...)
	}
}

// restart replaces the engine of the workers that start from files and from a peer.
func (w *ways) restart() {
	if w.fetched != nil {
		w.fetched.Close()
	}
	w.second = w.open()
	w.fetched = w.cache(w.second, 40, nil)
	w.fetcher = w.slot(w.fetched, w.second)
}

// conversation runs turns of one, of which others may have the begin.
func (w *ways) conversation() {
	if len(w.list) > 4 {
		w.list = w.list[len(w.list)-4:]
	}
	begin := []message{w.message(20 + w.random.IntN(300))}
	if len(w.list) > 0 && w.random.IntN(2) == 0 {
		begin = w.list[w.random.IntN(len(w.list))][:1:1]
	}
	w.list = append(w.list, begin)
	var answer []int32
	for range 1 + w.random.IntN(3) {
		answer = w.turn(answer)
	}
}

// turn asks for the next prompt in every way and returns the answer.
func (w *ways) turn(answer []int32) []int32 {
	t, random := w.t, w.random
	t.Helper()
	what, prompt := w.next(answer)
	r := Request{Prompt: prompt, Sampler: engine.DefaultSampler(), Max: 1 + random.IntN(12)}
	r.Mode = []tandemv1.SpeculationMode{tandemv1.SpeculationMode_SPECULATION_MODE_LOOKUP,
		tandemv1.SpeculationMode_SPECULATION_MODE_OFF}[random.IntN(2)]
	r.Reuse.Space = prefix.Space(contract, "")
	if random.IntN(2) == 0 {
		r.Sampler.Temperature, r.Sampler.Seed = 1.2, random.Uint64()
	}
	cold := make([]outcome, 1+random.IntN(mostChoices))
	if random.IntN(2) == 0 {
		cold = cold[:1]
	}
	for i := range cold {
		r.Sampler.Choice = int32(i)
		cold[i] = ask(t, w.cold, w.plain, r, -1)
		w.coldly.count(cold[i])
	}
	r.Sampler.Choice = 0
	compare := func(way *way, want, got outcome) {
		t.Helper()
		if got.err != nil {
			t.Fatalf("%s, %s: %v", way.name, what, got.err)
		}
		same(t, way.name+", "+what, want, got)
		way.count(got)
	}
	// Fetched from what the worker in memory has before it has this prompt, or beside a begin that is there.
	if random.IntN(2) == 0 {
		w.fetched.Close()
		w.fetched = w.cache(w.second, 40, nil)
		w.fetcher = w.slot(w.fetched, w.second)
	}
	away := r
	away.Reuse.Peer = w.client.At(&tandemv1.PeerHint{WorkerId: "first", Address: "first", Tokens: int32(len(prompt))},
		contract, "")
	compare(&w.fromPeer, cold[0], ask(t, w.fetcher, w.second, away, -1))

	if random.IntN(5) == 0 {
		w.cancelled++
		ask(t, w.choices[0], w.first, r, random.IntN(6))
	}
	for i, got := range w.together(r, len(cold)) {
		compare(&w.inMemory, cold[i], got)
	}

	steps := -1
	if random.IntN(3) == 0 {
		steps = random.IntN(6) // a request comes before all is read
	}
	// What the gateway expects to come back is most of a prompt.
	begin := prompt[:len(prompt)-random.IntN(min(len(prompt), 2*piece.Grid))]
	readAhead(t, w.reader, w.third, r.Reuse.Space, begin, steps)
	compare(&w.early, cold[0], ask(t, w.reader, w.third, r, -1))

	cache := w.files()
	slot := w.slot(cache, w.second)
	if random.IntN(5) == 0 {
		w.cancelled++
		ask(t, slot, w.second, r, random.IntN(6))
	}
	compare(&w.after, cold[0], ask(t, slot, w.second, r, -1))
	cache.Close() // what waits is written
	if s, _ := cache.DiskStats(); s.Damaged > 0 {
		t.Fatalf("%s, %s: %+v", w.after.name, what, s)
	}
	return cold[0].tokens
}

// files is the cache of a worker that begins with what is on disk.
func (w *ways) files() *prefix.Cache {
	store, err := disk.Open(disk.Config{Dir: w.dir, Budget: 64 << 20, Owner: "model"})
	if err != nil {
		w.t.Fatal(err)
	}
	return w.cache(w.second, 100, &prefix.Disk{Store: store, MinTokens: 64, ColdMax: 1 << 20, Interval: 1024})
}

// together asks for choices of one request at a time, whose prompt is read once but for its end.
func (w *ways) together(r Request, choices int) []outcome {
	list := make([]outcome, choices)
	var group sync.WaitGroup
	for i := range list {
		one := r
		one.Sampler.Choice = int32(i)
		group.Go(func() { list[i] = ask(w.t, w.choices[i], w.first, one, never) })
	}
	group.Wait()
	return list
}

// run runs conversations and judges what they took from where.
func (w *ways) run(conversations int) {
	for i := range conversations {
		if i > 0 && i%max(1, conversations/4) == 0 {
			w.restart()
		}
		w.conversation()
	}
	for _, way := range []*way{&w.coldly, &w.inMemory, &w.after, &w.fromPeer, &w.early} {
		w.t.Logf("%s: %d prompts, %d hits, %d tokens read, %d from states", way.name, way.asked, way.hits, way.read,
			way.cached)
		if way != &w.coldly && 6*way.hits < way.asked {
			w.t.Errorf("%s: %d hits in %d prompts", way.name, way.hits, way.asked)
		}
	}
	s := w.client.Stats()
	w.t.Logf("the cache in memory: %+v", w.memory.Stats())
	w.t.Logf("%d conversations, %d lengths modulo %d, %d cancelled, %+v of peers, %+v ahead", conversations,
		min(w.turns, piece.Grid), piece.Grid, w.cancelled, s, w.ahead.Stats().Ahead)
	delete(s.Failures, peers.Missing)
	if len(s.Failures) > 0 || s.Fetched == 0 || w.cancelled == 0 || w.ahead.Stats().Ahead.Hits == 0 {
		w.t.Errorf("%+v of peers, %d cancelled, %+v ahead", s, w.cancelled, w.ahead.Stats().Ahead)
	}
	if conversations >= 100 && w.turns < piece.Unit {
		w.t.Errorf("%d lengths of prompts, fewer than %d", w.turns, piece.Unit)
	}
}

// conversations is how many there are, for CI or as asked for.
func conversations(t testing.TB, few int) int {
	text := os.Getenv(conversationsOf)
	if text == "" {
		return few
	}
	n, err := strconv.Atoi(text)
	if err == nil && n < 1 {
		err = errors.New("must be at least 1")
	}
	if err != nil {
		t.Fatalf("%s: %v", conversationsOf, err)
	}
	return n
}

// TestEveryWayIsCold: prompts of random conversations (next turns, edits, branches, results of tools, the same again,
// several choices, cancelled ones, every length modulo a page and the grid) have the tokens of a cold run, and bit for
// bit its logits at the first new row, when their state comes from memory, from disk after a restart, from another
// worker, or was read ahead. TANDEM_TEST_CONVERSATIONS=1000 runs 1,000 conversations on each engine.
func TestEveryWayIsCold(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	for name, c := range map[string]struct{ rows, window, few int }{
		"prompts with bits of their own": {rows: 64, few: 100}, "one contract": {few: 100},
		"a window": {rows: 64, window: 128, few: 30},
	} {
		t.Run(name, func(t *testing.T) {
			newWays(t, func() engine.Target {
				return newFake(t, enginefake.Options{PromptRows: c.rows}, engine.OpenOptions{AttentionWindow: c.window})
			}, fakeMarkers, 2500, uint64(c.rows)).run(conversations(t, c.few))
		})
	}
	for name, c := range map[string]struct{ window, few int }{"cpu": {few: 8}, "cpu, a window": {window: 256, few: 4}} {
		t.Run(name, func(t *testing.T) {
			var markers piece.Markers
			open := func() engine.Target { // two caches keep their states in the pool of one
				e, words := newCPU(t, engine.OpenOptions{MaxSequences: 32, MaxContext: 4096, AttentionWindow: c.window})
				markers = piece.MarkersOf(words)
				return e
			}
			_ = open() // the markers
			newWays(t, open, markers, 1000, 7).run(conversations(t, c.few))
		})
	}
}

// TestEveryWayIsColdOnALibrary: one conversation of two turns, of which the second starts in every way, on the library
// that TANDEM_ENGINE_LIB names, such as that of the emulated GPU, with a small random model; also when that has one
// layer, and the processor those around it.
func TestEveryWayIsColdOnALibrary(t *testing.T) {
	library := os.Getenv("TANDEM_ENGINE_LIB")
	if library == "" {
		t.Skip("needs TANDEM_ENGINE_LIB")
	}
	processor, err := filepath.Abs("../../../bin/libtandem_cpu.so")
	if err != nil {
		t.Fatal(err)
	}
	card := processOf(t, library).OpenTarget
	t.Run("alone", func(t *testing.T) { everyWayOnALibrary(t, card) })
	t.Run("amid processors", func(t *testing.T) {
		cpu := processOf(t, processor).OpenTarget
		everyWayOnALibrary(t, staged.Open([]staged.Stage{{Open: cpu, Layers: 1}, {Open: card, Layers: 1},
			{Open: cpu, Layers: 2}}, engine.HiddenF32))
	})
}

func everyWayOnALibrary(t *testing.T, open engine.Open[engine.Target]) {
	model := gguftest.Random(t, "../../../native/tests/data/random_models.txt", "ratio3")
	w := newWays(t, func() engine.Target {
		return openNative(t, open, model, engine.OpenOptions{MaxSequences: 2, MaxContext: 256, MaxBatchRows: 128,
			MaxTreeRows: 16, Threads: 1})
	}, fakeMarkers, 256, 3)
	begin := w.message(90)
	first := w.prompt([]message{begin})
	second := w.prompt([]message{begin, w.message(3), w.message(25)})
	request := func(prompt []int32) Request {
		r := Request{Prompt: prompt, Sampler: engine.DefaultSampler(), Max: 2,
			Mode: tandemv1.SpeculationMode_SPECULATION_MODE_OFF}
		r.Reuse.Space = prefix.Space(contract, "")
		return r
	}
	cold := ask(t, w.cold, w.plain, request(second), -1)
	check := func(what string, got outcome) {
		t.Helper()
		same(t, what, cold, got)
		if got.read.Cached < len(begin) {
			t.Errorf("%s: %d tokens from states of %d", what, got.read.Cached, len(begin))
		}
	}
	ask(t, w.choices[0], w.first, request(first), -1)
	check("in memory", ask(t, w.choices[0], w.first, request(second), -1))

	away := request(second)
	away.Reuse.Peer = w.client.At(&tandemv1.PeerHint{WorkerId: "first", Address: "first", Tokens: int32(len(second))},
		contract, "")
	check("from a peer", ask(t, w.fetcher, w.second, away, -1))

	readAhead(t, w.reader, w.third, prefix.Space(contract, ""), first, -1)
	check("read ahead", ask(t, w.reader, w.third, request(second), -1))

	cache := w.files()
	ask(t, w.slot(cache, w.second), w.second, request(first), -1)
	cache.Close() // what waits is written
	w.restart()
	cache = w.files()
	check("after a restart", ask(t, w.slot(cache, w.second), w.second, request(second), -1))
	if s, _ := cache.DiskStats(); s.Hits != 1 || s.Damaged != 0 {
		t.Errorf("%+v", s)
	}
}
