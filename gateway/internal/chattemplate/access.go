package chattemplate

import (
	"fmt"
	"strings"
)

// attr is obj.name: a method or attribute first, then the item of that name.
func (in *interp) attr(obj Value, name string) (Value, error) {
	switch x := obj.(type) {
	case undefined:
		return nil, x.err()
	case *Dict:
		if m := dictMethod(x, name); m != nil {
			return m, nil
		}
		if v, ok := x.Get(name); ok {
			return v, nil
		}
		return undefined{fmt.Sprintf("'dict object' has no attribute '%s'", name)}, nil
	case *namespace:
		if v, ok := x.d.Get(name); ok {
			return v, nil
		}
	case Str:
		if m := strMethod(x, name); m != nil {
			return m, nil
		}
	case *List:
		if m := listMethod(x, name); m != nil {
			return m, nil
		}
	case *loopState:
		if v, ok := x.attr(name); ok {
			return v, nil
		}
	case *function:
		if name == "name" {
			return Trusted(x.name), nil
		}
	}
	return undefined{fmt.Sprintf("'%s object' has no attribute '%s'", typeName(obj), name)}, nil
}

// item is obj[key]: the item first, then the attribute of that name.
func (in *interp) item(obj, key Value) (Value, error) {
	switch x := obj.(type) {
	case undefined:
		return nil, x.err()
	case *Dict:
		if hash, err := hashKey(key); err == nil {
			if i, ok := x.find(hash); ok {
				return x.vals[i], nil
			}
		}
	case *List:
		if i, ok := index(key, len(x.items)); ok {
			return x.items[i], nil
		}
	case Str:
		if _, isInt := key.(int64); isInt {
			if err := in.text(len(x.s)); err != nil {
				return nil, err
			}
			n := x.runeLen()
			if i, ok := index(key, n); ok {
				return x.slice(x.byteAt(i), x.byteAt(i+1)), nil
			}
		}
	}
	if name, ok := key.(Str); ok {
		if _, isDict := obj.(*Dict); isDict {
			if m := dictMethod(obj.(*Dict), name.s); m != nil {
				return m, nil
			}
			return undefined{fmt.Sprintf("'dict object' has no attribute '%s'", name.s)}, nil
		}
		return in.attr(obj, name.s)
	}
	k, err := in.toStr(key)
	if err != nil {
		return nil, err
	}
	return undefined{fmt.Sprintf("%s object has no element %s", typeName(obj), k.s)}, nil
}

// index resolves a possibly negative index.
func index(key Value, n int) (int, bool) {
	i, _, isFloat, ok := number(key)
	if !ok || isFloat {
		return 0, false
	}
	if i < 0 {
		i += int64(n)
	}
	return int(i), i >= 0 && i < int64(n)
}

// contains is "x in container".
func (in *interp) contains(container, x Value) (bool, error) {
	switch c := container.(type) {
	case Str:
		s, ok := x.(Str)
		if !ok {
			return false, fmt.Errorf("'in <string>' requires string as left operand, not %s", typeName(x))
		}
		return strings.Contains(c.s, s.s), in.text(len(c.s))
	case *List:
		for _, v := range c.items {
			if same, err := in.equal(v, x); same || err != nil {
				return same, err
			}
		}
		return false, nil
	case *Dict:
		hash, err := hashKey(x)
		if err != nil {
			return false, err
		}
		_, ok := c.find(hash)
		return ok, nil
	case undefined:
		return false, nil
	}
	return false, fmt.Errorf("argument of type '%s' is not iterable", typeName(container))
}

// evalSlice is obj[start:stop:step].
func (in *interp) evalSlice(x *sliceExpr) (Value, error) {
	obj, err := in.eval(x.obj)
	if err != nil {
		return nil, err
	}
	var bounds [3]*int64
	for i, b := range []expr{x.start, x.stop, x.step} {
		if b == nil {
			continue
		}
		v, err := in.eval(b)
		if err != nil {
			return nil, err
		}
		if v == nil {
			continue
		}
		n, _, isFloat, ok := number(v)
		if !ok || isFloat {
			if u, ok := v.(undefined); ok {
				return nil, u.err()
			}
			return nil, fmt.Errorf("slice indices must be integers or None, not %s", typeName(v))
		}
		bounds[i] = &n
	}
	switch o := obj.(type) {
	case *List:
		idx, err := in.sliceIndices(bounds, len(o.items))
		if err != nil {
			return nil, err
		}
		out := &List{items: make([]Value, len(idx)), tuple: o.tuple}
		for i, j := range idx {
			out.items[i] = o.items[j]
		}
		return out, nil
	case Str:
		if err := in.text(len(o.s)); err != nil {
			return nil, err
		}
		if bounds[2] == nil || *bounds[2] == 1 {
			a, b := sliceRange(bounds, o.runeLen())
			return o.slice(o.byteAt(a), o.byteAt(max(a, b))), nil
		}
		if err := in.parts(o.runeLen()); err != nil {
			return nil, err
		}
		rs := o.runes()
		idx, err := in.sliceIndices(bounds, len(rs))
		if err != nil {
			return nil, err
		}
		var b strBuilder
		for _, j := range idx {
			b.add(rs[j])
		}
		return b.str(), nil
	case undefined:
		return nil, o.err()
	}
	return nil, fmt.Errorf("'%s' object cannot be sliced", typeName(obj))
}

// sliceRange resolves the bounds of a slice with step 1.
func sliceRange(b [3]*int64, n int) (int, int) {
	clamp := func(p *int64, def int) int {
		if p == nil {
			return def
		}
		v := *p
		if v < 0 {
			v += int64(n)
		}
		return int(min(max(v, 0), int64(n)))
	}
	return clamp(b[0], 0), clamp(b[1], n)
}

// sliceIndices lists the positions of a slice with any step.
func (in *interp) sliceIndices(b [3]*int64, n int) ([]int, error) {
	step := int64(1)
	if b[2] != nil {
		step = *b[2]
	}
	if step == 0 {
		return nil, fmt.Errorf("slice step cannot be zero")
	}
	if err := in.charge(n, 0); err != nil {
		return nil, err
	}
	// Python's rules: for a negative step the bounds run from n-1 down to "before 0".
	lo, hi := int64(0), int64(n)
	if step < 0 {
		lo, hi = -1, int64(n)-1
	}
	clamp := func(p *int64, def int64) int64 {
		if p == nil {
			return def
		}
		v := *p
		if v < 0 {
			v += int64(n)
		}
		return min(max(v, lo), hi)
	}
	start, stop := lo, hi
	if step < 0 {
		start, stop = hi, lo
	}
	start, stop = clamp(b[0], start), clamp(b[1], stop)
	var out []int
	for i := start; (step > 0 && i < stop) || (step < 0 && i > stop); {
		out = append(out, int(i))
		next := i + step
		if (next > i) != (step > 0) {
			break // overflow
		}
		i = next
	}
	return out, nil
}
