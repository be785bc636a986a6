package grammar

import (
	"encoding/binary"
	"math/big"
	"slices"
	"strconv"
)

// A schema is turned into shapes: alternatives, each of which states for every type of JSON what a value of that type
// must be. The conjunction of two shapes is again one shape, so allOf, $ref and keywords beside anyOf cost nothing;
// only real choices multiply. Schemas of parts (of members and items) stay sets of nodes of the text that must hold, or
// must not hold. So recursion ends, and equal sets become the same rule.
//
// Alternatives may leave out valid values, but never accept invalid ones. Negation is applied to the text of a schema,
// not to shapes, so that this holds for negation, too.

// types of JSON as bits. true and false are types of their own.
type types uint8

const (
	typeNull types = 1 << iota
	typeFalse
	typeTrue
	typeNumber
	typeString
	typeArray
	typeObject

	typeBool = typeFalse | typeTrue
	typeAll  = typeNull | typeBool | typeNumber | typeString | typeArray | typeObject
)

// typeOf is the type of a value.
func typeOf(v *jsonNode) types {
	switch v.kind {
	case 'o':
		return typeObject
	case 'a':
		return typeArray
	case 's':
		return typeString
	case 'n':
		return typeNumber
	case 'b':
		if v.text == "true" {
			return typeTrue
		}
		return typeFalse
	}
	return typeNull
}

// lit is a schema that has to hold, or not to hold.
type lit struct {
	node *jsonNode
	not  bool
}

// conj is a set of schemas, all of which apply, sorted by id. An empty one allows every value.
type conj []lit

func compareLit(a, b lit) int {
	if a.node.id != b.node.id {
		return a.node.id - b.node.id
	}
	switch {
	case a.not == b.not:
		return 0
	case a.not:
		return 1
	}
	return -1
}

func (a conj) and(b conj) conj {
	if len(a) == 0 {
		return b
	}
	if len(b) == 0 {
		return a
	}
	out := append(slices.Clone(a), b...)
	slices.SortFunc(out, compareLit)
	return slices.CompactFunc(out, func(a, b lit) bool { return a == b })
}

func (a conj) key() string {
	b := make([]byte, 0, 4*len(a))
	for _, l := range a {
		n := uint32(l.node.id) << 1
		if l.not {
			n |= 1
		}
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	return string(b)
}

// shape holds the conditions on values of each type. Its parts are not changed once it is made.
type shape struct {
	types  types
	number numberShape
	text   textShape
	array  arrayShape
	object objectShape
	// values are the only ones when listed.
	values []*jsonNode
	listed bool
	except []*jsonNode // arrays and objects that are excluded
	// Members and items that schemas of the same place have evaluated, for unevaluatedProperties and unevaluatedItems.
	seenKeys     []string
	seenPatterns []string
	seenAllKeys  bool
	seenItems    int
	seenAllItems bool
	at           *jsonNode // a schema that it comes from, for messages
}

type numberShape struct {
	integer, fraction bool // whole numbers only, or numbers that are not whole
	lo, hi            *big.Rat
	loOpen, hiOpen    bool
	multiple          []*big.Rat
	notMultiple       []*big.Rat
	except            []*big.Rat
}

func (a *numberShape) free() bool {
	return a.lo == nil && a.hi == nil && !a.integer && a.plain()
}

type textPattern struct {
	text string
	not  bool
}

type textShape struct {
	patterns []textPattern
	formats  []string
	lo, hi   int // hi < 0 = without end
	except   []string
}

type containing struct {
	conj
	lo, hi int // hi < 0 = without end
}

type arrayShape struct {
	prefix   []conj
	rest     conj
	lo, hi   int
	unique   bool
	contains []containing
}

// item returns the schemas of the item at a place.
func (a *arrayShape) item(i int) conj {
	if i < len(a.prefix) {
		return a.prefix[i]
	}
	return a.rest
}

type objectShape struct {
	keys     []string // in the order in which they were declared
	values   map[string]conj
	patterns []patternMember
	others   []otherMembers
	names    conj
	required []string
	lo, hi   int
}

// patternMember holds the schemas of the values of matching keys.
type patternMember struct {
	pattern string
	conj
}

// otherMembers holds the schemas of the values of keys that are not named and match no pattern.
type otherMembers struct {
	named    []string // sorted
	patterns []string
	conj
}

func anything() *shape {
	return &shape{types: typeAll, text: textShape{hi: -1}, array: arrayShape{hi: -1}, object: objectShape{hi: -1}}
}

func only(t types) *shape {
	s := anything()
	s.types = t
	return s
}

func lower(a, b int) int { // of upper limits
	if a < 0 || b >= 0 && b < a {
		return b
	}
	return a
}

// union of two lists, in order.
func union[T comparable](a, b []T) []T {
	if len(b) == 0 {
		return a
	}
	if len(a) == 0 {
		return b
	}
	out := slices.Clone(a)
	known := make(map[T]bool, len(a))
	for _, x := range a {
		known[x] = true
	}
	for _, x := range b {
		if !known[x] {
			known[x] = true
			out = append(out, x)
		}
	}
	return out
}

// maxShapes of one schema.
const maxShapes = 2048

// shapes returns the alternatives of a set of schemas, none when nothing is valid.
func (c *schemaCompiler) shapes(set conj) []*shape {
	key := set.key()
	if out, ok := c.expanded[key]; ok {
		return out
	}
	out := []*shape{anything()}
	for _, l := range set {
		out = c.product(out, c.alternatives(l.node, l.not))
	}
	c.expanded[key] = out
	return out
}

// alternatives returns those of one schema, or of the values that are not valid for it. They are cached.
func (c *schemaCompiler) alternatives(s *jsonNode, not bool) []*shape {
	c.know(s)
	key := conj{{s, not}}.key()
	if out, ok := c.single[key]; ok {
		return out
	}
	if c.open[key] {
		if c.probing > 0 {
			panic(errOpen{})
		}
		c.giveUp(s.path, "refers to itself")
	}
	c.open[key] = true
	defer delete(c.open, key)
	defer c.enter(s.path)()
	var out []*shape
	switch {
	case s.kind == 'b':
		if (s.text == "true") != not {
			out = []*shape{anything()}
		}
	case s.kind != 'o':
		c.fail(s.path, "must be an object or a boolean")
	case not:
		out = c.negative(s)
	default:
		out = c.positive(s)
	}
	c.single[key] = out
	return out
}

// one is the set of one schema, or of its negation; empty when every value is valid.
func (c *schemaCompiler) one(n *jsonNode, not bool) conj {
	c.know(n)
	if n.kind == 'b' && (n.text == "true") != not {
		return nil
	}
	return conj{{n, not}}
}

func (c *schemaCompiler) never() conj { return conj{{c.falseNode, false}} }

// list of schemas of a keyword.
func (c *schemaCompiler) list(s *jsonNode, key string) []*jsonNode {
	n := s.get(key)
	if n == nil {
		return nil
	}
	if n.kind != 'a' || len(n.items) == 0 {
		c.fail(s.path+"."+key, "must be an array with a schema at least")
	}
	for _, x := range n.items {
		c.know(x)
	}
	return n.items
}

// schemaMembers of a keyword that holds schemas by name.
func (c *schemaCompiler) schemaMembers(s *jsonNode, key string) []member {
	n := s.get(key)
	if n == nil {
		return nil
	}
	if n.kind != 'o' {
		c.fail(s.path+"."+key, "must be an object")
	}
	for _, m := range n.members {
		c.know(m.value)
	}
	return n.members
}

// textList returns the texts of a keyword that lists names of keys.
func (c *schemaCompiler) textList(n *jsonNode, path string) []string {
	if n == nil {
		return nil
	}
	if n.kind != 'a' {
		c.fail(path, "must be an array of names of keys")
	}
	var out []string
	for _, x := range n.items {
		if x.kind != 's' {
			c.fail(path, "must list names of keys")
		}
		out = append(out, x.text)
	}
	return out
}

// positive returns the alternatives of the values that are valid.
func (c *schemaCompiler) positive(s *jsonNode) []*shape {
	if r := s.get("$ref"); r != nil && (c.legacy || len(s.members) == 1) {
		return c.referred(s, r, false) // older drafts ignore keywords beside a reference
	}
	base := c.plain(s)
	if base == nil {
		return nil
	}
	out := []*shape{base}
	if r := s.get("$ref"); r != nil {
		out = c.product(out, c.referred(s, r, false))
	}
	for _, key := range []string{"$dynamicRef", "$recursiveRef"} {
		if s.get(key) != nil {
			c.drop(s.path+"."+key, "is not supported")
		}
	}
	for _, x := range c.list(s, "allOf") {
		out = c.product(out, c.alternatives(x, false))
	}
	if n := s.get("not"); n != nil {
		c.know(n)
		parts := c.alternatives(n, true)
		if !c.wide && len(parts) == 0 && c.vague[conj{{n, true}}.key()] {
			c.drop(n.path, "is not supported for this schema")
		} else {
			out = c.product(out, parts)
		}
	}
	if n := s.get("if"); n != nil && (s.get("then") != nil || s.get("else") != nil) {
		c.know(n)
		var either []*shape
		for _, not := range []bool{false, true} {
			key := "then"
			if not {
				key = "else"
			}
			part := c.alternatives(n, not)
			if x := s.get(key); x != nil {
				part = c.product(part, c.alternatives(x, false))
			}
			either = append(either, part...)
		}
		out = c.product(out, either)
	}
	out = c.dependent(s, out)
	if list := c.list(s, "anyOf"); list != nil {
		var either []*shape
		for _, x := range list {
			either = append(either, c.alternatives(x, false)...)
		}
		out = c.product(out, either)
	}
	if list := c.list(s, "oneOf"); list != nil {
		out = c.exactlyOne(s, list, out)
	}
	return c.unevaluated(s, out)
}

// unseen forgets which parts were evaluated: schemas that do not hold have evaluated nothing.
func (s *shape) unseen() *shape {
	t := *s
	t.seenKeys, t.seenPatterns, t.seenAllKeys, t.seenItems, t.seenAllItems = nil, nil, false, 0, false
	return &t
}

// referred returns the alternatives of the target of a reference.
func (c *schemaCompiler) referred(s, r *jsonNode, not bool) []*shape {
	t := c.target(s, r)
	if t == nil {
		if not {
			return nil
		}
		return []*shape{anything()}
	}
	return c.alternatives(t, not)
}

// exactlyOne returns the values of out for which exactly one branch is valid.
func (c *schemaCompiler) exactlyOne(s *jsonNode, list []*jsonNode, out []*shape) []*shape {
	parts := make([][]*shape, len(list))
	if c.wide {
		var either []*shape
		for _, x := range list {
			either = append(either, c.product(out, c.alternatives(x, false))...)
		}
		return either
	}
	for i, x := range list {
		parts[i] = c.live(c.product(out, c.alternatives(x, false)))
	}
	var either []*shape
	vague := -1
	for i := range list {
		part := parts[i]
		for j, x := range list {
			if i == j || len(part) == 0 {
				continue
			}
			if wide := c.wider(); len(wide.live(wide.product(part, wide.alternatives(x, false)))) == 0 {
				continue // they exclude each other
			}
			was := part
			others := c.alternatives(x, true)
			neutral := make([]*shape, len(others))
			for k, o := range others {
				neutral[k] = o.unseen()
			}
			if part = c.live(c.product(was, neutral)); len(part) == 0 && c.vague[conj{{x, true}}.key()] {
				vague = j
			}
		}
		either = append(either, part...)
	}
	if len(either) == 0 && vague >= 0 {
		if c.drops() {
			c.drop(s.path+".oneOf["+strconv.Itoa(vague)+"]", "may be valid together with another branch")
			for _, p := range parts {
				either = append(either, p...)
			}
			return either
		}
		c.fail(s.path+".oneOf["+strconv.Itoa(vague)+"]",
			"may be valid together with another branch; use anyOf, or tell the branches apart by type, const or required keys")
	}
	return either
}

// live leaves out the shapes whose parts show that nothing is valid.
func (c *schemaCompiler) live(list []*shape) []*shape {
	var out []*shape
	for _, s := range list {
		if s = c.prune(s); s != nil {
			out = append(out, s)
		}
	}
	return out
}

// dependent adds dependentRequired, dependentSchemas and dependencies.
func (c *schemaCompiler) dependent(s *jsonNode, out []*shape) []*shape {
	for _, key := range []string{"dependentRequired", "dependentSchemas", "dependencies"} {
		for _, m := range c.schemaMembers(s, key) {
			without := anything()
			without.object.set(m.key, c.never())
			with := []*shape{anything()}
			with[0].object.required = []string{m.key}
			if m.value.kind == 'a' {
				with[0].object.required = union(with[0].object.required, c.textList(m.value, s.path+"."+key+"."+m.key))
			} else {
				with = c.product(with, c.alternatives(m.value, false))
			}
			for _, w := range with {
				// Other types have no keys to depend on: they are in the first shape already.
				w.types &= typeObject
			}
			with = slices.DeleteFunc(with, func(w *shape) bool { return w.types == 0 })
			out = c.product(out, append([]*shape{without}, with...))
		}
	}
	return out
}

// set declares a member of a shape that is being made.
func (o *objectShape) set(key string, value conj) {
	if o.values == nil {
		o.values = map[string]conj{}
	}
	if _, ok := o.values[key]; !ok {
		o.keys = append(o.keys, key)
	}
	o.values[key] = o.values[key].and(value)
}

// unevaluated adds unevaluatedProperties and unevaluatedItems, which depend on what everything else at this place
// has evaluated.
func (c *schemaCompiler) unevaluated(s *jsonNode, out []*shape) []*shape {
	if c.wide {
		return out
	}
	if n := s.get("unevaluatedProperties"); n != nil {
		value := c.one(n, false)
		for i, x := range out {
			if x.seenAllKeys {
				continue
			}
			t := *x
			named := slices.Clone(x.seenKeys)
			slices.Sort(named)
			t.object.others = append(slices.Clone(x.object.others), otherMembers{named, x.seenPatterns, value})
			t.seenAllKeys = true
			out = slices.Clone(out)
			out[i] = &t
		}
	}
	if n := s.get("unevaluatedItems"); n != nil {
		value := c.one(n, false)
		for i, x := range out {
			if x.seenAllItems {
				continue
			}
			t := *x
			a := arrayShape{hi: -1, rest: value}
			for range x.seenItems {
				a.prefix = append(a.prefix, nil)
			}
			t.array = x.array.and(&a)
			t.seenAllItems = true
			out = slices.Clone(out)
			out[i] = &t
		}
	}
	return out
}

// typesOf reads type and nullable.
func (c *schemaCompiler) typesOf(s *jsonNode) (t types, integer bool) {
	n := s.get("type")
	if n == nil {
		return typeAll, false
	}
	names := []*jsonNode{n}
	if n.kind == 'a' && len(n.items) > 0 {
		names = n.items
	}
	number := false
	for _, x := range names {
		if x.kind != 's' {
			c.fail(s.path+".type", "must be the name of a type or a list of them")
		}
		switch x.text {
		case "object":
			t |= typeObject
		case "array":
			t |= typeArray
		case "string":
			t |= typeString
		case "number":
			t, number = t|typeNumber, true
		case "integer":
			t, integer = t|typeNumber, true
		case "boolean":
			t |= typeBool
		case "null":
			t |= typeNull
		case "any":
			if !c.legacy {
				c.fail(s.path+".type", `unknown type "any"`)
			}
			t, number = typeAll, true
		default:
			c.fail(s.path+".type", "unknown type "+strconv.Quote(x.text))
		}
	}
	if n := s.get("nullable"); n != nil && n.text == "true" {
		t |= typeNull
	}
	return t, integer && !number
}

// about returns the types that the keywords of a schema are about; all when there are none.
func about(s *jsonNode) (t types) {
	for of, keys := range map[types][]string{
		typeObject: {"properties", "required", "additionalProperties", "patternProperties", "propertyNames",
			"minProperties", "maxProperties"},
		typeArray:  {"items", "prefixItems", "minItems", "maxItems", "additionalItems", "uniqueItems", "contains"},
		typeString: {"minLength", "maxLength", "pattern", "format"},
		typeNumber: {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
	} {
		if slices.ContainsFunc(keys, func(k string) bool { return s.get(k) != nil }) {
			t |= of
		}
	}
	if t == 0 {
		return typeAll
	}
	if n := s.get("nullable"); n != nil && n.text == "true" {
		t |= typeNull
	}
	return t
}

// plain returns the shape of the keywords that make no choice, nil when nothing is valid for them.
func (c *schemaCompiler) plain(s *jsonNode) *shape {
	out := anything()
	out.at = s
	var integer bool
	out.types, integer = c.typesOf(s)
	out.number.integer = integer
	if !c.options.Open && !c.wide && s.get("type") == nil {
		out.types = about(s)
	}
	if e := s.get("enum"); e != nil {
		if e.kind != 'a' || len(e.items) == 0 {
			c.fail(s.path+".enum", "must be an array with a value at least")
		}
		out.listed, out.values = true, e.items
		if n := s.get("nullable"); n != nil && n.text == "true" {
			out.values = append(slices.Clone(out.values), &jsonNode{kind: '0', text: "null"})
		}
	}
	if v := s.get("const"); v != nil {
		if out.listed && !slices.ContainsFunc(out.values, v.equal) {
			return nil
		}
		out.listed, out.values = true, []*jsonNode{v}
	}
	c.plainNumber(s, &out.number)
	t := &out.text
	t.lo, t.hi = c.count(s, "minLength", 0), c.count(s, "maxLength", -1)
	if p := s.get("pattern"); p != nil {
		if p.kind != 's' {
			c.fail(s.path+".pattern", "must be a string")
		}
		t.patterns = []textPattern{{p.text, false}}
	}
	if f := s.get("format"); f != nil && f.kind == 's' && formats[f.text] != "" && !c.wide {
		t.formats = []string{f.text}
	}
	c.plainArray(s, out)
	c.plainObject(s, out)
	return c.and(out, anything()) // looks for contradictions
}

func (c *schemaCompiler) plainNumber(s *jsonNode, n *numberShape) {
	n.lo, n.loOpen = c.bound(s, "minimum", "exclusiveMinimum", 1)
	n.hi, n.hiOpen = c.bound(s, "maximum", "exclusiveMaximum", -1)
	if m := s.get("multipleOf"); m != nil {
		r := m.number()
		if r == nil || r.Sign() <= 0 {
			c.fail(s.path+".multipleOf", "must be a number above 0 of reasonable size")
		}
		n.multiple = []*big.Rat{r}
	}
}

func (c *schemaCompiler) plainArray(s *jsonNode, out *shape) {
	a := &out.array
	a.lo, a.hi = c.count(s, "minItems", 0), c.count(s, "maxItems", -1)
	if u := s.get("uniqueItems"); u != nil && u.text == "true" {
		a.unique = true
	}
	prefix, items, _ := c.itemsOf(s)
	for _, x := range prefix {
		a.prefix = append(a.prefix, c.one(x, false))
	}
	out.seenItems = len(prefix)
	if items != nil {
		a.rest = c.one(items, false)
		out.seenAllItems = true
	}
	if n := s.get("contains"); n != nil {
		lo, hi := c.count(s, "minContains", 1), c.count(s, "maxContains", -1)
		a.contains = []containing{{c.one(n, false), lo, hi}}
		if lo == 0 && hi < 0 {
			a.contains = nil
		}
		c.know(n)
	}
}

// itemsOf returns the schemas of the first items and of those after them, in the newer and the older spelling; either
// may be nil.
func (c *schemaCompiler) itemsOf(s *jsonNode) (prefix []*jsonNode, items *jsonNode, key string) {
	items, key = s.get("items"), "items"
	if p := s.get("prefixItems"); p != nil {
		if p.kind != 'a' {
			c.fail(s.path+".prefixItems", "must be an array")
		}
		prefix = p.items
	}
	if items != nil && items.kind == 'a' { // the older spelling
		prefix, items, key = items.items, s.get("additionalItems"), "additionalItems"
	}
	for _, x := range prefix {
		c.know(x)
	}
	if items != nil {
		c.know(items)
	}
	return prefix, items, key
}

func (c *schemaCompiler) plainObject(s *jsonNode, out *shape) {
	o := &out.object
	o.lo, o.hi = c.count(s, "minProperties", 0), c.count(s, "maxProperties", -1)
	var named, patterns []string
	for _, m := range c.schemaMembers(s, "properties") {
		o.set(m.key, c.one(m.value, false))
		named = append(named, m.key)
	}
	for _, m := range c.schemaMembers(s, "patternProperties") {
		o.patterns = append(o.patterns, patternMember{m.key, c.one(m.value, false)})
		patterns = append(patterns, m.key)
	}
	slices.Sort(named)
	out.seenKeys, out.seenPatterns = named, patterns
	if x := s.get("additionalProperties"); x != nil {
		o.others = []otherMembers{{named, patterns, c.one(x, false)}}
		out.seenAllKeys = true
	}
	if n := s.get("propertyNames"); n != nil {
		o.names = c.one(n, false)
	}
	// a boolean is the form of the third draft, without meaning in later ones
	if r := s.get("required"); r != nil && r.kind != 'b' {
		o.required = union(nil, c.textList(r, s.path+".required"))
		slices.Sort(o.required)
		o.required = slices.Compact(o.required)
		// In the order of the schema.
		order := c.textList(r, s.path+".required")
		o.required = o.required[:0]
		seen := map[string]bool{}
		for _, k := range order {
			if !seen[k] {
				seen[k] = true
				o.required = append(o.required, k)
			}
		}
	}
}
