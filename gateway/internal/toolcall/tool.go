package toolcall

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"

	"github.com/tandem-inference/tandem/gateway/internal/chattemplate"
)

// Kind says how a tool's calls are written on the wire.
type Kind uint8

const (
	// Function takes a JSON object.
	Function Kind = iota
	// Custom takes free text; the model sees a function with the one string parameter InputKey.
	Custom
)

// InputKey is the parameter under which the model writes the free text of a Custom tool.
const InputKey = "input"

// namePattern is what names of tools may look like.
var namePattern = regexp.MustCompile(`^[A-Za-z0-9_.:-]{1,128}$`)

// NameRule says in words what a name must look like.
const NameRule = "must have 1 to 128 of the characters A-Z a-z 0-9 _ . : -"

// ValidName reports whether a tool may have this name.
func ValidName(name string) bool { return namePattern.MatchString(name) }

// Tool is one tool of a request.
type Tool struct {
	// Name as the model sees it: for a tool in a namespace Namespace, a dot and Local.
	Name string
	Kind Kind
	// Description as the request has it. Described tells an empty one, which templates render, from none.
	Description string
	Described   bool
	// Schema is the JSON schema of the arguments, keys in their order; nil when there is none.
	Schema json.RawMessage
	// Strict asks that arguments follow the schema exactly.
	Strict bool
	// Format of a Custom tool's text, as the request wrote it; nil = free text.
	Format json.RawMessage
	// Namespace and Local are set for a tool that came inside a namespace; answers name both.
	Namespace, Local string
	// Path of the schema in the request, for errors; may be empty.
	Path string
	// Deferred tools are not shown to the model until the conversation refers to them.
	Deferred bool

	def    *chattemplate.Dict
	params *schema
}

// Definition is the canonical chat form {"type":"function","function":{…}}. The three dialects give the same bytes for
// the same tool; hints to a server (cache_control, defer_loading …) are not part of it.
func (t *Tool) Definition() *chattemplate.Dict { return t.def }

// Set is the tools of one request. The nil Set has none.
type Set struct {
	tools  []*Tool
	byName map[string]*Tool
}

// customSchema is what the model sees of a Custom tool.
var customSchema = json.RawMessage(`{"type":"object","properties":{"` + InputKey +
	`":{"type":"string"}},"required":["` + InputKey + `"]}`)

// Join is the name of a tool of a namespace as the model sees it.
func Join(namespace, local string) string { return namespace + "." + local }

// Add appends a tool. order lists the keys name, description, parameters and strict as the definition had them, so that
// the prompt keeps their order; nil is that order. A later tool of the same name takes the place of the earlier one.
func (s *Set) Add(t Tool, order []string) error {
	if t.Namespace != "" {
		t.Name = Join(t.Namespace, t.Local)
	}
	if !ValidName(t.Name) {
		return fmt.Errorf("name %s", NameRule)
	}
	if t.Kind == Custom {
		t.Schema, order = customSchema, nil
	}
	if order == nil {
		order = []string{"name", "description", "parameters", "strict"}
	}
	fn := chattemplate.NewDict()
	for _, key := range order {
		switch key {
		case "name":
			fn.Set(key, t.Name)
		case "description":
			if t.Description != "" || t.Described {
				fn.Set(key, t.Description)
			}
		case "parameters":
			if t.Schema == nil {
				continue
			}
			v, err := chattemplate.FromJSON(t.Schema)
			if err != nil {
				return err
			}
			if _, ok := v.(*chattemplate.Dict); !ok {
				return fmt.Errorf("parameters must be an object")
			}
			fn.Set(key, v)
		case "strict":
			// false is the default and says nothing.
			if t.Strict {
				fn.Set(key, true)
			}
		}
	}
	t.def = chattemplate.NewDict()
	t.def.Set("type", "function")
	t.def.Set("function", fn)
	t.params = newSchema(t.Schema)
	if old := s.byName[t.Name]; old != nil {
		*old = t
		return nil
	}
	if s.byName == nil {
		s.byName = map[string]*Tool{}
	}
	s.tools = append(s.tools, &t)
	s.byName[t.Name] = &t
	return nil
}

// Union is the tools of s followed by those of more; of two with the same name the later one counts, in the place of
// the first. No set is changed.
func (s *Set) Union(more ...*Set) *Set {
	if !slices.ContainsFunc(more, func(m *Set) bool { return m.Len() > 0 }) {
		return s
	}
	out := &Set{byName: map[string]*Tool{}}
	places := map[string]int{}
	for _, set := range append([]*Set{s}, more...) {
		for _, t := range set.All() {
			at, ok := places[t.Name]
			if !ok {
				at = len(out.tools)
				places[t.Name] = at
				out.tools = append(out.tools, nil)
			}
			out.tools[at], out.byName[t.Name] = t, t
		}
	}
	return out
}

// Only is the tools of s with these names.
func (s *Set) Only(names []string) *Set {
	out := &Set{byName: map[string]*Tool{}}
	for _, t := range s.All() {
		if slices.Contains(names, t.Name) {
			out.tools, out.byName[t.Name] = append(out.tools, t), t
		}
	}
	return out
}

// Len is the number of tools.
func (s *Set) Len() int {
	if s == nil {
		return 0
	}
	return len(s.tools)
}

// All lists the tools in order; the caller must not change them.
func (s *Set) All() []*Tool {
	if s == nil {
		return nil
	}
	return s.tools
}

// Get finds a tool by the name that the model uses, nil when there is none.
func (s *Set) Get(name string) *Tool {
	if s == nil {
		return nil
	}
	return s.byName[name]
}

// Shown lists the definitions that the template renders: all but deferred ones. nil when there are none.
func (s *Set) Shown() *chattemplate.List {
	var out *chattemplate.List
	for _, t := range s.All() {
		if t.Deferred {
			continue
		}
		if out == nil {
			out = chattemplate.NewList()
		}
		out.Append(t.def)
	}
	return out
}

// Call is one call that the model made.
type Call struct {
	// Index counts the calls of a choice from 0.
	Index int
	ID    string
	Name  string
	// Tool is the definition that Name belongs to.
	Tool *Tool
	// Arguments is the JSON object in full, once the call has ended.
	Arguments string
	// Gap is the whitespace between what came before and the call.
	Gap string
	// Raw is the call as the model wrote it, markup included, once it has ended.
	Raw string
	// Format in which it was written.
	Format Format
}
