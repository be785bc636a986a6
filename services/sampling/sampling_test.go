package sampling

import (
	"errors"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	settingv1 "github.com/tandem-inference/tandem/proto/tandem/setting/v1"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/testing/protocmp"
)

// TestDeclarations: every field of Sampling is declared, and what is declared makes sense. Fields of other messages
// have no settings, since nothing would check them.
func TestDeclarations(t *testing.T) {
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		for i := range file.Messages().Len() {
			m := file.Messages().Get(i)
			for j := range m.Fields().Len() {
				f := m.Fields().Get(j)
				if proto.HasExtension(f.Options(), settingv1.E_Setting) != (m.FullName() == "tandem.v1.Sampling") {
					t.Errorf("%s: only fields of Sampling, and all of them, have the option setting", f.FullName())
				}
			}
		}
		return true
	})
	for _, f := range Fields() {
		if f.Effect == "" || (f.Default == nil) == (f.Absent == "") {
			t.Errorf("%s: lacks its effect, or has not one of default and meaning of absence: %+v", f.Name, f)
		}
		if f.Default != nil && !f.Range.Has(*f.Default) {
			t.Errorf("%s: the default %v is not %v", f.Name, *f.Default, f.Range)
		}
		if f.InCard && (f.Map() || f.Default == nil) {
			t.Errorf("%s: a card holds numbers", f.Name)
		}
		if got, ok := Named(f.Name); !ok || got.Name != f.Name {
			t.Errorf("%s is not found", f.Name)
		}
	}
	if _, ok := Named("heat"); ok || len(Fields()) < 10 {
		t.Errorf("%d fields; heat is one: %v", len(Fields()), ok)
	}
}

// with sets f alone.
func with(f *Field, v float64) *tandemv1.Sampling {
	m := &tandemv1.Sampling{}
	switch {
	case f.Map():
		f.SetMap(m, map[int32]float64{3: v})
	case f.Whole():
		f.SetInt(m, int64(min(max(v, -1<<62), 1<<62))) // ends of a seed are infinite
	default:
		f.SetFloat(m, v)
	}
	return m
}

func TestCheck(t *testing.T) {
	if err := errors.Join(Check(nil, 10), Check(&tandemv1.Sampling{}, 10)); err != nil {
		t.Error(err)
	}
	refused := func(f *Field, m *tandemv1.Sampling, words ...string) {
		t.Helper()
		err := Check(m, 10)
		if !errors.Is(err, rpcerr.AnyInvalidArgument) {
			t.Errorf("%v: %v", m, err)
			return
		}
		for _, w := range append(words, "sampling."+f.Name) {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%v: %q lacks %q", m, err, w)
			}
		}
	}
	for _, f := range Fields() {
		least, most := f.Range.Ends()
		for _, v := range []float64{least, most} {
			if err := Check(with(&f, v), 10); err != nil {
				t.Error(err)
			}
		}
		switch {
		case f.Whole() && f.Default == nil: // every value of the type
		case f.Whole():
			if least > math.MinInt32 {
				refused(&f, with(&f, least-1), f.Range.String())
				refused(&f, with(&f, most+1), f.Range.String())
			}
		default:
			below, above := math.Nextafter(least, -1e9), math.Nextafter(most, 1e9)
			for _, v := range []float64{below, above, math.NaN(), math.Inf(1), math.Inf(-1)} {
				refused(&f, with(&f, v), f.Range.String())
			}
		}
	}
	bias, _ := Named("logit_bias")
	refused(&bias, &tandemv1.Sampling{LogitBias: map[int32]float64{10: 1}}, "10 is not a token id below 10")
	refused(&bias, &tandemv1.Sampling{LogitBias: map[int32]float64{-1: 1}}, "-1 is not a token id")
	refused(&bias, &tandemv1.Sampling{LogitBias: map[int32]float64{4: 1, 5: 101}}, "token 5", "got 101")
}

// TestForEngine: every declared field reaches the engine's message, and absent ones reach it as their defaults.
func TestForEngine(t *testing.T) {
	defaults := ForEngine(nil)
	reached := map[protoreflect.Name]bool{"prompt_tokens": true, "choice": true} // of the request, not of its settings
	for _, f := range Fields() {
		_, most := f.Range.Ends()
		v := min(most, 77)
		got := ForEngine(with(&f, v))
		if f.Map() {
			reached["bias_tokens"], reached["bias_values"] = true, true
			if !slices.Equal(got.BiasTokens, []int32{3}) || !slices.Equal(got.BiasValues, []float32{float32(v)}) ||
				defaults.BiasTokens != nil {
				t.Errorf("%s: %v", f.Name, got)
			}
			continue
		}
		member := got.ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(f.Name))
		if member == nil {
			t.Errorf("tandem.engine.v1.Sampler has no %s", f.Name)
			continue
		}
		reached[member.Name()] = true
		absent := 0.0
		if f.Default != nil {
			absent = *f.Default
		}
		a, b := engineNumber(defaults.ProtoReflect().Get(member)), engineNumber(got.ProtoReflect().Get(member))
		if a != absent || b != v {
			t.Errorf("%s: %v when absent, %v for %v", f.Name, a, b, v)
		}
	}
	members := defaults.ProtoReflect().Descriptor().Fields()
	for i := range members.Len() {
		if !reached[members.Get(i).Name()] {
			t.Errorf("%s is no declared field", members.Get(i).FullName())
		}
	}
	// A seed keeps all its bits, biases are in the order of tokens.
	got := ForEngine(&tandemv1.Sampling{Seed: proto.Int64(-3), LogitBias: map[int32]float64{9: 1, 2: -1, 5: 0}})
	if got.Seed != math.MaxUint64-2 || !slices.Equal(got.BiasTokens, []int32{2, 5, 9}) ||
		!slices.Equal(got.BiasValues, []float32{-1, 0, 1}) {
		t.Errorf("%v", got)
	}
}

func engineNumber(v protoreflect.Value) float64 {
	switch v := v.Interface().(type) {
	case float32:
		return float64(v)
	case uint64:
		return float64(v)
	default:
		return float64(v.(int32))
	}
}

func TestFill(t *testing.T) {
	m := &tandemv1.Sampling{TopP: proto.Float64(0.5), Temperature: proto.Float64(0)}
	Fill(m, &tandemv1.Sampling{TopP: proto.Float64(0.9), Temperature: proto.Float64(1), TopK: proto.Int32(20)})
	Fill(m, nil)
	filled := &tandemv1.Sampling{TopP: proto.Float64(0.5), Temperature: proto.Float64(0), TopK: proto.Int32(20)}
	if d := cmp.Diff(filled, m, protocmp.Transform()); d != "" {
		t.Error(d)
	}
	values := map[string]float64{}
	for _, f := range Fields() {
		if f.Default != nil {
			values[f.Name] = f.Number(m)
		}
	}
	want := map[string]float64{"temperature": 0, "top_p": 0.5, "top_k": 20, "min_p": 0, "repetition_penalty": 1,
		"frequency_penalty": 0, "presence_penalty": 0, "penalty_window": 256}
	if !maps.Equal(values, want) {
		t.Errorf("values %v", values)
	}
}
