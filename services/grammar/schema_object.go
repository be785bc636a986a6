package grammar

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// count reads a keyword that counts something; def when it is absent.
func (c *schemaCompiler) count(s *jsonNode, key string, def int) int {
	v := s.get(key)
	if v == nil {
		return def
	}
	r := v.number()
	if r == nil || !r.IsInt() || r.Sign() < 0 {
		c.fail(s.path+"."+key, "must be an integer, at least 0")
	}
	if !r.Num().IsInt64() || r.Num().Int64() > MaxRepeat {
		if strings.HasPrefix(key, "max") {
			if c.wide {
				return -1
			}
			return MaxRepeat
		}
		c.fail(s.path+"."+key, "is more than "+strconv.Itoa(MaxRepeat))
	}
	return int(r.Num().Int64())
}

// property is a declared or required key with the rule of its value.
type property struct {
	key, pair string
	required  bool
}

// object writes the members that a shape requires and allows.
func (c *schemaCompiler) object(s *shape, path string) string {
	o := &s.object
	if len(s.except) > 0 {
		if o = c.without(o, s.except, path); o == nil {
			return ""
		}
	}
	must := make(map[string]bool, len(o.required))
	for _, k := range o.required {
		must[k] = true
	}
	var list []property
	keys := union(o.keys, o.required)
	ws := c.json("ws")
	declares := false
	for _, k := range keys {
		value := c.member(o, k)
		if c.hollow(value) {
			if must[k] {
				return ""
			}
			continue
		}
		declares = true
		rule := c.inside(value, path+".properties."+k)
		list = append(list, property{k,
			c.w.Rule(fmt.Sprintf(`%s ":" %s %s %s`, c.key(k, path+".properties."+k), ws, rule, ws)), must[k]})
	}
	extra := c.otherMembers(o, keys, declares, path)
	least, most := o.lo, o.hi
	if least <= len(o.required) {
		least = 0
	}
	if most >= len(list) && extra == "" {
		most = -1
	}
	possible := len(list)
	if extra != "" {
		possible++ // others may have the same key, of which the last counts: they are counted once
	}
	if least > possible {
		if extra == "" {
			return ""
		}
		c.drop(path+".minProperties", "is not supported beyond the number of declared keys and one")
		least = 0
	}
	if most >= 0 && most < len(o.required) {
		return ""
	}
	if len(list) == 0 && extra == "" {
		return c.w.Rule(`"{" ` + ws + ` "}"`)
	}
	if c.options.Open && c.spelling.Quote == "" && len(list) <= maxFreeKeys {
		return c.anyOrder(list, extra, least, most)
	}
	return c.inOrder(list, extra, least, most, path)
}

// maxFreeKeys of an object whose keys may come in any order.
const maxFreeKeys = 48

// anyOrder writes members in any order.
func (c *schemaCompiler) anyOrder(list []property, extra string, least, most int) string {
	ws := c.json("ws")
	parts := make([]string, 0, len(list)+1)
	for _, p := range list {
		if p.required {
			parts = append(parts, p.pair+"!")
		} else {
			parts = append(parts, p.pair)
		}
	}
	switch {
	case extra != "" && len(list) > 0:
		parts = append(parts, extra+"+") // named members come first
	case extra != "":
		parts = append(parts, extra+"*")
	}
	limit := "*"
	if most >= 0 {
		limit = strconv.Itoa(most)
	}
	return c.w.Rule(fmt.Sprintf(`"{" %s $members(%d, %s, %s, %s) "}"`, ws, least, limit,
		c.w.Rule(strings.TrimSpace(`"," `+ws)), strings.Join(parts, ", ")))
}

// inOrder writes declared members in their order, then others.
func (c *schemaCompiler) inOrder(list []property, extra string, least, most int, path string) string {
	ws := c.json("ws")
	comma := strings.TrimSpace(`"," ` + ws)
	// A state is the next key, and how many members there are as far as that matters. "" = no text leads to the end
	// from there.
	type state struct {
		next, count int
		others      bool
	}
	bound := max(least, most)
	type rules struct{ first, later string }
	known := map[state]rules{}
	const empty = `""`
	var tail func(s state) rules
	tail = func(s state) rules {
		if r, ok := known[s]; ok {
			return r
		}
		c.spend(1, path)
		count := func(n int) int {
			if bound <= 0 {
				return 0
			}
			return min(n, bound+1)
		}
		var r rules
		if s.next < len(list) {
			p := list[s.next]
			var first, later []string
			if most < 0 || s.count < most {
				if then := tail(state{s.next + 1, count(s.count + 1), s.others}).later; then != "" {
					first = append(first, strings.TrimSuffix(p.pair+" "+then, " "+empty))
					later = append(later, strings.TrimSuffix(`"," `+ws+" "+p.pair+" "+then, " "+empty))
				}
			}
			if !p.required {
				if skip := tail(state{s.next + 1, s.count, s.others}); skip.later != "" {
					later = append(later, skip.later)
					if skip.first != "" {
						first = append(first, skip.first)
					}
				}
			}
			if len(first) > 0 {
				r.first = c.w.Rule(strings.Join(first, " | "))
			}
			if len(later) > 0 {
				r.later = c.w.Rule(strings.Join(later, " | "))
			}
		} else {
			ends := s.count >= least
			switch {
			case extra == "" && ends:
				r = rules{empty, empty}
			case extra == "":
			case most >= 0:
				room := most - s.count
				if least > s.count+1 || least > s.count && room < 1 {
					break
				}
				from := max(0, least-s.count)
				r.later = c.w.Rule(fmt.Sprintf("(%s %s){%d,%d}", comma, extra, from, room))
				r.first = r.later
				if room > 0 {
					r.first = c.w.Rule(fmt.Sprintf("%s (%s %s){0,%d}", extra, comma, extra, room-1))
					if from == 0 {
						r.first = c.w.Rule(r.first + "?")
					}
				}
			case ends:
				r.later = c.w.Rule(fmt.Sprintf("(%s %s)*", comma, extra))
				r.first = c.w.Rule(fmt.Sprintf("(%s %s)?", extra, r.later))
			case least == s.count+1:
				r.later = c.w.Rule(fmt.Sprintf("(%s %s)+", comma, extra))
				r.first = c.w.Rule(fmt.Sprintf("%s (%s %s)*", extra, comma, extra))
			}
		}
		known[s] = r
		return r
	}
	first := tail(state{}).first
	if first == "" {
		return ""
	}
	return c.w.Rule(strings.Join(strings.Fields(fmt.Sprintf(`"{" %s %s "}"`, ws, strings.TrimSuffix(first, empty))), " "))
}

// otherMembers returns the rule of a member whose key is not declared, "" when there is none.
func (c *schemaCompiler) otherMembers(o *objectShape, keys []string, declares bool, path string) string {
	// The standard allows other keys where the schema does not mention them; strict schemas only in objects that
	// declare none.
	free := c.options.Open || len(o.others) > 0 || !declares && len(o.patterns) == 0
	var patterns []string
	add := func(p string) {
		if !slices.Contains(patterns, p) {
			patterns = append(patterns, p)
		}
	}
	for _, p := range o.patterns {
		add(p.pattern)
	}
	for _, x := range o.others {
		for _, p := range x.patterns {
			add(p)
		}
	}
	if len(patterns) == 0 && len(o.names) == 0 {
		var value conj
		for _, x := range o.others {
			value = value.and(x.conj) // what is named there is declared or was looked at by its own schema
		}
		if !free || c.hollow(value) {
			return ""
		}
		if named := c.undeclared(o, keys); len(named) > 0 {
			keys = append(slices.Clone(keys), named...)
		}
		key := c.json("string")
		switch {
		case len(keys) > 0:
			key = c.otherKey(keys, path)
		case c.spelling.Quote != "":
			key = c.json("key")
		}
		return c.pair(key, value, path+".additionalProperties")
	}
	if c.spelling.Quote != "" {
		c.fail(path, "propertyNames and patternProperties are not supported in this model's calls")
	}
	if len(patterns) > 6 {
		c.drop(path+".patternProperties", "has more than 6 patterns")
		return ""
	}
	keys = append(slices.Clone(keys), c.undeclared(o, keys)...)
	var list []string
	for _, names := range c.nameShapes(o) {
		if names.listed {
			for _, v := range names.values {
				if v.kind != 's' || slices.Contains(keys, v.text) || !c.fits(names, v) {
					continue
				}
				c.spend(1, path)
				value := c.member(o, v.text)
				if (free || c.namedBy(o, v.text)) && !c.hollow(value) {
					list = append(list, c.pair(c.key(v.text, path), value, path+".propertyNames"))
				}
			}
			continue
		}
		list = append(list, c.patternMembers(o, &names.text, patterns, keys, free, path)...)
	}
	if len(list) == 0 {
		return ""
	}
	return c.w.Rule(strings.Join(list, " | "))
}

// patternMembers returns the rules of members whose key is a text of names and none of keys: one for every combination
// of patterns, with the value that the matching patterns require. free: a key without a pattern is allowed.
func (c *schemaCompiler) patternMembers(
	o *objectShape, names *textShape, patterns, keys []string, free bool, path string,
) (list []string) {
	for set := range 1 << len(patterns) {
		matches := func(p string) bool { return set>>slices.Index(patterns, p)&1 == 1 }
		var value conj
		t := *names
		for _, p := range patterns {
			t.patterns = append(slices.Clone(t.patterns), textPattern{p, !matches(p)})
		}
		matched := false
		for _, p := range o.patterns {
			if matches(p.pattern) {
				matched = true
				value = value.and(p.conj)
			}
		}
		for _, x := range o.others {
			if !slices.ContainsFunc(x.patterns, matches) {
				value = value.and(x.conj)
			}
		}
		if !matched && !free || c.hollow(value) {
			continue
		}
		if r := c.nameRule(&t, keys, path); r != "" {
			list = append(list, c.pair(r, value, path+".patternProperties"))
		}
	}
	return list
}

// namedBy reports whether a key matches a pattern.
func (c *schemaCompiler) namedBy(o *objectShape, key string) bool {
	return slices.ContainsFunc(o.patterns, func(p patternMember) bool { return c.matches(p.pattern, key) })
}

// undeclared lists keys that a schema for other members names although the shape does not: they are left out.
func (c *schemaCompiler) undeclared(o *objectShape, keys []string) (out []string) {
	for _, x := range o.others {
		for _, k := range x.named {
			c.spend(1, "")
			if o.values[k] == nil && !slices.Contains(keys, k) && !slices.Contains(out, k) {
				out = append(out, k)
			}
		}
	}
	return out
}

// nameShapes returns the shapes of names that are texts.
func (c *schemaCompiler) nameShapes(o *objectShape) (out []*shape) {
	for _, s := range c.live(c.shapes(o.names)) {
		if s.types&typeString != 0 {
			out = append(out, s)
		}
	}
	return out
}

// nameRule writes keys of a language, without those that are declared. They have no escapes where other keys have none.
func (c *schemaCompiler) nameRule(t *textShape, not []string, path string) string {
	was := c.nested
	c.nested = true
	defer func() { c.nested = was }()
	u := *t
	for _, k := range not {
		c.spend(1, path)
		if c.textHolds(t, k) {
			u.except = append(slices.Clone(u.except), k)
		}
	}
	return c.string(&shape{text: u}, path)
}

// pair writes a member.
func (c *schemaCompiler) pair(key string, value conj, path string) string {
	ws := c.json("ws")
	return c.w.Rule(fmt.Sprintf(`%s ":" %s %s %s`, key, ws, c.inside(value, path), ws))
}

// without narrows an object so that it is none of some values; nil when that cannot be expressed.
func (c *schemaCompiler) without(o *objectShape, list []*jsonNode, path string) *objectShape {
	out := *o
	for _, v := range list {
		if v.kind != 'o' || !c.objectHolds(&out, v) {
			continue
		}
		// One member fewer than the value has, a key of it missing, or one that it does not have: the first that can be
		// expressed easily.
		switch {
		case len(v.members) == 0:
			out.lo = max(out.lo, 1)
		default:
			m := v.members[0]
			other := objectShape{hi: -1}
			other.set(m.key, conj{{c.constant(m.value), true}})
			out = out.and(&other)
		}
	}
	return &out
}

// constant is a schema of one value.
func (c *schemaCompiler) constant(v *jsonNode) *jsonNode {
	n := &jsonNode{kind: 'o', members: []member{{"const", v}}}
	c.know(n)
	return n
}

// otherKey writes strings that are none of the keys. They are written without escapes, so that there is one spelling
// to compare.
func (c *schemaCompiler) otherKey(keys []string, path string) string {
	not := `"\\\x00-\x1F`
	if c.spelling.Until != "" {
		not += "<" // an escape would be a second spelling
	}
	char := "[^" + not + "]"
	if c.spelling.Quote != "" {
		char = bareChar
	}
	// other is a character that is none of those.
	other := func(than []rune) string {
		if c.spelling.Quote == "" {
			var b strings.Builder
			for _, r := range than {
				b.WriteString(classRune(r))
			}
			return "[^" + not + b.String() + "]"
		}
		var b strings.Builder
		for _, r := range bareChars {
			if !slices.Contains(than, r) {
				b.WriteString(classRune(r))
			}
		}
		return "[" + b.String() + "]"
	}
	tail := c.w.Rule(char + "*") // one rule: whatever set a key apart, what follows is the same place
	keys = slices.Clone(keys)
	slices.Sort(keys)
	keys = slices.Compact(keys)
	// rest writes what may follow a prefix that all of the keys share; the keys are cut down to what follows it.
	var rest func(keys []string, first bool) string
	rest = func(keys []string, first bool) string {
		c.spend(maxSchemaWork/maxSchemaRules, path) // it becomes a rule, but only when those for the rests are there
		mayEnd := true
		groups := map[rune][]string{}
		var order []rune
		for _, k := range keys {
			if k == "" {
				mayEnd = false
				continue
			}
			r, n := utf8.DecodeRuneInString(k)
			if groups[r] == nil {
				order = append(order, r)
			}
			groups[r] = append(groups[r], k[n:])
		}
		var list []string
		var plain []rune
		for _, r := range order {
			if r == '"' || r == '\\' || r < 0x20 || r == '<' && c.spelling.Until != "" {
				continue // such a key is written with escapes and so never an other one
			}
			plain = append(plain, r)
			list = append(list, fmt.Sprintf("%s %s", Quote(string(r)), rest(groups[r], false)))
		}
		list = append(list, other(plain)+" "+tail)
		body := strings.Join(list, " | ")
		if mayEnd && !(first && c.spelling.Quote != "") { // a bare key is not empty
			body = "(" + body + ")?"
		}
		return c.w.Rule(body)
	}
	if c.spelling.Quote != "" {
		return rest(keys, true)
	}
	return c.w.Rule(`"\"" ` + rest(keys, true) + ` "\""`)
}

// classRune writes a character inside a class.
func classRune(r rune) string {
	switch {
	case r == '\\' || r == ']' || r == '[' || r == '-' || r == '^' || r == '"':
		return `\` + string(r)
	case r < 0x20 || r == 0x7F:
		return fmt.Sprintf(`\x%02X`, r)
	}
	return string(r)
}
