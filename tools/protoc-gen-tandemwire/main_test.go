package main

import (
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"

	enginev1 "github.com/tandem-inference/tandem/proto/tandem/engine/v1"
	settingv1 "github.com/tandem-inference/tandem/proto/tandem/setting/v1"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	wirev1 "github.com/tandem-inference/tandem/proto/tandem/wire/v1"
)

// run generates from files, which follow what they import, as buf would call the plugin.
func run(t target, files ...*descriptorpb.FileDescriptorProto) (*pluginpb.CodeGeneratorResponse, error) {
	req := &pluginpb.CodeGeneratorRequest{ProtoFile: []*descriptorpb.FileDescriptorProto{
		protodesc.ToFileDescriptorProto(descriptorpb.File_google_protobuf_descriptor_proto),
		protodesc.ToFileDescriptorProto(wirev1.File_tandem_wire_v1_options_proto),
		protodesc.ToFileDescriptorProto(settingv1.File_tandem_setting_v1_setting_proto),
	}}
	for _, f := range files {
		req.ProtoFile, req.FileToGenerate = append(req.ProtoFile, f), append(req.FileToGenerate, f.GetName())
	}
	plugin, err := protogen.Options{}.New(req)
	if err != nil {
		return nil, err
	}
	if err := generate(plugin, t); err != nil {
		return nil, err
	}
	return plugin.Response(), nil
}

func TestGeneratedIsCurrent(t *testing.T) {
	var files []*descriptorpb.FileDescriptorProto
	for _, f := range []protoreflect.FileDescriptor{
		tandemv1.File_tandem_v1_common_proto, enginev1.File_tandem_engine_v1_engine_proto,
		tandemv1.File_tandem_v1_draft_proto, tandemv1.File_tandem_v1_model_proto,
		tandemv1.File_tandem_v1_probe_proto, tandemv1.File_tandem_v1_stage_proto,
	} {
		files = append(files, protodesc.ToFileDescriptorProto(f))
	}
	const ofStructs = "github.com/tandem-inference/tandem/services/engine"
	for folder, target := range map[string]target{"tensorwire": {}, "engine/wire": {"wire", ofStructs}} {
		response, err := run(target, files...)
		if err != nil {
			t.Fatal(err)
		}
		if len(response.File) != 1 {
			t.Fatalf("generated %v", response.File)
		}
		path := "services/" + folder + "/" + response.File[0].GetName()
		have, err := os.ReadFile("../../" + path)
		if err != nil {
			t.Fatal(err)
		}
		if response.File[0].GetContent() != string(have) {
			t.Errorf("%s differs from what its .proto files give: run make proto", path)
		}
	}
}

func TestRefuses(t *testing.T) {
	const codec = "options { [tandem.wire.v1.codec]: true } "
	const goStruct = `options { [tandem.wire.v1.codec]: true [tandem.wire.v1.go_struct]: "m" } `
	const byReference = "options { [tandem.wire.v1.by_reference]: true } "
	for name, c := range map[string]struct{ messages, want, structs string }{
		"no codec":        {`message_type { name: "M" }`, "no message has the option codec", ""},
		"kind":            {`message_type { name: "M" ` + codec + `field { name: "f" number: 1 type: TYPE_SFIXED64 label: LABEL_OPTIONAL } }`, "x.M.f: a codec does not support sfixed64", ""},
		"list":            {`message_type { name: "M" ` + codec + `field { name: "f" number: 1 type: TYPE_STRING label: LABEL_REPEATED } }`, "x.M.f: a codec does not support repeated string", ""},
		"nested":          {`message_type { name: "M" ` + codec + `field { name: "n" number: 1 type: TYPE_MESSAGE type_name: ".x.N" label: LABEL_OPTIONAL } } message_type { name: "N" field { name: "f" number: 1 type: TYPE_FIXED32 label: LABEL_OPTIONAL } }`, "x.N.f: a codec does not support fixed32", ""},
		"oneof":           {`message_type { name: "M" ` + codec + `oneof_decl { name: "o" } field { name: "f" number: 1 type: TYPE_INT32 oneof_index: 0 label: LABEL_OPTIONAL } }`, "x.M.f: a codec supports neither optional fields nor oneofs", ""},
		"map":             {`message_type { name: "M" ` + codec + `field { name: "f" number: 1 type: TYPE_MESSAGE type_name: ".x.M.FEntry" label: LABEL_REPEATED } nested_type { name: "FEntry" options { map_entry: true } field { name: "key" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL } field { name: "value" number: 2 type: TYPE_INT32 label: LABEL_OPTIONAL } } }`, "x.M.f: a codec does not support a map", ""},
		"copied bytes":    {`message_type { name: "M" ` + codec + `field { name: "f" number: 1 type: TYPE_BYTES label: LABEL_OPTIONAL } }`, "x.M.f: a codec does not support bytes", ""},
		"payload first":   {`message_type { name: "M" ` + codec + `field { name: "f" number: 1 type: TYPE_BYTES label: LABEL_OPTIONAL ` + byReference + `} field { name: "g" number: 2 type: TYPE_INT32 label: LABEL_OPTIONAL } }`, "has the highest number, but there is g", ""},
		"payload text":    {`message_type { name: "M" ` + codec + `field { name: "f" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL ` + byReference + `} }`, "x.M.f: by_reference is for bytes of a message with the option codec, not for string", ""},
		"payload astray":  {`message_type { name: "M" ` + codec + `} message_type { name: "N" field { name: "f" number: 1 type: TYPE_BYTES label: LABEL_OPTIONAL ` + byReference + `} }`, "x.N.f: by_reference is for bytes of a message with the option codec", ""},
		"number":          {`message_type { name: "M" ` + codec + `field { name: "f" number: 101 type: TYPE_INT32 label: LABEL_OPTIONAL } }`, "x.M.f: its number is above 100", ""},
		"codec in nested": {`message_type { name: "M" nested_type { name: "N" ` + codec + `} }`, "x.M.N: the option codec is for messages of a file, not for nested definitions", ""},
		"struct of other": {`message_type { name: "M" ` + goStruct + `field { name: "n" number: 1 type: TYPE_MESSAGE type_name: ".x.N" label: LABEL_OPTIONAL } } message_type { name: "N" }`, "x.N: the option go_struct is missing", "x"},
		"struct's option": {`message_type { name: "M" ` + codec + `field { name: "f" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL options { [tandem.wire.v1.go_offset]: 1 } } }`, "x.M.f: go_field, go_offset and payload_part need a message with the option go_struct", ""},
		"offset":          {`message_type { name: "M" ` + goStruct + `field { name: "f" number: 1 type: TYPE_BOOL label: LABEL_OPTIONAL options { [tandem.wire.v1.go_offset]: 1 } } }`, "x.M.f: go_offset is for int32 and enums, not for bool", "x"},
		"part":            {`message_type { name: "M" ` + goStruct + `field { name: "f" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL options { [tandem.wire.v1.payload_part]: "F" } } }`, "x.M.f: payload_part is for uint32, not for int32", "x"},
		"method of other": {`message_type { name: "M" options { [tandem.wire.v1.codec]: true [tandem.wire.v1.go_struct]: "other.M" } }`, "x.M: a struct of another package, other.M, cannot have the codec's methods", "x"},
		"parts astray":    {`message_type { name: "M" ` + goStruct + `field { name: "f" number: 1 type: TYPE_UINT32 label: LABEL_OPTIONAL options { [tandem.wire.v1.payload_part]: "F" } } }`, "x.M: has parts of a payload, but no field by_reference", "x"},
	} {
		t.Run(name, func(t *testing.T) {
			f := &descriptorpb.FileDescriptorProto{}
			head := `name: "x.proto" package: "x" syntax: "proto3" dependency: "tandem/wire/v1/options.proto" options { go_package: "example.test/x" } `
			if err := prototext.Unmarshal([]byte(head+c.messages), f); err != nil {
				t.Fatal(err)
			}
			if _, err := run(target{name: c.structs}, f); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// TestRefusesNamesakes: generated functions are named by messages, so that two of one name cannot both have a codec.
func TestRefusesNamesakes(t *testing.T) {
	var files []*descriptorpb.FileDescriptorProto
	for _, p := range []string{"x", "y"} {
		m := &descriptorpb.DescriptorProto{Name: proto.String("M"), Options: &descriptorpb.MessageOptions{}}
		proto.SetExtension(m.Options, wirev1.E_Codec, true)
		files = append(files, &descriptorpb.FileDescriptorProto{
			Name: proto.String(p + ".proto"), Package: proto.String(p), Syntax: proto.String("proto3"),
			Dependency: []string{"tandem/wire/v1/options.proto"}, MessageType: []*descriptorpb.DescriptorProto{m},
			Options: &descriptorpb.FileOptions{GoPackage: proto.String("example.test/" + p)},
		})
	}
	if _, err := run(target{}, files...); err == nil || !strings.Contains(err.Error(),
		"x.M and y.M have the same Go name") {
		t.Error(err)
	}
}
