package openai

import (
	"encoding/json"
	"regexp"

	"github.com/tandem-inference/tandem/gateway/internal/apierror"
	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
	"github.com/tandem-inference/tandem/services/chattemplate"
)

var toolName = regexp.MustCompile(`^[A-Za-z0-9_.:-]{1,128}$`)

// toolSet is the tools of a request in the chat form.
type toolSet struct {
	list  *chattemplate.List // nil = none
	names map[string]bool
	// skipped are types of tools that this server does not offer.
	skipped []string
}

// parseTools reads tool definitions, nested or flat, and keeps the order of all keys.
func parseTools(o reqjson.Object) (toolSet, error) {
	ts := toolSet{names: map[string]bool{}}
	raw, _, ok, err := o.Array("tools")
	if err != nil || !ok {
		return ts, err
	}
	for i, r := range raw {
		tool, err := reqjson.Wrap(r, reqjson.Index("tools", i))
		if err != nil {
			return ts, err
		}
		kind, _, err := tool.String("type")
		if err != nil {
			return ts, err
		}
		if kind != "" && kind != "function" {
			ts.skipped = append(ts.skipped, kind)
			continue
		}
		def, err := canonicalTool(tool, r)
		if err != nil {
			return ts, err
		}
		fn, _, err := tool.Object("function")
		if err != nil {
			return ts, err
		}
		if !tool.Has("function") {
			fn = tool
		}
		name, ok, err := fn.String("name")
		switch {
		case err != nil:
			return ts, err
		case !ok:
			return ts, apierror.Missing(fn.Path("name"))
		case !toolName.MatchString(name):
			return ts, apierror.InvalidValue(fn.Path("name"), "must have 1 to 128 of the characters A-Z a-z 0-9 _ . : -")
		}
		ts.names[name] = true
		if ts.list == nil {
			ts.list = chattemplate.NewList()
		}
		ts.list.Append(def)
	}
	return ts, nil
}

// canonicalTool gives {type, function{…}}; a flat definition is nested.
func canonicalTool(tool reqjson.Object, raw json.RawMessage) (*chattemplate.Dict, error) {
	v, err := chattemplate.FromJSON(raw)
	if err != nil {
		return nil, apierror.InvalidValue(tool.Path("function"), "cannot be read: %v", err)
	}
	d, ok := v.(*chattemplate.Dict)
	if !ok {
		return nil, apierror.InvalidValue(tool.Path("function"), "must be an object")
	}
	if tool.Has("function") {
		if !tool.Has("type") {
			out := chattemplate.NewDict()
			out.Set("type", "function")
			fn, _ := d.Get("function")
			out.Set("function", fn)
			return out, nil
		}
		return d, nil
	}
	fn := chattemplate.NewDict()
	for _, k := range d.Keys() {
		if k == "type" {
			continue
		}
		v, _ := d.Get(k)
		fn.Set(k, v)
	}
	out := chattemplate.NewDict()
	out.Set("type", "function")
	out.Set("function", fn)
	return out, nil
}

// checkToolChoice accepts what needs no forcing of the output: none and auto. Forcing a call would change the result and is
// refused until it exists; a name that is not among the tools is wrong either way.
func checkToolChoice(o reqjson.Object, ts toolSet) error {
	raw, _, ok := o.Raw("tool_choice")
	if !ok {
		return nil
	}
	if reqjson.Kind(raw) == 's' {
		s, _, err := o.String("tool_choice")
		if err != nil {
			return err
		}
		switch s {
		case "none", "auto":
			return nil
		case "required", "any":
			return apierror.Unsupported("tool_choice", "%q is not supported yet; use auto", s)
		}
		return apierror.InvalidValue("tool_choice", "must be none, auto, required or a function, got %q", s)
	}
	c, _, err := o.Object("tool_choice")
	if err != nil {
		return err
	}
	fn, nested, err := c.Object("function")
	if err != nil {
		return err
	}
	if !nested {
		fn = c
	}
	name, ok, err := fn.String("name")
	if err != nil {
		return err
	}
	if !ok {
		return apierror.Missing(fn.Path("name"))
	}
	if !ts.names[name] {
		return apierror.InvalidValue(fn.Path("name"), "names no tool of this request: %q", name)
	}
	return apierror.Unsupported("tool_choice", "with a named function is not supported yet; use auto")
}
