package kvtype

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile("../../" + path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestTableOfTheEngine: the types are those of the engine's table, with its ids and bytes, and the comment in engine.h
// lists them.
func TestTableOfTheEngine(t *testing.T) {
	engine := map[string]string{} // id and bytes by name
	for _, m := range regexp.MustCompile(`\b(?:ROW|LAST)\((\w+), (\d+), [^,]+, \d, (\d+)\)`).FindAllStringSubmatch(
		read(t, "native/src/core/kv_type.h"), -1) {
		engine[strings.ToLower(m[1])] = m[2] + " " + m[3]
	}
	header := read(t, "native/include/tandem/engine.h")
	for _, row := range All() {
		if want := fmt.Sprint(row.ID, " ", row.BlockBytes); engine[row.Name] != want {
			t.Errorf("%s: id and bytes of a block are %q in the engine, want %q", row.Name, engine[row.Name], want)
		}
		said := fmt.Sprint(row.ID, " ", strings.ToUpper(row.Name))
		if !strings.Contains(header, said) {
			t.Errorf("engine.h does not list %s", said)
		}
	}
	if len(engine) != len(All()) || len(engine) < 9 {
		t.Errorf("the engine caches %v, %d types are listed here", engine, len(All()))
	}
}

// TestBytesOfTheSpecification: a row of docs/spec/kv-cache.md has the bytes of every quantised type.
func TestBytesOfTheSpecification(t *testing.T) {
	spec := read(t, "docs/spec/kv-cache.md")
	for _, row := range All() {
		if strings.HasPrefix(row.Name, "f") || row.Name == "bf16" {
			continue
		}
		want := fmt.Sprintf(`(?m)^\| %s\b[^|]*\| %d\b[^|]*\| %d \|`, row.Name, Block, row.BlockBytes)
		if !regexp.MustCompile(want).MatchString(spec) {
			t.Errorf("the specification has no row %s", want)
		}
	}
}

func TestParse(t *testing.T) {
	for _, row := range All() {
		if got, err := Parse(strings.ToUpper(row.Name)); err != nil || got != row {
			t.Errorf("%s: %v, %v", row.Name, got, err)
		}
		if got := Name(row.ID); got != row.Name {
			t.Errorf("type %d is %q, want %s", row.ID, got, row.Name)
		}
	}
	if got := Name(9); got != "" {
		t.Errorf("no type has the id 9, got %q", got)
	}
	if _, err := Parse("q9"); err == nil || !strings.Contains(err.Error(), `"q9" (known: f16, f32,`) {
		t.Errorf("an unknown name: %v", err)
	}
}
