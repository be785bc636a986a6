package httpapi

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestSpecificationListsCluster: chapter 15.5 of the specification names the fields of /cluster, in their order.
func TestSpecificationListsCluster(t *testing.T) {
	data, err := os.ReadFile("../../../docs/spec/http-api.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok1 := strings.Cut(string(data), "\n15.5 `/cluster`")
	chapter, _, ok2 := strings.Cut(rest, "\n15.6 ")
	if !ok1 || !ok2 {
		t.Fatal("chapter 15.5 is not there")
	}
	var listed []string
	for _, m := range regexp.MustCompile("`\\{([^`]*)\\}`").FindAllStringSubmatch(chapter, -1) {
		listed = append(listed, m[1])
	}
	for _, c := range []struct {
		name string
		body any
	}{{"workers", workerEntry{}}, {"groups", groupEntry{}}, {"speculation", speculationEntry{}}} {
		var fields []string
		for _, f := range reflect.VisibleFields(reflect.TypeOf(c.body)) {
			name, omitted, _ := strings.Cut(f.Tag.Get("json"), ",")
			if f.Type.Kind() == reflect.Slice {
				name += "[]"
			}
			if omitted != "" {
				name += "?"
			}
			fields = append(fields, name)
		}
		if want := strings.Join(fields, ","); !slices.Contains(listed, want) {
			t.Errorf("%s: the specification lacks `{%s}`, it has %q", c.name, want, listed)
		}
	}
}
