package chattemplate

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// onItems wraps a filter that works on the items of its input.
func onItems(f func(in *interp, items []Value, p []Value) (Value, error), params ...string) filterFunc {
	return func(in *interp, v Value, a callArgs) (Value, error) {
		p, err := a.params(params...)
		if err != nil {
			return nil, err
		}
		items, err := in.iterate(v)
		if err != nil {
			return nil, err
		}
		return f(in, items, p)
	}
}

func sequenceFilters() map[string]filterFunc {
	length := func(in *interp, v Value, _ callArgs) (Value, error) {
		switch x := v.(type) {
		case Str:
			return int64(x.runeLen()), in.text(len(x.s))
		case *List:
			return int64(len(x.items)), nil
		case *Dict:
			return int64(len(x.keys)), nil
		case undefined:
			return int64(0), nil
		}
		return nil, fmt.Errorf("object of type '%s' has no len()", typeName(v))
	}
	return map[string]filterFunc{
		"length": length, "count": length,
		"list": onItems(func(_ *interp, items []Value, _ []Value) (Value, error) { return &List{items: items}, nil }),
		"items": func(in *interp, v Value, _ callArgs) (Value, error) {
			if _, ok := v.(undefined); ok {
				return &List{}, nil
			}
			d, ok := v.(*Dict)
			if !ok {
				return nil, errors.New("can only get item pairs from a mapping")
			}
			return in.callValue(dictMethod(d, "items"), callArgs{})
		},
		"first": onItems(func(_ *interp, items []Value, _ []Value) (Value, error) {
			if len(items) == 0 {
				return undefined{"no first item, sequence was empty"}, nil
			}
			return items[0], nil
		}),
		"last": onItems(func(_ *interp, items []Value, _ []Value) (Value, error) {
			if len(items) == 0 {
				return undefined{"no last item, sequence was empty"}, nil
			}
			return items[len(items)-1], nil
		}),
		"join": onItems(func(in *interp, items []Value, p []Value) (Value, error) {
			if given(p[1]) {
				var err error
				if items, err = in.attrs(items, p[1], notGiven{}); err != nil {
					return nil, err
				}
			}
			sep := Str{}
			if given(p[0]) {
				var err error
				if sep, err = in.toStr(p[0]); err != nil {
					return nil, err
				}
			}
			return in.joinStrs(items, sep)
		}, "d", "attribute"),
		"reverse": func(in *interp, v Value, _ callArgs) (Value, error) {
			items, err := in.iterate(v)
			if err != nil {
				return nil, err
			}
			out := slices.Clone(items)
			slices.Reverse(out)
			if _, ok := v.(Str); ok {
				return in.joinStrs(out, Str{})
			}
			return &List{items: out}, nil
		},
		"sort":     onItems(sortFilter, "reverse", "case_sensitive", "attribute"),
		"unique":   onItems(unique, "case_sensitive", "attribute"),
		"dictsort": dictsort,
		"min":      extreme(-1),
		"max":      extreme(1),
		"sum":      onItems(sum, "attribute", "start"),
		"map":      mapFilter,
		"select":   selectFilter(false, true), "reject": selectFilter(false, false),
		"selectattr": selectFilter(true, true), "rejectattr": selectFilter(true, false),
		"batch": onItems(batch, "linecount", "fill_with"),
		"attr": func(in *interp, v Value, a callArgs) (Value, error) {
			p, err := a.params("name")
			if err != nil {
				return nil, err
			}
			name, ok, err := argStr(p[0], "name")
			if err != nil || !ok {
				return nil, cmpErr(err, "needs a name")
			}
			if _, isDict := v.(*Dict); isDict { // attributes only, no items
				return undefined{fmt.Sprintf("'dict object' has no attribute '%s'", name.s)}, nil
			}
			return in.attr(v, name.s)
		},
	}
}

// path follows a dotted attribute; numbers are indices. Where a step is undefined, def takes its place if given.
func (in *interp) path(v, attr, def Value) (Value, error) {
	step := func(key Value) error {
		var err error
		if v, err = in.item(v, key); err != nil {
			return err
		}
		if _, undef := v.(undefined); undef && given(def) && def != nil {
			v = def
		}
		return nil
	}
	if n, ok := attr.(int64); ok {
		err := step(n)
		return v, err
	}
	name, ok, err := argStr(attr, "attribute")
	if err != nil || !ok {
		return nil, cmpErr(err, "attribute must be str or int")
	}
	for part := range strings.SplitSeq(name.s, ".") {
		var key Value = Trusted(part)
		if n, err := strconv.ParseInt(part, 10, 64); err == nil {
			key = n
		}
		if err := step(key); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// attrs gives an attribute of each item, def where it is undefined.
func (in *interp) attrs(items []Value, attr, def Value) ([]Value, error) {
	out := make([]Value, len(items))
	for i, item := range items {
		v, err := in.path(item, attr, def)
		if err != nil {
			return nil, err
		}
		out[i] = v
	}
	return out, in.charge(len(items), 0)
}

// sortKeys gives what items are compared by: themselves or an attribute, in lower case unless case counts.
func (in *interp) sortKeys(items []Value, attr Value, caseSensitive bool) ([]Value, error) {
	keys := slices.Clone(items)
	if given(attr) && attr != nil {
		var err error
		if keys, err = in.attrs(items, attr, notGiven{}); err != nil {
			return nil, err
		}
	}
	if !caseSensitive {
		for i, k := range keys {
			if s, ok := k.(Str); ok {
				if err := in.text(len(s.s)); err != nil {
					return nil, err
				}
				keys[i] = s.lower()
			}
		}
	}
	return keys, nil
}

// sortBy sorts items stably by keys.
func (in *interp) sortBy(items, keys []Value, reverse bool) ([]Value, error) {
	order := make([]int, len(items))
	for i := range order {
		order[i] = i
	}
	var failed error
	slices.SortStableFunc(order, func(a, b int) int {
		if failed != nil {
			return 0
		}
		c, err := in.compare(keys[a], keys[b])
		if err != nil {
			failed = err
		}
		if reverse {
			return -c
		}
		return c
	})
	out := make([]Value, len(items))
	for i, j := range order {
		out[i] = items[j]
	}
	return out, failed
}

func sortFilter(in *interp, items []Value, p []Value) (Value, error) {
	keys, err := in.sortKeys(items, p[2], argBool(p[1], false))
	if err != nil {
		return nil, err
	}
	out, err := in.sortBy(items, keys, argBool(p[0], false))
	return &List{items: out}, err
}

func unique(in *interp, items []Value, p []Value) (Value, error) {
	keys, err := in.sortKeys(items, p[1], argBool(p[0], false))
	if err != nil {
		return nil, err
	}
	seen := map[any]bool{}
	out := &List{}
	for i, k := range keys {
		hash, err := hashKey(k)
		if err != nil {
			return nil, err
		}
		if !seen[hash] {
			seen[hash] = true
			out.items = append(out.items, items[i])
		}
	}
	return out, nil
}

func dictsort(in *interp, v Value, a callArgs) (Value, error) {
	p, err := a.params("case_sensitive", "by", "reverse")
	if err != nil {
		return nil, err
	}
	d, ok := v.(*Dict)
	if !ok {
		return nil, fmt.Errorf("needs a mapping, not %s", typeName(v))
	}
	by := 0
	if s, ok := p[1].(Str); ok {
		switch s.s {
		case "key":
		case "value":
			by = 1
		default:
			return nil, errors.New("by must be key or value")
		}
	}
	pairs := make([]Value, len(d.keys))
	for i, k := range d.keys {
		pairs[i] = &List{items: []Value{k, d.vals[i]}, tuple: true}
	}
	keys, err := in.sortKeys(pairs, int64(by), argBool(p[0], false))
	if err != nil {
		return nil, err
	}
	out, err := in.sortBy(pairs, keys, argBool(p[2], false))
	return &List{items: out}, err
}

func extreme(sign int) filterFunc {
	return onItems(func(in *interp, items []Value, p []Value) (Value, error) {
		if len(items) == 0 {
			return undefined{"no aggregated item, sequence was empty"}, nil
		}
		keys, err := in.sortKeys(items, p[1], argBool(p[0], false))
		if err != nil {
			return nil, err
		}
		best := 0
		for i := range keys {
			c, err := in.compare(keys[i], keys[best])
			if err != nil {
				return nil, err
			}
			if c*sign > 0 {
				best = i
			}
		}
		return items[best], nil
	}, "case_sensitive", "attribute")
}

func sum(in *interp, items []Value, p []Value) (Value, error) {
	var err error
	if given(p[0]) && p[0] != nil {
		if items, err = in.attrs(items, p[0], notGiven{}); err != nil {
			return nil, err
		}
	}
	var total Value = int64(0)
	if given(p[1]) {
		total = p[1]
	}
	for _, v := range items {
		if total, err = in.arith("+", total, v); err != nil {
			return nil, err
		}
	}
	return total, nil
}

// mapFilter applies a filter by name, or takes an attribute, of each item.
func mapFilter(in *interp, v Value, a callArgs) (Value, error) {
	if !truth(v) {
		return &List{}, nil // the reference does not look at a false value
	}
	items, err := in.iterate(v)
	if err != nil {
		return nil, err
	}
	if len(a.pos) == 0 {
		p, err := a.params("attribute", "default")
		if err != nil {
			return nil, err
		}
		if !given(p[0]) {
			return nil, errors.New("needs a filter name or an attribute")
		}
		out, err := in.attrs(items, p[0], p[1])
		return &List{items: out}, err
	}
	name, ok := a.pos[0].(Str)
	f := filters()[name.s]
	if !ok || f == nil {
		return nil, fmt.Errorf("no filter named %q", name.s)
	}
	rest := callArgs{pos: a.pos[1:], names: a.names, named: a.named}
	out := &List{items: make([]Value, len(items))}
	for i, item := range items {
		if out.items[i], err = f(in, item, rest); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// selectFilter keeps the items (or those whose attribute) for which a test gives want; without a test, their truth.
func selectFilter(byAttr, want bool) filterFunc {
	return func(in *interp, v Value, a callArgs) (Value, error) {
		if !truth(v) {
			return &List{}, nil
		}
		items, err := in.iterate(v)
		if err != nil {
			return nil, err
		}
		keys, args := items, a
		if byAttr {
			if len(a.pos) == 0 {
				return nil, errors.New("needs an attribute")
			}
			if keys, err = in.attrs(items, a.pos[0], notGiven{}); err != nil {
				return nil, err
			}
			args.pos = a.pos[1:]
		}
		test := func(_ *interp, v Value, _ callArgs) (bool, error) { return truth(v), nil }
		if len(args.pos) > 0 {
			if test, err = lookupTest(args.pos[0]); err != nil {
				return nil, err
			}
			args.pos = args.pos[1:]
		}
		out := &List{}
		for i, k := range keys {
			ok, err := test(in, k, args)
			if err != nil {
				return nil, err
			}
			if ok == want {
				out.items = append(out.items, items[i])
			}
		}
		return out, nil
	}
}

// batch cuts a sequence into rows.
func batch(_ *interp, items []Value, p []Value) (Value, error) {
	n, err := argInt(p[0], "linecount", 0)
	if err != nil || n < 1 {
		return nil, cmpErr(err, "linecount must be at least 1")
	}
	out := &List{}
	for row := range slices.Chunk(items, min(n, max(len(items), 1))) {
		row = slices.Clone(row)
		for given(p[1]) && p[1] != nil && len(row) < min(n, 1<<16) {
			row = append(row, p[1])
		}
		out.items = append(out.items, &List{items: row})
	}
	return out, nil
}
