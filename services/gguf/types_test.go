package gguf

import (
	"os"
	"regexp"
	"testing"
)

// TestComputedTypes: what Computed says of matrices is what the engine's table says, of every type.
func TestComputedTypes(t *testing.T) {
	source, err := os.ReadFile("../../native/src/core/dtype.cpp")
	if err != nil {
		t.Fatal(err)
	}
	engine := map[string]bool{}
	entry := regexp.MustCompile(`\{DType::k\w+, "(\w+)", \d+, \d+, (true|false)\}`)
	for _, m := range entry.FindAllStringSubmatch(string(source), -1) {
		engine[m[1]] = m[2] == "true"
	}
	if len(engine) < 15 {
		t.Fatalf("the engine's table has %d types", len(engine))
	}
	for id := range Type(64) {
		if got, want := id.Computed(true), engine[id.String()]; got != want {
			t.Errorf("%v: computed %v, in the engine %v", id, got, want)
		}
		if id.Computed(false) != (id == F32 || id == F16 || id == BF16) {
			t.Errorf("%v: vectors computed %v", id, id.Computed(false))
		}
	}
}
