package grammar

import (
	"slices"
	"strconv"
)

// resolved follows a $ref that stands alone or beside other keywords until there is none.
func (c *schemaCompiler) resolved(s *jsonNode, path string) *jsonNode {
	defer c.enter(path + ".$ref")()
	for range 64 {
		if s.kind != 'o' {
			return s
		}
		r := s.get("$ref")
		if r == nil {
			return s
		}
		target, _ := c.target(r, path)
		rest := &jsonNode{kind: 'o'}
		for _, m := range s.members {
			if m.key != "$ref" && slices.Contains(assertions, m.key) {
				rest.members = append(rest.members, m)
			}
		}
		if len(rest.members) == 0 {
			s = target
			continue
		}
		s = c.merge(c.resolved(target, path), rest, path)
	}
	c.fail(path+".$ref", "refers to itself")
	return nil
}

// flatten puts the members of allOf, and a $ref that has other keywords beside it, into one schema.
func (c *schemaCompiler) flatten(s *jsonNode, path string) *jsonNode {
	if s.kind != 'o' {
		return s
	}
	defer c.enter(path)()
	if s.get("$ref") != nil {
		beside := slices.ContainsFunc(s.members, func(m member) bool {
			return m.key != "$ref" && (slices.Contains(assertions, m.key) || slices.Contains(unsupported, m.key))
		})
		if !beside {
			return s
		}
		s = c.resolved(s, path)
	}
	all := s.get("allOf")
	if all == nil {
		return s
	}
	if all.kind != 'a' || len(all.items) == 0 {
		c.fail(path+".allOf", "must be an array with a schema at least")
	}
	out := &jsonNode{kind: 'o'}
	for _, m := range s.members {
		if m.key != "allOf" {
			out.members = append(out.members, m)
		}
	}
	if len(all.items) == 1 && !slices.ContainsFunc(out.members, func(m member) bool { return slices.Contains(assertions, m.key) }) {
		return c.flatten(all.items[0], path+".allOf[0]")
	}
	for i, x := range all.items {
		at := path + ".allOf[" + strconv.Itoa(i) + "]"
		out = c.merge(out, c.flatten(c.resolved(x, at), at), at)
	}
	return c.flatten(out, path)
}

// merge gives a schema for values that are valid for both. Keywords that cannot be joined are an error.
func (c *schemaCompiler) merge(a, b *jsonNode, path string) *jsonNode {
	switch {
	case b.kind == 'b' && b.text == "true":
		return a
	case a.kind == 'b' && a.text == "true":
		return b
	case a.kind != 'o' || b.kind != 'o':
		c.fail(path, "nothing is valid for both this schema and what stands beside it")
	}
	defer c.enter(path)()
	c.spend((len(a.members)+len(b.members))/fewMembers, path)
	out := &jsonNode{kind: 'o', members: slices.Clone(a.members)}
	for _, m := range b.members {
		old := out.get(m.key)
		if old == nil {
			out.members = append(out.members, m)
			continue
		}
		if v := c.join(m.key, old, m.value, path+"."+m.key); v != old {
			out.members[out.place(m.key)].value = v
		}
	}
	c.closeKeys(out, a, b, path)
	return out
}

// closeKeys keeps the promise of additionalProperties: false on one side against keys of the other.
func (c *schemaCompiler) closeKeys(out, a, b *jsonNode, path string) {
	properties := out.get("properties")
	if properties == nil {
		return
	}
	needed := required(out)
	for _, side := range []*jsonNode{a, b} {
		if x := side.get("additionalProperties"); x == nil || x.text != "false" {
			continue
		}
		own := side.get("properties")
		kept := &jsonNode{kind: 'o'}
		for _, p := range properties.members {
			if own != nil && own.get(p.key) != nil {
				kept.members = append(kept.members, p)
			} else if needed[p.key] {
				c.fail(path+".required", strconv.Quote(p.key)+" is required here and forbidden by additionalProperties beside it")
			}
		}
		properties = kept
	}
	out.members[out.place("properties")].value = properties
}

// required is the set of keys that a schema requires.
func required(s *jsonNode) map[string]bool {
	r := s.get("required")
	if r == nil {
		return nil
	}
	keys := make(map[string]bool, len(r.items))
	for _, x := range r.items {
		if x.kind == 's' {
			keys[x.text] = true
		}
	}
	return keys
}

// join gives the value of a keyword that stands on both sides.
func (c *schemaCompiler) join(key string, a, b *jsonNode, path string) *jsonNode {
	if !slices.Contains(assertions, key) && !slices.Contains(unsupported, key) || a.equal(b) {
		return a
	}
	both := func() (x, y bool) { // does a or b hold the larger number?
		p, q := a.number(), b.number()
		if p == nil || q == nil {
			c.fail(path, "must be a number")
		}
		return p.Cmp(q) > 0, p.Cmp(q) < 0
	}
	switch key {
	case "required":
		c.spend((len(a.items)+len(b.items))/fewMembers, path)
		return &jsonNode{kind: 'a', items: append(slices.Clone(a.items), b.items...)}
	case "properties":
		if a.kind != 'o' || b.kind != 'o' {
			c.fail(path, "must be an object")
		}
		out := &jsonNode{kind: 'o', members: slices.Clone(a.members)}
		for _, m := range b.members {
			i := out.place(m.key)
			if i < 0 {
				out.members = append(out.members, m)
			} else {
				at := path + "." + m.key
				out.members[i].value = c.merge(c.resolved(out.members[i].value, at), c.resolved(m.value, at), at)
			}
		}
		return out
	case "type":
		return c.joinTypes(a, b, path)
	case "enum":
		out := &jsonNode{kind: 'a'}
		for _, x := range a.items {
			c.spend(len(b.items), path)
			if slices.ContainsFunc(b.items, x.equal) {
				out.items = append(out.items, x)
			}
		}
		if len(out.items) == 0 {
			c.fail(path, "no value is in both lists")
		}
		return out
	case "minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties":
		if larger, _ := both(); larger {
			return a
		}
		return b
	case "maximum", "exclusiveMaximum", "maxLength", "maxItems":
		if _, smaller := both(); smaller {
			return a
		}
		return b
	case "items":
		return c.merge(c.resolved(a, path), c.resolved(b, path), path)
	case "additionalProperties":
		if a.text == "false" || b.text == "false" {
			return &jsonNode{kind: 'b', text: "false"}
		}
		return c.merge(c.resolved(a, path), c.resolved(b, path), path)
	case "nullable", "uniqueItems":
		if a.text == "false" && key == "nullable" || a.text == "true" && key == "uniqueItems" {
			return a
		}
		return b
	}
	c.fail(path, "cannot be joined with the same keyword of a schema beside it")
	return nil
}

func (c *schemaCompiler) joinTypes(a, b *jsonNode, path string) *jsonNode {
	list := func(n *jsonNode) []*jsonNode {
		if n.kind == 'a' {
			return n.items
		}
		return []*jsonNode{n}
	}
	out := &jsonNode{kind: 'a'}
	add := func(x *jsonNode) {
		if !slices.ContainsFunc(out.items, x.equal) {
			out.items = append(out.items, x)
		}
	}
	for _, x := range list(a) {
		c.spend(len(list(b)), path)
		for _, y := range list(b) {
			switch {
			case x.text == y.text, x.text == "integer" && y.text == "number":
				add(x)
			case x.text == "number" && y.text == "integer":
				add(y)
			}
		}
	}
	if len(out.items) == 0 {
		c.fail(path, "no type is allowed by all schemas that apply")
	}
	return out
}

// excludes tells whether no text written for schema a is valid for schema b, as far as that is plain to see.
func (c *schemaCompiler) excludes(a, b *jsonNode, path string) bool {
	defer c.enter(path)()
	if a.kind != 'o' || b.kind != 'o' {
		return a.kind == 'b' && a.text == "false" || b.kind == 'b' && b.text == "false"
	}
	if va, vb := fixed(a), fixed(b); va != nil {
		valid := func(v *jsonNode) bool {
			if c.spend(1+len(vb), path); vb != nil {
				return slices.ContainsFunc(vb, v.equal)
			}
			return b.get("type") == nil || slices.ContainsFunc(c.types(b, path), v.is)
		}
		return !slices.ContainsFunc(va, valid)
	} else if vb != nil {
		c.spend(len(vb), path)
		return a.get("type") != nil && !slices.ContainsFunc(vb, func(v *jsonNode) bool { return slices.ContainsFunc(c.types(a, path), v.is) })
	}
	if a.get("anyOf") != nil || a.get("oneOf") != nil {
		return false
	}
	ta, tb := c.types(a, path), c.types(b, path)
	if b.get("type") == nil {
		return false
	}
	shared := slices.DeleteFunc(slices.Clone(ta), func(t string) bool {
		return !(slices.Contains(tb, t) || t == "integer" && slices.Contains(tb, "number") || t == "number" && slices.Contains(tb, "integer") || t == "value")
	})
	switch {
	case len(shared) == 0:
		return true
	case len(shared) > 1 || shared[0] != "object":
		return false
	}
	// Objects: b misses a key that it requires, has one that it forbids, or a key of both with other values.
	pa, pb := a.get("properties"), b.get("properties")
	closed := a.get("additionalProperties") == nil && pa != nil && len(pa.members) > 0 ||
		a.get("additionalProperties") != nil && a.get("additionalProperties").text == "false"
	declares := func(p *jsonNode, key string) bool { return p != nil && p.get(key) != nil }
	if r := b.get("required"); r != nil && closed {
		c.spend(len(r.items), path)
		needed := required(a)
		for _, k := range r.items {
			if !declares(pa, k.text) && !needed[k.text] {
				return true
			}
		}
	}
	if r := a.get("required"); r != nil {
		c.spend(len(r.items), path)
		forbids := b.get("additionalProperties") != nil && b.get("additionalProperties").text == "false"
		for _, k := range r.items {
			if forbids && !declares(pb, k.text) {
				return true
			}
			if declares(pa, k.text) && declares(pb, k.text) &&
				c.excludes(c.flatten(c.resolved(pa.get(k.text), path), path), c.flatten(c.resolved(pb.get(k.text), path), path), path) {
				return true
			}
		}
	}
	return false
}

// fixed lists the values of const or enum.
func fixed(s *jsonNode) []*jsonNode {
	if v := s.get("const"); v != nil {
		return []*jsonNode{v}
	}
	if v := s.get("enum"); v != nil {
		return v.items
	}
	return nil
}
