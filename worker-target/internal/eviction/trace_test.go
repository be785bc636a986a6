package eviction

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/services/racetest"
)

// The trace's sizes are those of a 27B model with 8-bit keys and values. A text is a number of blocks.
const (
	blockTokens = 64
	stateBytes  = 150 << 20
	blockBytes  = 34816 * blockTokens
	budget      = 8 << 30
)

// text holds at n the number of its first n+1 blocks, so that what two texts share is found by bisection.
type text []uint64

func (x text) common(y text) int {
	n := min(len(x), len(y))
	return sort.Search(n, func(i int) bool { return x[i] != y[i] })
}

// after returns x and n new blocks.
func (x text) after(random *rand.Rand, n int) text {
	x = slices.Clip(x)
	for range n {
		x = append(x, random.Uint64())
	}
	return x
}

type entry struct {
	State
	text  text
	hits  int
	bytes uint64 // that would become free
}

// store keeps states of texts like package prefix. What is over the budget goes by worst.
type store struct {
	worst   func(of []*entry) *entry
	entries []*entry
}

// weigh finds what each state would free and what it gains, and returns the bytes of all.
func (s *store) weigh() (bytes uint64) {
	slices.SortFunc(s.entries, func(a, b *entry) int {
		if n := a.text.common(b.text); n < min(len(a.text), len(b.text)) {
			return cmp.Compare(a.text[n], b.text[n])
		}
		return cmp.Compare(len(a.text), len(b.text))
	})
	var above []*entry
	for i, e := range s.entries {
		before, after := 0, 0
		if i > 0 {
			before = e.text.common(s.entries[i-1].text)
		}
		if i+1 < len(s.entries) {
			after = e.text.common(s.entries[i+1].text)
		}
		for len(above) > 0 && above[len(above)-1].text.common(e.text) < len(above[len(above)-1].text) {
			above = above[:len(above)-1]
		}
		e.Gain = len(e.text) * blockTokens
		if len(above) > 0 {
			e.Gain -= len(above[len(above)-1].text) * blockTokens
		}
		above = append(above, e)
		e.bytes = stateBytes + uint64(len(e.text)-max(before, after))*blockBytes
		bytes += stateBytes + uint64(len(e.text)-before)*blockBytes
	}
	return bytes
}

// find restores the longest state that a prompt begins with and returns its length.
func (s *store) find(prompt text) int {
	var best *entry
	for _, e := range s.entries {
		if n := len(e.text); n < len(prompt) && e.text.common(prompt) == n && (best == nil || n > len(best.text)) {
			best = e
		}
	}
	if best == nil {
		return 0
	}
	best.hits++
	best.Used = time.Now()
	return len(best.text)
}

func (s *store) save(x text) {
	fresh := &entry{State: State{Used: time.Now()}, text: x}
	for _, e := range s.entries {
		if slices.Equal(e.text, x) {
			e.Used = fresh.Used
			return
		}
	}
	s.entries = append(s.entries, fresh)
	for s.weigh() > budget {
		out := s.worst(slices.DeleteFunc(slices.Clone(s.entries), func(e *entry) bool { return e == fresh }))
		s.entries = slices.DeleteFunc(s.entries, func(e *entry) bool { return e == out })
	}
}

// traced is what a trace comes to: turns that follow on another, those of them that found 9 tenths of what was there
// before, and blocks that were read and that were new.
type traced struct{ follow, hits, read, fresh int }

type conversation struct {
	text  text
	asked int // turns
	left  int
	next  time.Time
	pause time.Duration // between turns, on average
}

// trace runs requests of conversations beside each other: of three system prompts, of unlike length and pace, a few of
// them edited on the way. What each saves is what package decode saves.
func trace(seed uint64, beside int, pause time.Duration, requests int, worst func(of []*entry) *entry) (r traced) {
	random := rand.New(rand.NewPCG(seed, 1))
	s := &store{worst: worst}
	var systems []text
	for range 3 {
		systems = append(systems, text{}.after(random, 16+random.IntN(48)))
	}
	start := func(c *conversation) {
		*c = conversation{
			text: systems[random.IntN(len(systems))], left: 1 + int(12*random.ExpFloat64()),
			pause: time.Duration(float64(pause) * math.Exp(random.NormFloat64())),
		}
		c.next = time.Now().Add(time.Duration(random.ExpFloat64() * float64(c.pause)))
	}
	all := make([]*conversation, beside)
	for i := range all {
		all[i] = &conversation{}
		start(all[i])
	}
	for range requests {
		c := slices.MinFunc(all, func(a, b *conversation) int { return a.next.Compare(b.next) })
		time.Sleep(time.Until(c.next))
		if c.asked > 0 && random.IntN(12) == 0 { // an edit
			c.text = c.text[:len(c.text)-1-random.IntN(len(c.text)/4)]
		}
		prompt := c.text.after(random, 1+random.IntN(16))
		had := s.find(prompt)
		r.read += len(prompt) - had
		r.fresh += len(prompt) - len(c.text)
		if c.asked > 0 {
			r.follow++
			if 10*had >= 9*len(c.text) {
				r.hits++
			}
		}
		for _, system := range systems {
			if n := len(system); n > had && system.common(prompt) == n {
				s.save(prompt[:n])
			}
		}
		for d := 32; d < len(prompt)-had; d *= 2 { // thinned
			s.save(prompt[:len(prompt)-d])
		}
		s.save(prompt)
		c.text = prompt.after(random, 1+random.IntN(10))
		s.save(c.text)
		c.asked++
		c.next = time.Now().Add(time.Second + time.Duration(random.ExpFloat64()*float64(c.pause)))
		if c.left--; c.left == 0 {
			start(c)
		}
	}
	return r
}

// by is a policy of the least value.
func by(value func(e *entry, idle float64) float64) func(of []*entry) *entry {
	return func(of []*entry) *entry {
		now := time.Now()
		return slices.MinFunc(of, func(a, b *entry) int {
			return cmp.Compare(value(a, now.Sub(a.Used).Seconds()), value(b, now.Sub(b.Used).Seconds()))
		})
	}
}

// TestTrace: of conversations beside each other, more than the budget holds, fewer tokens are read again than by time
// alone and by value alone, and nearly as many turns find their conversation as by time alone.
func TestTrace(t *testing.T) {
	ours := func(of []*entry) *entry {
		l := NewLeast[*entry]()
		for _, e := range of {
			l.Offer(e, e.State)
		}
		return l.Worst()
	}
	recency := by(func(_ *entry, idle float64) float64 { return -idle })
	value := by(func(e *entry, idle float64) float64 {
		return (float64(e.hits)*math.Exp(-3.2e-5*idle) + 1) * float64(len(e.text)) / float64(e.bytes)
	})
	for name, c := range map[string]struct {
		beside int
		pause  time.Duration
	}{"agents": {8, 20 * time.Second}, "people": {12, 5 * time.Minute}} {
		t.Run(name, func(t *testing.T) {
			run := func(worst func(of []*entry) *entry) (sum traced) {
				for seed := range uint64(3) {
					racetest.Bubble(t, func(*testing.T) {
						r := trace(seed, c.beside, c.pause, 200, worst)
						sum = traced{sum.follow + r.follow, sum.hits + r.hits, sum.read + r.read, sum.fresh + r.fresh}
					})
				}
				return sum
			}
			got, recent, worth := run(ours), run(recency), run(value)
			t.Logf("%d turns, %d new blocks: hits and read %d %d, by time alone %d %d, by value alone %d %d", got.follow,
				got.fresh, got.hits, got.read, recent.hits, recent.read, worth.hits, worth.read)
			if 100*got.read > 90*recent.read || 100*got.hits < 93*recent.hits ||
				100*got.read > 60*worth.read || 100*got.hits < 150*worth.hits {
				t.Errorf("got %+v, by time alone %+v, by value alone %+v", got, recent, worth)
			}
		})
	}
}
