package toolcall

import (
	"encoding/json"

	"github.com/tandem-inference/tandem/services/chattemplate"
	"github.com/tandem-inference/tandem/services/grammar"
)

// property is a parameter as a tool's schema declares it.
type property struct {
	key      string
	required bool
	// schema stands alone: definitions that it may refer to are with it.
	schema json.RawMessage
	node   *chattemplate.Dict
}

// properties lists the parameters of a schema in its order.
func properties(raw json.RawMessage) []property {
	v, err := chattemplate.FromJSON(raw)
	root, ok := v.(*chattemplate.Dict)
	if err != nil || !ok {
		return nil
	}
	list, _ := root.Get("properties")
	props, ok := list.(*chattemplate.Dict)
	if !ok {
		return nil
	}
	need := map[string]bool{}
	if r, _ := root.Get("required"); r != nil {
		if l, ok := r.(*chattemplate.List); ok {
			for i := range l.Len() {
				if s, ok := l.At(i).(chattemplate.Str); ok {
					need[s.String()] = true
				}
			}
		}
	}
	var out []property
	for _, key := range props.Keys() {
		p := property{key: key, required: need[key]}
		v, _ := props.Get(key)
		p.node, _ = v.(*chattemplate.Dict)
		alone := chattemplate.NewDict()
		for _, defs := range []string{"$defs", "definitions"} {
			if d, ok := root.Get(defs); ok {
				alone.Set(defs, d)
			}
		}
		if alone.Len() > 0 {
			alone.Set("allOf", chattemplate.NewList(v))
			v = alone
		}
		if text, err := chattemplate.ToJSON(v); err == nil {
			p.schema = json.RawMessage(text)
		}
		out = append(out, p)
	}
	return out
}

func (p property) has(keyword string) bool {
	if p.node == nil {
		return false
	}
	_, ok := p.node.Get(keyword)
	return ok
}

// choices lists the texts of an enum or const of strings, as literals of a grammar.
func (p property) choices() []string {
	if p.node == nil {
		return nil
	}
	if c, ok := p.node.Get("const"); ok {
		if s, ok := c.(chattemplate.Str); ok {
			return []string{grammar.Quote(s.String())}
		}
	}
	e, _ := p.node.Get("enum")
	l, ok := e.(*chattemplate.List)
	if !ok {
		return nil
	}
	var out []string
	for i := range l.Len() {
		if s, ok := l.At(i).(chattemplate.Str); ok {
			out = append(out, grammar.Quote(s.String()))
		}
	}
	return out
}
