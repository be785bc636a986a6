// Package sampling reads the declarations of the sampler's fields, which stand in tandem.v1.Sampling as the option
// tandem.setting.v1.setting: names, ranges, defaults. Every place that checks, fills in, converts, reports or documents
// these fields goes through Fields, so that a new field needs its declaration and its use by the engine.
package sampling

import (
	"maps"
	"math"
	"slices"
	"sync"

	enginev1 "github.com/tandem-inference/tandem/proto/tandem/engine/v1"
	settingv1 "github.com/tandem-inference/tandem/proto/tandem/setting/v1"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/bounds"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Field is a declared field of tandem.v1.Sampling.
type Field struct {
	// Name in the message, in model cards, in tandem.engine.v1.Sampler and in tnd_sampler.
	Name string
	// Range of a number, or of a map's values.
	Range bounds.Range
	// Interval is the range as tables show it; "any" where the declaration has none, and the type's limits hold.
	Interval string
	// Default is the value of an absent field; nil = absence is no number, and Absent says what it means.
	Default *float64
	Absent  string
	// Effect says in a few words what the value does.
	Effect string
	// InCard: a model card may hold a default of its own.
	InCard bool

	field protoreflect.FieldDescriptor
}

var fields = sync.OnceValue(func() []Field {
	all := (&tandemv1.Sampling{}).ProtoReflect().Descriptor().Fields()
	out := make([]Field, all.Len())
	for i := range out {
		out[i] = declared(all.Get(i))
	}
	return out
})

// declared reads the declaration of f.
func declared(f protoreflect.FieldDescriptor) Field {
	s, _ := proto.GetExtension(f.Options(), settingv1.E_Setting).(*settingv1.Setting)
	out := Field{
		Name: string(f.Name()), Default: s.DefaultValue, Absent: s.GetAbsent(), Effect: s.GetEffect(),
		InCard: s.GetInCard(), field: f,
	}
	switch {
	case s.GetPositive():
		out.Range = bounds.Positive(s.GetMost())
	case s.GetLeast() != s.GetMost():
		out.Range = bounds.Between(s.GetLeast(), s.GetMost())
	case f.Kind() == protoreflect.Int32Kind:
		out.Range = bounds.Between(math.MinInt32, math.MaxInt32)
	default:
		out.Range = bounds.Any()
	}
	out.Interval = out.Range.Interval()
	if !s.GetPositive() && s.GetLeast() == s.GetMost() {
		out.Interval = bounds.Any().Interval()
	}
	return out
}

// Fields returns all fields in the order of the message. The caller must not change them.
func Fields() []Field { return fields() }

// Named returns the field of a name; ok is false when there is none.
func Named(name string) (f Field, ok bool) {
	i := slices.IndexFunc(Fields(), func(f Field) bool { return f.Name == name })
	if i < 0 {
		return Field{}, false
	}
	return Fields()[i], true
}

// Whole reports whether the field is an integer.
func (f *Field) Whole() bool {
	return !f.field.IsMap() && (f.field.Kind() == protoreflect.Int32Kind || f.field.Kind() == protoreflect.Int64Kind)
}

// Map reports whether the field holds a number for each of some tokens.
func (f *Field) Map() bool { return f.field.IsMap() }

// Kind is the type of the field in the message, of a map that of its values.
func (f *Field) Kind() protoreflect.Kind {
	if f.Map() {
		return f.field.MapValue().Kind()
	}
	return f.field.Kind()
}

// SetFloat sets a field that is a number, not an integer.
func (f *Field) SetFloat(m *tandemv1.Sampling, v float64) {
	m.ProtoReflect().Set(f.field, protoreflect.ValueOfFloat64(v))
}

// SetInt sets a field that is an integer; v must be in its range.
func (f *Field) SetInt(m *tandemv1.Sampling, v int64) {
	if f.Kind() == protoreflect.Int32Kind {
		m.ProtoReflect().Set(f.field, protoreflect.ValueOfInt32(int32(v)))
		return
	}
	m.ProtoReflect().Set(f.field, protoreflect.ValueOfInt64(v))
}

// SetMap sets a field that is a map from token ids to numbers.
func (f *Field) SetMap(m *tandemv1.Sampling, values map[int32]float64) {
	to := m.ProtoReflect().Mutable(f.field).Map()
	for id, v := range values {
		to.Set(protoreflect.ValueOfInt32(id).MapKey(), protoreflect.ValueOfFloat64(v))
	}
}

// Number returns the value of a field that has a default, or the default when m (may be nil) lacks the field.
func (f *Field) Number(m *tandemv1.Sampling) float64 {
	if m != nil && m.ProtoReflect().Has(f.field) {
		return number(m.ProtoReflect().Get(f.field))
	}
	return *f.Default
}

func number(v protoreflect.Value) float64 {
	switch v := v.Interface().(type) {
	case float64:
		return v
	case int32:
		return float64(v)
	default:
		return float64(v.(int64))
	}
}

// Check returns an INVALID_ARGUMENT that names the field of m, as a member of a message's field "sampling", that is
// outside its range, or whose tokens are outside a vocabulary of vocab. m may be nil.
func Check(m *tandemv1.Sampling, vocab int) error {
	if m == nil {
		return nil
	}
	for _, f := range Fields() {
		v := m.ProtoReflect().Get(f.field)
		switch {
		case !m.ProtoReflect().Has(f.field):
		case f.Map():
			if err := f.checkMap(v.Map(), vocab); err != nil {
				return err
			}
		case !f.Range.Has(number(v)):
			return rpcerr.InvalidArgument("sampling."+f.Name, "must be %s, got %s", f.Range, bounds.Number(number(v)))
		}
	}
	return nil
}

// checkMap checks tokens in ascending order, so that the same message gives the same error.
func (f *Field) checkMap(m protoreflect.Map, vocab int) error {
	values := map[int32]float64{}
	m.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		values[int32(k.Int())] = v.Float()
		return true
	})
	for _, id := range slices.Sorted(maps.Keys(values)) {
		if id < 0 || int(id) >= vocab {
			return rpcerr.InvalidArgument("sampling."+f.Name, "%d is not a token id below %d", id, vocab)
		}
		if v := values[id]; !f.Range.Has(v) {
			return rpcerr.InvalidArgument("sampling."+f.Name,
				"the value of token %d must be %s, got %s", id, f.Range, bounds.Number(v))
		}
	}
	return nil
}

// Fill gives the fields that m lacks the values that from (may be nil) has.
func Fill(m, from *tandemv1.Sampling) {
	from.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if !m.ProtoReflect().Has(f) {
			m.ProtoReflect().Set(f, v)
		}
		return true
	})
}

// ForEngine returns m (may be nil) as the message of the engine: its fields have the same names, defaults are filled
// in, and a seed keeps its bits. prompt_tokens and choice, which are no settings, stay 0.
func ForEngine(m *tandemv1.Sampling) *enginev1.Sampler {
	out := &enginev1.Sampler{}
	to, members := out.ProtoReflect(), out.ProtoReflect().Descriptor().Fields()
	for _, f := range Fields() {
		switch {
		case f.Map():
		case f.Default != nil:
			set(to, members.ByName(f.field.Name()), f.Number(m))
		}
	}
	out.Seed = uint64(m.GetSeed())
	for _, id := range slices.Sorted(maps.Keys(m.GetLogitBias())) {
		out.BiasTokens = append(out.BiasTokens, id)
		out.BiasValues = append(out.BiasValues, float32(m.GetLogitBias()[id]))
	}
	return out
}

func set(m protoreflect.Message, f protoreflect.FieldDescriptor, v float64) {
	if f.Kind() == protoreflect.FloatKind {
		m.Set(f, protoreflect.ValueOfFloat32(float32(v)))
		return
	}
	m.Set(f, protoreflect.ValueOfInt32(int32(v)))
}

// Text writes the default as documents do.
func (f *Field) Text() string {
	if f.Default == nil {
		return f.Absent
	}
	return bounds.Number(*f.Default)
}
