package grammar

import "slices"

// gate waits until need of its parts match the empty text. A choice needs one, however many do in the end.
type gate struct {
	need   int32
	parent int32
}

// nullable returns which rules match the empty text, in time linear in the text: the result for a part is passed up,
// and no part is visited twice. The first gates are the rules.
func (s *Syntax) nullable() []bool {
	gates := make([]gate, len(s.rules))
	users := make([][]int32, len(s.rules)) // gates that a rule is a part of
	var empty []int32                      // gates with another part that matches the empty text
	var add func(x expr, parent int32)
	add = func(x expr, parent int32) {
		switch x := x.(type) {
		case seq, alt:
			var parts []expr
			need := 1
			if list, ok := x.(seq); ok {
				parts, need = list, len(list)
			} else {
				parts = x.(alt)
			}
			if need == 0 {
				empty = append(empty, parent)
				return
			}
			at := int32(len(gates))
			gates = append(gates, gate{int32(need), parent})
			for _, y := range parts {
				add(y, at)
			}
		case ref:
			users[x] = append(users[x], parent)
		case repeat:
			if x.min > 0 {
				add(x.x, parent)
				return
			}
			empty = append(empty, parent)
		default:
			if nullableExpr(x, nil) {
				empty = append(empty, parent)
			}
		}
	}
	for i := range s.rules {
		gates[i] = gate{1, -1}
		add(s.rules[i].body, int32(i))
	}
	null := make([]bool, len(s.rules))
	for len(empty) > 0 {
		at := empty[len(empty)-1]
		empty = empty[:len(empty)-1]
		if gates[at].need--; gates[at].need != 0 {
			continue
		}
		if int(at) < len(null) {
			null[at] = true
			empty = append(empty, users[at]...)
		} else {
			empty = append(empty, gates[at].parent)
		}
	}
	return null
}

func nullableExpr(x expr, null []bool) bool {
	switch x := x.(type) {
	case literal:
		return x == ""
	case seq:
		for _, y := range x {
			if !nullableExpr(y, null) {
				return false
			}
		}
		return true
	case alt:
		for _, y := range x {
			if nullableExpr(y, null) {
				return true
			}
		}
		return false
	case ref:
		return null[x]
	case repeat:
		return x.min == 0 || nullableExpr(x.x, null)
	case text:
		return !x.through
	case members:
		return x.least == 0 && !slices.ContainsFunc(x.parts, func(p memberPart) bool { return p.required })
	}
	return false
}

// leftmost calls visit with every rule that x may begin with.
func leftmost(x expr, null []bool, visit func(int)) {
	switch x := x.(type) {
	case seq:
		for _, y := range x {
			leftmost(y, null, visit)
			if !nullableExpr(y, null) {
				return
			}
		}
	case alt:
		for _, y := range x {
			leftmost(y, null, visit)
		}
	case ref:
		visit(int(x))
	case repeat:
		if x.max != 0 {
			leftmost(x.x, null, visit)
		}
	case members:
		for _, p := range x.parts {
			leftmost(p.x, null, visit)
		}
	}
}

// leftRecursion finds rules that begin with themselves, directly or through others, and returns the cycle.
func (s *Syntax) leftRecursion(null []bool) []int {
	const (
		fresh = iota
		open
		done
	)
	state := make([]uint8, len(s.rules))
	var path, cycle []int
	// Depth-first with a stack of its own: chains of rules may be as long as there are rules.
	type visit struct {
		rule int
		next []int
	}
	begins := func(r int) (list []int) {
		leftmost(s.rules[r].body, null, func(i int) { list = append(list, i) })
		return list
	}
	for r := range s.rules {
		if state[r] != fresh {
			continue
		}
		stack := []visit{{r, begins(r)}}
		state[r] = open
		path = append(path[:0], r)
		for len(stack) > 0 {
			top := &stack[len(stack)-1]
			if len(top.next) == 0 {
				state[top.rule] = done
				stack = stack[:len(stack)-1]
				path = path[:len(path)-1]
				continue
			}
			n := top.next[0]
			top.next = top.next[1:]
			switch state[n] {
			case open:
				for i, q := range path {
					if q == n {
						cycle = append(append(cycle, path[i:]...), n)
						return cycle
					}
				}
			case fresh:
				state[n] = open
				path = append(path, n)
				stack = append(stack, visit{n, begins(n)})
			}
		}
	}
	return nil
}
