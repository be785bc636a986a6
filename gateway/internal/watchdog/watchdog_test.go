package watchdog

import (
	"testing"

	"pgregory.net/rapid"
)

// oracle applies the definition to all tokens so far.
func oracle(ids []int32) bool {
	for p := minPeriod; p <= maxPeriod; p++ {
		same := func(times int) bool {
			if len(ids) < times*p {
				return false
			}
			for i := len(ids) - 1; i >= len(ids)-(times-1)*p; i-- {
				if ids[i] != ids[i-p] {
					return false
				}
			}
			return true
		}
		if !same(2) {
			continue
		}
		distinct := map[int32]bool{}
		for _, id := range ids[len(ids)-p:] {
			distinct[id] = true
		}
		if len(distinct) > fewIDs || same(repeats) {
			return true
		}
	}
	return false
}

func feed(ids []int32) int {
	var w Watchdog
	for i, id := range ids {
		if w.Push(id) {
			return i
		}
	}
	return -1
}

func cycle(p, distinct, n int) (ids []int32) {
	for i := range n {
		ids = append(ids, int32(min(i%p, distinct-1)))
	}
	return ids
}

func TestPush(t *testing.T) {
	tests := []struct {
		name string
		ids  []int32
		want int
	}{
		{"period 12", cycle(12, 12, 100), 23},
		{"period 80", cycle(80, 80, 400), 159},
		{"period 11 counts as 22", cycle(11, 11, 100), 43},
		{"period 81 is none", cycle(81, 81, 600), -1},
		{"one token counts as period 12, three times", cycle(1, 1, 100), 35},
		{"three ids", cycle(12, 3, 100), 35},
		{"four ids", cycle(12, 4, 100), 23},
	}
	for _, tt := range tests {
		if got := feed(tt.ids); got != tt.want {
			t.Errorf("%s: found at %d, want %d", tt.name, got, tt.want)
		}
	}
}

func TestAgainstTheDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var ids []int32
		var w Watchdog
		for range rapid.IntRange(1, 8).Draw(t, "parts") {
			part := rapid.SliceOfN(rapid.Int32Range(0, 4), 1, 90).Draw(t, "part")
			for range rapid.IntRange(1, 4).Draw(t, "times") {
				for _, id := range part {
					ids = append(ids, id)
					if got, want := w.Push(id), oracle(ids); got != want {
						t.Fatalf("after %d tokens: %v, want %v", len(ids), got, want)
					}
				}
			}
		}
	})
}

func TestNoAllocation(t *testing.T) {
	var w Watchdog
	if n := testing.AllocsPerRun(200, func() { w.Push(7) }); n > 0 {
		t.Errorf("%v allocations a token", n)
	}
}
