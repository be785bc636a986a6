package grammar

import (
	"math/big"
	"slices"
)

// and returns the shape of the values of both, nil when there is none, as far as a simple check shows.
func (c *schemaCompiler) and(a, b *shape) *shape {
	c.spend(1+(len(a.object.keys)+len(b.object.keys)+len(a.values)+len(b.values))/fewMembers, "")
	s := &shape{types: a.types & b.types, at: b.at}
	if s.at == nil {
		s.at = a.at
	}
	s.seenKeys, s.seenPatterns = union(a.seenKeys, b.seenKeys), union(a.seenPatterns, b.seenPatterns)
	s.seenAllKeys, s.seenAllItems = a.seenAllKeys || b.seenAllKeys, a.seenAllItems || b.seenAllItems
	s.seenItems = max(a.seenItems, b.seenItems)
	s.except = append(slices.Clone(a.except), b.except...)
	switch {
	case a.listed && b.listed:
		s.listed = true
		for _, v := range a.values {
			c.spend(len(b.values), "")
			if slices.ContainsFunc(b.values, v.equal) {
				s.values = append(s.values, v)
			}
		}
	case a.listed:
		s.listed, s.values = true, a.values
	case b.listed:
		s.listed, s.values = true, b.values
	}
	s.number = a.number.and(&b.number)
	s.text = a.text.and(&b.text)
	s.array = a.array.and(&b.array)
	s.object = a.object.and(&b.object)
	if s.listed {
		s.values = slices.DeleteFunc(slices.Clone(s.values), func(v *jsonNode) bool { return typeOf(v)&s.types == 0 })
		var t types
		for _, v := range s.values {
			t |= typeOf(v)
		}
		s.types &= t
	}
	if s.number.none() {
		s.types &^= typeNumber
	}
	if s.text.hi >= 0 && s.text.lo > s.text.hi {
		s.types &^= typeString
	}
	if s.array.hi >= 0 && s.array.lo > s.array.hi {
		s.types &^= typeArray
	}
	if s.object.hi >= 0 && max(s.object.lo, len(s.object.required)) > s.object.hi {
		s.types &^= typeObject
	}
	if s.types&typeObject != 0 {
		for _, k := range s.object.required {
			if isNever(s.object.values[k]) {
				s.types &^= typeObject
				break
			}
		}
	}
	if s.types == 0 {
		return nil
	}
	return s
}

// isNever reports whether a set holds the schema false.
func isNever(set conj) bool {
	for _, l := range set {
		if l.node.kind == 'b' && (l.node.text == "true") == l.not {
			return true
		}
	}
	return false
}

func (a numberShape) and(b *numberShape) numberShape {
	a.integer, a.fraction = a.integer || b.integer, a.fraction || b.fraction
	if b.lo != nil && (a.lo == nil || b.lo.Cmp(a.lo) > 0 || b.lo.Cmp(a.lo) == 0 && b.loOpen) {
		a.lo, a.loOpen = b.lo, b.loOpen
	}
	if b.hi != nil && (a.hi == nil || b.hi.Cmp(a.hi) < 0 || b.hi.Cmp(a.hi) == 0 && b.hiOpen) {
		a.hi, a.hiOpen = b.hi, b.hiOpen
	}
	a.multiple = append(slices.Clone(a.multiple), b.multiple...)
	a.notMultiple = append(slices.Clone(a.notMultiple), b.notMultiple...)
	a.except = append(slices.Clone(a.except), b.except...)
	return a
}

// none reports whether the shape allows no number, as far as a simple check shows.
func (a *numberShape) none() bool {
	if a.integer && a.fraction {
		return true
	}
	if a.lo == nil || a.hi == nil {
		return false
	}
	if a.integer {
		return inward(a.lo, a.loOpen, 1).Cmp(inward(a.hi, a.hiOpen, -1)) > 0
	}
	return a.lo.Cmp(a.hi) > 0 || a.lo.Cmp(a.hi) == 0 && (a.loOpen || a.hiOpen)
}

// holds reports whether the shape allows a number.
func (a *numberShape) holds(v *big.Rat) bool {
	if a.integer && !v.IsInt() || a.fraction && v.IsInt() {
		return false
	}
	if a.lo != nil && (v.Cmp(a.lo) < 0 || a.loOpen && v.Cmp(a.lo) == 0) ||
		a.hi != nil && (v.Cmp(a.hi) > 0 || a.hiOpen && v.Cmp(a.hi) == 0) {
		return false
	}
	for _, m := range a.multiple {
		if !new(big.Rat).Quo(v, m).IsInt() {
			return false
		}
	}
	for _, m := range a.notMultiple {
		if new(big.Rat).Quo(v, m).IsInt() {
			return false
		}
	}
	return !slices.ContainsFunc(a.except, func(x *big.Rat) bool { return x.Cmp(v) == 0 })
}

func (t textShape) and(b *textShape) textShape {
	t.patterns, t.formats, t.except = union(t.patterns, b.patterns), union(t.formats, b.formats), union(t.except, b.except)
	t.lo, t.hi = max(t.lo, b.lo), lower(t.hi, b.hi)
	return t
}

func (a arrayShape) and(b *arrayShape) arrayShape {
	n := max(len(a.prefix), len(b.prefix))
	out := arrayShape{lo: max(a.lo, b.lo), hi: lower(a.hi, b.hi), unique: a.unique || b.unique, rest: a.rest.and(b.rest)}
	for i := range n {
		out.prefix = append(out.prefix, a.item(i).and(b.item(i)))
	}
	out.contains = append(slices.Clone(a.contains), b.contains...)
	return out
}

func (o objectShape) and(b *objectShape) objectShape {
	out := objectShape{keys: union(o.keys, b.keys), required: union(o.required, b.required), names: o.names.and(b.names),
		lo: max(o.lo, b.lo), hi: lower(o.hi, b.hi)}
	switch {
	case len(o.values) == 0:
		out.values = b.values
	case len(b.values) == 0:
		out.values = o.values
	default:
		out.values = make(map[string]conj, len(out.keys))
		for _, k := range out.keys {
			out.values[k] = o.values[k].and(b.values[k])
		}
	}
	out.patterns = append(slices.Clone(o.patterns), b.patterns...)
	out.others = append(slices.Clone(o.others), b.others...)
	return out
}

// product returns the shapes of values that are in one shape of each list.
func (c *schemaCompiler) product(a, b []*shape) []*shape {
	var out []*shape
	for _, x := range a {
		for _, y := range b {
			if s := c.and(x, y); s != nil {
				out = append(out, s)
			}
		}
	}
	if len(out) > maxShapes {
		c.giveUp("", "has too many combinations of alternatives")
	}
	return out
}
