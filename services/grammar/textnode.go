package grammar

// The states of a reader of UTF-8: which bytes may come next (Unicode standard, table 3-7).
const (
	utf8Start = iota
	utf8One   // one continuation byte is missing
	utf8Two
	utf8Three
	utf8E0 // two, the next A0..BF
	utf8ED // two, the next 80..9F
	utf8F0 // three, the next 90..BF
	utf8F4 // three, the next 80..8F
	utf8States
	utf8Bad
)

func utf8Step(state int, c byte) int {
	in := func(lo, hi byte, then int) int {
		if c >= lo && c <= hi {
			return then
		}
		return utf8Bad
	}
	switch state {
	case utf8Start:
		switch {
		case c < 0x80:
			return utf8Start
		case c >= 0xC2 && c <= 0xDF:
			return utf8One
		case c == 0xE0:
			return utf8E0
		case c == 0xED:
			return utf8ED
		case c >= 0xE1 && c <= 0xEF:
			return utf8Two
		case c == 0xF0:
			return utf8F0
		case c >= 0xF1 && c <= 0xF3:
			return utf8Three
		case c == 0xF4:
			return utf8F4
		}
		return utf8Bad
	case utf8One:
		return in(0x80, 0xBF, utf8Start)
	case utf8Two:
		return in(0x80, 0xBF, utf8One)
	case utf8Three:
		return in(0x80, 0xBF, utf8Two)
	case utf8E0:
		return in(0xA0, 0xBF, utf8One)
	case utf8ED:
		return in(0x80, 0x9F, utf8One)
	case utf8F0:
		return in(0x90, 0xBF, utf8Two)
	case utf8F4:
		return in(0x80, 0x8F, utf8Two)
	}
	return utf8Bad
}

// finder recognises the end of any of several literals (Aho and Corasick, 1975).
type finder struct {
	next [][256]int32
	hit  []bool
}

func newFinder(literals []string) *finder {
	f := &finder{next: make([][256]int32, 1), hit: make([]bool, 1)}
	for _, s := range literals {
		at := int32(0)
		for i := range len(s) {
			to := f.next[at][s[i]]
			if to == 0 {
				to = int32(len(f.next))
				f.next = append(f.next, [256]int32{})
				f.hit = append(f.hit, false)
				f.next[at][s[i]] = to
			}
			at = to
		}
		f.hit[at] = true
	}
	// Breadth first: where a literal does not continue, the state continues as the longest suffix that begins
	// a literal.
	fail := make([]int32, len(f.next))
	var queue []int32
	for c := range 256 {
		if to := f.next[0][c]; to != 0 {
			queue = append(queue, to)
		}
	}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		f.hit[at] = f.hit[at] || f.hit[fail[at]]
		for c := range 256 {
			if to := f.next[at][c]; to != 0 {
				fail[to] = f.next[fail[at]][c]
				queue = append(queue, to)
			} else {
				f.next[at][c] = f.next[fail[at]][c]
			}
		}
	}
	return f
}

// textState is a state of a finder beside one of a reader of UTF-8.
type textState struct {
	found int32
	utf8  int
}

func (s textState) place() int { return int(s.found)*utf8States + s.utf8 }

// text adds the product of a finder and a reader of UTF-8.
func (b *builder) text(x text, next int32) int32 {
	f := newFinder(x.literals)
	made := make([]int32, len(f.next)*utf8States) // 0 = none yet: that is the end's node
	var queue []textState
	// enter returns the node of a state; its edges are filled in later.
	enter := func(s textState) int32 {
		n := made[s.place()]
		if n == 0 {
			n = b.add(node{kind: kindBytes})
			if !x.through && s.utf8 == utf8Start {
				n = b.add(node{kind: kindSplit, to: []int32{n, next}})
			}
			made[s.place()] = n
			queue = append(queue, s)
		}
		return n
	}
	first := enter(textState{})
	for len(queue) > 0 {
		s := queue[0]
		queue = queue[1:]
		var edges []edge
		for c := range 256 {
			t := textState{f.next[s.found][c], utf8Step(s.utf8, byte(c))}
			if t.utf8 == utf8Bad {
				continue
			}
			to := next
			if f.hit[t.found] {
				if !x.through {
					continue
				}
			} else {
				to = enter(t)
			}
			if n := len(edges); n > 0 && edges[n-1].to == to && int(edges[n-1].hi)+1 == c {
				edges[n-1].hi = byte(c)
			} else {
				edges = append(edges, edge{byte(c), byte(c), to})
			}
		}
		n := made[s.place()]
		if b.nodes[n].kind == kindSplit {
			n = b.nodes[n].to[0]
		}
		b.nodes[n].edges = edges
	}
	return first
}
