package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	wirev1 "github.com/tandem-inference/tandem/proto/tandem/wire/v1"
)

// maxNumber bounds field numbers: the generated tables of names are indexed by them.
const maxNumber = 100

// plan is what a file is generated from.
type plan struct {
	structs  bool                       // messages with go_struct, else those without
	roots    []*protogen.Message        // with the option codec, in the order of the files
	messages []*protogen.Message        // roots and the messages that they nest
	pieces   map[*protogen.Message]bool // messages that may come in several pieces: one nested in another
}

// newPlan collects the messages of the files; an error names the first field that the codec does not support.
func newPlan(files []*protogen.File, structs bool) (*plan, error) {
	p := &plan{structs: structs, pieces: make(map[*protogen.Message]bool)}
	for _, f := range files {
		if !f.Generate {
			continue
		}
		for _, m := range f.Messages {
			if err := p.root(m); err != nil {
				return nil, err
			}
		}
	}
	for _, m := range p.roots {
		if err := p.add(m); err != nil {
			return nil, err
		}
		if hasParts(m) && payload(m) == nil {
			return nil, fmt.Errorf("%s: has parts of a payload, but no field by_reference", m.Desc.FullName())
		}
	}
	names := make(map[string]protoreflect.FullName)
	for _, m := range p.messages {
		if other, ok := names[m.GoIdent.GoName]; ok {
			return nil, fmt.Errorf("%s and %s have the same Go name", other, m.Desc.FullName())
		}
		names[m.GoIdent.GoName] = m.Desc.FullName()
	}
	return p, nil
}

// root takes a message of a file, and looks for options where they have no effect.
func (p *plan) root(m *protogen.Message) error {
	if hasOption(m.Desc, wirev1.E_Codec) {
		if name := goStruct(m); strings.Contains(name, ".") {
			return fmt.Errorf("%s: a struct of another package, %s, cannot have the codec's methods", m.Desc.FullName(), name)
		}
		if p.structs == (goStruct(m) != "") {
			p.roots = append(p.roots, m)
		}
	} else if f := payload(m); f != nil {
		return fmt.Errorf("%s: by_reference is for bytes of a message with the option codec", f.Desc.FullName())
	}
	for _, n := range m.Messages {
		if hasOption(n.Desc, wirev1.E_Codec) {
			return fmt.Errorf("%s: the option codec is for messages of a file, not for nested definitions", n.Desc.FullName())
		}
		if f := payload(n); f != nil {
			return fmt.Errorf("%s: by_reference is for bytes of a message with the option codec", f.Desc.FullName())
		}
	}
	return nil
}

func hasOption(d protoreflect.Descriptor, option protoreflect.ExtensionType) bool {
	return proto.GetExtension(d.Options(), option).(bool)
}

func textOption(d protoreflect.Descriptor, option protoreflect.ExtensionType) string {
	return proto.GetExtension(d.Options(), option).(string)
}

func goStruct(m *protogen.Message) string { return textOption(m.Desc, wirev1.E_GoStruct) }

func payloadPart(f *protogen.Field) string { return textOption(f.Desc, wirev1.E_PayloadPart) }

// goOffset is how much larger a number is on the wire than in Go.
func goOffset(f *protogen.Field) int32 {
	return proto.GetExtension(f.Desc.Options(), wirev1.E_GoOffset).(int32)
}

// payload is the field of a message that is sent by reference, or nil.
func payload(m *protogen.Message) *protogen.Field {
	for _, f := range m.Fields {
		if hasOption(f.Desc, wirev1.E_ByReference) {
			return f
		}
	}
	return nil
}

// hasParts reports whether parts of a payload lie in the message or in one that it nests.
func hasParts(m *protogen.Message) bool {
	for _, f := range m.Fields {
		if payloadPart(f) != "" || hasOption(f.Desc, wirev1.E_ByReference) || f.Message != nil && hasParts(f.Message) {
			return true
		}
	}
	return false
}

func (p *plan) add(m *protogen.Message) error {
	if slices.Contains(p.messages, m) {
		return nil
	}
	p.messages = append(p.messages, m)
	if p.structs && goStruct(m) == "" {
		return fmt.Errorf("%s: the option go_struct is missing", m.Desc.FullName())
	}
	for _, f := range m.Fields {
		if err := p.check(m, f); err != nil {
			return fmt.Errorf("%s: %w", f.Desc.FullName(), err)
		}
		if f.Message != nil {
			p.pieces[f.Message] = p.pieces[f.Message] || !f.Desc.IsList()
			if err := p.add(f.Message); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *plan) check(m *protogen.Message, f *protogen.Field) error {
	kind := f.Desc.Kind()
	what := kind.String()
	if f.Desc.IsList() {
		what = "repeated " + what
	}
	if f.Desc.IsMap() {
		what = "a map"
	}
	_, isScalar := scalarKinds[kind]
	_, isList := listKinds[kind]
	isMessage := kind == protoreflect.MessageKind && !f.Desc.IsMap()
	if !p.structs && (textOption(f.Desc, wirev1.E_GoField) != "" || goOffset(f) != 0 || payloadPart(f) != "") {
		return errors.New("go_field, go_offset and payload_part need a message with the option go_struct")
	}
	if goOffset(f) != 0 && (f.Desc.IsList() || kind != protoreflect.Int32Kind && kind != protoreflect.EnumKind) {
		return fmt.Errorf("go_offset is for int32 and enums, not for %s", what)
	}
	switch {
	case f.Desc.Number() > maxNumber:
		return fmt.Errorf("its number is above %d", maxNumber)
	case f.Oneof != nil:
		return errors.New("a codec supports neither optional fields nor oneofs")
	case hasOption(f.Desc, wirev1.E_ByReference):
		if kind != protoreflect.BytesKind || f.Desc.IsList() || !hasOption(m.Desc, wirev1.E_Codec) {
			return fmt.Errorf("by_reference is for bytes of a message with the option codec, not for %s", what)
		}
		for _, other := range m.Fields {
			if other.Desc.Number() > f.Desc.Number() || other != f && hasOption(other.Desc, wirev1.E_ByReference) {
				return fmt.Errorf("a field by_reference is the only one and has the highest number, but there is %s", other.Desc.Name())
			}
		}
		return nil
	case payloadPart(f) != "":
		if kind != protoreflect.Uint32Kind || f.Desc.IsList() {
			return fmt.Errorf("payload_part is for uint32, not for %s", what)
		}
		return nil
	case f.Desc.IsList() && (isList || isMessage && p.structs), !f.Desc.IsList() && (isScalar || isMessage):
		return nil
	}
	return fmt.Errorf("a codec does not support %s", what)
}

// scalar is how values of a kind are written and read: wire type, suffix of tensorwire.Append…, method of
// tensorwire.Reader.
type scalar struct {
	wire        protowire.Type
	write, read string
	number      string // the Go type that the two use for a number
}

var scalarKinds = map[protoreflect.Kind]scalar{
	protoreflect.Int32Kind:  {protowire.VarintType, "Int", "Int32", "int32"},
	protoreflect.Int64Kind:  {protowire.VarintType, "Int", "Int64", "int64"},
	protoreflect.EnumKind:   {protowire.VarintType, "Int", "Int32", "int32"},
	protoreflect.Sint32Kind: {protowire.VarintType, "Sint", "Sint32", "int32"},
	protoreflect.Uint32Kind: {protowire.VarintType, "Uint", "Uint32", "uint64"},
	protoreflect.Uint64Kind: {protowire.VarintType, "Uint", "Uvarint", "uint64"},
	protoreflect.BoolKind:   {protowire.VarintType, "Bool", "Bool", ""},
	protoreflect.FloatKind:  {protowire.Fixed32Type, "Float", "Float", ""},
	protoreflect.StringKind: {protowire.BytesType, "String", "String", ""},
}

// listKinds are those of repeated fields, which are read packed or one by one.
var listKinds = map[protoreflect.Kind]scalar{
	protoreflect.Int32Kind:  {protowire.VarintType, "Int32s", "Int32s", ""},
	protoreflect.Sint32Kind: {protowire.VarintType, "Sint32s", "Sint32s", ""},
	protoreflect.FloatKind:  {protowire.Fixed32Type, "Floats", "Floats", ""},
}

func kindOf(f *protogen.Field) scalar {
	if f.Desc.IsList() {
		return listKinds[f.Desc.Kind()]
	}
	return scalarKinds[f.Desc.Kind()]
}
