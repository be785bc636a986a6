package grpcapi

import (
	"slices"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// unread returns the paths of fields that this gateway's definition lacks, sorted and without repeats. A path has the
// names of the messages around the field and its number: chat.messages[].9.
func unread(m proto.Message) []string {
	var out []string
	walk(m.ProtoReflect(), "", &out)
	slices.Sort(out)
	return slices.Compact(out)
}

// maxUnread bounds the fields that unread keeps: their numbers are the caller's choice.
const maxUnread = 64

func walk(m protoreflect.Message, prefix string, out *[]string) {
	for b := m.GetUnknown(); len(b) > 0 && len(*out) < maxUnread; {
		number, _, n := protowire.ConsumeField(b)
		if n < 0 {
			break // it was a message when it was parsed
		}
		if path := prefix + strconv.Itoa(int(number)); !slices.Contains(*out, path) {
			*out = append(*out, path)
		}
		b = b[n:]
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch path := prefix + string(f.Name()); {
		case f.Message() == nil || f.IsMap():
		case f.IsList():
			for i := range v.List().Len() {
				walk(v.List().Get(i).Message(), path+"[].", out)
			}
		default:
			walk(v.Message(), path+".", out)
		}
		return true
	})
}
