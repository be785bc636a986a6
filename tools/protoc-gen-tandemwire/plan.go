package main

import (
	"errors"
	"fmt"
	"slices"

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
	roots    []*protogen.Message // with the option codec, in the order of the files
	messages []*protogen.Message // roots and the messages that they nest
	nested   map[*protogen.Message]bool
}

// newPlan collects the messages of the files; an error names the first field that the codec does not support.
func newPlan(files []*protogen.File) (*plan, error) {
	p := &plan{nested: make(map[*protogen.Message]bool)}
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
		p.roots = append(p.roots, m)
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

// payload is the field of a message that is sent by reference, or nil.
func payload(m *protogen.Message) *protogen.Field {
	for _, f := range m.Fields {
		if hasOption(f.Desc, wirev1.E_ByReference) {
			return f
		}
	}
	return nil
}

func (p *plan) add(m *protogen.Message) error {
	if slices.Contains(p.messages, m) {
		return nil
	}
	p.messages = append(p.messages, m)
	for _, f := range m.Fields {
		if err := check(m, f); err != nil {
			return fmt.Errorf("%s: %w", f.Desc.FullName(), err)
		}
		if f.Message != nil {
			p.nested[f.Message] = true
			if err := p.add(f.Message); err != nil {
				return err
			}
		}
	}
	return nil
}

func check(m *protogen.Message, f *protogen.Field) error {
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
	case f.Desc.IsList() && isList, !f.Desc.IsList() && !f.Desc.IsMap() && (isScalar || kind == protoreflect.MessageKind):
		return nil
	}
	return fmt.Errorf("a codec does not support %s", what)
}

// scalar is how values of a kind are written and read: wire type, suffix of tensorwire.Append…, method of tensorwire.Reader.
type scalar struct {
	wire        protowire.Type
	write, read string
}

var scalarKinds = map[protoreflect.Kind]scalar{
	protoreflect.Int32Kind:  {protowire.VarintType, "Int", "Int32"},
	protoreflect.Int64Kind:  {protowire.VarintType, "Int", "Int64"},
	protoreflect.EnumKind:   {protowire.VarintType, "Int", "Int32"},
	protoreflect.Uint64Kind: {protowire.VarintType, "Uint", "Uvarint"},
	protoreflect.StringKind: {protowire.BytesType, "String", "String"},
}

// listKinds are those of repeated fields, which are read packed or one by one.
var listKinds = map[protoreflect.Kind]scalar{
	protoreflect.Int32Kind: {protowire.VarintType, "Int32s", "Int32s"},
	protoreflect.FloatKind: {protowire.Fixed32Type, "Floats", "Floats"},
}
