package engine

import "maps"

// Totals adds up the counters of engines that follow each other: one that was started again counts from zero, and the
// counts of those before stay. It is for one goroutine at a time.
type Totals struct {
	engine          Engine
	earlier, newest map[string]uint64
}

// Add takes the counters of the present engine.
func (t *Totals) Add(e Engine, stats []Stat) {
	if t.earlier == nil {
		t.earlier, t.newest = map[string]uint64{}, map[string]uint64{}
	}
	if t.engine != e {
		for name, value := range t.newest {
			t.earlier[name] += value
		}
		clear(t.newest)
		t.engine = e
	}
	for _, s := range stats {
		t.newest[s.Name] = s.Value
	}
}

// All returns the totals by name; those that no engine has counted yet are missing.
func (t *Totals) All() map[string]uint64 {
	all := maps.Clone(t.earlier)
	for name, value := range t.newest {
		all[name] += value
	}
	return all
}
