package grammar

import (
	"slices"
	"unicode/utf8"
)

// admits reports whether a value is valid for a set of schemas, as far as their shapes show.
func (c *schemaCompiler) admits(set conj, v *jsonNode) bool {
	if len(set) == 0 {
		return true
	}
	return slices.ContainsFunc(c.shapes(set), func(s *shape) bool { return c.holds(s, v) })
}

// holds reports whether a value is one of a shape's.
func (c *schemaCompiler) holds(s *shape, v *jsonNode) bool {
	if s.listed {
		c.spend(1+len(s.values)/fewMembers, "")
		if !slices.ContainsFunc(s.values, v.equal) {
			return false
		}
	}
	return c.fits(s, v)
}

// fits is holds for a value that is listed, where there is a list.
func (c *schemaCompiler) fits(s *shape, v *jsonNode) bool {
	defer c.enter("")()
	if !v.is(s.types) || slices.ContainsFunc(s.except, v.equal) {
		return false
	}
	switch v.kind {
	case 'n':
		r := v.number()
		return s.number.free() || r == nil && c.wide || r != nil && s.number.holds(r)
	case 's':
		return c.textHolds(&s.text, v.text)
	case 'a':
		return c.arrayHolds(&s.array, v)
	case 'o':
		return c.objectHolds(&s.object, v)
	}
	return true
}

func (c *schemaCompiler) textHolds(t *textShape, text string) bool {
	n := utf8.RuneCountInString(text)
	if n < t.lo || t.hi >= 0 && n > t.hi || slices.Contains(t.except, text) {
		return false
	}
	list, err := c.operands(t)
	if err != nil {
		return c.wide
	}
	for _, o := range list {
		if o.matches(text) == o.not {
			return false
		}
	}
	return true
}

func (c *schemaCompiler) arrayHolds(a *arrayShape, v *jsonNode) bool {
	if len(v.items) < a.lo || a.hi >= 0 && len(v.items) > a.hi {
		return false
	}
	for i, x := range v.items {
		if !c.admits(a.item(i), x) {
			return false
		}
		if a.unique {
			c.spend(1+i/fewMembers, "")
			if slices.ContainsFunc(v.items[:i], x.equal) {
				return false
			}
		}
	}
	for _, of := range a.contains {
		n, not := 0, 0
		for _, x := range v.items {
			if c.admits(of.conj, x) {
				n++
			} else if !c.admitsNot(of.conj, x) {
				not++ // unclear
			}
		}
		if n < of.lo || of.hi >= 0 && n+not > of.hi && !c.wide {
			return false
		}
	}
	return true
}

// admitsNot reports whether a value is certainly not valid for a set.
func (c *schemaCompiler) admitsNot(set conj, v *jsonNode) bool {
	for _, l := range set {
		if c.admits(conj{{l.node, !l.not}}, v) {
			return true
		}
	}
	return false
}

func (c *schemaCompiler) objectHolds(o *objectShape, v *jsonNode) bool {
	if len(v.members) < o.lo || o.hi >= 0 && len(v.members) > o.hi {
		return false
	}
	for _, k := range o.required {
		if v.get(k) == nil {
			return false
		}
	}
	for _, m := range v.members {
		if !c.admits(c.member(o, m.key), m.value) {
			return false
		}
	}
	return true
}

// member is what the value of a key has to be.
func (c *schemaCompiler) member(o *objectShape, key string) conj {
	set := o.values[key]
	for _, p := range o.patterns {
		if c.matches(p.pattern, key) {
			set = set.and(p.conj)
		}
	}
	for _, x := range o.others {
		if _, named := slices.BinarySearch(x.named, key); named {
			continue
		}
		if !slices.ContainsFunc(x.patterns, func(p string) bool { return c.matches(p, key) }) {
			set = set.and(x.conj)
		}
	}
	if len(o.names) > 0 && !c.admits(o.names, &jsonNode{kind: 's', text: key}) {
		return c.never()
	}
	return set
}

// matches reports whether a pattern is found in a text.
func (c *schemaCompiler) matches(pattern, text string) bool {
	list, err := c.lang(pattern)
	if err != nil {
		c.fail("", "pattern "+pattern+" "+err.Error())
	}
	for _, o := range list {
		if o.matches(text) == o.not {
			return false
		}
	}
	return true
}

// langs of a pattern, or why there are none.
type patternLangs struct {
	list []operand
	err  error
}

// lang is the language of a pattern.
func (c *schemaCompiler) lang(pattern string) ([]operand, error) {
	if l, ok := c.langs[pattern]; ok {
		return l.list, l.err
	}
	var list []operand
	err := error(errLangSize)
	if c.cells <= maxCells {
		list, err = patternLang(pattern, &c.cells)
	}
	c.langs[pattern] = patternLangs{list, err}
	return list, err
}

// operands are the languages of a string's patterns and formats.
func (c *schemaCompiler) operands(t *textShape) (list []operand, err error) {
	for _, p := range t.patterns {
		one, err := c.patternOperands(p)
		if err != nil {
			return nil, err
		}
		list = append(list, one...)
	}
	for _, f := range t.formats {
		one, err := c.lang(formats[f])
		if err != nil {
			return nil, err
		}
		list = append(list, one...)
	}
	return list, nil
}

// patternOperands is the language of a pattern, or of what it does not match.
func (c *schemaCompiler) patternOperands(p textPattern) ([]operand, error) {
	list, err := c.lang(p.text)
	switch {
	case err != nil || !p.not:
		return list, err
	case len(list) == 1:
		return []operand{{list[0].dfa, !list[0].not}}, nil
	}
	d, err := c.intersect(list, 0, -1)
	return []operand{{d, true}}, err
}

// hollow reports whether nothing is valid for a set.
func (c *schemaCompiler) hollow(set conj) bool {
	if len(set) == 0 {
		return false
	}
	if isNever(set) {
		return true
	}
	f := fruit{c: c, open: map[string]bool{}}
	return !f.any(set)
}

// prune returns the shape without the types that turn out to have no value, nil when none is left.
func (c *schemaCompiler) prune(s *shape) *shape {
	f := fruit{c: c, open: map[string]bool{}}
	out := s
	c.probe(func() { out = f.prune(s) })
	return out
}

// errOpen unwinds a visit of a schema whose alternatives are not known yet.
type errOpen struct{}

// probe calls f, which may visit parts of schemas that are still in work. It reports whether f returned normally.
func (c *schemaCompiler) probe(f func()) (done bool) {
	c.probing++
	defer func() {
		c.probing--
		if r := recover(); r != nil {
			if _, ok := r.(errOpen); !ok {
				panic(r)
			}
		}
	}()
	f()
	return true
}

// fruit looks for values of sets that may contain themselves.
type fruit struct {
	c    *schemaCompiler
	open map[string]bool
	// met: a set in work was assumed to have no values. granted: a set that is not known yet was assumed to have
	// values. Results that depend on these are not kept.
	met, granted bool
}

func (f *fruit) any(set conj) bool {
	c := f.c
	if len(set) == 0 {
		return true
	}
	key := set.key()
	if known, ok := c.fruitful[key]; ok {
		return known
	}
	if f.open[key] {
		f.met = true
		return false
	}
	f.open[key] = true
	defer delete(f.open, key)
	defer c.enter("")()
	met, granted := f.met, f.granted
	f.met, f.granted = false, false
	found := false
	if !c.probe(func() {
		found = slices.ContainsFunc(c.shapes(set), func(s *shape) bool { return f.prune(s) != nil })
	}) {
		found, f.granted = true, true
	}
	if found && !f.granted || !found && (!f.met || len(f.open) == 1) {
		c.fruitful[key] = found
	}
	f.met = f.met && len(f.open) > 1 || met
	f.granted = f.granted || granted
	return found
}

func (f *fruit) prune(s *shape) *shape {
	c := f.c
	t := s.types
	if s.listed {
		values := slices.DeleteFunc(slices.Clone(s.values), func(v *jsonNode) bool { return !c.fits(s, v) })
		if len(values) == 0 {
			return nil
		}
		if len(values) == len(s.values) {
			return s
		}
		out := *s
		out.values = values
		return &out
	}
	if t&typeObject != 0 {
		for _, k := range s.object.required {
			if !f.any(c.member(&s.object, k)) {
				t &^= typeObject
				break
			}
		}
	}
	if t&typeArray != 0 {
		for i := range min(s.array.lo, len(s.array.prefix)+1) {
			if !f.any(s.array.item(i)) {
				t &^= typeArray
				break
			}
		}
		for _, of := range s.array.contains {
			if of.lo > 0 && !slices.ContainsFunc(append(slices.Clone(s.array.prefix), s.array.rest),
				func(x conj) bool { return f.any(x.and(of.conj)) }) {
				t &^= typeArray
			}
		}
	}
	if t&typeString != 0 && !(c.wide && s.text.hi >= 0) &&
		len(s.text.patterns)+len(s.text.formats)+len(s.text.except) > 1 {
		if d, err := c.textLang(&s.text); err == nil && d.empty() {
			t &^= typeString
		}
	}
	if t == 0 {
		return nil
	}
	if t == s.types {
		return s
	}
	out := *s
	out.types = t
	return &out
}
