package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSources: what the table was made from need not be compiled again; any change below a kernel, of what compiles it
// or of the compiler makes it need that.
func TestSources(t *testing.T) {
	native := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(native, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("src/gpu/x/a.cu", "#include \"gpu/x/deep.h\"\n#include <string>\n")
	write("src/gpu/x/b.cu", "int b;\n")
	write("src/gpu/x/deep.h", "#pragma once\n  #\tinclude \"engine.h\"\n")
	write("src/gpu/x/engine.h", "int engine;\n#include \"tandem.h\"\n")
	write("include/tandem.h", "#include \"gpu/x/deep.h\"\n")
	for _, recipe := range recipes["cuda"] {
		write(recipe, recipe)
	}
	dir := folder(t, "cuda", "nvcc 1", ptxas)
	path := filepath.Join(t.TempDir(), "table.tsv")
	table, _ := readTable(path)
	table.Notes[[3]string{"sm_86", "a", "scale_kernel"}] = "measured"
	if err := rewrite(table, path, native, []string{dir}); err != nil {
		t.Fatal(err)
	}
	changed := func(compiler string) string {
		t.Helper()
		table, err := readTable(path)
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		if err := table.changed(&b, folder(t, "cuda", compiler, ptxas), native); err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(b.String(), "\n", " ")
	}
	if got := changed("nvcc 1"); got != "" {
		t.Errorf("nothing changed: %q", got)
	}
	if got := changed("nvcc 2"); got != "cuda/a.o cuda/b.o " {
		t.Errorf("another compiler: %q", got)
	}
	// A report of an unchanged source may be an old one: it is not judged, and its rows are not missed.
	table, _ = readTable(path)
	empty := folder(t, "cuda", "nvcc 1", "")
	cases, err := compare(table, native, []string{empty})
	if err != nil || len(cases) != 2 || cases[0].Failure != nil || cases[1].Failure != nil {
		t.Errorf("unchanged: %+v, %v", cases, err)
	}
	// Nor does a table that is rewritten lose them.
	if err := rewrite(table, path, native, []string{empty}); err != nil {
		t.Fatal(err)
	}
	if table, _ = readTable(path); len(table.Rows) != 2 || table.Notes[[3]string{"sm_86", "a", "scale_kernel"}] == "" {
		t.Errorf("rewritten: %+v", table)
	}
	for _, c := range []struct{ name, want string }{
		{"src/gpu/x/engine.h", "cuda/a.o "}, {"include/tandem.h", "cuda/a.o "}, {"src/gpu/x/b.cu", "cuda/b.o "},
		{recipes["cuda"][0], "cuda/a.o cuda/b.o "},
	} {
		before, err := os.ReadFile(filepath.Join(native, c.name))
		if err != nil {
			t.Fatal(err)
		}
		write(c.name, string(before)+"\n")
		if got := changed("nvcc 1"); got != c.want {
			t.Errorf("%s changed: %q, want %q", c.name, got, c.want)
		}
		if c.name == "src/gpu/x/engine.h" {
			if cases, err := compare(table, native, []string{empty}); err != nil ||
				!strings.Contains(cases[len(cases)-1].Name, "rows without a kernel") {
				t.Errorf("a changed source without a report: %+v, %v", cases, err)
			}
		}
		write(c.name, string(before))
	}
	write("src/gpu/x/c.cu", "#include \"nowhere.h\"\n")
	if _, err := digests(native, "cuda"); err == nil || !strings.Contains(err.Error(), "nowhere.h") {
		t.Errorf("an include that is nowhere: %v", err)
	}
}
