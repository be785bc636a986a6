// Package eviction says which of many stored states is worth least: of those in memory (package prefix) and of those in
// files (package disk).
//
// The value of a state is (hits · e^(−3.2e-5 · age in seconds) + 1) · tokens ÷ bytes that would become free: what its
// next hit saves, weighed by how likely that is and by the bytes that it keeps from others. Young ones go after all
// others.
package eviction

import (
	"math"
	"time"
)

const (
	// decay of hits a second: they count half after 6 h.
	decay = 3.2e-5
	// young is the age up to which a state is evicted after all older ones: the conversation that made it goes on.
	young = time.Minute
)

// State is what the value of a state depends on.
type State struct {
	Hits   int
	Tokens int
	Bytes  uint64 // that would become free
	Made   time.Time
	Used   time.Time // last
}

func (s *State) value(now time.Time) float64 {
	hits := float64(s.Hits) * math.Exp(-decay*now.Sub(s.Used).Seconds())
	return (hits + 1) * float64(s.Tokens) / float64(max(s.Bytes, 1))
}

// Least finds the state of the least value among those that it is offered. It is used once.
type Least[T any] struct {
	now   time.Time
	some  bool
	worst T
	value float64
	fresh bool
	used  time.Time
}

// NewLeast returns a search at this time.
func NewLeast[T any]() Least[T] { return Least[T]{now: time.Now()} }

// Offer compares a state. Of equal ones that which was used least recently is worth less.
func (l *Least[T]) Offer(item T, s State) {
	fresh, value := l.now.Sub(s.Made) < young, s.value(l.now)
	if !l.some || l.fresh && !fresh ||
		l.fresh == fresh && (value < l.value || value == l.value && s.Used.Before(l.used)) {
		l.some, l.worst, l.value, l.fresh, l.used = true, item, value, fresh, s.Used
	}
}

// Worst returns the state of the least value; the zero value when none was offered.
func (l *Least[T]) Worst() T { return l.worst }
