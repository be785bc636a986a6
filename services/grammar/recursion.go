package grammar

// nullable tells which rules match the empty text.
func (s *Syntax) nullable() []bool {
	null := make([]bool, len(s.rules))
	users := make([][]int32, len(s.rules))
	var queue []int32
	for i := range s.rules {
		mentions(s.rules[i].body, func(r int) { users[r] = append(users[r], int32(i)) })
		queue = append(queue, int32(i))
	}
	for len(queue) > 0 {
		i := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		if !null[i] && nullableExpr(s.rules[i].body, null) {
			null[i] = true
			queue = append(queue, users[i]...)
		}
	}
	return null
}

// mentions calls visit with every rule in x.
func mentions(x expr, visit func(int)) {
	switch x := x.(type) {
	case seq:
		for _, y := range x {
			mentions(y, visit)
		}
	case alt:
		for _, y := range x {
			mentions(y, visit)
		}
	case repeat:
		mentions(x.x, visit)
	case ref:
		visit(int(x))
	}
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
	}
}

// leftRecursion finds rules that begin with themselves, directly or through others, and gives the way round.
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
