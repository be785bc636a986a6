package chattemplate

import (
	"errors"
	"fmt"
	"math"
)

// callArgs are evaluated arguments.
type callArgs struct {
	pos   []Value
	names []string
	named []Value
}

// eval computes an expression.
func (in *interp) eval(x expr) (Value, error) {
	if in.evalDepth++; in.evalDepth > maxEvalDepth {
		return nil, atLine(errTooDeep, x)
	}
	v, err := in.evalNode(x)
	in.evalDepth--
	if err == nil {
		err = in.charge(1, 0)
	}
	if err != nil {
		return nil, atLine(err, x)
	}
	return v, nil
}

func (in *interp) evalNode(x expr) (Value, error) {
	switch x := x.(type) {
	case *constExpr:
		return x.v, nil
	case *nameExpr:
		if v, ok := in.frame.lookup(x.name); ok {
			return v, nil
		}
		return undefined{fmt.Sprintf("'%s' is undefined", x.name)}, nil
	case *listExpr:
		items, err := in.evalAll(x.items)
		return &List{items: items, tuple: x.tuple}, err
	case *dictExpr:
		return in.evalDict(x)
	case *attrExpr:
		obj, err := in.eval(x.obj)
		if err != nil {
			return nil, err
		}
		return in.attr(obj, x.name)
	case *itemExpr:
		obj, err := in.eval(x.obj)
		if err != nil {
			return nil, err
		}
		key, err := in.eval(x.key)
		if err != nil {
			return nil, err
		}
		return in.item(obj, key)
	case *sliceExpr:
		return in.evalSlice(x)
	case *callExpr:
		fn, err := in.eval(x.fn)
		if err != nil {
			return nil, err
		}
		args, err := in.callArgs(x.args)
		if err != nil {
			return nil, err
		}
		return in.callValue(fn, args)
	case *filterExpr:
		obj, err := in.eval(x.obj)
		if err != nil {
			return nil, err
		}
		return in.applyFilter(x, obj)
	case *testExpr:
		return in.evalTest(x)
	case *unaryExpr:
		v, err := in.eval(x.x)
		if err != nil {
			return nil, err
		}
		return unary(x.op, v)
	case *binaryExpr:
		return in.evalBinary(x)
	case *concatExpr:
		vals, err := in.evalAll(x.parts)
		if err != nil {
			return nil, err
		}
		return in.join(vals)
	case *compareExpr:
		return in.evalCompare(x)
	case *condExpr:
		test, err := in.eval(x.test)
		if err != nil {
			return nil, err
		}
		if truth(test) {
			return in.eval(x.yes)
		}
		if x.no == nil {
			return undefined{"the inline if-expression evaluated to false and no else section was defined"}, nil
		}
		return in.eval(x.no)
	}
	return nil, fmt.Errorf("unknown expression %T", x)
}

func (in *interp) evalAll(xs []expr) ([]Value, error) {
	out := make([]Value, len(xs))
	for i, x := range xs {
		v, err := in.eval(x)
		if err != nil {
			return nil, err
		}
		out[i] = v
	}
	return out, nil
}

func (in *interp) evalDict(x *dictExpr) (Value, error) {
	d := NewDict()
	for i := range x.keys {
		k, err := in.eval(x.keys[i])
		if err != nil {
			return nil, err
		}
		hash, err := hashKey(k)
		if err != nil {
			return nil, err
		}
		v, err := in.eval(x.vals[i])
		if err != nil {
			return nil, err
		}
		d.put(k, hash, v)
	}
	return d, nil
}

// join is the ~ operator: everything becomes text.
func (in *interp) join(vals []Value) (Value, error) {
	var b strBuilder
	for _, v := range vals {
		s, err := in.toStr(v)
		if err != nil {
			return nil, err
		}
		if err := in.text(len(b.b) + len(s.s)); err != nil {
			return nil, err
		}
		b.add(s)
	}
	return b.str(), nil
}

func (in *interp) callArgs(a argList) (callArgs, error) {
	var out callArgs
	var err error
	if out.pos, err = in.evalAll(a.pos); err != nil {
		return out, err
	}
	if a.star != nil {
		v, err := in.eval(a.star)
		if err != nil {
			return out, err
		}
		items, err := in.iterate(v)
		if err != nil {
			return out, err
		}
		out.pos = append(out.pos, items...)
	}
	if out.named, err = in.evalAll(a.named); err != nil {
		return out, err
	}
	out.names = append(out.names, a.names...)
	if a.dstar != nil {
		v, err := in.eval(a.dstar)
		if err != nil {
			return out, err
		}
		d, ok := v.(*Dict)
		if !ok {
			return out, fmt.Errorf("argument after ** must be a mapping, not %s", typeName(v))
		}
		for i, k := range d.keys {
			s, ok := k.(Str)
			if !ok {
				return out, errors.New("keywords must be strings")
			}
			out.names, out.named = append(out.names, s.s), append(out.named, d.vals[i])
		}
	}
	return out, nil
}

func (in *interp) callValue(fn Value, args callArgs) (Value, error) {
	switch f := fn.(type) {
	case *function:
		return f.call(in, args)
	case undefined:
		return nil, f.err()
	}
	return nil, fmt.Errorf("'%s' object is not callable", typeName(fn))
}

func (in *interp) evalTest(x *testExpr) (Value, error) {
	obj, err := in.eval(x.obj)
	if err != nil {
		return nil, err
	}
	args, err := in.callArgs(x.args)
	if err != nil {
		return nil, err
	}
	ok, err := x.fn(in, obj, args)
	if err != nil {
		return nil, fmt.Errorf("test %s: %w", x.name, err)
	}
	return ok != x.negate, nil
}

func unary(op string, v Value) (Value, error) {
	if op == "not" {
		return !truth(v), nil
	}
	if u, ok := v.(undefined); ok {
		return nil, u.err()
	}
	i, f, isFloat, ok := number(v)
	if !ok {
		return nil, fmt.Errorf("bad operand type for unary %s: '%s'", op, typeName(v))
	}
	switch {
	case isFloat && op == "-":
		return -f, nil
	case isFloat:
		return f, nil
	case op == "-":
		if i == math.MinInt64 {
			return nil, errOverflow
		}
		return -i, nil
	}
	return i, nil
}

func (in *interp) evalCompare(x *compareExpr) (Value, error) {
	l, err := in.eval(x.first)
	if err != nil {
		return nil, err
	}
	for i, op := range x.ops {
		r, err := in.eval(x.rest[i])
		if err != nil {
			return nil, err
		}
		ok, err := in.compareOp(op, l, r)
		if err != nil || !ok {
			return false, err
		}
		l = r
	}
	return true, nil
}

func (in *interp) compareOp(op string, l, r Value) (bool, error) {
	switch op {
	case "==":
		return in.equal(l, r)
	case "!=":
		same, err := in.equal(l, r)
		return !same, err
	case "in":
		return in.contains(r, l)
	case "not in":
		ok, err := in.contains(r, l)
		return !ok, err
	}
	if f1, f2, ok := floats(l, r); ok { // NaN is neither less nor greater
		return map[string]bool{"<": f1 < f2, "<=": f1 <= f2, ">": f1 > f2, ">=": f1 >= f2}[op], nil
	}
	c, err := in.compare(l, r)
	if err != nil {
		return false, err
	}
	return map[string]bool{"<": c < 0, "<=": c <= 0, ">": c > 0, ">=": c >= 0}[op], nil
}

func floats(l, r Value) (float64, float64, bool) {
	_, a, aFloat, ok1 := number(l)
	_, b, bFloat, ok2 := number(r)
	return a, b, ok1 && ok2 && (aFloat || bFloat)
}

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
	switch a := l.(type) {
	case Str:
		switch b := r.(type) {
		case Str:
			if op == "+" {
				if err := in.text(len(a.s) + len(b.s)); err != nil {
					return nil, err
				}
				return concat(a, b), nil
			}
		case int64:
			if op == "*" {
				return in.repeat(a, b)
			}
		}
		if op == "+" {
			return nil, fmt.Errorf("can only concatenate str (not \"%s\") to str", typeName(r))
		}
	case *List:
		if b, ok := r.(*List); ok && op == "+" && a.tuple == b.tuple {
			if err := in.charge(len(a.items)+len(b.items), 0); err != nil {
				return nil, err
			}
			items := append(append(make([]Value, 0, len(a.items)+len(b.items)), a.items...), b.items...)
			return &List{items: items, tuple: a.tuple}, nil
		}
	case int64:
		if b, ok := r.(Str); ok && op == "*" {
			return in.repeat(b, a)
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
	if err := in.text(len(s.s) * int(n)); err != nil {
		return nil, err
	}
	var b strBuilder
	for range n {
		b.add(s)
	}
	return b.str(), nil
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
