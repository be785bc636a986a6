package prefix

import (
	"testing"

	"github.com/tandem-inference/tandem/services/prefixhash"
)

// TestReport: heartbeats name what is stored by isolation, whatever the contract id, and change when it does.
func TestReport(t *testing.T) {
	c, m := newCache(t, Config{Bytes: 1 << 20, Slots: 2})
	empty := c.Report()
	if empty.Version == 0 || len(empty.States) != 0 {
		t.Errorf("an empty cache reports %v", empty)
	}
	save(c, m, Space("contract", "key"), []int32{1, 2, 3})
	one := c.Report()
	save(c, m, Space("contract", ""), []int32{4, 5})
	if hit(t, c, m, Space("contract", "key"), []int32{1, 2, 3, 4}) != 3 {
		t.Fatal("the state is not there")
	}
	two := c.Report()
	if again := c.Report(); again.Version != two.Version {
		t.Error("the version rises although nothing has changed")
	}
	if one.Version == empty.Version || two.Version == one.Version || len(two.States) != 2 {
		t.Fatalf("%v, then %v", one, two)
	}
	first, second := two.States[0], two.States[1]
	if first.Digest != prefixhash.Of("key", []int32{1, 2, 3}) || first.Tokens != 3 ||
		second.Digest != prefixhash.Of("", []int32{4, 5}) || second.Tokens != 2 {
		t.Errorf("%v", two.States)
	}
	save(c, m, "contract ", []int32{6}) // one goes
	if three := c.Report(); len(three.States) != 2 || three.Version < two.Version+2 {
		t.Errorf("%v", three)
	}
	if (*Cache)(nil).Report() != nil {
		t.Error("no cache reports states")
	}
}
