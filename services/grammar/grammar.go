package grammar

import (
	"errors"
	"math/bits"
	"slices"
	"sync"
)

// errAmbiguous is the fault of a grammar that has more readings of a text than can be followed.
var errAmbiguous = errors.New("the grammar is too ambiguous: it allows too many readings of the same text")

// Grammar is a compiled grammar. It is safe for concurrent use.
type Grammar struct {
	vocab *Vocabulary

	mu     sync.Mutex // guards everything below, and the caches inside States
	m      *machine
	start  *State
	shapes []shapeTable // made on first use
	rep    []int32      // node -> the node of its chain that has the same mask
	masks  lru
	stack  []*State // scratch of a walk
	pairs  map[pair]struct{}
	queue  []pair

	targets   []int32 // scratch of stepAll
	different []uint8
}

type pair struct {
	shape int16
	state *State
}

// shapeTable is a shape over the grammar's classes of bytes.
type shapeTable [][]shapeEdge

type shapeEdge struct {
	class uint8
	to    int16
}

const (
	// maxMasks kept per grammar.
	maxMasks = 2048
	// maxMaskWork bounds the pairs that one mask may visit: a second of work, where usual masks need some thousands.
	maxMaskWork = 1 << 22
)

// Mask is the set of tokens that a state allows. It is immutable. A turn may end where Accepts; ends of turns are not
// in the mask.
type Mask struct {
	Bits []uint32 // word id/32, bit id%32
	// Count of allowed tokens; Only is one of them, the only one when Count is 1, and -1 when there is none.
	Count int
	Only  int32
}

// Compile binds a grammar to a vocabulary. Faults are *Error: tokens that do not exist, or too many states.
func (s *Syntax) Compile(v *Vocabulary) (*Grammar, error) {
	p, err := s.build(v)
	if err != nil {
		return nil, err
	}
	g := &Grammar{vocab: v, m: newMachine(p), pairs: map[pair]struct{}{}}
	g.masks.max = maxMasks
	g.shapes = make([]shapeTable, len(v.groups))
	g.rep = p.representatives(v.longest)
	g.start = g.m.begin()
	if g.m.fault != nil {
		return nil, &Error{1, 1, g.m.fault.Error()}
	}
	return g, nil
}

// through numbers a shape's edges by classes.
func (p *program) through(s *tokenShape) shapeTable {
	t := make(shapeTable, len(s.next))
	for at := range s.next {
		for c := range 256 {
			e := shapeEdge{p.classOf[c], s.next[at][c]}
			if e.to >= 0 && !slices.Contains(t[at], e) {
				t[at] = append(t[at], e)
			}
		}
	}
	return t
}

// representatives names, for nodes of counted repetitions that one token cannot bring to a limit, the node of the
// repetition without limits: a round takes at least one byte.
func (p *program) representatives(longest int) []int32 {
	var rep []int32
	for _, c := range p.chains {
		if len(c.nodes) < longest+3 {
			continue
		}
		if rep == nil {
			rep = make([]int32, len(p.nodes))
			for i := range rep {
				rep[i] = int32(i)
			}
		}
		far := longest + 1
		for i := range c.nodes {
			switch {
			case i+far <= c.min:
				rep[c.nodes[i]] = c.must
			case c.max > 0 && i >= c.min && i+far <= c.max:
				rep[c.nodes[i]] = c.may
			}
		}
	}
	return rep
}

// Start is the state before any text.
func (g *Grammar) Start() *State { return g.start }

// Accepts reports whether the text so far is complete.
func (g *Grammar) Accepts(s *State) bool { return s != nil && s.frames[0].node == accepting }

// Advance returns the state after a token, nil when the grammar does not allow it.
func (g *Grammar) Advance(s *State, token int32) *State {
	if s == nil || token < 0 || int(token) >= g.vocab.size {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	s = g.enter(s)
	ordinary := hasBit(g.vocab.normal, token)
	var t *State
	if ordinary {
		t = g.bytes(s, g.vocab.bytes(token))
	}
	if g.hasTokens(s) {
		if u := g.m.stepToken(s, token, ordinary); u != dead {
			if t == nil {
				t = u
			} else {
				t = g.m.join(t, u)
			}
		}
	}
	if g.m.fault != nil || t == dead {
		return nil
	}
	return t
}

// AdvanceBytes is Advance for text that does not come as tokens.
func (g *Grammar) AdvanceBytes(s *State, text []byte) *State {
	if s == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.bytes(g.enter(s), text)
}

func (g *Grammar) bytes(s *State, text []byte) *State {
	for _, c := range text {
		if s = g.m.step(s, g.m.classOf[c]); s == dead {
			return nil
		}
	}
	return s
}

// enter begins a call with a state from outside.
func (g *Grammar) enter(s *State) *State {
	g.m.fault = nil
	if g.m.forget() {
		g.masks.clear()
		g.start = g.m.current(g.start)
	}
	return g.m.current(s)
}

func (g *Grammar) hasTokens(s *State) bool {
	for _, f := range s.frames {
		if f.node != accepting && g.m.nodes[f.node].kind == kindTokens {
			return true
		}
	}
	return false
}

// Mask returns the tokens that may follow. The error says that the grammar is too ambiguous to be followed here.
func (g *Grammar) Mask(s *State) (*Mask, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s = g.canonical(g.enter(s))
	if m := s.mask; m != nil {
		g.masks.touch(s)
		return m, nil
	}
	m := g.compute(s)
	if g.m.fault != nil {
		return nil, g.m.fault
	}
	s.mask = m
	g.masks.add(s)
	return m, nil
}

// canonical replaces nodes by their representatives.
func (g *Grammar) canonical(s *State) *State {
	if g.rep == nil {
		return s
	}
	if s.canon != nil && s.canon.epoch == g.m.epoch {
		return s.canon
	}
	list := slices.Clone(s.frames)
	changed := false
	for i, f := range list {
		if f.node == accepting {
			continue
		}
		if int(f.node) < len(g.rep) { // the others are places of $members
			list[i].node = g.rep[f.node]
		}
		list[i].below = g.canonical(f.below)
		changed = changed || list[i] != f
	}
	s.canon = s
	if changed {
		g.m.work = 0
		s.canon = g.m.union(list)
		s.canon.canon = s.canon
	}
	return s.canon
}

// compute walks the tries.
func (g *Grammar) compute(s *State) *Mask {
	v := g.vocab
	g.m.spent = 0
	m := &Mask{Bits: make([]uint32, v.words), Only: -1}
	if len(g.stack) < v.longest+1 {
		g.stack = make([]*State, v.longest+1)
	}
	var done [groups]bool
	for at := range v.groups {
		if !done[at] && len(v.groups[at].nodes) > 0 && g.contains(s, at) {
			for _, c := range v.groups[at].covers {
				done[c] = true
				or(m.Bits, v.groups[c].mask)
			}
		}
	}
	for i := range v.groups {
		if !done[i] {
			g.walk(s, v.groups[i].nodes, m.Bits)
		}
	}
	for _, f := range s.frames {
		if f.node == accepting || g.m.nodes[f.node].kind != kindTokens {
			continue
		}
		set := &g.m.sets[g.m.nodes[f.node].set]
		if set.not {
			for i := range m.Bits {
				m.Bits[i] |= v.normal[i] &^ wordOf(set.ids, i)
			}
			continue
		}
		for _, id := range set.ids {
			setBit(m.Bits, id)
		}
	}
	m.count()
	return m
}

// step is a step of a mask.
func (g *Grammar) step(s *State, class uint8) *State {
	t := g.m.step(s, class)
	if g.m.spent > maxMaskWork || g.m.count > 2*maxStates {
		g.m.fault = errAmbiguous
	}
	return t
}

// maxTargets is the most targets of a state for which stepAll computes all steps; with more, steps are computed
// on demand.
const maxTargets = 1 << 12

// stepAll computes the steps of all classes of bytes. Classes that choose the same edges lead to the same state. So a
// place where all letters but one lead to the same state costs two steps, not one for every letter.
func (g *Grammar) stepAll(s *State) {
	n := len(s.frames)
	if n*g.m.classes > maxTargets {
		return
	}
	// targets[c*n+i] is where frame i leads with class c.
	g.targets = slices.Grow(g.targets[:0], n*g.m.classes)[:n*g.m.classes]
	for i := range g.targets {
		g.targets[i] = -1
	}
	for i, f := range s.frames {
		if f.node == accepting {
			continue
		}
		for _, e := range g.m.nodes[f.node].edges {
			for c := int(g.m.classOf[e.lo]); c <= int(g.m.classOf[e.hi]); c++ {
				g.targets[c*n+i] = e.to
			}
		}
	}
	g.different = g.different[:0]
	for c := range g.m.classes {
		of := g.targets[c*n : c*n+n]
		like := -1
		for _, d := range g.different {
			if slices.Equal(of, g.targets[int(d)*n:int(d)*n+n]) {
				like = int(d)
				break
			}
		}
		if like < 0 {
			g.different = append(g.different, uint8(c))
			if g.step(s, uint8(c)); g.m.fault != nil {
				return
			}
			continue
		}
		s.next[c] = s.next[like]
	}
}

// walk sets the bits of the tokens in a trie that the state allows.
func (g *Grammar) walk(s *State, nodes []trieNode, mask []uint32) {
	stack := g.stack
	stack[0] = s
	for i := int32(0); int(i) < len(nodes); {
		n := &nodes[i]
		at := stack[n.depth-1]
		class := g.m.classOf[n.byte]
		var t *State
		if at.next != nil {
			t = at.next[class]
		}
		if t == nil {
			if t = g.step(at, class); g.m.fault != nil {
				return
			}
		}
		if t == dead {
			i = n.skip
			continue
		}
		stack[n.depth] = t
		if n.token >= 0 {
			mask[n.token/32] |= 1 << (n.token % 32)
		}
		i++
	}
}

// maxPairs bounds the comparison of a state with a shape.
const maxPairs = 512

// lasts reports whether a state allows a run of letters as long as the longest token of a group: a cheap test that
// shows when it does not allow all of them.
func (g *Grammar) lasts(s *State, length int) bool {
	class := g.m.classOf['a']
	for range length {
		if s = g.step(s, class); s == dead || g.m.fault != nil {
			return false
		}
	}
	return true
}

// contains reports whether the state allows every text of a group's shape. It may return false without an
// exhaustive search.
func (g *Grammar) contains(s *State, at int) bool {
	of := &g.vocab.groups[at]
	if of.shape == nil || !g.lasts(s, of.longest) {
		return false
	}
	if g.shapes[at] == nil {
		g.shapes[at] = g.m.through(of.shape)
	}
	table := g.shapes[at]
	clear(g.pairs)
	g.queue = append(g.queue[:0], pair{0, s})
	g.pairs[g.queue[0]] = struct{}{}
	for len(g.queue) > 0 {
		p := g.queue[len(g.queue)-1]
		g.queue = g.queue[:len(g.queue)-1]
		if g.stepAll(p.state); g.m.fault != nil {
			return false
		}
		var last pair
		for _, e := range table[p.shape] {
			t := g.step(p.state, e.class)
			if t == dead || g.m.fault != nil {
				return false
			}
			q := pair{e.to, t}
			if q == last {
				continue
			}
			last = q
			if _, ok := g.pairs[q]; !ok {
				if len(g.pairs) >= maxPairs {
					return false
				}
				g.pairs[q] = struct{}{}
				g.queue = append(g.queue, q)
			}
		}
	}
	return true
}

// Forced returns the bytes that must come next, up to a place with a choice or where the text may end, at most limit.
func (g *Grammar) Forced(s *State, limit int) []byte {
	if s == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	s = g.enter(s)
	var out []byte
	for len(out) < limit {
		c, ok := g.onlyByte(s)
		if !ok {
			break
		}
		if s = g.m.step(s, g.m.classOf[c]); s == dead {
			break
		}
		out = append(out, c)
	}
	return out
}

func (g *Grammar) onlyByte(s *State) (c byte, ok bool) {
	for _, f := range s.frames {
		if f.node == accepting || g.m.nodes[f.node].kind == kindTokens {
			return 0, false
		}
		for _, e := range g.m.nodes[f.node].edges {
			if e.lo != e.hi || ok && e.lo != c {
				return 0, false
			}
			c, ok = e.lo, true
		}
	}
	return c, ok
}

func (m *Mask) count() {
	for i, w := range m.Bits {
		if w != 0 && m.Only < 0 {
			m.Only = int32(32*i + bits.TrailingZeros32(w))
		}
		m.Count += bits.OnesCount32(w)
	}
}

// Allows reports whether a token is in the mask.
func (m *Mask) Allows(token int32) bool {
	return token >= 0 && int(token/32) < len(m.Bits) && hasBit(m.Bits, token)
}

func hasBit(mask []uint32, id int32) bool { return mask[id/32]>>(id%32)&1 != 0 }

func or(dst, src []uint32) {
	for i, w := range src {
		dst[i] |= w
	}
}

// wordOf returns word i of the mask of a sorted list.
func wordOf(ids []int32, i int) (w uint32) {
	at, _ := slices.BinarySearch(ids, int32(32*i))
	for ; at < len(ids) && int(ids[at]) < 32*(i+1); at++ {
		w |= 1 << (ids[at] % 32)
	}
	return w
}
