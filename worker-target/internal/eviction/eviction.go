// Package eviction chooses which of many stored states to remove: of those in memory (package prefix) and of those in
// files (package disk).
//
// The value of a state is its gain ÷ the time since its last use. Its gain is the number of tokens that a hit saves
// beyond the next shorter state of the same text, so states that another one nearly replaces go first. TestTrace
// compares this with the time alone, by which more than a third more tokens are read, and with hits · tokens ÷ bytes,
// by which old conversations keep their states for ever. Counting hits and bytes as well brought nothing: the newest
// state has no hits yet.
package eviction

import "time"

// shortest is the least time since the last use that is told apart. It keeps the value finite.
const shortest = time.Second

// State is what the value of a state depends on.
type State struct {
	Gain int       // tokens beyond the next shorter state of the same text that is stored
	Used time.Time // last
}

func (s *State) value(now time.Time) float64 {
	return float64(s.Gain) / max(now.Sub(s.Used), shortest).Seconds()
}

// Least finds the state of the least value among those that it is offered. It is used once.
type Least[T any] struct {
	now   time.Time
	some  bool
	worst T
	value float64
	used  time.Time
}

// NewLeast returns a search at this time.
func NewLeast[T any]() Least[T] { return Least[T]{now: time.Now()} }

// Offer compares a state. Of equal ones that which was used least recently is worth less.
func (l *Least[T]) Offer(item T, s State) {
	value := s.value(l.now)
	if !l.some || value < l.value || value == l.value && s.Used.Before(l.used) {
		l.some, l.worst, l.value, l.used = true, item, value, s.Used
	}
}

// Worst returns the state of the least value; the zero value when none was offered.
func (l *Least[T]) Worst() T { return l.worst }
