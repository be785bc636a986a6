package main

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

// file declares one of each kind of thing. Paths in source_code_info are numbers of fields of its own type.
const file = `
name: "x/v1/inference.proto" package: "x.v1" syntax: "proto3" options { go_package: "x/v1;xv1" }
service { name: "S" method { name: "Do" input_type: ".x.v1.M" output_type: ".x.v1.M" server_streaming: true } }
message_type { name: "M"
  field { name: "plain" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL }
  field { name: "list" number: 2 type: TYPE_ENUM type_name: ".x.v1.E" label: LABEL_REPEATED }
  field { name: "maybe" number: 3 type: TYPE_BOOL label: LABEL_OPTIONAL proto3_optional: true oneof_index: 1 }
  field { name: "map" number: 4 type: TYPE_MESSAGE type_name: ".x.v1.M.MapEntry" label: LABEL_REPEATED }
  field { name: "either" number: 5 type: TYPE_MESSAGE type_name: ".x.v1.M.Inner" label: LABEL_OPTIONAL oneof_index: 0 }
  nested_type { name: "MapEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type: TYPE_DOUBLE label: LABEL_OPTIONAL } }
  nested_type { name: "Inner" }
  oneof_decl { name: "choice" } oneof_decl { name: "_maybe" } }
enum_type { name: "E" value { name: "E_UNSPECIFIED" number: 0 } }
source_code_info {
  location { path: [4, 0] span: [1, 1, 1] leading_comments: " M is a message\n of two lines.\n" }
  location { path: [4, 0, 2, 0] span: [1, 1, 1] trailing_comments: " a|b <x>\n" } }
`

func TestReference(t *testing.T) {
	var f descriptorpb.FileDescriptorProto
	if err := prototext.Unmarshal([]byte(file), &f); err != nil {
		t.Fatal(err)
	}
	plugin, err := protogen.Options{}.New(&pluginpb.CodeGeneratorRequest{
		ProtoFile: []*descriptorpb.FileDescriptorProto{&f}, FileToGenerate: []string{f.GetName()},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := generate(plugin); err != nil {
		t.Fatal(err)
	}
	have := plugin.Response().File[0].GetContent()
	for _, want := range []string{
		"## `x/v1/inference.proto`\n", "| `Do` | `M` | stream of `M` |", "### M\n\nM is a message of two lines.\n",
		"| `plain` 1 | `int32` | a\\|b &lt;x> |", "| `list` 2 | repeated `E` |", "| `maybe` 3 | optional `bool` |",
		"| `map` 4 | `map<string, double>` |", "| `either` 5 | `M.Inner` | one of `choice`. |", "### M.Inner\n",
		"### E\n", "| `E_UNSPECIFIED` 0 |",
	} {
		if !strings.Contains(have, want) {
			t.Errorf("lacks %q", want)
		}
	}
	if strings.Contains(have, "MapEntry") {
		t.Error("has the entries of a map")
	}
	if t.Failed() {
		t.Log(have)
	}
}
