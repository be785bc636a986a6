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
	if err == nil {
		switch x.(type) {
		case *listExpr, *dictExpr, *sliceExpr, *callExpr, *filterExpr, *binaryExpr, *concatExpr:
			err = in.made(v)
		}
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
		if err := in.text(b.size() + len(s.s)); err != nil {
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
	if x.fn == nil {
		return nil, fmt.Errorf("no test named %q", x.name)
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
