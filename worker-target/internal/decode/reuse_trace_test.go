package decode

import (
	"fmt"
	"slices"
	"testing"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"github.com/tandem-inference/tandem/worker-target/internal/decode/reuse"
	"github.com/tandem-inference/tandem/worker-target/internal/prefix"
)

// traced is how many prompt tokens were read: by an agent of 16 turns with 6K tokens of system text and tools and
// results of 0.5K to 2K, then by prompts that change its history.
type traced struct {
	fresh, agent                           int // tokens that no prompt before had, and those that were read
	session, edited, middle, again, gaveUp int
}

// runAgent runs the agent on a fake engine, with states of some classes.
func runAgent(t *testing.T, promptRows int, classes reuse.Class) (got traced) {
	t.Helper()
	e := newFake(t, enginefake.Options{PromptRows: promptRows, Context: 1 << 16}, engine.OpenOptions{})
	cache := prefix.New(prefix.Config{Bytes: 1 << 30, Slots: 256})
	cache.Use(e)
	t.Cleanup(cache.Close)
	slot := NewSlot(Config{Markers: fakeMarkers, Prefixes: shared{cache, e}}, auto.New(), nil)
	slot.reuse = reuse.New(shared{cache, e}, classes)
	c := fakeChats(7)
	read := func(list []message) (int, []int32) {
		a := ask(t, slot, e, greedy(c.prompt(list), 60), -1)
		return a.read.Tokens - a.read.Cached, a.tokens
	}
	list := []message{c.message(6000), c.message(40)}
	before := 0
	for turn := range 16 {
		n, answer := read(list)
		got.agent += n
		got.fresh += len(c.prompt(list)) - before
		before = len(c.prompt(list))
		list = append(list, slices.Concat([]int32{2, 5}, answer, []int32{1}), c.message(500+100*((7*turn)%16)))
	}
	list = list[:len(list)-2]
	got.again, _ = read(list)
	got.session, _ = read([]message{list[0], c.message(40)})
	edit := func(at int) int {
		changed := slices.Clone(list)
		changed[at] = c.message(len(list[at]) - 2)
		n, _ := read(changed)
		return n
	}
	got.edited, got.middle = edit(len(list)-1), edit(len(list)/2)
	// A prompt of 8K tokens that is given up after 12 pieces and asked again.
	long := c.prompt([]message{c.message(8000)})
	if a := ask(t, slot, e, greedy(long, 5), 12); a.err == nil {
		t.Fatal("it was not given up")
	}
	a := ask(t, slot, e, greedy(long, 5), -1)
	got.gaveUp = a.read.Tokens - a.read.Cached
	return got
}

// TestAgentTrace: an agent's target reads at most 1.1 tokens for a new one, and every class of states saves something.
func TestAgentTrace(t *testing.T) {
	classes := map[string]reuse.Class{"system": reuse.System, "turn": reuse.Turn, "last": reuse.Last,
		"thinned": reuse.Thinned, "newest": reuse.Newest, "answer": reuse.Answer}
	for _, rows := range []int{64, 0} {
		all, none := runAgent(t, rows, reuse.All), runAgent(t, rows, 0)
		t.Logf("%d prompt rows: all %+v", rows, all)
		t.Logf("%d prompt rows: none %+v", rows, none)
		if ratio := float64(all.agent) / float64(all.fresh); ratio > 1.1 {
			t.Errorf("%d prompt rows: %.2f tokens are read for a new one", rows, ratio)
		}
		for _, name := range []string{"system", "turn", "last", "thinned", "newest", "answer"} {
			without, only := runAgent(t, rows, reuse.All&^classes[name]), runAgent(t, rows, classes[name])
			t.Logf("%d prompt rows: without %-8s %+v", rows, name, without)
			t.Logf("%d prompt rows: only    %-8s %+v", rows, name, only)
			if fmt.Sprint(only) == fmt.Sprint(none) && !(name == "answer" && rows > 0) {
				t.Errorf("%d prompt rows: states of %s save nothing", rows, name)
			}
		}
	}
}
