package chattemplate

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/big"
	"slices"
	"strings"
)

// Value is anything a template can hold: nil (None), bool, int64, *big.Int, float64, Str, *List, *Dict, and inside a
// running template also undefined values, functions and namespaces.
type Value = any

// List is a sequence. It cannot be changed by templates.
type List struct {
	items []Value
	tuple bool // printed with parentheses
}

// NewList makes a list; the items are converted as by Dict.Set.
func NewList(items ...any) *List {
	l := &List{items: make([]Value, len(items))}
	for i, v := range items {
		l.items[i] = convert(v)
	}
	return l
}

// Append adds an item, converted as by Dict.Set.
func (l *List) Append(v any) { l.items = append(l.items, convert(v)) }

// Len is the number of items.
func (l *List) Len() int { return len(l.items) }

// At gives item i.
func (l *List) At(i int) Value { return l.items[i] }

// Dict is a dictionary that keeps the order of insertion. It cannot be changed by templates.
type Dict struct {
	keys []Value
	vals []Value
	// index finds the keys by hash; nil for few keys. Requests may have a million small dictionaries, and a map takes more
	// than all else in one.
	index map[any]int
}

// fewKeys are found without an index.
const fewKeys = 8

// NewDict makes an empty dictionary.
func NewDict() *Dict { return &Dict{} }

// find returns the place of the key with that hash.
func (d *Dict) find(hash any) (i int, ok bool) {
	if d.index != nil {
		i, ok = d.index[hash]
		return i, ok
	}
	text, isText := hash.(string)
	for i, k := range d.keys {
		if s, ok := k.(Str); ok {
			if isText && s.s == text {
				return i, true
			}
		} else if h, err := hashKey(k); err == nil && h == hash {
			return i, true
		}
	}
	return 0, false
}

// Set stores a value under a text key; an existing key keeps its place. It takes template values and plain Go values:
// string (becomes user text), bool, integers, floats, nil, []string, []any, map-free. Any other Go type panics: that is
// a mistake in the program, not in its input.
func (d *Dict) Set(key string, v any) { d.put(Text(key), key, convert(v)) }

func (d *Dict) put(key Value, hash any, v Value) {
	if i, ok := d.find(hash); ok {
		d.vals[i] = v
		return
	}
	if d.index != nil {
		d.index[hash] = len(d.keys)
	}
	d.keys = append(d.keys, key)
	d.vals = append(d.vals, v)
	if d.index == nil && len(d.keys) > fewKeys {
		d.index = make(map[any]int, 2*len(d.keys))
		for i, k := range d.keys {
			if h, err := hashKey(k); err == nil { // as that of each key that is here
				d.index[h] = i
			}
		}
	}
}

// Get finds the value of a text key.
func (d *Dict) Get(key string) (Value, bool) {
	i, ok := d.find(key)
	if !ok {
		return nil, false
	}
	return d.vals[i], true
}

// Len is the number of entries.
func (d *Dict) Len() int { return len(d.keys) }

// Keys lists the text keys in order of insertion.
func (d *Dict) Keys() []string {
	out := make([]string, 0, len(d.keys))
	for _, k := range d.keys {
		if s, ok := k.(Str); ok {
			out = append(out, s.s)
		}
	}
	return out
}

// Clone copies the dictionary, not its values.
func (d *Dict) Clone() *Dict {
	return &Dict{keys: slices.Clone(d.keys), vals: slices.Clone(d.vals), index: maps.Clone(d.index)}
}

func convert(v any) Value {
	switch x := v.(type) {
	case nil, bool, int64, float64, *big.Int, Str, *List, *Dict:
		return v
	case string:
		return Text(x)
	case int:
		return int64(x)
	case int32:
		return int64(x)
	case uint32:
		return int64(x)
	case float32:
		return float64(x)
	case []string:
		l := &List{}
		for _, s := range x {
			l.items = append(l.items, Text(s))
		}
		return l
	case []any:
		return NewList(x...)
	}
	panic(fmt.Sprintf("chattemplate: no template value for Go type %T", v))
}

// undefined is the value of a missing name, attribute or item. It prints as nothing and is false; using it further is
// an error that says what was missing.
type undefined struct{ what string }

// namespace is the one object a template may change.
type namespace struct{ d *Dict }

// function is a built-in or bound function.
type function struct {
	name string
	call func(in *interp, args callArgs) (Value, error)
}

// none is the dictionary hash of None.
type none struct{}

// hashKey gives the map key under which a value is found in a dictionary; equal values have equal keys (1, 1.0
// and True).
func hashKey(v Value) (any, error) {
	switch x := v.(type) {
	case nil:
		return none{}, nil
	case Str:
		return x.s, nil
	case int64:
		return x, nil
	case bool:
		if x {
			return int64(1), nil
		}
		return int64(0), nil
	case float64:
		if x == math.Trunc(x) && math.Abs(x) < 1<<53 {
			return int64(x), nil
		}
		return x, nil
	}
	if l, ok := v.(*List); ok && l.tuple {
		size := 0
		return hashTuple(l, &size)
	}
	return nil, fmt.Errorf("unhashable type: '%s'", typeName(v))
}

// tupleKey is the dictionary hash of a tuple.
type tupleKey string

// maxTupleKey bounds the hash of a tuple in bytes: tuples of one another can be exponentially long.
const maxTupleKey = 1 << 16

func hashTuple(l *List, size *int) (any, error) {
	var b strings.Builder
	for _, v := range l.items {
		var hash any
		var err error
		if sub, ok := v.(*List); ok && sub.tuple {
			hash, err = hashTuple(sub, size)
		} else {
			hash, err = hashKey(v)
		}
		if err != nil {
			return nil, err
		}
		text := fmt.Sprintf("%T %v", hash, hash)
		fmt.Fprintf(&b, "%d:%s;", len(text), text)
		if *size += len(text); *size > maxTupleKey {
			return nil, errors.New("a tuple is too long for a key")
		}
	}
	return tupleKey(b.String()), nil
}

// typeName is Python's name of a value's type, for messages.
func typeName(v Value) string {
	switch x := v.(type) {
	case nil:
		return "NoneType"
	case bool:
		return "bool"
	case int64, *big.Int:
		return "int"
	case float64:
		return "float"
	case Str:
		return "str"
	case *List:
		if x.tuple {
			return "tuple"
		}
		return "list"
	case *Dict:
		return "dict"
	case *namespace:
		return "Namespace"
	case undefined:
		return "Undefined"
	case *loopState:
		return "LoopContext"
	}
	return "function"
}

func truth(v Value) bool {
	switch x := v.(type) {
	case nil, undefined:
		return false
	case bool:
		return x
	case int64:
		return x != 0
	case float64:
		return x != 0
	case *big.Int:
		return x.Sign() != 0
	case Str:
		return x.s != ""
	case *List:
		return len(x.items) > 0
	case *Dict:
		return len(x.keys) > 0
	}
	return true
}

// number gives the numeric value of bool, int and float.
func number(v Value) (i int64, f float64, isFloat, ok bool) {
	switch x := v.(type) {
	case bool:
		if x {
			i = 1
		}
		return i, float64(i), false, true
	case int64:
		return x, float64(x), false, true
	case float64:
		return 0, x, true, true
	}
	return 0, 0, false, false
}

// equal is Python's ==. It pays for every value it visits: shared lists can make a small value exponentially large
// to walk.
func (in *interp) equal(a, b Value) (bool, error) { return in.equalAt(a, b, 0) }

func (in *interp) equalAt(a, b Value, depth int) (bool, error) {
	if depth > maxValueDepth {
		return false, errTooDeep
	}
	if err := in.charge(1, 0); err != nil {
		return false, err
	}
	if ai, af, aFloat, ok := number(a); ok {
		bi, bf, bFloat, ok := number(b)
		if !ok {
			return false, nil
		}
		if aFloat || bFloat {
			return af == bf, nil
		}
		return ai == bi, nil
	}
	switch x := a.(type) {
	case nil:
		return b == nil, nil
	case Str:
		y, ok := b.(Str)
		return ok && x.s == y.s, in.charge(len(x.s)/64, 0)
	case *big.Int:
		y, ok := b.(*big.Int)
		return ok && x.Cmp(y) == 0, nil
	case undefined:
		_, ok := b.(undefined)
		return ok, nil
	case *List:
		y, ok := b.(*List)
		if !ok || x.tuple != y.tuple || len(x.items) != len(y.items) {
			return false, nil
		}
		for i := range x.items {
			if same, err := in.equalAt(x.items[i], y.items[i], depth+1); !same || err != nil {
				return false, err
			}
		}
		return true, nil
	case *Dict:
		y, ok := b.(*Dict)
		if !ok || len(x.keys) != len(y.keys) {
			return false, nil
		}
		for i, k := range x.keys {
			hash, err := hashKey(k)
			if err != nil {
				return false, err
			}
			j, ok := y.find(hash)
			if !ok {
				return false, nil
			}
			if same, err := in.equalAt(x.vals[i], y.vals[j], depth+1); !same || err != nil {
				return false, err
			}
		}
		return true, nil
	}
	return a == b, nil // namespaces, functions, loops: identity
}

// compare is Python's ordering: numbers with numbers, strings with strings, sequences item by item. It pays like equal.
func (in *interp) compare(a, b Value) (int, error) { return in.compareAt(a, b, 0) }

func (in *interp) compareAt(a, b Value, depth int) (int, error) {
	if depth > maxValueDepth {
		return 0, errTooDeep
	}
	if err := in.charge(1, 0); err != nil {
		return 0, err
	}
	if ai, af, aFloat, ok := number(a); ok {
		if bi, bf, bFloat, ok := number(b); ok {
			if aFloat || bFloat {
				return cmpOrdered(af, bf), nil
			}
			return cmpOrdered(ai, bi), nil
		}
	}
	switch x := a.(type) {
	case Str:
		if y, ok := b.(Str); ok {
			return cmpOrdered(x.s, y.s), in.charge(min(len(x.s), len(y.s))/64, 0)
		}
	case *List:
		if y, ok := b.(*List); ok && x.tuple == y.tuple {
			for i := range min(len(x.items), len(y.items)) {
				same, err := in.equalAt(x.items[i], y.items[i], depth+1)
				if err != nil {
					return 0, err
				}
				if !same {
					return in.compareAt(x.items[i], y.items[i], depth+1)
				}
			}
			return cmpOrdered(len(x.items), len(y.items)), nil
		}
	}
	if u, ok := anyUndefined(a, b); ok {
		return 0, u.err()
	}
	return 0, fmt.Errorf("'<' not supported between instances of '%s' and '%s'", typeName(a), typeName(b))
}

func cmpOrdered[T int | int64 | float64 | string](a, b T) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func anyUndefined(vs ...Value) (undefined, bool) {
	for _, v := range vs {
		if u, ok := v.(undefined); ok {
			return u, true
		}
	}
	return undefined{}, false
}

func (u undefined) err() error { return fmt.Errorf("%s", u.what) }
