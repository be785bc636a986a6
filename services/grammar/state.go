package grammar

import (
	"cmp"
	"math/bits"
	"slices"
)

// State is the result of following a text: every way in which the grammar could have produced it. States are immutable
// for their users and belong to the Grammar that made them; nil is the state after a text that is not in the language.
type State struct {
	// frames by rising node. At the top of a stack, nodes consume something or are accepting; below it, they follow the
	// return of a rule.
	frames []frame
	id     uint64
	epoch  uint32
	depth  int32 // of the deepest stack
	// places of $members at the time of the state: its nodes from fixed on are numbered by them.
	places *[]memberState

	next  []*State // by class of bytes; nil = not known yet, dead = nothing follows
	mask  *Mask
	canon *State // with counted repetitions far from their limits made alike
	use   lruEntry
}

type frame struct {
	node  int32
	below *State // nil under accepting
}

// accepting is the node of a stack that is empty: the whole text is complete.
const accepting int32 = -1

const (
	// maxFrames of a state: a grammar that needs more alternatives at one place is refused there.
	maxFrames = 1 << 14
	// maxWork bounds the pairs that one step may visit.
	maxWork = 1 << 17
	// maxPlaces of $members kept before all of them are forgotten, with the states.
	maxPlaces = 1 << 18
	// maxStates kept before all of them are forgotten.
	maxStates = 1 << 17
)

// dead marks bytes that nothing follows.
var dead = &State{}

// machine follows one program. It is not safe for concurrent use.
type machine struct {
	*program
	table  map[uint64][]*State
	count  int
	lastID uint64
	epoch  uint32
	places *[]memberState // of this epoch
	room   int            // places of $members before they are forgotten
	fault  error          // of the call in progress

	// Scratch of a step. A rule that was called waits at its place of the order: waits has its bit, below holds the
	// frames to which it returns.
	tops  []frame
	seen  map[frame]struct{}
	waits []uint64
	below [][]frame
	work  int

	spent int // work of all steps since it was last set to 0
}

func newMachine(p *program) *machine {
	return &machine{
		places: new([]memberState), room: maxPlaces, program: p, table: map[uint64][]*State{}, seen: map[frame]struct{}{},
		waits: make([]uint64, (len(p.rules)+63)/64), below: make([][]frame, len(p.rules)),
	}
}

// begin is the state before any text.
func (m *machine) begin() *State {
	m.reset()
	bottom := m.intern([]frame{{node: accepting}})
	m.call(m.root, bottom.frames...)
	if m.null[m.root] {
		m.tops = append(m.tops, frame{node: accepting})
	}
	return m.finish()
}

func (m *machine) reset() {
	m.tops, m.work = m.tops[:0], 0
	clear(m.seen)
	clear(m.waits)
}

// step returns the state after a byte of a class, dead when there is none.
func (m *machine) step(s *State, class uint8) *State {
	if s.next == nil {
		s.next = make([]*State, m.classes)
	}
	if t := s.next[class]; t != nil {
		return t
	}
	m.reset()
	for _, f := range s.frames {
		if f.node == accepting {
			continue
		}
		for _, e := range m.nodes[f.node].edges {
			if m.classOf[e.lo] <= class && class <= m.classOf[e.hi] {
				m.follow(e.to, f.below)
				break
			}
		}
	}
	t := m.finish()
	if m.fault == nil {
		s.next[class] = t
	}
	return t
}

// stepToken returns the state after a token that a terminal allows.
func (m *machine) stepToken(s *State, token int32, ordinary bool) *State {
	m.reset()
	for _, f := range s.frames {
		if f.node == accepting || m.nodes[f.node].kind != kindTokens {
			continue
		}
		set := &m.sets[m.nodes[f.node].set]
		if _, in := slices.BinarySearch(set.ids, token); in != set.not && (in || ordinary) {
			m.follow(m.nodes[f.node].next, f.below)
		}
	}
	return m.finish()
}

// follow takes up a node after something was consumed, with the stacks below it.
func (m *machine) follow(n int32, below *State) {
	f := frame{n, below}
	if _, ok := m.seen[f]; ok {
		return
	}
	m.seen[f] = struct{}{}
	if m.work++; m.work > maxWork || m.entries > maxEntries || m.crowded {
		m.fault = errAmbiguous
		return
	}
	c := m.closure(n)
	m.take(c, below)
	if c.end {
		for _, g := range below.frames {
			if g.node == accepting {
				m.tops = append(m.tops, g)
			} else {
				m.follow(g.node, g.below)
			}
		}
	}
}

// take adds the terminals of a closure to the result and its calls to those that wait.
func (m *machine) take(c *closure, below *State) {
	if m.work += len(c.terms) + len(c.calls); m.work > maxWork {
		m.fault = errAmbiguous
		return
	}
	for _, t := range c.terms {
		m.tops = append(m.tops, frame{t, below})
	}
	for _, x := range c.calls {
		if x.tail {
			m.call(x.rule, below.frames...)
		} else {
			m.call(x.rule, frame{x.ret, below})
		}
	}
}

// call adds frames that follow the return of a rule.
func (m *machine) call(rule int32, returns ...frame) {
	at := m.order[rule]
	if bit := uint64(1) << (at % 64); m.waits[at/64]&bit == 0 {
		m.waits[at/64] |= bit
		m.below[at] = m.below[at][:0]
	}
	m.below[at] = append(m.below[at], returns...)
}

// finish enters the called rules, callers before callees, so that each is entered once with all its returns.
func (m *machine) finish() *State {
	for i := range m.waits {
		// What is entered may call rules of the same word, all of them further on.
		for m.waits[i] != 0 {
			at := 64*i + bits.TrailingZeros64(m.waits[i])
			m.waits[i] &= m.waits[i] - 1
			if m.work += len(m.below[at]); m.work > maxWork {
				m.fault = errAmbiguous
				return dead
			}
			below := m.union(m.below[at])
			if below.depth < MaxDepth {
				m.take(m.closure(m.starts[m.rules[at]]), below)
			}
		}
	}
	m.spent += m.work
	if m.fault != nil || len(m.tops) == 0 {
		return dead
	}
	return m.union(m.tops)
}

// union interns frames after joining those of the same node. It reorders list.
func (m *machine) union(list []frame) *State {
	if len(list) > 1 {
		slices.SortFunc(list, func(a, b frame) int {
			if c := cmp.Compare(a.node, b.node); c != 0 || a.below == b.below {
				return c
			}
			return cmp.Compare(a.below.id, b.below.id)
		})
		out := list[:1]
		for _, f := range list[1:] {
			switch last := &out[len(out)-1]; {
			case last.node != f.node:
				out = append(out, f)
			case last.below != f.below:
				last.below = m.join(last.below, f.below)
			}
		}
		list = out
	}
	if len(list) > maxFrames {
		m.fault = errAmbiguous
		return dead
	}
	return m.intern(list)
}

// join is the union of two sets of stacks.
func (m *machine) join(a, b *State) *State {
	if a == b {
		return a
	}
	if m.work += len(a.frames) + len(b.frames); m.work > maxWork {
		m.fault = errAmbiguous
		return a
	}
	var out []frame
	i, j := 0, 0
	for i < len(a.frames) && j < len(b.frames) {
		x, y := a.frames[i], b.frames[j]
		switch {
		case x.node < y.node:
			out = append(out, x)
			i++
		case x.node > y.node:
			out = append(out, y)
			j++
		default:
			if x.below != y.below {
				x.below = m.join(x.below, y.below)
			}
			out = append(out, x)
			i++
			j++
		}
	}
	out = append(append(out, a.frames[i:]...), b.frames[j:]...)
	return m.intern(out)
}

// intern returns the one state with these frames; list is copied.
func (m *machine) intern(list []frame) *State {
	h := uint64(14695981039346656037)
	depth := int32(0)
	for _, f := range list {
		h = (h ^ uint64(uint32(f.node))) * 1099511628211
		if f.below != nil {
			h = (h ^ f.below.id) * 1099511628211
			h ^= h >> 29
			depth = max(depth, f.below.depth)
		}
	}
	for _, s := range m.table[h] {
		if slices.Equal(s.frames, list) {
			return s
		}
	}
	m.lastID++
	m.count++
	s := &State{frames: slices.Clone(list), id: m.lastID, epoch: m.epoch, depth: depth + 1, places: m.places}
	m.table[h] = append(m.table[h], s)
	return s
}

// current returns the state of this epoch that equals s. States of earlier epochs exist only while they are referenced.
func (m *machine) current(s *State) *State {
	if s.epoch == m.epoch {
		return s
	}
	m.work = 0
	return m.renew(s, map[*State]*State{})
}

func (m *machine) renew(s *State, done map[*State]*State) *State {
	if t, ok := done[s]; ok {
		return t
	}
	list := slices.Clone(s.frames)
	for i := range list {
		if n := int(list[i].node); n >= m.fixed {
			list[i].node = m.member((*s.places)[m.fixedStates+n-m.fixed])
			if list[i].node < 0 {
				m.fault = errAmbiguous
				return dead
			}
		}
		if list[i].below != nil {
			list[i].below = m.renew(list[i].below, done)
		}
	}
	t := m.union(list)
	done[s] = t
	return t
}

// forget starts a new epoch when there are too many states.
func (m *machine) forget() bool {
	if m.count < maxStates && len(m.nodes)-m.fixed < m.room {
		return false
	}
	m.table, m.count = map[uint64][]*State{}, 0
	m.epoch++
	old := slices.Clone(m.memberStates) // states of the epoch are read with it
	*m.places = old
	m.forgetMembers()
	m.places = new([]memberState)
	return true
}
