package prefix

import (
	"testing"
	"time"

	"github.com/tandem-inference/tandem/services/racetest"
)

// TestAheadEvictsNothingNewer: a state that is read ahead takes the room of what was used before it was asked for, and
// of nothing newer; and it is a waste when it goes unused.
func TestAheadEvictsNothingNewer(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		c, m := newCache(t, Config{Bytes: 1 << 20, Slots: 2})
		ahead := func(tokens []int32, asked time.Time) bool {
			m.mu.Lock()
			m.sequences[1] = tokens
			m.mu.Unlock()
			_, made := c.SaveAhead("", tokens, 1, Features{}, Ahead{Asked: asked, Tokens: len(tokens)})
			return made
		}
		save(c, m, "", []int32{1, 1})
		time.Sleep(time.Second)
		asked := time.Now()
		time.Sleep(time.Second)
		save(c, m, "", []int32{2, 2})
		if !ahead([]int32{3, 3, 3}, asked) {
			t.Fatal("there is no room beside what was used before")
		}
		if hit(t, c, m, "", []int32{1, 1, 9}) != 0 || hit(t, c, m, "", []int32{2, 2, 9}) != 2 {
			t.Error("it did not take the place of the older state")
		}
		if ahead([]int32{4, 4, 4, 4}, asked) {
			t.Error("it took the place of a state that was used since")
		}
		if s := c.Stats(); s.Ahead != (AheadStats{}) || s.Refusals != 1 {
			t.Errorf("%+v", s)
		}
		time.Sleep(2 * time.Second)
		if hit(t, c, m, "", []int32{2, 2, 9}) != 2 { // so that the other is worth less
			t.Error("the newer state is gone")
		}
		save(c, m, "", []int32{5, 5})
		if s := c.Stats(); s.Ahead != (AheadStats{Wasted: 3}) {
			t.Errorf("when it went unused: %+v", s)
		}
	})
}
