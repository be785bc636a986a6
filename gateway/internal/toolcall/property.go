package toolcall

import (
	"encoding/json"

	"github.com/tandem-inference/tandem/gateway/internal/chattemplate"
)

// property is a parameter as a tool's schema declares it.
type property struct {
	key      string
	required bool
	// schema stands alone: definitions that it may refer to are with it.
	schema json.RawMessage
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
