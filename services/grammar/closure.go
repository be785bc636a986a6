package grammar

import "slices"

// closure holds the nodes that a node leads to without consuming anything, inside its rule.
type closure struct {
	terms []int32 // nodes that consume something
	calls []call
	end   bool // the rule may be complete
}

// call of a rule. A tail call has nothing to return to.
type call struct {
	rule, ret int32
	tail      bool
}

// maxEntries of all closures of a program.
const maxEntries = 1 << 22

// closure of a node, computed once. Rules that match the empty text are also passed over, so an immediate return from a
// rule that was just entered never has to be followed.
func (p *program) closure(n int32) *closure {
	if int(n) < len(p.closures) {
		if c := p.closures[n]; c != nil {
			return c
		}
	}
	c := &closure{}
	seen := map[int32]bool{n: true}
	queue := []int32{n}
	visit := func(n int32) {
		if !seen[n] {
			seen[n] = true
			queue = append(queue, n)
		}
	}
	for len(queue) > 0 {
		at := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		switch x := &p.nodes[at]; x.kind {
		case kindEnd:
			c.end = true
		case kindBytes, kindTokens:
			c.terms = append(c.terms, at)
		case kindSplit:
			for _, to := range x.to {
				visit(to)
			}
		case kindCall:
			c.calls = append(c.calls, call{rule: x.rule, ret: x.next, tail: p.onlyEnd(x.next)})
			if p.null[x.rule] && !x.solid {
				visit(x.next)
			}
		case kindMembers:
			p.expand(at, c, visit)
		}
	}
	slices.Sort(c.terms)
	for int(n) >= len(p.closures) {
		p.closures = append(p.closures, nil)
	}
	p.closures[n] = c
	p.entries += len(seen)
	return c
}

// onlyEnd reports whether only the rule's end follows.
func (p *program) onlyEnd(n int32) bool {
	for range 4 {
		x := &p.nodes[n]
		switch {
		case x.kind == kindEnd:
			return true
		case x.kind == kindSplit && len(x.to) == 1:
			n = x.to[0]
		default:
			return false
		}
	}
	return false
}

// sort orders rules so that a rule comes before those that it may begin with. There are no cycles: left recursion
// is refused.
func (p *program) sort() {
	p.order, p.rules = make([]int32, len(p.starts)), make([]int32, len(p.starts))
	place := int32(len(p.starts))
	type visit struct{ rule, next int32 }
	seen := make([]bool, len(p.starts))
	for r := range p.starts {
		if seen[r] {
			continue
		}
		if p.entries > maxEntries {
			panic(errTooLarge{})
		}
		seen[r] = true
		stack := []visit{{rule: int32(r)}}
		for len(stack) > 0 {
			top := &stack[len(stack)-1]
			calls := p.closure(p.starts[top.rule]).calls
			if int(top.next) == len(calls) {
				place--
				p.order[top.rule], p.rules[place] = place, top.rule
				stack = stack[:len(stack)-1]
				continue
			}
			callee := calls[top.next].rule
			top.next++
			if !seen[callee] {
				seen[callee] = true
				stack = append(stack, visit{rule: callee})
			}
		}
	}
}
