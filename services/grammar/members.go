package grammar

import (
	"encoding/binary"
	"math/bits"
)

// memberSet is a $members of the text.
type memberSet struct {
	least, most int
	separator   int32 // rule
	parts       []int32
	required    []uint64 // bits of parts
	many        []uint64
	late        []uint64
	next        int32
	needed      int // parts that are required
}

// memberState is a place in a $members: which parts have come, as far as that matters.
type memberState struct {
	set   int32
	after bool     // of a separator: a part has to follow
	seen  []uint64 // parts that cannot come again, and those that may come often and came
	count int      // of all parts, as far as the limits go
}

func hasPart(set []uint64, i int) bool { return set[i/64]>>(i%64)&1 != 0 }

// members adds the node of a $members; those after it are made when they are reached.
func (b *builder) members(x members, next int32) int32 {
	words := (len(x.parts) + 63) / 64
	s := memberSet{least: x.least, most: x.most, next: next, required: make([]uint64, words), many: make([]uint64, words),
		late: make([]uint64, words)}
	asRule := func(x expr) int32 {
		if r, ok := x.(ref); ok {
			return int32(r)
		}
		return int32(b.rule(x).(ref))
	}
	s.separator = asRule(x.separator)
	for i, p := range x.parts {
		s.parts = append(s.parts, asRule(p.x))
		if p.required {
			s.required[i/64] |= 1 << (i % 64)
			s.needed++
		}
		if p.many {
			s.many[i/64] |= 1 << (i % 64)
		}
		if p.late {
			s.late[i/64] |= 1 << (i % 64)
		}
	}
	b.memberSets = append(b.memberSets, s)
	if b.memberNodes == nil {
		b.memberNodes = map[string]int32{}
	}
	n := b.member(memberState{set: int32(len(b.memberSets) - 1), seen: make([]uint64, words)})
	if n < 0 {
		panic(errTooLarge{})
	}
	return n
}

// member returns the node of a place, -1 when there are too many.
func (p *program) member(s memberState) int32 {
	key := binary.AppendVarint(nil, int64(s.set))
	key = binary.AppendVarint(key, int64(s.count))
	if s.after {
		key = append(key, 1)
	} else {
		key = append(key, 0)
	}
	for _, w := range s.seen {
		key = binary.LittleEndian.AppendUint64(key, w)
	}
	if n, ok := p.memberNodes[string(key)]; ok {
		return n
	}
	if len(p.nodes) >= 2*MaxNodes {
		p.crowded = true
		return -1
	}
	p.nodes = append(p.nodes, node{kind: kindMembers, next: p.memberSets[s.set].next, set: int32(len(p.memberStates))})
	p.memberStates = append(p.memberStates, s)
	n := int32(len(p.nodes) - 1)
	p.memberNodes[string(key)] = n
	return n
}

// expand adds the successors of a place of a $members: a separator, parts, or the end.
func (p *program) expand(n int32, c *closure, visit func(int32)) {
	s := p.memberStates[p.nodes[n].set]
	set := &p.memberSets[s.set]
	distinct, missing := 0, 0
	for i, w := range s.seen {
		distinct += bits.OnesCount64(w)
		missing += bits.OnesCount64(set.required[i] &^ w)
	}
	if !s.after && missing == 0 && distinct >= set.least {
		visit(set.next)
	}
	room := set.most < 0 || s.count < set.most
	if !room {
		return
	}
	// Room must remain for the required parts, and for as many others as the limits still require.
	left := func(i int) bool {
		if set.most < 0 {
			return true
		}
		now, lacks := distinct, missing
		if !hasPart(s.seen, i) {
			now++
			if hasPart(set.required, i) {
				lacks--
			}
		}
		return s.count+1+max(lacks, set.least-now) <= set.most
	}
	// Parts that may come often are offered only while one of them is still required: otherwise a model might write
	// them without end.
	enough := func(i int) bool {
		now := distinct
		if !hasPart(s.seen, i) {
			now++
		}
		return missing == 0 && now >= set.least && (s.count > 0 || !hasPart(set.late, i))
	}
	any := false
	for i, rule := range set.parts {
		many := hasPart(set.many, i)
		if hasPart(s.seen, i) && !many || many && !enough(i) || !left(i) {
			continue
		}
		any = true
		if s.count > 0 && !s.after {
			break // after a separator
		}
		to := memberState{set: s.set, seen: make([]uint64, len(s.seen)), count: s.count + 1}
		copy(to.seen, s.seen)
		to.seen[i/64] |= 1 << (i % 64)
		if set.most < 0 {
			to.count = 1
		}
		ret := p.member(to)
		if ret < 0 {
			return
		}
		c.calls = append(c.calls, call{rule: rule, ret: ret})
	}
	if any && s.count > 0 && !s.after {
		s.after = true
		if ret := p.member(s); ret >= 0 {
			c.calls = append(c.calls, call{rule: set.separator, ret: ret})
		}
	}
}

// forgetMembers drops the nodes that were made for places.
func (p *program) forgetMembers() {
	p.nodes, p.memberStates = p.nodes[:p.fixed], p.memberStates[:p.fixedStates:p.fixedStates]
	p.closures = p.closures[:min(len(p.closures), p.fixed)]
	for key, n := range p.memberNodes {
		if int(n) >= p.fixed {
			delete(p.memberNodes, key)
		}
	}
	// Nodes of the text lead to places, too.
	for i := range p.closures {
		p.closures[i] = nil
	}
	p.entries, p.crowded = 0, false
}
