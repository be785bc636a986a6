package decode

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"github.com/tandem-inference/tandem/worker-target/internal/decode/reuse"
	"github.com/tandem-inference/tandem/worker-target/internal/piece"
	"github.com/tandem-inference/tandem/worker-target/internal/prefix"
)

// readAhead reads a prompt ahead, for at most so many steps where steps >= 0, and returns what it has read.
func readAhead(t testing.TB, slot *Slot, e engine.Target, space string, prompt []int32, steps int) int {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := &witness{Target: e}
	if steps >= 0 {
		w.cancel, w.steps = cancel, steps
	}
	n, err := slot.ReadAhead(ctx, w, &Request{Prompt: prompt, Reuse: reuse.Request{Space: space, Ahead: time.Now()}})
	if err != nil && ctx.Err() == nil {
		t.Fatal(err)
	}
	return n
}

// TestReadAhead: a turn whose history was read ahead reads the new message alone, with the logits of a cold run, where
// prompts have bits of their own and where they have not; and it counts as a hit of that once.
func TestReadAhead(t *testing.T) {
	for _, rows := range []int{0, 64} {
		e := newFake(t, enginefake.Options{PromptRows: rows}, engine.OpenOptions{})
		slot, cache := cached(t, e, nil, 0)
		cold := NewSlot(Config{Markers: fakeMarkers}, auto.New(), nil)
		c := fakeChats(2)
		list := []message{c.message(700), c.message(100)}
		ask(t, slot, e, greedy(c.prompt(list), 20), -1)
		// The client sends the answer back in other words.
		list = append(list, c.message(300), c.message(900), c.message(30))
		whole := c.prompt(list)
		known := len(list[0]) + len(list[1]) + len(list[2]) + len(list[3])
		expected := whole[:known+2] // and a header
		want := known
		if rows == 0 {
			want = len(expected)
		}
		had := len(list[0]) + len(list[1])
		if n := readAhead(t, slot, e, "", expected, -1); n != want-had {
			t.Errorf("%d prompt rows: %d tokens are read ahead, want %d", rows, n, want-had)
		}
		if n := readAhead(t, slot, e, "", expected, -1); n != 0 {
			t.Errorf("%d prompt rows: %d tokens are read a second time", rows, n)
		}
		before := cache.Stats()
		for range 2 {
			got := ask(t, slot, e, greedy(whole, 9), -1)
			same(t, "after reading ahead", ask(t, cold, e, greedy(whole, 9), -1), got)
			if got.read.Cached < want {
				t.Errorf("%d prompt rows: the turn takes %d tokens, want %d", rows, got.read.Cached, want)
			}
		}
		after := cache.Stats()
		used := prefix.AheadStats{Hits: 1, Used: uint64(want - had)}
		if before.Ahead != (prefix.AheadStats{}) || after.Ahead != used {
			t.Errorf("%d prompt rows: %+v before and %+v after the hit", rows, before.Ahead, after.Ahead)
		}
		if before.Hits != 0 || before.Lookups != 1 {
			t.Errorf("%d prompt rows: reading ahead counts as a request: %+v", rows, before)
		}
	}
}

// TestReadAheadStops: what was read until a request stopped it stays, the rest is read later, and all of it counts.
func TestReadAheadStops(t *testing.T) {
	e := newFake(t, enginefake.Options{PromptRows: 64}, engine.OpenOptions{})
	slot, cache := cached(t, e, nil, 0)
	prompt := fakeChats(1).words(3000)
	if n := readAhead(t, slot, e, "", prompt, 3); n != 3*piece.Grid {
		t.Fatalf("%d tokens are read before it is stopped", n)
	}
	if s := cache.Stats(); s.Entries != 1 || s.Ahead.Wasted != 0 {
		t.Errorf("after the stop: %+v", s)
	}
	if n := readAhead(t, slot, e, "", prompt, -1); n != 2*piece.Grid {
		t.Errorf("%d tokens are read afterwards", n)
	}
	if s := cache.Stats(); s.Ahead != (prefix.AheadStats{}) {
		t.Errorf("after all is read: %+v", s)
	}
	ask(t, slot, e, greedy(append(prompt[:2560:2560], 9, 9), 1), -1)
	if s := cache.Stats(); s.Ahead != (prefix.AheadStats{Hits: 1, Used: 5 * piece.Grid}) {
		t.Errorf("after the hit: %+v", s)
	}
	// A prompt without a border leaves nothing to start from.
	if n := readAhead(t, slot, e, "", prompt[:100], -1); n != 0 {
		t.Errorf("%d tokens of a short prompt are read", n)
	}
}

// TestReadAheadFeedsTheDraft: the first round after a hit of what was read ahead drafts from the features of a cold
// run.
func TestReadAheadFeedsTheDraft(t *testing.T) {
	e := newWatched(t, 0)
	width := 2 * e.Info().FeatureRaw
	d := &ready{flaky: flaky{t: t, random: rand.New(rand.NewPCG(1, 1)), width: width}}
	d.capt = d.flaky.Capture()
	slot, _ := cached(t, e, d, 4096)
	c := fakeChats(3)
	list := []message{c.message(300), c.message(200), c.message(40)}
	r := greedy(c.prompt(list), 12)
	r.Mode = tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN
	read := len(list[0]) + len(list[1])
	readAhead(t, slot, e, "", r.Prompt[:read], -1)
	got := ask(t, slot, e, r, -1)
	if got.read.Cached != read || d.before == nil || d.before[0] != 0 || d.before[1] != len(r.Prompt) {
		t.Fatalf("%+v, the ring at the first question %v", got.read, d.before)
	}
	first, next := d.ring.Span()
	have, n, _ := d.ring.Copy(nil, first, next-first)
	all := slices.Concat(r.Prompt, got.tokens)
	if want := featuresOf(t, e, all[:first+n])[first*width:]; string(have) != string(want) {
		t.Errorf("features %d..%d in the ring are not those of a cold run", first, next)
	}
}

// TestReadAheadWithoutRoom: it gives up where the engine has no room, and moves nothing.
func TestReadAheadWithoutRoom(t *testing.T) {
	e := &tight{Target: newFake(t, enginefake.Options{PromptRows: 64}, engine.OpenOptions{})}
	slot, cache := cached(t, e, nil, 0)
	c := fakeChats(1)
	ask(t, slot, e, greedy(c.prompt([]message{c.message(700), c.message(600)}), 1), -1)
	before := cache.Stats()
	e.most = 1
	n, err := slot.ReadAhead(t.Context(), e, &Request{
		Prompt: c.words(1200), Reuse: reuse.Request{Ahead: time.Now()},
	})
	if n != 0 || err == nil {
		t.Errorf("%d tokens are read, error %v", n, err)
	}
	if s := cache.Stats(); s.Entries != before.Entries || len(e.demoted) != 0 {
		t.Errorf("%+v before, %+v after, %d states are moved", before, s, len(e.demoted))
	}
}
