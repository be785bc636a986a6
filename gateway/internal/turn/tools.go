package turn

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
)

// MaxSchemaBytes of one tool's schema. Schemas are read as a whole, for prompts and for answers, which takes seconds
// for some of the size of a body.
const MaxSchemaBytes = 1 << 20

// ParseTools reads tool definitions in the forms of all dialects (docs/spec/http-api.md §10.1): nested and flat
// functions, input_schema, custom tools, namespaces. skipped are the types of tools that a server would have to
// run itself.
func ParseTools(o reqjson.Object) (set *toolcall.Set, skipped []string, err error) {
	return parseTools(o, "tools")
}

// ParseFunctions reads the older functions of chat; the set is nil when there are none.
func ParseFunctions(o reqjson.Object) (*toolcall.Set, error) {
	set, _, err := parseTools(o, "functions")
	return set, err
}

func parseTools(o reqjson.Object, field string) (set *toolcall.Set, skipped []string, err error) {
	raw, name, _, err := o.Array(field)
	if err != nil {
		return nil, nil, err
	}
	p := toolParser{set: &toolcall.Set{}}
	if err := p.tools(o, name, raw); err != nil {
		return nil, nil, err
	}
	if p.set.Len() == 0 {
		p.set = nil
	}
	return p.set, p.skipped, nil
}

type toolParser struct {
	set       *toolcall.Set
	skipped   []string
	namespace string
	// about is the description of namespace until a tool carries it.
	about string
}

// tools reads the tools under name.
func (p *toolParser) tools(o reqjson.Object, name string, raw []json.RawMessage) error {
	for i, r := range raw {
		tool, err := o.Element(name, i, r)
		if err != nil {
			return err
		}
		if err := p.tool(tool, r); err != nil {
			return err
		}
		tool.Close()
	}
	return nil
}

func (p *toolParser) tool(o reqjson.Object, raw json.RawMessage) error {
	kind, _, err := o.String("type")
	if err != nil {
		return err
	}
	switch {
	case kind == "namespace" && p.namespace == "":
		return p.space(o)
	case o.Has("input_schema"):
		return p.add(o, raw, toolcall.Function, "input_schema")
	case kind == "custom":
		if fn, ok, err := o.Object("custom"); err != nil {
			return err
		} else if ok {
			o = fn
		}
		return p.add(o, nil, toolcall.Custom, "")
	case kind == "" || kind == "function":
		fn, ok, err := o.Object("function")
		if err != nil {
			return err
		}
		if ok {
			inner, _, _ := o.Peek("function")
			return p.add(fn, inner, toolcall.Function, "parameters")
		}
		return p.add(o, raw, toolcall.Function, "parameters")
	}
	p.skipped = append(p.skipped, kind)
	o.ReadAll()
	return nil
}

// space adds the tools of a namespace under joined names.
func (p *toolParser) space(o reqjson.Object) error {
	name, ok, err := o.String("name")
	if err != nil {
		return err
	}
	if !ok || name == "" {
		return reqerr.Missing(o.Path("name"))
	}
	raw, key, _, err := o.Array("tools")
	if err != nil {
		return err
	}
	about, _, err := o.String("description")
	if err != nil {
		return err
	}
	p.namespace, p.about = name, strings.TrimSpace(about)
	defer func() { p.namespace, p.about = "", "" }()
	return p.tools(o, key, raw)
}

// add reads one definition; schema names the member that holds the arguments' schema. raw gives the order of its keys.
func (p *toolParser) add(o reqjson.Object, raw json.RawMessage, kind toolcall.Kind, schema string) error {
	t := toolcall.Tool{Kind: kind, Path: o.Path(cmp.Or(schema, "name"))}
	name, ok, err := o.String("name")
	switch {
	case err != nil:
		return err
	case !ok:
		return reqerr.Missing(o.Path("name"))
	case !toolcall.ValidName(name):
		return reqerr.InvalidValue(o.Path("name"), toolcall.NameRule)
	}
	t.Name = name
	if p.namespace != "" {
		t.Namespace, t.Local = p.namespace, name
	}
	if t.Description, t.Described, err = o.String("description"); err != nil {
		return err
	}
	order := keyOrder(raw, schema)
	if more, err := p.aside(o); err != nil {
		return err
	} else if more != "" {
		t.Description = strings.TrimSpace(t.Description + "\n\n" + more)
		if order != nil && !t.Described {
			order = append(order, "description")
		}
		t.Described = true
	}
	if t.Strict, _, err = o.Bool("strict"); err != nil {
		return err
	}
	if t.Deferred, _, err = o.Bool("defer_loading"); err != nil {
		return err
	}
	if kind == toolcall.Custom {
		if _, ok, err := o.Object("format"); err != nil {
			return err
		} else if ok {
			t.Format, _, _ = o.Raw("format")
		}
	} else if _, ok, err := o.Object(schema); err != nil {
		return err
	} else if ok {
		t.Schema, _, _ = o.Raw(schema)
		if n := len(t.Schema); n > MaxSchemaBytes {
			return reqerr.InvalidValue(t.Path, "has %d bytes, at most %d are allowed", n, MaxSchemaBytes)
		}
	}
	if err := p.set.Add(t, order); err != nil {
		return reqerr.InvalidValue(o.Path("name"), "cannot be used: %v", err)
	}
	return nil
}

// aside returns the parts of a definition that templates cannot show: the description of the namespace, for its first
// tool, and examples of arguments.
func (p *toolParser) aside(o reqjson.Object) (string, error) {
	var parts []string
	if p.about != "" {
		parts, p.about = append(parts, "About "+p.namespace+": "+p.about), ""
	}
	examples, _, _, err := o.Array("input_examples")
	if err != nil {
		return "", err
	}
	for i, raw := range examples {
		if reqjson.Kind(raw) != 'o' {
			return "", reqerr.InvalidValue(reqjson.Index(o.Path("input_examples"), i), "must be an object")
		}
		var example bytes.Buffer
		if err := json.Compact(&example, raw); err != nil {
			return "", reqerr.InvalidValue(reqjson.Index(o.Path("input_examples"), i), "cannot be read: %v", err)
		}
		parts = append(parts, "Example of arguments: "+example.String())
	}
	return strings.Join(parts, "\n"), nil
}

// keyOrder lists the keys of a definition that prompts show under their canonical names, nil when there is no object.
func keyOrder(raw json.RawMessage, schema string) []string {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return nil
	}
	keys := []string{}
	for dec.More() {
		key, _ := dec.Token()
		k, ok := key.(string)
		var value json.RawMessage
		if !ok || dec.Decode(&value) != nil {
			return nil
		}
		switch k {
		case schema:
			k = "parameters"
		case "name", "description", "strict":
		default:
			continue
		}
		if !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	return keys
}

// ParseToolChoice reads tool_choice in the forms of all dialects (§10.2). parallel is its setting for parallel calls,
// nil = none.
func ParseToolChoice(o reqjson.Object, set *toolcall.Set) (c ToolChoice, parallel *bool, err error) {
	raw, name, ok := o.Raw("tool_choice")
	if !ok {
		return c, nil, nil
	}
	path := o.Path(name)
	if reqjson.Kind(raw) == 's' {
		s, _, err := o.String(name)
		if err != nil {
			return c, nil, err
		}
		c.Mode, ok = toolModes[s]
		if !ok {
			return c, nil, reqerr.InvalidValue(path, "must be none, auto, required or a function, got %q", s)
		}
		return c, nil, needTools(c, set, path)
	}
	obj, _, err := o.Object(name)
	if err != nil {
		return c, nil, err
	}
	if serial, err := optionalBool(obj, "disable_parallel_tool_use"); err != nil {
		return c, nil, err
	} else if serial != nil {
		p := !*serial
		parallel = &p
	}
	kind, _, err := obj.String("type")
	if err != nil {
		return c, nil, err
	}
	if mode, ok := toolModes[kind]; ok {
		c.Mode = mode
		return c, parallel, needTools(c, set, path)
	}
	if kind == "allowed_tools" {
		c, err = allowedTools(o, obj, set)
		return c, parallel, err
	}
	if hosted(o, obj, kind) {
		// The tool itself was left out with a warning.
		c.Hosted = kind
		if name, ok, _ := obj.String("name"); ok {
			c.Hosted = name
		}
		return c, parallel, nil
	}
	switch kind {
	case "", "function", "tool", "custom":
	default:
		return c, nil, reqerr.InvalidValue(obj.Path("type"), "names no tool of this request: %q", kind)
	}
	c.Name, err = namedTool(obj, set)
	c.Mode = ToolNamed
	return c, parallel, err
}

// allowedTools reads a choice among some of the tools. Tools that a server would run are not there anyway.
func allowedTools(o, obj reqjson.Object, set *toolcall.Set) (c ToolChoice, err error) {
	in, nested, err := obj.Object("allowed_tools")
	if err != nil {
		return c, err
	}
	if !nested {
		in = obj
	}
	switch mode, ok, err := in.String("mode"); {
	case err != nil:
		return c, err
	case !ok:
		return c, reqerr.Missing(in.Path("mode"))
	case mode == "auto":
	case mode == "required":
		c.Mode = ToolRequired
	default:
		return c, reqerr.InvalidValue(in.Path("mode"), "must be auto or required, got %q", mode)
	}
	list, _, ok, err := in.Array("tools")
	if err != nil {
		return c, err
	}
	path := in.Path("tools")
	if !ok {
		return c, reqerr.Missing(path)
	}
	c.Allowed = []string{}
	for i, raw := range list {
		tool, err := in.Element("tools", i, raw)
		if err != nil {
			return c, err
		}
		kind, _, err := tool.String("type")
		if err != nil {
			return c, err
		}
		if hosted(o, tool, kind) {
			continue
		}
		name, err := namedTool(tool, set)
		if err != nil {
			return c, err
		}
		tool.Close()
		c.Allowed = append(c.Allowed, name)
	}
	if len(c.Allowed) == 0 {
		return c, reqerr.InvalidValue(path, "names no tool of this request")
	}
	return c, nil
}

// hosted reports whether a choice, of a kind, is about a tool of the request that a server would have to run.
func hosted(o, choice reqjson.Object, kind string) bool {
	list, _, _, err := o.Array("tools")
	if err != nil {
		return false
	}
	name, _, _ := choice.String("name")
	for _, raw := range list {
		tool, err := reqjson.Wrap(raw, "tools")
		if err != nil || tool.Has("input_schema") {
			continue
		}
		own, _, _ := tool.String("type")
		switch own {
		case "", "function", "custom", "namespace":
			continue
		}
		named, _, _ := tool.String("name")
		if own == kind || kind == "tool" && named != "" && named == name {
			return true
		}
	}
	return false
}

// toolModes are the words for modes in all dialects.
var toolModes = map[string]ToolMode{"none": ToolNone, "auto": ToolAuto, "required": ToolRequired, "any": ToolRequired}

func needTools(c ToolChoice, set *toolcall.Set, path string) error {
	if c.Mode == ToolRequired && set.Len() == 0 {
		return reqerr.InvalidValue(path, "asks for a call, but the request has no tools")
	}
	return nil
}

// namedTool finds the tool that a choice names: {type,function:{name}}, {type,custom:{name}} or {type,name}.
func namedTool(obj reqjson.Object, set *toolcall.Set) (string, error) {
	in := obj
	for _, key := range []string{"function", "custom"} {
		fn, ok, err := obj.Object(key)
		if err != nil {
			return "", err
		}
		if ok {
			in = fn
			break
		}
	}
	name, ok, err := in.String("name")
	if err != nil {
		return "", err
	}
	if !ok {
		return "", reqerr.Missing(in.Path("name"))
	}
	space, ok, err := in.String("namespace")
	if err != nil {
		return "", err
	}
	if ok {
		name = toolcall.Join(space, name)
	}
	if t := set.Get(name); t != nil {
		return name, nil
	}
	return "", reqerr.InvalidValue(in.Path("name"), "names no tool of this request: %q", name)
}
