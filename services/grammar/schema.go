package grammar

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Bounds of schemas: bytes of text, rules that they become, and work on the way there (parts visited, references
// followed, pairs of values compared).
const (
	MaxSchema      = 512 << 10
	maxSchemaRules = 20_000
	maxSchemaWork  = 300_000
)

// SchemaOptions say how a schema is read.
type SchemaOptions struct {
	// As is the spelling of values; the zero Spelling is JSON.
	As Spelling
	// Open reads the schema as the standard defines it: keys in any order, undeclared ones wherever nothing forbids
	// them, arrays that end within prefixItems. Otherwise keys come in the order of the schema, undeclared ones only
	// where the schema asks for them, and all prefixItems are written.
	Open bool
	// Drop is called for every keyword that cannot be followed; the keyword is then left out. nil: such a keyword is
	// an error.
	Drop func(*SchemaError)
}

// Schema adds the rules of a JSON schema and returns the name of the one for the whole value. docs/grammar.md lists the
// keywords. A schema that cannot be expressed is a *SchemaError. Every text of the rules is valid for the schema; not
// every valid text is a text of the rules: keys come in the order of the schema, and undeclared keys only where
// additionalProperties asks for them.
func (w *Writer) Schema(schema []byte) (rule string, err error) {
	return w.SchemaWith(schema, SchemaOptions{})
}

// SchemaAs is Schema for values that are not written as plain JSON.
func (w *Writer) SchemaAs(schema []byte, as Spelling) (rule string, err error) {
	return w.SchemaWith(schema, SchemaOptions{As: as})
}

// SchemaWith is Schema with options.
func (w *Writer) SchemaWith(schema []byte, o SchemaOptions) (rule string, err error) {
	if len(schema) > MaxSchema {
		return "", &SchemaError{Message: fmt.Sprintf("has %d bytes, at most %d are allowed", len(schema), MaxSchema)}
	}
	root, err := parseJSON(schema)
	if err != nil {
		return "", &SchemaError{Message: "is not JSON: " + err.Error()}
	}
	c := &schemaCompiler{
		w: w, spelling: o.As, options: o, root: root, limit: w.count + maxSchemaRules, ids: new(int),
		falseNode: &jsonNode{kind: 'b', text: "false"},
		places:    map[string]*jsonNode{}, dropped: map[string]bool{},
	}
	c.forget()
	defer func() {
		if r := recover(); r != nil {
			e, ok := r.(*SchemaError)
			if !ok {
				panic(r)
			}
			rule, err = "", e
		}
	}()
	if v := root.get("$schema"); v != nil && v.kind == 's' {
		for _, d := range []string{"draft-03", "draft-04", "draft-05", "draft-06", "draft-07"} {
			c.legacy = c.legacy || strings.Contains(v.text, d)
		}
	}
	if root.kind == 'o' {
		c.place(root, "", "", root, true)
	}
	return c.compile(c.one(root, false), ""), nil
}

// forget drops all results about schemas.
func (c *schemaCompiler) forget() {
	c.known, c.expanded, c.single, c.open = map[string]string{}, map[string][]*shape{},
		map[string][]*shape{}, map[string]bool{}
	c.vague, c.fruitful, c.langs, c.texts = map[string]bool{}, map[string]bool{},
		map[string]patternLangs{}, map[string]textLang{}
}

// wider is a compiler whose shapes hold all values that are valid, and perhaps some that are not: what they exclude
// is excluded.
func (c *schemaCompiler) wider() *schemaCompiler {
	if c.wide {
		return c
	}
	if c.wideOne == nil {
		w := *c
		w.wide, w.probing, w.depth = true, 0, 0
		w.options.Drop = func(*SchemaError) {}
		w.forget()
		c.wideOne = &w
	}
	return c.wideOne
}

type schemaCompiler struct {
	w        *Writer
	spelling Spelling
	options  SchemaOptions
	nested   bool // the value in work is a part of another
	legacy   bool // the schema names a draft up to the seventh

	root      *jsonNode
	places    map[string]*jsonNode // schemas by absolute reference
	ids       *int
	wide      bool // shapes may hold values that are not valid, and hold all that are
	wideOne   *schemaCompiler
	falseNode *jsonNode
	known     map[string]string   // rules of sets of schemas
	expanded  map[string][]*shape // of sets
	single    map[string][]*shape // of one schema
	open      map[string]bool     // schemas whose alternatives are being computed
	vague     map[string]bool     // negations that lack some of the values
	fruitful  map[string]bool     // whether a set has a value
	langs     map[string]patternLangs
	dropped   map[string]bool
	limit     int
	depth     int
	work      int
	cells     int // of automata
	texts     map[string]textLang
	probing   int
}

// know numbers a node that is used as a schema.
func (c *schemaCompiler) know(n *jsonNode) {
	if n.id == 0 {
		*c.ids++
		n.id = *c.ids
	}
}

// Where schemas occur in schemas: as the value of a keyword, in a list, or by name.
var (
	schemaKeywords = []string{"items", "additionalItems", "additionalProperties", "propertyNames", "contains", "not", "if",
		"then", "else", "unevaluatedItems", "unevaluatedProperties"}
	listKeywords  = []string{"allOf", "anyOf", "oneOf", "prefixItems", "items"}
	namedKeywords = []string{"properties", "patternProperties", "$defs", "definitions",
		"dependentSchemas", "dependencies"}
)

// place notes where the nodes of the text are, and what references may call them. base is the address of the resource
// that n is in; schema reports that n is at a place for schemas; an $id elsewhere does not count.
func (c *schemaCompiler) place(n *jsonNode, path, base string, resource *jsonNode, schema bool) {
	n.path, n.base = strings.TrimPrefix(path, "."), base
	n.resource = resource
	if schema && n.kind == 'o' {
		for _, key := range []string{"$id", "id"} {
			id := n.get(key)
			if id == nil || id.kind != 's' || key == "id" && !c.legacy || n.get("$ref") != nil && c.legacy {
				continue
			}
			full := resolve(base, id.text)
			if strings.HasPrefix(id.text, "#") {
				c.places[full] = n
				continue
			}
			base, resource = strings.TrimSuffix(full, "#"), n
			if c.places[base] == nil {
				c.places[base] = n
			}
			n.base, n.resource = base, n
		}
		for _, key := range []string{"$anchor", "$dynamicAnchor"} {
			if a := n.get(key); a != nil && a.kind == 's' {
				c.places[base+"#"+a.text] = n
			}
		}
	}
	for i, x := range n.items {
		c.place(x, path+"["+strconv.Itoa(i)+"]", base, resource, false)
	}
	for _, m := range n.members {
		at, x := path+"."+m.key, m.value
		switch {
		case schema && x.kind == 'a' && slices.Contains(listKeywords, m.key):
			x.path = strings.TrimPrefix(at, ".")
			for i, y := range x.items {
				c.place(y, at+"["+strconv.Itoa(i)+"]", base, resource, true)
			}
		case schema && x.kind == 'o' && slices.Contains(namedKeywords, m.key):
			x.path = strings.TrimPrefix(at, ".")
			for _, y := range x.members {
				c.place(y.value, at+"."+y.key, base, resource, true)
			}
		default:
			c.place(x, at, base, resource, schema && slices.Contains(schemaKeywords, m.key))
		}
	}
}

// resolve returns the address of a reference in a resource.
func resolve(base, ref string) string {
	b, err := url.Parse(base)
	if err != nil {
		return ref
	}
	r, err := url.Parse(ref)
	if err != nil {
		return ref
	}
	return b.ResolveReference(r).String()
}

// enter counts a schema that is visited; the result undoes its part in the nesting.
func (c *schemaCompiler) enter(path string) (leave func()) {
	if c.depth++; c.depth > 2*maxSchemaNesting {
		c.giveUp(path, "is nested too deep, or refers to itself")
	}
	c.spend(1, path)
	return c.leave
}

// spend counts parts that are visited and pairs that are compared.
func (c *schemaCompiler) spend(n int, path string) {
	if c.work += n; c.work > maxSchemaWork || c.w.count > c.limit || c.w.b.Len() > MaxText {
		c.giveUp(path, "the schema is too large once all references are followed")
	}
}

func (c *schemaCompiler) leave() { c.depth-- }

func (c *schemaCompiler) fail(path, message string) {
	panic(&SchemaError{Path: strings.TrimPrefix(path, "."), Message: message})
}

// giveUp fails for a schema that is beyond the compiler as a whole.
func (c *schemaCompiler) giveUp(path, message string) {
	panic(&SchemaError{strings.TrimPrefix(path, "."), message, true})
}

// drop leaves a keyword out, or fails.
func (c *schemaCompiler) drop(path, message string) {
	if c.options.Drop == nil {
		c.fail(path, message)
	}
	path = strings.TrimPrefix(path, ".")
	if !c.dropped[path] {
		c.dropped[path] = true
		c.options.Drop(&SchemaError{Path: path, Message: message})
	}
}

// drops reports whether keywords that cannot be followed are left out.
func (c *schemaCompiler) drops() bool { return c.options.Drop != nil }

// compile returns the rule of a set of schemas.
func (c *schemaCompiler) compile(set conj, path string) string {
	if len(set) == 0 {
		return c.value()
	}
	key := set.key()
	if c.whole() {
		key = "whole" + key
	}
	if name, ok := c.known[key]; ok {
		return name
	}
	defer c.enter(path)()
	name := c.w.fresh()
	c.known[key] = name
	list := c.live(c.shapes(set))
	if len(list) == 0 {
		c.nothing(set, path)
	}
	var rules []string
	add := func(rule string) {
		if rule != "" && !slices.Contains(rules, rule) {
			rules = append(rules, rule)
		}
	}
	for _, s := range list {
		c.spend(1, path)
		if at := s.at; at != nil && at.path != "" {
			path = at.path
		}
		if s.plain() {
			add(c.value())
			continue
		}
		if s.listed {
			add(c.values(s, path))
			continue
		}
		c.readable(s, path)
		if s.types&typeObject != 0 {
			add(c.object(s, path))
		}
		if s.types&typeArray != 0 {
			add(c.array(s, path))
		}
		if s.types&typeString != 0 {
			add(c.string(s, path))
		}
		if s.types&typeNumber != 0 {
			add(c.number(&s.number, path))
		}
		switch s.types & typeBool {
		case typeBool:
			add(c.json("bool"))
		case typeTrue:
			add(`"true"`)
		case typeFalse:
			add(`"false"`)
		}
		if s.types&typeNull != 0 {
			add(c.json("null"))
		}
	}
	if len(rules) == 0 {
		c.nothing(set, path)
	}
	c.w.Define(name, strings.Join(rules, " | "))
	return name
}

// nothing is the fault of a schema for which nothing is valid.
func (c *schemaCompiler) nothing(set conj, path string) {
	for _, l := range set {
		if l.node.path != "" {
			path = l.node.path
		}
	}
	c.fail(path, "cannot be met: nothing that can be written is valid for it")
}

// value returns the rule of any value.
func (c *schemaCompiler) value() string {
	if c.whole() {
		return c.w.Rule(c.rawSized(0, -1)) // any text is some value
	}
	return c.json("value")
}

// plain reports whether the shape allows every value.
func (s *shape) plain() bool {
	return s.types == typeAll && !s.listed && len(s.except) == 0 && s.number.free() && s.text.free() &&
		s.array.free() && s.object.free()
}

func (t *textShape) free() bool {
	return len(t.patterns)+len(t.formats)+len(t.except) == 0 && t.lo == 0 && t.hi < 0
}

func (a *arrayShape) free() bool {
	return len(a.prefix) == 0 && len(a.rest) == 0 && a.lo == 0 && a.hi < 0 && !a.unique && len(a.contains) == 0
}

func (o *objectShape) free() bool {
	return len(o.keys)+len(o.patterns)+len(o.others)+len(o.names)+len(o.required) == 0 && o.lo == 0 && o.hi < 0
}

// values writes a choice of fixed values, those that the rest of the shape allows.
func (c *schemaCompiler) values(s *shape, path string) string {
	keyword := ".enum"
	if s.at != nil && s.at.get("const") != nil {
		keyword = ".const"
	}
	var words []string
	for _, v := range s.values {
		if !c.fits(s, v) {
			continue
		}
		if c.whole() && c.spelling.Mixed {
			if v.kind == 's' && misread(v.text) {
				continue
			}
			if v.kind != 's' && v.kind != '0' && path != "" {
				c.fail(path+keyword, "must list texts and null only, where the value may be other text too")
			}
		}
		c.spend(1, path)
		words = append(words, c.literal(v, path+keyword))
	}
	if len(words) == 0 {
		return ""
	}
	return c.w.Rule(strings.Join(words, " | "))
}

// target finds the schema that a $ref names, nil when it is dropped.
func (c *schemaCompiler) target(s, r *jsonNode) *jsonNode {
	if r.kind != 's' {
		c.fail(s.path+".$ref", "must be a text")
	}
	n := s.resource
	if n == nil {
		n = c.root
	}
	address, pointer, _ := strings.Cut(r.text, "#")
	if p, err := url.PathUnescape(pointer); err == nil {
		pointer = p
	}
	if address != "" {
		full := strings.TrimSuffix(resolve(s.base, address), "#")
		if n = c.places[full]; n == nil {
			c.drop(s.path+".$ref", "only references inside the schema are supported, such as #/$defs/name")
			return nil
		}
	}
	if pointer != "" && !strings.HasPrefix(pointer, "/") {
		if n = c.places[n.base+"#"+pointer]; n == nil {
			c.drop(s.path+".$ref", strconv.Quote(r.text)+" is not in the schema")
		}
		return n
	}
	if pointer != "" {
		for _, part := range strings.Split(strings.TrimPrefix(pointer, "/"), "/") {
			part = strings.ReplaceAll(strings.ReplaceAll(part, "~1", "/"), "~0", "~")
			var next *jsonNode
			switch n.kind {
			case 'o':
				next = n.get(part)
			case 'a':
				if i, err := strconv.Atoi(part); err == nil && i >= 0 && i < len(n.items) {
					next = n.items[i]
				}
			}
			if next == nil {
				c.drop(s.path+".$ref", strconv.Quote(r.text)+" is not in the schema")
				return nil
			}
			n = next
		}
	}
	return n
}

// is reports whether a value has a type.
func (n *jsonNode) is(t types) bool { return typeOf(n)&t != 0 }
