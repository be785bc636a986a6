package eviction

import (
	"testing"
	"time"
)

func TestLeast(t *testing.T) {
	now := time.Now()
	used := func(ago time.Duration, gain int) State { return State{Gain: gain, Used: now.Add(-ago)} }
	const hour = time.Hour
	for name, c := range map[string]struct {
		states []State
		want   int
	}{
		"none":                {nil, 0},
		"the least gain":      {[]State{used(hour, 300), used(hour, 100), used(hour, 200)}, 2},
		"the longest unused":  {[]State{used(hour, 100), used(2*hour, 100), used(hour, 100)}, 2},
		"time outweighs gain": {[]State{used(hour, 100), used(4*hour, 399)}, 2},
		"gain outweighs time": {[]State{used(hour, 100), used(4*hour, 401)}, 1},
		"just used":           {[]State{used(-hour, 100), used(shortest/2, 100), used(0, 101)}, 2},
	} {
		l := Least[int]{now: now}
		for i, s := range c.states {
			l.Offer(i+1, s)
		}
		if got := l.Worst(); got != c.want {
			t.Errorf("%s: state %d is worth least, want %d", name, got, c.want)
		}
	}
}
