package grammar

import (
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// array writes the first items, then others as often as the bounds allow.
func (c *schemaCompiler) array(s *shape, path string) string {
	a := s.array
	if len(s.except) > 0 {
		for _, v := range s.except {
			if v.kind == 'a' && c.arrayHolds(&a, v) {
				if len(v.items) == 0 {
					a.lo = max(a.lo, 1)
					continue
				}
				other := arrayShape{hi: -1, prefix: []conj{{{c.constant(v.items[0]), true}}}}
				a = a.and(&other)
			}
		}
	}
	// Where no item can follow, the array ends.
	for i, x := range a.prefix {
		if c.hollow(x) {
			a.hi = lower(a.hi, i)
			break
		}
	}
	if c.hollow(a.rest) {
		a.hi = lower(a.hi, len(a.prefix))
	}
	if a.hi >= 0 && a.lo > a.hi {
		return ""
	}
	if a.unique && (a.hi < 0 || a.hi > 1) {
		if list, ok := c.items(&a); ok {
			return c.distinct(list, &a, path)
		}
		c.drop(path+".uniqueItems", "is supported for items out of a list of values only")
	}
	if len(a.contains) > 0 {
		return c.containing(&a, path)
	}
	if a.hi >= 0 && a.hi < len(a.prefix) {
		a.prefix = a.prefix[:a.hi]
	}
	// Unlike in the standard, items that the schema does not ask for do not follow, and all first items are written.
	if !c.options.Open && len(a.prefix) > 0 {
		a.lo = max(a.lo, len(a.prefix))
		if len(a.rest) == 0 {
			a.hi = lower(a.hi, a.lo)
		}
	}
	return c.sequence(&a, path)
}

// sequence writes an array of first items and of those after them, in their number.
func (c *schemaCompiler) sequence(a *arrayShape, path string) string {
	ws := c.json("ws")
	comma := strings.TrimSpace(`"," ` + ws)
	var parts []string
	for i, x := range a.prefix {
		parts = append(parts, strings.TrimSpace(c.inside(x, fmt.Sprintf("%s.prefixItems[%d]", path, i))+" "+ws))
	}
	fixed := len(parts)
	tail := ""
	bounds := func(lo, hi int) string {
		if hi < 0 {
			return fmt.Sprintf("{%d,}", lo)
		}
		return fmt.Sprintf("{%d,%d}", lo, hi)
	}
	if a.hi < 0 || a.hi > fixed {
		item := strings.TrimSpace(c.inside(a.rest, path+".items") + " " + ws)
		lo, hi := max(0, a.lo-fixed), -1
		if a.hi >= 0 {
			hi = a.hi - fixed
		}
		if fixed > 0 {
			tail = fmt.Sprintf("(%s %s)%s", comma, item, bounds(lo, hi))
		} else {
			tail = fmt.Sprintf("%s (%s %s)%s", item, comma, item, bounds(max(lo-1, 0), max(hi-1, -1)))
			if lo == 0 {
				tail = "(" + tail + ")?"
			}
		}
	}
	for i := fixed - 1; i >= 0; i-- {
		body := strings.TrimSpace(parts[i] + " " + tail)
		if i > 0 {
			body = comma + " " + body
		}
		if tail = body; i >= a.lo {
			tail = c.w.Rule("(" + body + ")?")
		}
	}
	return c.w.Rule(strings.Join(strings.Fields(fmt.Sprintf(`"[" %s %s "]"`, ws, tail)), " "))
}

// maxListed is the number of whole numbers between bounds that are listed.
const maxListed = 256

// items lists the possible items of an array, if there are no first ones and the values can be listed.
func (c *schemaCompiler) items(a *arrayShape) ([]*jsonNode, bool) {
	if len(a.prefix) > 0 || len(a.contains) > 0 || len(a.rest) == 0 {
		return nil, false
	}
	var list []*jsonNode
	add := func(v *jsonNode) {
		c.spend(1+len(list)/fewMembers, "")
		if !slices.ContainsFunc(list, v.equal) {
			list = append(list, v)
		}
	}
	for _, s := range c.live(c.shapes(a.rest)) {
		if s.listed {
			for _, v := range s.values {
				add(v)
			}
			continue
		}
		if s.types&(typeString|typeArray|typeObject) != 0 {
			return nil, false
		}
		if s.types&typeNumber != 0 {
			n := &s.number
			if !n.integer || n.lo == nil || n.hi == nil {
				return nil, false
			}
			lo, hi := inward(n.lo, n.loOpen, 1).Num(), inward(n.hi, n.hiOpen, -1).Num()
			if count := new(big.Int).Sub(hi, lo); !count.IsInt64() || count.Int64() >= maxListed {
				return nil, false
			}
			for x := new(big.Int).Set(lo); x.Cmp(hi) <= 0; x.Add(x, big.NewInt(1)) {
				if n.holds(new(big.Rat).SetInt(x)) {
					add(&jsonNode{kind: 'n', text: x.String()})
				}
			}
		}
		for _, v := range []*jsonNode{{kind: '0', text: "null"}, {kind: 'b', text: "false"}, {kind: 'b', text: "true"}} {
			if v.is(s.types) {
				add(v)
			}
		}
	}
	return list, true
}

// distinct writes an array of values out of a list, each once at most.
func (c *schemaCompiler) distinct(list []*jsonNode, a *arrayShape, path string) string {
	if a.lo > len(list) {
		return ""
	}
	was := c.nested
	c.nested = true
	defer func() { c.nested = was }()
	ws := c.json("ws")
	if len(list) == 0 {
		return c.w.Rule(`"[" ` + ws + ` "]"`)
	}
	parts := make([]string, len(list))
	for i, v := range list {
		parts[i] = c.w.Rule(strings.TrimSpace(c.literal(v, path+".items") + " " + ws))
	}
	limit := "*"
	if a.hi >= 0 {
		limit = strconv.Itoa(a.hi)
	}
	return c.w.Rule(fmt.Sprintf(`"[" %s $members(%d, %s, %s, %s) "]"`, ws, a.lo, limit,
		c.w.Rule(strings.TrimSpace(`"," `+ws)), strings.Join(parts, ", ")))
}

// maxArrayStates of an array that has to hold certain items.
const maxArrayStates = 2000

// containing writes an array that has to hold certain items, as an automaton over items: its states count the items,
// and those that are of each kind.
func (c *schemaCompiler) containing(a *arrayShape, path string) string {
	if len(a.contains) > mostContains {
		c.drop(path+".contains", fmt.Sprintf("is not supported more than %d times", mostContains))
		b := *a
		b.contains = nil
		return c.array(&shape{array: b}, path)
	}
	m := c.itemCounter(a, path)
	live := m.live()
	if !live[0] {
		return ""
	}
	ws := c.json("ws")
	names := make([]string, len(m.states))
	for n := range names {
		names[n] = c.w.fresh()
	}
	for n, s := range m.states {
		if !live[n] {
			continue
		}
		var parts []string
		for _, x := range m.steps[n] {
			if !live[x.to] {
				continue
			}
			part := x.item + " " + names[x.to]
			if n > 0 {
				part = strings.TrimSpace(`"," `+ws) + " " + part
			}
			parts = append(parts, part)
		}
		if s.final(a) {
			parts = append(parts, `""`)
		}
		c.w.Define(names[n], strings.Join(parts, " | "))
	}
	return c.w.Rule(strings.Join(strings.Fields(fmt.Sprintf(`"[" %s %s "]"`, ws, names[0])), " "))
}

// mostContains bounds the "contains" of an array: every subset of them has a rule for its items.
const mostContains = 4

// itemState counts the items of an array, and those that are of each kind in its "contains".
type itemState struct {
	items  int
	counts [mostContains]int
}

// final reports whether the array may end here.
func (s *itemState) final(a *arrayShape) bool {
	for i, of := range a.contains {
		if s.counts[i] < of.lo {
			return false
		}
	}
	return s.items >= a.lo
}

// itemStep is an item, as a rule, and the state after it.
type itemStep struct {
	item string
	to   int
}

// itemAutomaton accepts the arrays of a shape. The first state has no item.
type itemAutomaton struct {
	shape  *arrayShape
	states []itemState
	steps  [][]itemStep
}

// live reports of every state whether an end can be reached from it.
func (m *itemAutomaton) live() []bool {
	live := make([]bool, len(m.states))
	for changed := true; changed; {
		changed = false
		for n := range slices.Backward(m.states) {
			if live[n] {
				continue
			}
			if m.states[n].final(m.shape) || slices.ContainsFunc(m.steps[n], func(x itemStep) bool { return live[x.to] }) {
				live[n], changed = true, true
			}
		}
	}
	return live
}

// itemCounter builds the automaton of an array that has to hold certain items.
func (c *schemaCompiler) itemCounter(a *arrayShape, path string) *itemAutomaton {
	m := &itemAutomaton{shape: a, states: []itemState{{}}}
	made := map[itemState]int{{}: 0}
	ws := c.json("ws")
	rules := map[string]string{} // of items, "" when nothing is valid
	for n := 0; n < len(m.states); n++ {
		if n > maxArrayStates {
			c.giveUp(path+".contains", "needs too many states")
		}
		var out []itemStep
		for set := range 1 << len(a.contains) {
			want, t, possible := a.counted(m.states[n], set)
			if !possible {
				continue
			}
			key := want.key()
			rule, ok := rules[key]
			if !ok {
				if !c.hollow(want) {
					rule = strings.TrimSpace(c.inside(want, path+".items") + " " + ws)
				}
				rules[key] = rule
			}
			if rule == "" {
				continue
			}
			to, ok := made[t]
			if !ok {
				to = len(m.states)
				made[t], m.states = to, append(m.states, t)
			}
			out = append(out, itemStep{rule, to})
			c.spend(1, path)
		}
		m.steps = append(m.steps, out)
	}
	return m
}

// counted returns what the item after s must be if it counts for the kinds of set, and the state after it. It is
// impossible when the array is full, when a kind need not or must not be counted once more, or when "not this kind"
// cannot be expressed.
func (a *arrayShape) counted(s itemState, set int) (want conj, t itemState, possible bool) {
	if a.hi >= 0 && s.items >= a.hi {
		return nil, s, false
	}
	top := max(len(a.prefix), a.lo, a.hi, 1) // no item is a state of its own: it has no comma
	t = s
	t.items = min(s.items+1, top)
	want = a.item(s.items)
	for i, of := range a.contains {
		counted := set>>i&1 == 1
		switch {
		case counted && of.hi < 0 && s.counts[i] >= of.lo, counted && of.hi >= 0 && s.counts[i] >= of.hi:
			return nil, t, false // enough of them need not be counted, too many must not be
		case counted:
			want = want.and(of.conj)
			t.counts[i]++
		case of.hi >= 0:
			// An item that is not counted must not be of this kind.
			if len(of.conj) != 1 {
				return nil, t, false
			}
			want = want.and(conj{{of.conj[0].node, !of.conj[0].not}})
		}
	}
	return want, t, true
}
