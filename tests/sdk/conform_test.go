package sdk

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// field is what both libraries keep about each member of an object.
type field interface {
	Valid() bool
	Raw() string
}

// vendorOnly are required members that say something about the vendors' own services, by type and member.
var vendorOnly = map[string]bool{
	"Response.AccessPrograms": true,

	"Message.Container": true, "Message.Diagnostics": true, "Message.StopDetails": true,
	"MessageDeltaEventDelta.Container": true, "MessageDeltaEventDelta.StopDetails": true,
	"TextBlock.Citations": true, "ToolUseBlock.Caller": true,
	"Usage.CacheCreation": true, "Usage.InferenceGeo": true, "Usage.ServerToolUse": true,
	"Usage.ServiceTier": true, "Usage.Speed": true, "MessageDeltaUsage.ServerToolUse": true,
}

// conforms checks an answer against the types of its library: every member that is there has the right type, every
// member that the library counts on is there.
func conforms(t *testing.T, answer any) {
	t.Helper()
	for _, problem := range problems(reflect.ValueOf(answer), "") {
		t.Errorf("%T%s", answer, problem)
	}
}

func problems(v reflect.Value, path string) (out []string) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			out = problems(v.Elem(), path)
		}
	case reflect.Slice:
		for i := range v.Len() {
			out = append(out, problems(v.Index(i), fmt.Sprintf("%s[%d]", path, i))...)
		}
	case reflect.Struct:
		out = members(v, path)
	}
	return out
}

func members(v reflect.Value, path string) (out []string) {
	meta := v.FieldByName("JSON")
	if !meta.IsValid() || meta.Kind() != reflect.Struct {
		return nil
	}
	// A union knows which of its variants came.
	if as := v.MethodByName("AsAny"); as.IsValid() {
		variant := as.Call(nil)[0]
		if variant.IsNil() {
			return []string{path + " is none of the known variants"}
		}
		return problems(variant, path)
	}
	typ := v.Type()
	for i := range typ.NumField() {
		f := typ.Field(i)
		known, ok := fieldOf(meta, f.Name)
		if !ok {
			continue
		}
		at := path + "." + f.Name
		raw := known.Raw()
		switch {
		case raw == "" && f.Tag.Get("api") == "required" && !vendorOnly[typ.Name()+"."+f.Name]:
			out = append(out, at+" is missing")
		case raw != "" && raw != "null" && !known.Valid() && !strings.HasPrefix(f.Name, "Of"):
			out = append(out, at+" has the wrong type: "+raw)
		case known.Valid():
			out = append(out, problems(v.Field(i), at)...)
		}
	}
	return out
}

func fieldOf(meta reflect.Value, name string) (field, bool) {
	f := meta.FieldByName(name)
	if !f.IsValid() || !f.CanInterface() {
		return nil, false
	}
	known, ok := f.Interface().(field)
	return known, ok
}
