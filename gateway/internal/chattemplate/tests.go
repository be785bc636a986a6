package chattemplate

import (
	"errors"
	"fmt"
	"math/big"
	"strings"
)

// testFunc is what stands after "is".
type testFunc func(in *interp, v Value, args callArgs) (bool, error)

func makeTests() map[string]testFunc {
	plain := func(f func(v Value) bool) testFunc {
		return func(_ *interp, v Value, a callArgs) (bool, error) {
			_, err := a.params()
			return f(v), err
		}
	}
	one := func(f func(in *interp, v, x Value) (bool, error)) testFunc {
		return func(in *interp, v Value, a callArgs) (bool, error) {
			p, err := a.params("other")
			if err != nil {
				return false, err
			}
			if !given(p[0]) {
				return false, errors.New("needs an argument")
			}
			return f(in, v, p[0])
		}
	}
	op := func(name string) testFunc {
		return one(func(in *interp, v, x Value) (bool, error) { return in.compareOp(name, v, x) })
	}
	isInt := func(v Value) bool {
		switch v.(type) {
		case int64, *big.Int:
			return true
		}
		return false
	}
	isFloat := func(v Value) bool { _, ok := v.(float64); return ok }
	isBool := func(v Value) bool { _, ok := v.(bool); return ok }
	isStr := func(v Value) bool { _, ok := v.(Str); return ok }
	isUndef := func(v Value) bool { _, ok := v.(undefined); return ok }
	sequence := func(v Value) bool {
		switch v.(type) {
		case Str, *List, *Dict, undefined: // undefined values have a length and items, in the reference too
			return true
		}
		return false
	}
	isEqual := func(v Value, n int64) bool {
		i, f, isFloat, ok := number(v)
		return ok && ((isFloat && f == float64(n)) || (!isFloat && i == n))
	}
	parity := func(want int64) testFunc {
		return func(in *interp, v Value, _ callArgs) (bool, error) {
			m, err := in.arith("%", v, int64(2))
			return err == nil && isEqual(m, want), err
		}
	}
	cased := func(f func(string) string) testFunc {
		return func(in *interp, v Value, _ callArgs) (bool, error) {
			s, err := in.toStr(v)
			return s.s == f(s.s) && strings.ToLower(s.s) != strings.ToUpper(s.s), err
		}
	}
	m := map[string]testFunc{
		"defined":   plain(func(v Value) bool { return !isUndef(v) }),
		"undefined": plain(isUndef),
		"none":      plain(func(v Value) bool { return v == nil }),
		"string":    plain(isStr),
		"boolean":   plain(isBool),
		"true":      plain(func(v Value) bool { return v == true }),
		"false":     plain(func(v Value) bool { return v == false }),
		"integer":   plain(isInt),
		"float":     plain(isFloat),
		"number":    plain(func(v Value) bool { return isInt(v) || isFloat(v) || isBool(v) }),
		"mapping":   plain(func(v Value) bool { _, ok := v.(*Dict); return ok }),
		"sequence":  plain(sequence),
		"iterable":  plain(sequence),
		"callable":  plain(func(v Value) bool { _, ok := v.(*function); return ok }),
		"odd":       parity(1),
		"even":      parity(0),
		"lower":     cased(strings.ToLower),
		"upper":     cased(strings.ToUpper),
		"sameas":    one(same),
		"escaped":   plain(func(v Value) bool { s, ok := v.(Str); return ok && s.html }),
		"test":      plain(func(v Value) bool { s, ok := v.(Str); return ok && tests()[s.s] != nil }),
		"in":        one(func(in *interp, v, x Value) (bool, error) { return in.contains(x, v) }),
		"divisibleby": one(func(in *interp, v, x Value) (bool, error) {
			m, err := in.arith("%", v, x)
			return err == nil && isEqual(m, 0), err
		}),
		"filter": plain(func(v Value) bool { s, ok := v.(Str); return ok && filters()[s.s] != nil }),
	}
	for name, ops := range map[string]string{
		"==": "eq equalto ==", "!=": "ne !=", "<": "lt lessthan <", "<=": "le <=", ">": "gt greaterthan >", ">=": "ge >=",
	} {
		for _, n := range strings.Fields(ops) {
			m[n] = op(name)
		}
	}
	return m
}

// same is identity. Containers are the same when they are one object; numbers, text and the constants when they are
// equal and of one type; two undefined values never.
func same(in *interp, v, x Value) (bool, error) {
	switch a := v.(type) {
	case undefined:
		return false, nil
	case *List:
		b, ok := x.(*List)
		return ok && (a == b || a.tuple && b.tuple && len(a.items)+len(b.items) == 0), nil
	case *Dict, *namespace, *function, *loopState:
		return v == x, nil
	}
	if typeName(v) != typeName(x) {
		return false, nil
	}
	return in.equal(v, x)
}

// lookupTest finds a test that a filter is given by name.
func lookupTest(v Value) (testFunc, error) {
	s, ok := v.(Str)
	if !ok {
		return nil, fmt.Errorf("test name must be str, not %s", typeName(v))
	}
	f, ok := tests()[s.s]
	if !ok {
		return nil, fmt.Errorf("no test named %q", s.s)
	}
	return f, nil
}
