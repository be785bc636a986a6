// Package bounds lists every field of every message between Tandem's processes with its bound, or with the place that
// checks it, and checks messages whose fields have bounds here. Messages are not trusted: they may come from another
// version, a damaged process or a stranger.
package bounds

import (
	"fmt"
	"math"
	"unicode"
	"unicode/utf8"

	settingv1 "github.com/tandem-inference/tandem/proto/tandem/setting/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Rule bounds one field.
type Rule struct {
	// By says where the field is checked against what the receiver knows; the rest is empty then, and Check leaves the
	// field alone.
	By string
	// Numbers must be finite and in Least..Most.
	Least, Most float64
	// Bytes of a text, which has no control characters; Token allows only printable ASCII without spaces.
	Bytes int
	Token bool
	// Count is the most elements of a repeated field or map, KeyBytes the longest key of a map (always Token).
	Count, KeyBytes int
	// Known: an enum must have one of its named values, and not the unspecified one.
	Known bool
	// Inner: a message, whose own fields have rules.
	Inner bool
	// Any: every value is fine; Any says why.
	Any string
}

// Limits that several fields share.
const (
	mostID       = 128
	mostName     = 256
	mostPath     = 4096
	mostText     = 1024
	mostAddress  = 512
	mostLayers   = 4096
	mostWidth    = 1 << 20
	mostVocab    = 1 << 24
	mostContext  = math.MaxInt32 // more than the model has is not believed: generate.Model.Limit
	mostKV       = 1 << 40
	mostLanes    = 4096
	mostGateways = 64
	mostStages   = 64
	mostCounters = 128
	mostAttached = 64
	mostSettings = 64
	mostMS       = 1e12
	mostCount    = 1 << 53

	mostTraceSpans = 1 << 14 // of a trace, in a worker and its engines
)

func by(where string) Rule          { return Rule{By: where} }
func name(bytes int) Rule           { return Rule{Bytes: bytes} }
func token(bytes int) Rule          { return Rule{Bytes: bytes, Token: true} }
func number(least, most int64) Rule { return Rule{Least: float64(least), Most: float64(most)} }
func ms() Rule                      { return Rule{Most: mostMS} }

// ruleOf returns the rule of a field. Fields with the option tandem.setting.v1.setting are checked by it.
func ruleOf(f protoreflect.FieldDescriptor) (Rule, bool) {
	if proto.HasExtension(f.Options(), settingv1.E_Setting) {
		return by("services/sampling Check"), true
	}
	rule, ok := Fields[f.FullName()]
	return rule, ok
}

// Check holds m and the messages in it against their rules. The error names the field by its path in m.
func Check(m proto.Message) error { return check(m.ProtoReflect(), "") }

func check(m protoreflect.Message, path string) (err error) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		at := path + string(f.Name())
		rule, ok := ruleOf(f)
		switch {
		case !ok:
			err = fmt.Errorf("%s: has no bound", at)
		case rule.By != "" || rule.Any != "":
		case f.IsMap():
			err = rule.entries(f, v.Map(), at)
		case f.IsList():
			err = rule.elements(f, v.List(), at)
		default:
			err = rule.value(f, v, at)
		}
		return err == nil
	})
	return err
}

func (r *Rule) entries(f protoreflect.FieldDescriptor, entries protoreflect.Map, at string) (err error) {
	if entries.Len() > r.Count {
		return fmt.Errorf("%s: has %d entries, at most %d are allowed", at, entries.Len(), r.Count)
	}
	entries.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		if err = text(k.String(), r.KeyBytes, true, at); err == nil {
			err = r.value(f.MapValue(), v, at)
		}
		return err == nil
	})
	return err
}

func (r *Rule) elements(f protoreflect.FieldDescriptor, list protoreflect.List, at string) error {
	if list.Len() > r.Count {
		return fmt.Errorf("%s: has %d elements, at most %d are allowed", at, list.Len(), r.Count)
	}
	for i := range list.Len() {
		if err := r.value(f, list.Get(i), at); err != nil {
			return err
		}
	}
	return nil
}

func (r *Rule) value(f protoreflect.FieldDescriptor, v protoreflect.Value, at string) error {
	var x float64
	switch f.Kind() {
	case protoreflect.MessageKind:
		return check(v.Message(), at+".")
	case protoreflect.StringKind:
		return text(v.String(), r.Bytes, r.Token, at)
	case protoreflect.EnumKind:
		if n := v.Enum(); n == 0 || f.Enum().Values().ByNumber(n) == nil {
			return fmt.Errorf("%s: %d is no known value", at, n)
		}
		return nil
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		x = float64(v.Int())
	case protoreflect.Uint64Kind:
		x = float64(v.Uint())
	case protoreflect.DoubleKind, protoreflect.FloatKind:
		x = v.Float()
	default:
		return fmt.Errorf("%s: fields of kind %v have no bound", at, f.Kind())
	}
	if math.IsNaN(x) || x < r.Least || x > r.Most {
		return fmt.Errorf("%s: must be in %v..%v, got %v", at, r.Least, r.Most, x)
	}
	return nil
}

func text(s string, most int, token bool, at string) error {
	if len(s) > most {
		return fmt.Errorf("%s: has %d bytes, at most %d are allowed", at, len(s), most)
	}
	if !utf8.ValidString(s) {
		return fmt.Errorf("%s: is not UTF-8", at)
	}
	for _, c := range s {
		if unicode.IsControl(c) || token && (c <= ' ' || c > '~') {
			return fmt.Errorf("%s: has the character %q", at, c)
		}
	}
	return nil
}
