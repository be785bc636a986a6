package chattemplate

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

func (in *interp) evalBinary(x *binaryExpr) (Value, error) {
	l, err := in.eval(x.l)
	if err != nil {
		return nil, err
	}
	switch x.op {
	case "and":
		if !truth(l) {
			return l, nil
		}
		return in.eval(x.r)
	case "or":
		if truth(l) {
			return l, nil
		}
		return in.eval(x.r)
	}
	r, err := in.eval(x.r)
	if err != nil {
		return nil, err
	}
	return in.arith(x.op, l, r)
}

var errOverflow = errors.New("integer overflow")

// arith is the binary operators on numbers, and + * on sequences.
func (in *interp) arith(op string, l, r Value) (Value, error) {
	if u, ok := anyUndefined(l, r); ok {
		return nil, u.err()
	}
	if op == "*" {
		if n, _, isFloat, ok := number(r); ok && !isFloat {
			switch a := l.(type) {
			case Str:
				return in.repeat(a, n)
			case *List:
				return in.repeatList(a, n)
			}
		}
		if n, _, isFloat, ok := number(l); ok && !isFloat {
			switch b := r.(type) {
			case Str:
				return in.repeat(b, n)
			case *List:
				return in.repeatList(b, n)
			}
		}
	}
	switch a := l.(type) {
	case Str:
		if op == "%" {
			return in.percent(a, r)
		}
		if b, ok := r.(Str); ok && op == "+" {
			if err := in.text(len(a.s) + len(b.s)); err != nil {
				return nil, err
			}
			return Join(a, b), nil
		}
		if op == "+" {
			return nil, fmt.Errorf("can only concatenate str (not \"%s\") to str", typeName(r))
		}
	case *List:
		if b, ok := r.(*List); ok && op == "+" && a.tuple == b.tuple {
			if err := in.charge(len(a.items)+len(b.items), itemBytes*(len(a.items)+len(b.items))); err != nil {
				return nil, err
			}
			items := append(append(make([]Value, 0, len(a.items)+len(b.items)), a.items...), b.items...)
			return &List{items: items, tuple: a.tuple}, nil
		}
	}
	li, lf, lFloat, ok1 := number(l)
	ri, rf, rFloat, ok2 := number(r)
	if !ok1 || !ok2 {
		return nil, fmt.Errorf("unsupported operand type(s) for %s: '%s' and '%s'", op, typeName(l), typeName(r))
	}
	if lFloat || rFloat || op == "/" {
		return floatArith(op, lf, rf)
	}
	return intArith(op, li, ri)
}

func (in *interp) repeat(s Str, n int64) (Value, error) {
	n = max(n, 0)
	if n > 0 && len(s.s) > in.maxBytes/int(min(n, math.MaxInt32)) {
		return nil, fmt.Errorf("text of more than %d bytes", in.maxBytes)
	}
	if s.s == "" {
		return s, nil
	}
	if err := in.text((len(s.s) + spanBytes*len(s.user)) * int(n)); err != nil {
		return nil, err
	}
	var b strBuilder
	for range n {
		b.add(s)
	}
	return b.str(), nil
}

func (in *interp) repeatList(l *List, n int64) (Value, error) {
	out := &List{tuple: l.tuple}
	if n <= 0 || len(l.items) == 0 {
		return out, nil
	}
	if n > math.MaxInt32/int64(len(l.items)) {
		return nil, fmt.Errorf("list of %d × %d items", len(l.items), n)
	}
	if err := in.charge(len(l.items)*int(n), itemBytes*len(l.items)*int(n)); err != nil {
		return nil, err
	}
	out.items = slices.Repeat(l.items, int(n))
	return out, nil
}

func floatArith(op string, a, b float64) (Value, error) {
	switch op {
	case "+":
		return a + b, nil
	case "-":
		return a - b, nil
	case "*":
		return a * b, nil
	case "**":
		return math.Pow(a, b), nil
	}
	if b == 0 {
		return nil, errors.New("division by zero")
	}
	switch op {
	case "/":
		return a / b, nil
	case "//":
		return math.Floor(a / b), nil
	}
	m := math.Mod(a, b)
	if m != 0 && (m < 0) != (b < 0) { // the sign of the divisor, as in Python
		m += b
	}
	return m, nil
}

func intArith(op string, a, b int64) (Value, error) {
	switch op {
	case "+":
		if c := a + b; (c > a) == (b > 0) {
			return c, nil
		}
		return nil, errOverflow
	case "-":
		if c := a - b; (c < a) == (b > 0) {
			return c, nil
		}
		return nil, errOverflow
	case "*":
		return mulInt(a, b)
	case "**":
		return powInt(a, b)
	}
	if b == 0 {
		return nil, errors.New("division by zero")
	}
	if b == -1 { // the one quotient that can overflow
		if op == "%" {
			return int64(0), nil
		}
		return mulInt(a, -1)
	}
	q, m := a/b, a%b
	if m != 0 && (m < 0) != (b < 0) {
		q, m = q-1, m+b
	}
	if op == "//" {
		return q, nil
	}
	return m, nil
}

func mulInt(a, b int64) (Value, error) {
	if a == 0 || b == 0 {
		return int64(0), nil
	}
	c := a * b
	if c/b != a || (a == -1 && b == math.MinInt64) || (b == -1 && a == math.MinInt64) {
		return nil, errOverflow
	}
	return c, nil
}

func powInt(a, b int64) (Value, error) {
	if b < 0 {
		return floatArith("**", float64(a), float64(b))
	}
	result := int64(1)
	for n := b; n > 0; n-- {
		if result == 0 || (result == 1 && a == 1) {
			break
		}
		if a == -1 {
			if b%2 == 0 {
				return int64(1), nil
			}
			return int64(-1), nil
		}
		v, err := mulInt(result, a)
		if err != nil {
			return nil, err
		}
		result = v.(int64)
	}
	return result, nil
}
