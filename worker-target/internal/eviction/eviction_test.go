package eviction

import (
	"testing"
	"time"

	"github.com/tandem-inference/tandem/services/racetest"
)

func TestLeast(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		start := time.Now()
		time.Sleep(6 * time.Hour)
		now := time.Now()
		old := func(hits, tokens int, bytes uint64) State {
			return State{Hits: hits, Tokens: tokens, Bytes: bytes, Made: start, Used: now}
		}
		used := old(0, 10, 10)
		used.Used = start
		faded := old(10, 10, 10)
		faded.Used = start // half of its hits count
		fresh := old(0, 1, 1000)
		fresh.Made = now
		for name, c := range map[string]struct {
			states []State
			want   int
		}{
			"none":               {nil, 0},
			"tokens for bytes":   {[]State{old(0, 100, 10), old(0, 100, 20), old(0, 200, 20)}, 2},
			"hits":               {[]State{old(3, 10, 10), old(1, 10, 10), old(2, 10, 10)}, 2},
			"hits fade":          {[]State{old(6, 10, 10), faded}, 2},
			"but do not vanish":  {[]State{old(4, 10, 10), faded}, 1},
			"young ones stay":    {[]State{fresh, old(9, 100, 1), fresh}, 2},
			"or go among others": {[]State{fresh}, 1},
			"the longest unused": {[]State{old(0, 10, 10), used, old(0, 10, 10)}, 2},
			"nothing to free":    {[]State{old(0, 10, 0), old(0, 10, 2)}, 2},
		} {
			l := NewLeast[int]()
			for i, s := range c.states {
				l.Offer(i+1, s)
			}
			if got := l.Worst(); got != c.want {
				t.Errorf("%s: state %d is worth least, want %d", name, got, c.want)
			}
		}
	})
}
