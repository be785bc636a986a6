package grammar

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// count reads a keyword that counts something; def when it is absent.
func (c *schemaCompiler) count(s *jsonNode, key string, def int, path string) int {
	v := s.get(key)
	if v == nil {
		return def
	}
	r := v.number()
	if r == nil || !r.IsInt() || r.Sign() < 0 {
		c.fail(path+"."+key, "must be an integer, at least 0")
	}
	if !r.Num().IsInt64() || r.Num().Int64() > MaxRepeat {
		if strings.HasPrefix(key, "max") {
			return MaxRepeat
		}
		c.fail(path+"."+key, "is more than "+strconv.Itoa(MaxRepeat))
	}
	return int(r.Num().Int64())
}

// object writes declared keys in their order, then what additionalProperties allows.
func (c *schemaCompiler) object(s *jsonNode, path string) string {
	type property struct {
		key, rule string
		required  bool
	}
	var list []property
	properties := s.get("properties")
	if properties == nil {
		properties = &jsonNode{kind: 'o'}
	}
	if properties.kind != 'o' {
		c.fail(path+".properties", "must be an object")
	}
	requireds := s.get("required")
	if requireds == nil {
		requireds = &jsonNode{kind: 'a'}
	}
	extra := s.get("additionalProperties")
	open := extra != nil && extra.text != "false" || extra == nil && len(properties.members) == 0
	if extra == nil {
		extra = &jsonNode{kind: 'b', text: "true"}
	}
	names, patterned := c.names(s, path)
	if patterned != nil {
		open, extra = true, patterned
	}
	all := &jsonNode{kind: 'o', members: slices.Clone(properties.members)}
	for _, r := range requireds.items {
		if r.kind != 's' {
			c.fail(path+".required", "must list names of keys")
		}
		if all.get(r.text) == nil {
			if extra.text == "false" {
				c.fail(path+".required", strconv.Quote(r.text)+" is required but not allowed")
			}
			all.members = append(all.members, member{r.text, extra})
		}
	}
	keys := all.members
	needed := 0
	must := required(s)
	for _, p := range keys {
		need := must[p.key]
		if p.value.kind == 'b' && p.value.text == "false" && !need {
			continue
		}
		if need {
			needed++
		}
		list = append(list, property{p.key, c.inside(p.value, path+".properties."+p.key), need})
	}
	if least := c.count(s, "minProperties", 0, path); least > needed {
		c.fail(path+".minProperties", "is not supported beyond the number of required keys")
	}
	ws := c.json("ws")
	if len(list) == 0 && !open {
		return c.w.Rule(`"{" ` + ws + ` "}"`)
	}
	// later is what may follow once a pair was written, first what may follow while none was.
	later, first := "", ""
	if open {
		key := c.json("string")
		if c.spelling.Quote != "" {
			key = c.json("key")
		}
		switch {
		case names != nil && c.spelling.Quote != "":
			c.fail(path, "propertyNames and patternProperties are not supported in this model's calls")
		case len(list) > 0 || len(properties.members) > 0:
			if names != nil {
				c.fail(path, "propertyNames and patternProperties are not supported beside declared or required keys")
			}
			var declared []string
			for _, m := range keys {
				declared = append(declared, m.key)
			}
			key = c.otherKey(declared, path)
		case names != nil:
			key = c.inside(names, path+".propertyNames")
		}
		pair := c.w.Rule(fmt.Sprintf(`%s ":" %s %s %s`, key, ws, c.inside(extra, path+".additionalProperties"), ws))
		later = c.w.Rule(fmt.Sprintf(`("," %s %s)*`, ws, pair))
		first = c.w.Rule(fmt.Sprintf("(%s %s)?", pair, later))
	}
	for _, p := range slices.Backward(list) {
		pair := c.w.Rule(fmt.Sprintf(`%s ":" %s %s %s`, c.key(p.key, path+".properties."+p.key), ws, p.rule, ws))
		begins := strings.TrimSpace(pair + " " + later)
		follows := strings.TrimSpace(fmt.Sprintf(`"," %s %s %s`, ws, pair, later))
		if p.required {
			first, later = c.w.Rule(begins), c.w.Rule(follows)
			continue
		}
		if first == "" {
			first = c.w.Rule(fmt.Sprintf("(%s)?", begins))
			later = c.w.Rule(fmt.Sprintf("(%s)?", follows))
			continue
		}
		first, later = c.w.Rule(begins+" | "+first), c.w.Rule(follows+" | "+later)
	}
	return c.w.Rule(fmt.Sprintf(`"{" %s %s "}"`, ws, first))
}

// names gives the schema of undeclared keys, nil = any, and that of their values when patternProperties has it.
func (c *schemaCompiler) names(s *jsonNode, path string) (names, values *jsonNode) {
	text := &jsonNode{kind: 'o', members: []member{{"type", &jsonNode{kind: 's', text: "string"}}}}
	p, n := s.get("patternProperties"), s.get("propertyNames")
	if p != nil && (p.kind != 'o' || len(p.members) > 1 || len(p.members) == 1 && n != nil) {
		c.fail(path+".patternProperties", "is supported for one pattern, without propertyNames")
	}
	if p != nil && len(p.members) == 1 {
		pattern := &jsonNode{kind: 's', text: p.members[0].key}
		return &jsonNode{kind: 'o', members: append(text.members, member{"pattern", pattern})}, p.members[0].value
	}
	if n == nil || n.kind == 'b' && n.text == "true" {
		return nil, nil
	}
	n = c.merge(text, c.flatten(c.resolved(n, path+".propertyNames"), path+".propertyNames"), path+".propertyNames")
	if !slices.ContainsFunc(n.members, func(m member) bool { return m.key != "type" && slices.Contains(assertions, m.key) }) {
		return nil, nil
	}
	return n, nil
}

// otherKey writes strings that are none of the keys. They are written without escapes, so that there is one spelling to compare.
func (c *schemaCompiler) otherKey(keys []string, path string) string {
	not, char := `"\\\x00-\x1F`, ""
	if c.spelling.Until != "" {
		not += "<" // an escape would be a second spelling
	}
	if char = "[^" + not + "]"; c.spelling.Quote != "" {
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
		list = append(list, other(plain)+" "+char+"*")
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

// array writes prefixItems, all of them, then items as often as the bounds allow.
func (c *schemaCompiler) array(s *jsonNode, path string) string {
	if u := s.get("uniqueItems"); u != nil && u.text == "true" {
		c.fail(path+".uniqueItems", "is not supported")
	}
	items, prefix := s.get("items"), s.get("prefixItems")
	where := ".items"
	if items != nil && items.kind == 'a' { // the older spelling
		prefix, items, where = items, s.get("additionalItems"), ".additionalItems"
	}
	var list []string
	if prefix != nil {
		if prefix.kind != 'a' {
			c.fail(path+".prefixItems", "must be an array")
		}
		for i, x := range prefix.items {
			list = append(list, c.inside(x, fmt.Sprintf("%s.prefixItems[%d]", path, i)))
		}
	}
	least, most := c.count(s, "minItems", 0, path), c.count(s, "maxItems", -1, path)
	if most >= 0 && most < least {
		c.fail(path+".maxItems", "is less than minItems")
	}
	if most >= 0 && most < len(list) {
		list = list[:most]
	}
	ws := c.json("ws")
	fixed := len(list)
	least = max(0, least-fixed)
	if most >= 0 {
		most -= fixed
	}
	none := items != nil && items.kind == 'b' && items.text == "false" || items == nil && fixed > 0 && least == 0
	if none && least > 0 {
		c.fail(path+".minItems", "is more than there are items")
	}
	var parts []string
	for _, x := range list {
		parts = append(parts, x+" "+ws)
	}
	body := strings.Join(parts, ` "," `+ws+" ")
	if !none && most != 0 {
		if items == nil {
			items = &jsonNode{kind: 'b', text: "true"}
		}
		item := c.inside(items, path+where)
		more := fmt.Sprintf(`("," %s %s %s)`, ws, item, ws)
		bounds := func(lo, hi int) string {
			if hi < 0 {
				return fmt.Sprintf("{%d,}", lo)
			}
			return fmt.Sprintf("{%d,%d}", lo, hi)
		}
		switch {
		case fixed > 0:
			body += " " + more + bounds(least, most)
		case least > 0:
			body = fmt.Sprintf("%s %s %s%s", item, ws, more, bounds(least-1, max(most-1, -1)))
		default:
			body = fmt.Sprintf("(%s %s %s%s)?", item, ws, more, bounds(0, max(most-1, -1)))
		}
	}
	return c.w.Rule(strings.Join(strings.Fields(fmt.Sprintf(`"[" %s %s "]"`, ws, body)), " "))
}
