// Protoc-gen-tandemdoc writes the reference of the gRPC services, docs/reference/grpc.md, from the comments and fields
// of the .proto files. `make proto` runs it.
package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() { protogen.Options{}.Run(generate) }

// document is the reference under construction.
type document struct{ out *protogen.GeneratedFile }

const head = `<!-- made by make proto from the .proto files: change those -->

# gRPC reference

Services and messages as the ` + "`.proto`" + ` files declare them. Clients use
[InferenceService](#inferenceservice); the other services are between the processes of one release.
[grpc-example.md](../grpc-example.md) shows a client, [http-api.md](../spec/http-api.md) says what the fields do.
Server reflection is on.
`

// generate writes one document of all files that declare a service, and of the messages that these use.
func generate(plugin *protogen.Plugin) error {
	plugin.SupportedFeatures = uint64(pluginpb.CodeGeneratorResponse_FEATURE_PROTO3_OPTIONAL)
	d := &document{plugin.NewGeneratedFile("grpc.md", "")}
	d.out.P(strings.TrimRight(head, "\n"))
	var files []*protogen.File
	for _, f := range plugin.Files {
		// A file without either holds options for our own generators.
		if f.Generate && len(f.Services)+len(f.Messages) > 0 && !strings.Contains(f.Desc.Path(), "/setting/") {
			files = append(files, f)
		}
	}
	// What clients use stands first.
	slices.SortStableFunc(files, func(a, b *protogen.File) int { return cmp.Compare(rank(a), rank(b)) })
	for _, f := range files {
		d.out.P()
		d.out.P("## `", f.Desc.Path(), "`")
		for _, s := range f.Services {
			d.service(s)
		}
		for _, m := range f.Messages {
			d.message(m)
		}
		for _, e := range f.Enums {
			d.enum(e)
		}
	}
	return nil
}

func rank(f *protogen.File) int {
	switch {
	case strings.HasSuffix(f.Desc.Path(), "/v1/inference.proto"):
		return 0
	case strings.HasSuffix(f.Desc.Path(), "/v1/common.proto"):
		return 1
	}
	return 2
}

func (d *document) service(s *protogen.Service) {
	d.title(string(s.Desc.Name()), s.Comments)
	d.out.P()
	d.out.P("| Call | Request | Response | What |")
	d.out.P("|---|---|---|---|")
	for _, m := range s.Methods {
		d.out.P("| `", m.Desc.Name(), "` | ", streamed(m.Desc.IsStreamingClient()), "`", m.Input.Desc.Name(), "` | ",
			streamed(m.Desc.IsStreamingServer()), "`", m.Output.Desc.Name(), "` | ", comment(m.Comments), " |")
	}
}

func streamed(yes bool) string {
	if yes {
		return "stream of "
	}
	return ""
}

// message writes a message and those that it declares inside, but for the entries of maps.
func (d *document) message(m *protogen.Message) {
	if m.Desc.IsMapEntry() {
		return
	}
	d.title(dotted(m.Desc), m.Comments)
	if len(m.Fields) > 0 {
		d.out.P()
		d.out.P("| Field | Type | What |")
		d.out.P("|---|---|---|")
	}
	for _, f := range m.Fields {
		what := comment(f.Comments)
		if o := f.Oneof; o != nil && !o.Desc.IsSynthetic() {
			what = strings.TrimSpace("one of `" + string(o.Desc.Name()) + "`. " + what)
		}
		d.out.P("| `", f.Desc.Name(), "` ", f.Desc.Number(), " | ", typeOf(f.Desc), " | ", what, " |")
	}
	for _, inner := range m.Messages {
		d.message(inner)
	}
	for _, inner := range m.Enums {
		d.enum(inner)
	}
}

func (d *document) enum(e *protogen.Enum) {
	d.title(dotted(e.Desc), e.Comments)
	d.out.P()
	d.out.P("| Value | What |")
	d.out.P("|---|---|")
	for _, v := range e.Values {
		d.out.P("| `", v.Desc.Name(), "` ", v.Desc.Number(), " | ", comment(v.Comments), " |")
	}
}

// dotted is the name without the package.
func dotted(d protoreflect.Descriptor) string {
	name := string(d.Name())
	for p, ok := d.Parent().(protoreflect.MessageDescriptor); ok; p, ok = p.Parent().(protoreflect.MessageDescriptor) {
		name = string(p.Name()) + "." + name
	}
	return name
}

// typeOf is the type as the .proto file writes it, without packages.
func typeOf(f protoreflect.FieldDescriptor) string {
	one := func(f protoreflect.FieldDescriptor) string {
		switch {
		case f.Message() != nil:
			return dotted(f.Message())
		case f.Enum() != nil:
			return dotted(f.Enum())
		}
		return f.Kind().String()
	}
	switch {
	case f.IsMap():
		return fmt.Sprintf("`map<%s, %s>`", one(f.MapKey()), one(f.MapValue()))
	case f.IsList():
		return "repeated `" + one(f) + "`"
	case f.HasOptionalKeyword():
		return "optional `" + one(f) + "`"
	}
	return "`" + one(f) + "`"
}

// columns of the text.
const columns = 120

func (d *document) title(name string, c protogen.CommentSet) {
	d.out.P()
	d.out.P("### ", name)
	if text := comment(c); text != "" {
		d.out.P()
		line := ""
		for word := range strings.FieldsSeq(text) {
			if line != "" && len([]rune(line+" "+word)) > columns {
				d.out.P(line)
				line = ""
			}
			line = strings.TrimSpace(line + " " + word)
		}
		d.out.P(line)
	}
}

// comment is what stands before and behind a declaration, as one paragraph of Markdown. Text that looks like a mark of
// Markdown or HTML stays text.
func comment(c protogen.CommentSet) string {
	text := strings.TrimSpace(string(c.Leading) + " " + string(c.Trailing))
	text = strings.Join(strings.Fields(text), " ")
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "*", `\*`, "[", `\[`, "_", `\_`).Replace(text)
}
