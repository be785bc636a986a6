package grammar

import (
	"slices"
	"unicode/utf8"
)

// reference follows a grammar the slow way: it keeps every stack of what is still to come and never joins any.
type reference struct{ s *Syntax }

// todo is a stack of expressions, top first.
type todo struct {
	x    expr
	rest *todo
}

// byteExpr is a character that was begun.
type byteExpr struct {
	class  chars
	prefix string
}

// span gives the characters whose encoding begins with prefix, and the length of their encodings.
func span(prefix string) (lo, hi rune, size int) {
	c := prefix[0]
	switch {
	case c < 0x80:
		return rune(c), rune(c), 1
	case c >= 0xC2 && c <= 0xDF:
		lo, size = rune(c&0x1F), 2
	case c >= 0xE0 && c <= 0xEF:
		lo, size = rune(c&0x0F), 3
	case c >= 0xF0 && c <= 0xF4:
		lo, size = rune(c&0x07), 4
	default:
		return 1, 0, 1
	}
	hi = lo
	for i := 1; i < size; i++ {
		lo, hi = lo<<6, hi<<6|0x3F
		if i < len(prefix) {
			if prefix[i]&0xC0 != 0x80 {
				return 1, 0, 1
			}
			shift := rune(1) << 6
			lo += rune(prefix[i] & 0x3F)
			hi = hi&^(shift-1) + rune(prefix[i]&0x3F)
		}
	}
	least := []rune{0, 0, 0x80, 0x800, 0x10000}[size]
	return max(lo, least), min(hi, utf8.MaxRune), size
}

// expand gives the stacks whose top consumes a byte or a token; nil is the end of the text.
func (r reference) expand(t *todo, depth int, out *[]*todo) {
	if depth > 2000 {
		panic("reference: too deep")
	}
	if t == nil {
		*out = append(*out, nil)
		return
	}
	switch x := t.x.(type) {
	case literal:
		if x == "" {
			r.expand(t.rest, depth+1, out)
			return
		}
		*out = append(*out, t)
	case chars, byteExpr, tokens:
		*out = append(*out, t)
	case seq:
		rest := t.rest
		for _, y := range slices.Backward(x) {
			rest = &todo{y, rest}
		}
		r.expand(rest, depth+1, out)
	case alt:
		for _, y := range x {
			r.expand(&todo{y, t.rest}, depth+1, out)
		}
	case ref:
		r.expand(&todo{r.s.rules[x].body, t.rest}, depth+1, out)
	case repeat:
		if x.min == 0 {
			r.expand(t.rest, depth+1, out)
		}
		if x.max == 0 {
			return
		}
		more := repeat{x.x, max(0, x.min-1), x.max - 1}
		if x.max < 0 {
			more.max = -1
		}
		// A round that matches the empty text is no round.
		if x.min == 0 {
			var inner []*todo
			r.expand(&todo{x.x, nil}, depth+1, &inner)
			for _, i := range inner {
				if i != nil {
					*out = append(*out, attach(i, &todo{more, t.rest}))
				}
			}
			return
		}
		r.expand(&todo{x.x, &todo{more, t.rest}}, depth+1, out)
	default:
		panic("reference: unknown expression")
	}
}

func attach(t, below *todo) *todo {
	if t == nil {
		return below
	}
	return &todo{t.x, attach(t.rest, below)}
}

func (r reference) start() []*todo {
	var out []*todo
	r.expand(&todo{ref(r.s.root), nil}, 0, &out)
	return out
}

func (r reference) step(stacks []*todo, c byte) []*todo {
	var out []*todo
	for _, t := range stacks {
		if t == nil {
			continue
		}
		switch x := t.x.(type) {
		case literal:
			if x[0] == c {
				r.expand(&todo{x[1:], t.rest}, 0, &out)
			}
		case chars:
			out = append(out, r.inside(byteExpr{x, string([]byte{c})}, t.rest)...)
		case byteExpr:
			out = append(out, r.inside(byteExpr{x.class, x.prefix + string([]byte{c})}, t.rest)...)
		}
	}
	return out
}

func (r reference) inside(x byteExpr, rest *todo) []*todo {
	lo, hi, size := span(x.prefix)
	for _, c := range x.class {
		if lo > hi || c.lo > hi || c.hi < lo {
			continue
		}
		if size > len(x.prefix) {
			return []*todo{{x, rest}}
		}
		var out []*todo
		r.expand(rest, 0, &out)
		return out
	}
	return nil
}

func (r reference) token(stacks []*todo, id int32, text []byte) []*todo {
	at := stacks
	if len(text) == 0 {
		at = nil
	}
	for _, c := range text {
		at = r.step(at, c)
	}
	var out []*todo
	out = append(out, at...)
	for _, t := range stacks {
		if t == nil {
			continue
		}
		if x, ok := t.x.(tokens); ok {
			in := slices.ContainsFunc(x.list, func(n tokenName) bool { return n.id == id })
			if in != x.not && (in || len(text) > 0) {
				r.expand(t.rest, 0, &out)
			}
		}
	}
	return out
}

func accepts(stacks []*todo) bool { return slices.Contains(stacks, nil) }
