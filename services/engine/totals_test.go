package engine

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestTotals: counts go on where an engine is replaced by one that counts from zero.
func TestTotals(t *testing.T) {
	type process struct {
		Engine
		name string // so that no two share an address
	}
	var totals Totals
	check := func(what string, want map[string]uint64) {
		t.Helper()
		if d := cmp.Diff(want, totals.All()); d != "" {
			t.Errorf("%s: %s", what, d)
		}
	}
	check("without an engine", nil)
	first, second := &process{name: "first"}, &process{name: "second"}
	totals.Add(first, []Stat{{"steps", 3}, {"runs", 1}})
	totals.Add(first, []Stat{{"steps", 5}, {"runs", 1}})
	check("of one engine", map[string]uint64{"steps": 5, "runs": 1})
	totals.Add(second, []Stat{{"steps", 2}})
	check("of two", map[string]uint64{"steps": 7, "runs": 1})
}
