package bounds

import (
	"math"
	"strings"
	"testing"

	_ "github.com/tandem-inference/tandem/proto/tandem/engine/v1"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// internal are the files whose messages travel between processes; the others have an entry in Messages.
func internal(file protoreflect.FileDescriptor) bool {
	return file.Package() == "tandem.v1" && !strings.HasSuffix(file.Path(), "inference.proto")
}

// TestEveryFieldHasABound: a new field of a message between processes needs a rule, and a rule needs its field.
func TestEveryFieldHasABound(t *testing.T) {
	seen := map[protoreflect.FullName]bool{}
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		if !strings.HasPrefix(string(file.Package()), "tandem.") || file.Messages().Len() == 0 {
			return true // options of generators are in no message
		}
		if !internal(file) {
			if Messages[file.Package()] == "" && Messages[file.Package()+".InferenceService"] == "" {
				t.Errorf("%s: nothing says what bounds its messages", file.Path())
			}
			return true
		}
		for i := range file.Messages().Len() {
			fields := file.Messages().Get(i).Fields()
			for j := range fields.Len() {
				f := fields.Get(j)
				seen[f.FullName()] = true
				rule, ok := ruleOf(f)
				stated := 0
				for _, is := range []bool{rule.By != "", rule.Any != "", rule.Inner, rule.Known, rule.Bytes > 0,
					rule.Most > rule.Least, rule.Count > 0} {
					if is {
						stated++
					}
				}
				switch {
				case !ok || stated == 0:
					t.Errorf("%s: has no bound", f.FullName())
				case (f.IsList() || f.IsMap()) && rule.By == "" && rule.Count == 0:
					t.Errorf("%s: nothing bounds the number of its elements", f.FullName())
				}
			}
		}
		return true
	})
	for name := range Fields {
		if !seen[name] {
			t.Errorf("%s: there is no such field", name)
		}
	}
	if len(seen) < 150 {
		t.Errorf("only %d fields were found", len(seen))
	}
}

// extremes are values beyond every bound of a kind.
func extremes(f protoreflect.FieldDescriptor) []protoreflect.Value {
	switch f.Kind() {
	case protoreflect.StringKind:
		return []protoreflect.Value{protoreflect.ValueOfString(strings.Repeat("x", 200_000)),
			protoreflect.ValueOfString("a\nb"), protoreflect.ValueOfString("a\x00")}
	case protoreflect.Int32Kind:
		return []protoreflect.Value{protoreflect.ValueOfInt32(math.MinInt32), protoreflect.ValueOfInt32(-1)}
	case protoreflect.Int64Kind:
		return []protoreflect.Value{protoreflect.ValueOfInt64(math.MinInt64), protoreflect.ValueOfInt64(math.MaxInt64)}
	case protoreflect.Uint64Kind:
		return []protoreflect.Value{protoreflect.ValueOfUint64(math.MaxUint64)}
	case protoreflect.DoubleKind:
		return []protoreflect.Value{protoreflect.ValueOfFloat64(math.NaN()), protoreflect.ValueOfFloat64(math.Inf(1)),
			protoreflect.ValueOfFloat64(-1)}
	case protoreflect.EnumKind:
		return []protoreflect.Value{protoreflect.ValueOfEnum(77), protoreflect.ValueOfEnum(-1)}
	}
	return nil
}

// TestExtremes: every field of what workers and gateway tell each other at the registry refuses what is beyond all
// bounds, by its name.
func TestExtremes(t *testing.T) {
	tried := 0
	var walk func(root proto.Message, m protoreflect.Message, path string)
	walk = func(root proto.Message, m protoreflect.Message, path string) {
		fields := m.Descriptor().Fields()
		for i := range fields.Len() {
			f := fields.Get(i)
			rule, _ := ruleOf(f)
			at := path + string(f.Name())
			refused := func(what string) {
				t.Helper()
				tried++
				if err := Check(root); err == nil || !strings.HasPrefix(err.Error(), at) {
					t.Errorf("%s with %s: %v", at, what, err)
				}
				m.Clear(f)
			}
			switch {
			case rule.By != "" || rule.Any != "":
			case f.IsMap():
				for i := range rule.Count + 1 {
					m.Mutable(f).Map().Set(protoreflect.ValueOfString(strings.Repeat("k", i)).MapKey(), m.Mutable(f).Map().NewValue())
				}
				refused("too many entries")
				m.Mutable(f).Map().Set(protoreflect.ValueOfString("a\nb").MapKey(), m.Mutable(f).Map().NewValue())
				refused("a bad key")
				for _, v := range extremes(f.MapValue()) {
					m.Mutable(f).Map().Set(protoreflect.ValueOfString("k").MapKey(), v)
					refused("an extreme value")
				}
			case f.IsList():
				for range rule.Count + 1 {
					list := m.Mutable(f).List()
					list.Append(list.NewElement())
				}
				refused("too many elements")
				if f.Kind() == protoreflect.MessageKind {
					walk(root, m.Mutable(f).List().AppendMutable().Message(), at+".")
					m.Clear(f)
				}
				for _, v := range extremes(f) {
					m.Mutable(f).List().Append(v)
					refused("an extreme element")
				}
			case f.Kind() == protoreflect.MessageKind:
				walk(root, m.Mutable(f).Message(), at+".")
				m.Clear(f)
			default:
				for _, v := range extremes(f) {
					m.Set(f, v)
					refused("an extreme value")
				}
			}
		}
	}
	for _, root := range []proto.Message{&tandemv1.JoinRequest{}, &tandemv1.JoinResponse{}} {
		walk(root, root.ProtoReflect(), "")
	}
	if tried < 150 {
		t.Errorf("only %d values were tried", tried)
	}
}
