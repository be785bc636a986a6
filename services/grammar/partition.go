package grammar

import "slices"

// partition divides the numbers from 0 on into sets, which only ever become smaller. It is the structure of Valmari and
// Lehtinen, "Efficient minimization of DFAs with partial transition functions" (STACS 2008).
type partition struct {
	elements []int32 // sets lie one after the other; marked elements come first in theirs
	place    []int32 // of an element in elements
	set      []int32 // of an element
	first    []int32 // where a set begins in elements
	past     []int32 // where it ends
	marked   []int32 // marked elements of a set
	touched  []int32 // sets with marked elements
}

// newPartition has one set of n elements.
func newPartition(n int) *partition {
	p := &partition{elements: make([]int32, n), place: make([]int32, n), set: make([]int32, n),
		first: []int32{0}, past: []int32{int32(n)}, marked: []int32{0}}
	for i := range n {
		p.elements[i], p.place[i] = int32(i), int32(i)
	}
	return p
}

// mark moves an element that is not marked to the marked ones of its set.
func (p *partition) mark(e int32) {
	s, i := p.set[e], p.place[e]
	j := p.first[s] + p.marked[s]
	other := p.elements[j]
	p.elements[i], p.place[other] = other, i
	p.elements[j], p.place[e] = e, j
	if p.marked[s] == 0 {
		p.touched = append(p.touched, s)
	}
	p.marked[s]++
}

// split makes sets of their own of marked and other elements, and clears the marks. The smaller part is the new set.
func (p *partition) split() {
	for _, s := range p.touched {
		middle := p.first[s] + p.marked[s]
		p.marked[s] = 0
		if middle == p.past[s] {
			continue
		}
		made, first, past := int32(len(p.first)), p.first[s], middle
		if middle-p.first[s] <= p.past[s]-middle {
			p.first[s] = middle
		} else {
			first, past = middle, p.past[s]
			p.past[s] = middle
		}
		p.first, p.past, p.marked = append(p.first, first), append(p.past, past), append(p.marked, 0)
		for _, e := range p.elements[first:past] {
			p.set[e] = made
		}
	}
	p.touched = p.touched[:0]
}

// elementsOf gives the elements of a set.
func (p *partition) elementsOf(s int) []int32 { return p.elements[p.first[s]:p.past[s]] }

// classes gives the class of each state of an automaton without dead states, and the number of classes: states of one
// class take the same texts. Classes are numbered by their first states. The time is that of m log n for m transitions
// and n states, where refining all states until nothing changes takes n rounds for texts of bounded length.
func (d *dfa) classes() ([]int32, int) {
	type transition struct{ from, to int32 }
	var all []transition
	states := newPartition(len(d.next))
	for n, f := range d.final {
		if f {
			states.mark(int32(n))
		}
	}
	states.split()
	// The transitions of one class of characters after the other: each is a set at first.
	var past []int32
	for k := range d.cuts {
		for n, row := range d.next {
			if row[k] >= 0 {
				all = append(all, transition{int32(n), row[k]})
			}
		}
		if n := int32(len(all)); n > 0 && (len(past) == 0 || n > past[len(past)-1]) {
			past = append(past, n)
		}
	}
	arrows := newPartition(len(all))
	arrows.past, arrows.first, arrows.marked = past, make([]int32, len(past)), make([]int32, len(past))
	for s := range past {
		if s > 0 {
			arrows.first[s] = past[s-1]
		}
		for _, e := range arrows.elementsOf(s) {
			arrows.set[e] = int32(s)
		}
	}
	// incoming[start[n]:start[n+1]] are the transitions to state n.
	start := make([]int32, len(d.next)+1)
	for _, t := range all {
		start[t.to+1]++
	}
	for n := range d.next {
		start[n+1] += start[n]
	}
	incoming, filled := make([]int32, len(all)), slices.Clone(start)
	for i, t := range all {
		incoming[filled[t.to]] = int32(i)
		filled[t.to]++
	}
	refined := 1 // the first set of states needs no look: sets of transitions begin as if it had been looked at
	for a := 0; a < len(arrows.first); a++ {
		for _, t := range arrows.elementsOf(a) {
			states.mark(all[t].from)
		}
		states.split()
		for ; refined < len(states.first); refined++ {
			for _, n := range states.elementsOf(refined) {
				for _, t := range incoming[start[n]:start[n+1]] {
					arrows.mark(t)
				}
			}
			arrows.split()
		}
	}
	class, number := make([]int32, len(d.next)), make([]int32, len(states.first))
	count := 0
	for n := range class {
		s := states.set[n]
		if number[s] == 0 {
			count++
			number[s] = int32(count)
		}
		class[n] = number[s] - 1
	}
	return class, count
}
