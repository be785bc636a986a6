package turn

import (
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
)

// ParseFormat reads a format object: response_format of chat, text.format of Responses, output_config.format of
// Messages. The schema is a member of the object or of its json_schema member.
func ParseFormat(parent reqjson.Object, name string) (f Format, err error) {
	o, ok, err := parent.Object(name)
	if err != nil || !ok {
		return f, err
	}
	f.Path = parent.Path(name)
	kind, ok, err := o.String("type")
	if err != nil || !ok || kind == "text" {
		return f, err
	}
	switch kind {
	case "json_object":
		f.Kind = FormatJSONObject
		return f, nil
	case "json_schema":
		f.Kind = FormatJSONSchema
	default:
		return f, reqerr.InvalidValue(o.Path("type"), "must be text, json_object or json_schema, got %q", kind)
	}
	in, nested, err := o.Object("json_schema")
	if err != nil {
		return f, err
	}
	if !nested {
		in = o
	}
	if f.Name, _, err = in.String("name"); err != nil {
		return f, err
	}
	if f.Strict, _, err = in.Bool("strict"); err != nil {
		return f, err
	}
	f.Lenient = !f.Strict
	if _, ok, err = in.Object("schema"); err != nil {
		return f, err
	}
	if !ok {
		return f, reqerr.Missing(in.Path("schema"))
	}
	f.Schema, _, _ = in.Raw("schema")
	f.Path = in.Path("schema")
	return f, nil
}

// parseGrammar reads the field grammar, which takes the place of a format.
func parseGrammar(o reqjson.Object) (f Format, err error) {
	g, ok, err := o.String("grammar")
	if err != nil || !ok || g == "" {
		return f, err
	}
	return Format{Kind: FormatGrammar, Path: o.Path("grammar"), Grammar: g}, nil
}
