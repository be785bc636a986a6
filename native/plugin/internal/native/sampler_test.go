package native

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/sampling"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// member is a line of a struct in C: type, name, comment.
var member = regexp.MustCompile(`(?m)^  ((?:const )?\w+\*?) (\w+);(?: +/\* (.*) \*/)?$`)

// TestSamplerIsDeclared: tnd_sampler has the declared fields of services/sampling by name, in types that hold them,
// with range and effect in their comments; and neither it nor Go's two shapes of it has anything else that a request
// could set.
func TestSamplerIsDeclared(t *testing.T) {
	header, err := os.ReadFile("../../../include/tandem/engine.h")
	if err != nil {
		t.Fatal(err)
	}
	_, body, ok1 := strings.Cut(string(header), "typedef struct tnd_sampler {\n")
	body, _, ok2 := strings.Cut(body, "} tnd_sampler;\n")
	if !ok1 || !ok2 {
		t.Fatal("engine.h has no tnd_sampler")
	}
	type line struct{ kind, comment string }
	members := map[string]line{}
	for _, m := range member.FindAllStringSubmatch(body, -1) {
		members[m[2]] = line{m[1], m[3]}
	}
	goTypes := map[string]reflect.Type{}
	for f := range reflect.TypeFor[cSampler]().Fields() {
		goTypes[f.Tag.Get("c")] = f.Type
		if _, ok := members[f.Tag.Get("c")]; !ok {
			t.Errorf("%s is not in tnd_sampler", f.Tag.Get("c"))
		}
	}
	engine := reflect.TypeFor[engine.Sampler]()
	types := map[protoreflect.Kind]string{
		protoreflect.DoubleKind: "float", protoreflect.Int32Kind: "int32_t", protoreflect.Int64Kind: "uint64_t",
	}
	inGo := map[string]reflect.Kind{"float": reflect.Float32, "int32_t": reflect.Int32, "uint64_t": reflect.Uint64}
	// Members that are no settings of a request.
	rest := map[string]bool{"struct_size": true, "prompt_tokens": true, "choice": true, "n_bias": true}
	for _, f := range sampling.Fields() {
		interval := strings.ReplaceAll(f.Interval, "…", "..")
		if f.Map() {
			ids, values := members["bias_tokens"], members["bias_values"]
			if ids.kind != "const int32_t*" || values.kind != "const float*" ||
				values.comment != "[n_bias], "+interval+", added to logits" {
				t.Errorf("%s: members are %v and %v, declared is %s", f.Name, ids, values, interval)
			}
			rest["bias_tokens"], rest["bias_values"] = true, true
			continue
		}
		rest[f.Name] = true
		m, want, comment := members[f.Name], types[f.Kind()], interval+"; "+f.Effect
		if m.kind != want || m.comment != comment {
			t.Errorf("%s is %s, its comment %q; declared is %s with %q", f.Name, m.kind, m.comment, want, comment)
		}
		if typ := goTypes[f.Name]; typ == nil || typ.Kind() != inGo[want] {
			t.Errorf("%s is %v in Go", f.Name, typ)
		}
		name := camel(f.Name)
		if g, ok := engine.FieldByName(name); !ok || g.Type.Kind() != inGo[want] {
			t.Errorf("engine.Sampler.%s is %v", name, g.Type)
		}
	}
	for name := range members {
		if !rest[name] {
			t.Errorf("%s is no declared field", name)
		}
	}
	if len(members) != reflect.TypeFor[cSampler]().NumField() {
		t.Errorf("found %d members of %d", len(members), reflect.TypeFor[cSampler]().NumField())
	}
}

// TestSamplerToC: every number of a sampler is handed on under its name.
func TestSamplerToC(t *testing.T) {
	p := engine.Sampler{BiasTokens: []int32{4, 5}, BiasValues: []float32{1, -1}}
	from := reflect.ValueOf(&p).Elem()
	for i := range from.NumField() {
		switch f := from.Field(i); f.Kind() {
		case reflect.Float32:
			f.SetFloat(float64(i + 1))
		case reflect.Int32:
			f.SetInt(int64(i + 1))
		case reflect.Uint64:
			f.SetUint(uint64(i + 1))
		}
	}
	c := samplerToC(&p)
	to := reflect.ValueOf(c).Elem()
	for i := range from.NumField() {
		name := from.Type().Field(i).Name
		if f := from.Field(i); f.Kind() != reflect.Slice && !f.Equal(to.FieldByName(name)) {
			t.Errorf("%s is %v, given was %v", name, to.FieldByName(name), f)
		}
	}
	if c.Biases != 2 || *(*int32)(c.BiasTokens) != 4 || *(*float32)(c.BiasValues) != 1 ||
		uintptr(c.StructSize) != to.Type().Size() {
		t.Errorf("%+v", c)
	}
}

// camel is a name as Go spells it: top_k is TopK.
func camel(name string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(name, "_") {
		b.WriteString(strings.ToUpper(part[:1]) + part[1:])
	}
	return b.String()
}
