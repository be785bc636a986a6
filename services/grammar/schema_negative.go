package grammar

// negative returns alternatives of values that are not valid. Those that cannot be expressed are left out, and noted
// in vague.
func (c *schemaCompiler) negative(s *jsonNode) (out []*shape) {
	add := func(list ...*shape) {
		for _, x := range list {
			out = append(out, x.unseen())
		}
	}
	vague := func() {
		c.vague[conj{{s, true}}.key()] = true
		if c.wide {
			add(anything())
		}
	}
	inherit := func(n *jsonNode, not bool) []*shape {
		list := c.alternatives(n, not)
		if c.vague[conj{{n, not}}.key()] {
			vague()
		}
		return list
	}
	if r := s.get("$ref"); r != nil {
		if t := c.target(s, r); t == nil {
			vague()
		} else {
			add(inherit(t, true)...)
		}
		if c.legacy {
			return out
		}
	}
	if t, integer := c.typesOf(s); t != typeAll || integer {
		if typeAll&^t != 0 {
			add(only(typeAll &^ t))
		}
		if integer {
			x := only(typeNumber)
			x.number.fraction = true
			add(x)
		}
	}
	for _, key := range []string{"enum", "const"} {
		n := s.get(key)
		if n == nil {
			continue
		}
		list := []*jsonNode{n}
		if key == "enum" {
			if n.kind != 'a' {
				c.fail(s.path+".enum", "must be an array with a value at least")
			}
			list = n.items
		}
		add(c.except(list))
	}
	c.negativeNumber(s, add)
	c.negativeText(s, add, vague)
	c.negativeArray(s, add, vague)
	c.negativeObject(s, add, vague)
	c.negativeCombined(s, add, inherit)
	for _, key := range []string{"$dynamicRef", "$recursiveRef", "unevaluatedItems", "unevaluatedProperties"} {
		if s.get(key) != nil {
			vague()
		}
	}
	if len(out) > maxShapes {
		c.giveUp(s.path, "has too many combinations of alternatives")
	}
	return out
}

// negativeNumber adds the numbers that break a bound or a multiple.
func (c *schemaCompiler) negativeNumber(s *jsonNode, add func(...*shape)) {
	number := func(f func(*numberShape)) {
		x := only(typeNumber)
		f(&x.number)
		add(x)
	}
	var n numberShape
	c.plainNumber(s, &n)
	if n.lo != nil {
		number(func(x *numberShape) { x.hi, x.hiOpen = n.lo, !n.loOpen })
	}
	if n.hi != nil {
		number(func(x *numberShape) { x.lo, x.loOpen = n.hi, !n.hiOpen })
	}
	if len(n.multiple) > 0 {
		number(func(x *numberShape) { x.notMultiple = n.multiple })
	}
}

// negativeText adds the strings that break a length or the pattern.
func (c *schemaCompiler) negativeText(s *jsonNode, add func(...*shape), vague func()) {
	text := func(f func(*textShape)) {
		x := only(typeString)
		f(&x.text)
		add(x)
	}
	if v := c.count(s, "minLength", 0); v > 0 {
		text(func(t *textShape) { t.hi = v - 1 })
	}
	if v := c.count(s, "maxLength", -1); v >= 0 {
		text(func(t *textShape) { t.lo = v + 1 })
	}
	if p := s.get("pattern"); p != nil {
		text(func(t *textShape) { t.patterns = []textPattern{{p.text, true}} })
	}
	if f := s.get("format"); f != nil {
		vague()
	}
}

// negativeCombined adds the values that break a combination of schemas. inherit returns the values that are valid (or,
// with true, not valid) for one of them.
func (c *schemaCompiler) negativeCombined(
	s *jsonNode, add func(...*shape), inherit func(n *jsonNode, not bool) []*shape,
) {
	for _, x := range c.list(s, "allOf") {
		add(inherit(x, true)...)
	}
	if n := s.get("not"); n != nil {
		add(inherit(n, false)...)
	}
	if list := c.list(s, "anyOf"); list != nil {
		all := []*shape{anything()}
		for _, x := range list {
			all = c.product(all, inherit(x, true))
		}
		add(all...)
	}
	if list := c.list(s, "oneOf"); list != nil {
		none := []*shape{anything()}
		for _, x := range list {
			none = c.product(none, inherit(x, true))
		}
		add(none...)
		for i := range list {
			for j := range i {
				add(c.product(c.alternatives(list[i], false), c.alternatives(list[j], false))...)
			}
		}
	}
	if n := s.get("if"); n != nil {
		for _, branch := range []struct {
			key string
			not bool
		}{{"then", false}, {"else", true}} {
			if x := s.get(branch.key); x != nil {
				add(c.product(inherit(n, branch.not), inherit(x, true))...)
			}
		}
	}
}

// except is every value but those of a list.
func (c *schemaCompiler) except(list []*jsonNode) *shape {
	x := anything()
	for _, v := range list {
		switch t := typeOf(v); t {
		case typeNull, typeTrue, typeFalse:
			x.types &^= t
		case typeNumber:
			if r := v.number(); r != nil {
				x.number.except = append(x.number.except, r)
			} else if !c.wide {
				x.types &^= typeNumber
			}
		case typeString:
			x.text.except = append(x.text.except, v.text)
		default:
			x.except = append(x.except, v)
		}
	}
	return x
}

func (c *schemaCompiler) negativeArray(s *jsonNode, add func(...*shape), vague func()) {
	array := func(f func(*arrayShape)) {
		x := only(typeArray)
		f(&x.array)
		add(x)
	}
	if v := c.count(s, "minItems", 0); v > 0 {
		array(func(a *arrayShape) { a.hi = v - 1 })
	}
	if v := c.count(s, "maxItems", -1); v >= 0 {
		array(func(a *arrayShape) { a.lo = v + 1 })
	}
	prefix, items, _ := c.itemsOf(s)
	for i, x := range prefix {
		array(func(a *arrayShape) {
			a.lo = i + 1
			for range i {
				a.prefix = append(a.prefix, nil)
			}
			a.prefix = append(a.prefix, c.one(x, true))
		})
	}
	switch {
	case items == nil:
	case items.kind == 'b' && items.text == "false":
		array(func(a *arrayShape) { a.lo = len(prefix) + 1 })
	case len(prefix) == 0:
		if set := c.one(items, true); !isNever(set) {
			array(func(a *arrayShape) { a.contains = []containing{{set, 1, -1}} })
		}
	default:
		vague()
	}
	if u := s.get("uniqueItems"); u != nil && u.text == "true" {
		vague()
	}
	if n := s.get("contains"); n != nil {
		lo, hi := c.count(s, "minContains", 1), c.count(s, "maxContains", -1)
		c.know(n)
		if lo == 1 {
			array(func(a *arrayShape) { a.rest = c.one(n, true) })
		} else if lo > 1 {
			array(func(a *arrayShape) { a.contains = []containing{{c.one(n, false), 0, lo - 1}} })
		}
		if hi >= 0 {
			array(func(a *arrayShape) { a.contains = []containing{{c.one(n, false), hi + 1, -1}} })
		}
	}
}

func (c *schemaCompiler) negativeObject(s *jsonNode, add func(...*shape), vague func()) {
	object := func(f func(*objectShape)) {
		x := only(typeObject)
		f(&x.object)
		add(x)
	}
	if v := c.count(s, "minProperties", 0); v > 0 {
		object(func(o *objectShape) { o.hi = v - 1 })
	}
	if v := c.count(s, "maxProperties", -1); v >= 0 {
		object(func(o *objectShape) { o.lo = v + 1 })
	}
	if r := s.get("required"); r != nil && r.kind != 'b' {
		for _, k := range c.textList(r, s.path+".required") {
			object(func(o *objectShape) { o.set(k, c.never()) })
		}
	}
	for _, m := range c.schemaMembers(s, "properties") {
		if set := c.one(m.value, true); !isNever(set) {
			object(func(o *objectShape) {
				o.set(m.key, set)
				o.required = []string{m.key}
			})
		}
	}
	for _, key := range []string{"patternProperties", "propertyNames", "additionalProperties"} {
		if n := s.get(key); n != nil && !(n.kind == 'b' && n.text == "true") && !(n.kind == 'o' && len(n.members) == 0) {
			vague()
		}
	}
	for _, key := range []string{"dependentRequired", "dependentSchemas", "dependencies"} {
		for _, m := range c.schemaMembers(s, key) {
			if m.value.kind == 'a' {
				for _, k := range c.textList(m.value, s.path+"."+key+"."+m.key) {
					object(func(o *objectShape) {
						o.required = []string{m.key}
						o.set(k, c.never())
					})
				}
				continue
			}
			has := only(typeObject)
			has.object.required = []string{m.key}
			add(c.product([]*shape{has}, c.alternatives(m.value, true))...)
		}
	}
}
