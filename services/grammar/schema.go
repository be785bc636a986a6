package grammar

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Bounds of schemas: bytes of text, rules that they become, and parts looked at on the way there, references followed and pairs
// of values compared.
const (
	MaxSchema      = 256 << 10
	maxSchemaRules = 20_000
	maxSchemaWork  = 300_000
)

// Schema adds the rules of a JSON schema and gives the name of the one for the whole value. docs/grammar.md lists the keywords.
// What cannot be expressed is a *SchemaError. Every text of the rules is valid for the schema; not every valid text is a text of
// the rules: keys come in the order of the schema, and undeclared keys only where additionalProperties asks for them.
func (w *Writer) Schema(schema []byte) (rule string, err error) {
	return w.SchemaAs(schema, Spelling{})
}

// SchemaAs is Schema for values that are not written as plain JSON.
func (w *Writer) SchemaAs(schema []byte, as Spelling) (rule string, err error) {
	if len(schema) > MaxSchema {
		return "", &SchemaError{Message: fmt.Sprintf("has %d bytes, at most %d are allowed", len(schema), MaxSchema)}
	}
	root, err := parseJSON(schema)
	if err != nil {
		return "", &SchemaError{Message: "is not JSON: " + err.Error()}
	}
	c := &schemaCompiler{w: w, spelling: as, root: root, refs: map[string]string{}, limit: w.count + maxSchemaRules}
	defer func() {
		if r := recover(); r != nil {
			e, ok := r.(*SchemaError)
			if !ok {
				panic(r)
			}
			rule, err = "", e
		}
	}()
	return c.compile(root, ""), nil
}

type schemaCompiler struct {
	w        *Writer
	spelling Spelling
	nested   bool // the value that is looked at is a part of another

	root  *jsonNode
	refs  map[string]string // rules of targets of $ref
	limit int
	depth int
	work  int
}

// enter counts a schema that is looked at; the result undoes its part in the nesting.
func (c *schemaCompiler) enter(path string) (leave func()) {
	if c.depth++; c.depth > 2*maxSchemaNesting {
		c.fail(path, "is nested too deep, or refers to itself")
	}
	c.spend(1, path)
	return c.leave
}

// spend counts parts that are looked at and pairs that are compared.
func (c *schemaCompiler) spend(n int, path string) {
	if c.work += n; c.work > maxSchemaWork || c.w.count > c.limit || c.w.b.Len() > MaxText {
		c.fail(path, "the schema is too large once all references are followed")
	}
}

func (c *schemaCompiler) leave() { c.depth-- }

func (c *schemaCompiler) fail(path, message string) {
	panic(&SchemaError{strings.TrimPrefix(path, "."), message})
}

// unsupported are keywords that would narrow what is valid and cannot be expressed.
var unsupported = []string{
	"not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedItems", "unevaluatedProperties", "contains", "minContains", "maxContains", "multipleOf", "maxProperties",
	"$dynamicRef", "$recursiveRef",
}

// assertions are the keywords that are understood and narrow a value.
var assertions = []string{
	"type", "enum", "const", "nullable", "properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties", "items", "prefixItems",
	"additionalItems", "minItems", "maxItems", "uniqueItems", "minLength", "maxLength", "pattern", "format", "minimum", "maximum",
	"exclusiveMinimum", "exclusiveMaximum", "anyOf", "oneOf", "allOf", "$ref",
}

// compile gives the rule of a schema.
func (c *schemaCompiler) compile(s *jsonNode, path string) string {
	defer c.enter(path)()
	switch {
	case s.kind == 'b' && s.text == "true":
		return c.typed(s, "value", path)
	case s.kind == 'b':
		c.fail(path, "a schema that nothing is valid for cannot be met")
	case s.kind != 'o':
		c.fail(path, "must be an object or a boolean")
	}
	s = c.flatten(s, path)
	for _, k := range unsupported {
		if s.get(k) != nil {
			c.fail(path+"."+k, "is not supported")
		}
	}
	for _, k := range []string{"oneOf", "anyOf"} {
		if list := s.get(k); list != nil {
			return c.branches(s, k, list, path)
		}
	}
	if r := s.get("$ref"); r != nil {
		return c.reference(r, path)
	}
	if e := s.get("const"); e != nil {
		return c.values(s, []*jsonNode{e}, "const", path)
	}
	if e := s.get("enum"); e != nil {
		if e.kind != 'a' || len(e.items) == 0 {
			c.fail(path+".enum", "must be an array with a value at least")
		}
		return c.values(s, e.items, "enum", path)
	}
	types := c.types(s, path)
	var list []string
	for _, t := range types {
		list = append(list, c.typed(s, t, path))
	}
	if len(list) == 1 {
		return list[0]
	}
	return c.w.Rule(strings.Join(list, " | "))
}

// jsonTypes in the order in which they are tried.
var jsonTypes = []string{"object", "array", "string", "number", "integer", "boolean", "null"}

// types lists the types that a schema allows; without type those that its other keywords are about.
func (c *schemaCompiler) types(s *jsonNode, path string) []string {
	var types []string
	add := func(t string) {
		if !slices.Contains(jsonTypes, t) {
			c.fail(path+".type", "unknown type "+strconv.Quote(t))
		}
		if !slices.Contains(types, t) {
			types = append(types, t)
		}
	}
	t := s.get("type")
	switch {
	case t == nil:
		has := func(keys ...string) bool {
			return slices.ContainsFunc(keys, func(k string) bool { return s.get(k) != nil })
		}
		if has("properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties") {
			add("object")
		}
		if has("items", "prefixItems", "minItems", "maxItems", "additionalItems", "uniqueItems") {
			add("array")
		}
		if has("minLength", "maxLength", "pattern", "format") {
			add("string")
		}
		if has("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum") {
			add("number")
		}
		if len(types) == 0 {
			return []string{"value"}
		}
	case t.kind == 's':
		add(t.text)
	case t.kind == 'a' && len(t.items) > 0:
		for _, x := range t.items {
			if x.kind != 's' {
				c.fail(path+".type", "must list names of types")
			}
			add(x.text)
		}
	default:
		c.fail(path+".type", "must be the name of a type or a list of them")
	}
	if n := s.get("nullable"); n != nil && n.text == "true" {
		add("null")
	}
	if slices.Contains(types, "number") {
		types = slices.DeleteFunc(types, func(t string) bool { return t == "integer" })
	}
	return types
}

func (c *schemaCompiler) typed(s *jsonNode, t, path string) string {
	c.readable(s, t, path)
	switch t {
	case "value":
		if c.whole() {
			return c.w.Rule(c.rawSized(0, -1)) // any text is some value
		}
	case "object":
		return c.object(s, path)
	case "array":
		return c.array(s, path)
	case "string":
		return c.string(s, path)
	case "integer", "number":
		return c.number(s, t == "integer", path)
	case "boolean":
		return c.json("bool")
	}
	return c.json(t)
}

// values writes a choice of fixed values, as far as the schema's other keywords allow them.
func (c *schemaCompiler) values(s *jsonNode, list []*jsonNode, keyword, path string) string {
	for _, k := range assertions {
		switch k {
		case keyword, "type", "enum", "const", "nullable":
		default:
			if s.get(k) != nil {
				c.fail(path+"."+k, "is not supported beside "+keyword)
			}
		}
	}
	var types []string
	if s.get("type") != nil {
		types = c.types(s, path)
	}
	var words []string
	for _, v := range list {
		if keyword == "const" && s.get("enum") != nil && !slices.ContainsFunc(s.get("enum").items, v.equal) {
			continue
		}
		if types == nil || slices.ContainsFunc(types, v.is) {
			if c.whole() && c.spelling.Mixed {
				if v.kind == 's' && misread(v.text) {
					continue
				}
				if v.kind != 's' && v.kind != '0' && path != "" {
					c.fail(path+"."+keyword, "must list texts and null only, where the value may be other text too")
				}
			}
			words = append(words, c.literal(v, path+"."+keyword))
		}
	}
	if n := s.get("nullable"); n != nil && n.text == "true" && !slices.Contains(words, `"null"`) && keyword == "enum" {
		words = append(words, `"null"`)
	}
	if len(words) == 0 {
		c.fail(path+"."+keyword, "none of the values has the type that is asked for")
	}
	return c.w.Rule(strings.Join(words, " | "))
}

// is tells whether a value has a type.
func (n *jsonNode) is(t string) bool {
	switch t {
	case "object":
		return n.kind == 'o'
	case "array":
		return n.kind == 'a'
	case "string":
		return n.kind == 's'
	case "number":
		return n.kind == 'n'
	case "integer":
		r := n.number()
		return r != nil && r.IsInt()
	case "boolean":
		return n.kind == 'b'
	case "null":
		return n.kind == '0'
	}
	return true
}

// branches writes anyOf and oneOf. Keywords beside them hold for every branch.
func (c *schemaCompiler) branches(s *jsonNode, keyword string, list *jsonNode, path string) string {
	if list.kind != 'a' || len(list.items) == 0 {
		c.fail(path+"."+keyword, "must be an array with a schema at least")
	}
	rest := &jsonNode{kind: 'o'}
	beside := false
	for _, m := range s.members {
		if m.key != keyword {
			rest.members = append(rest.members, m)
			beside = beside || slices.Contains(assertions, m.key)
		}
	}
	at := func(i int) string { return path + "." + keyword + "[" + strconv.Itoa(i) + "]" }
	full := make([]*jsonNode, len(list.items))
	for i, b := range list.items {
		if full[i] = b; beside {
			full[i] = c.merge(rest, c.resolved(b, at(i)), at(i))
		}
	}
	if keyword == "oneOf" {
		for i := range full {
			for j := range full {
				if i != j && !c.excludes(c.flatten(c.resolved(full[i], at(i)), at(i)), c.flatten(c.resolved(full[j], at(j)), at(j)), path) {
					c.fail(at(j), "may be valid together with branch "+strconv.Itoa(i)+"; use anyOf, or tell the branches apart by type, const or required keys")
				}
			}
		}
	}
	var rules []string
	listed := map[string]bool{}
	for i, b := range full {
		if b.kind == 'b' && b.text == "false" {
			continue
		}
		if r := c.compile(b, at(i)); !listed[r] {
			rules, listed[r] = append(rules, r), true
		}
	}
	switch len(rules) {
	case 0:
		c.fail(path+"."+keyword, "nothing is valid")
	case 1:
		return rules[0]
	}
	return c.w.Rule(strings.Join(rules, " | "))
}

// reference gives the rule of the target of a $ref, which may be under construction: schemas may contain themselves.
func (c *schemaCompiler) reference(r *jsonNode, path string) string {
	target, key := c.target(r, path)
	known := key
	if c.whole() {
		known = "whole " + key
	}
	if name, ok := c.refs[known]; ok {
		return name
	}
	name := c.w.fresh()
	c.refs[known] = name
	at := strings.ReplaceAll(strings.TrimPrefix(key, "#"), "/", ".")
	c.w.Define(name, c.compile(target, at))
	return name
}

// target finds what a $ref names.
func (c *schemaCompiler) target(r *jsonNode, path string) (*jsonNode, string) {
	if r.kind != 's' || !strings.HasPrefix(r.text, "#") {
		c.fail(path+".$ref", "only references inside the schema are supported, such as #/$defs/name")
	}
	n := c.root
	pointer := strings.TrimPrefix(r.text, "#")
	if pointer == "" {
		return n, "#"
	}
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
			c.fail(path+".$ref", strconv.Quote(r.text)+" is not in the schema")
		}
		n = next
	}
	return n, r.text
}
