package native

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"github.com/tandem-inference/tandem/services/engine"
)

// structs by their C names.
var structs = map[string]reflect.Type{
	"tnd_open_options":    reflect.TypeFor[cOpenOptions](),
	"tnd_info":            reflect.TypeFor[cInfo](),
	"tnd_row":             reflect.TypeFor[cRow](),
	"tnd_group":           reflect.TypeFor[cGroup](),
	"tnd_step":            reflect.TypeFor[cStep](),
	"tnd_sampler":         reflect.TypeFor[cSampler](),
	"tnd_score_prompt":    reflect.TypeFor[cScorePrompt](),
	"tnd_feature_rows":    reflect.TypeFor[cFeatureRows](),
	"tnd_draft_request":   reflect.TypeFor[cDraftRequest](),
	"tnd_snapshot_layout": reflect.TypeFor[cLayout](),
	"tnd_stat":            reflect.TypeFor[cStat](),
}

// TestLayout prints sizes and offsets with a C program and compares.
func TestLayout(t *testing.T) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc")
	}
	var source, want strings.Builder
	source.WriteString("#include <stddef.h>\n#include <stdio.h>\n#include \"tandem/engine.h\"\nint main(void) {\n")
	source.WriteString("  printf(\"abi %u\\n\", TND_ABI_VERSION);\n")
	fmt.Fprintf(&want, "abi %d\n", abiVersion)
	source.WriteString("  printf(\"keep %u %d\\n\", TND_WANT_KEEP, TND_KEPT_ROWS);\n")
	fmt.Fprintf(&want, "keep %d %d\n", engine.WantKeep, engine.KeptRows)
	source.WriteString("  printf(\"group %u %u %u %d %d\\n\", TND_GROUP_DECODE, TND_GROUP_PROMPT, TND_GROUP_COMMIT, TND_HIDDEN_F32, TND_HIDDEN_BF16);\n")
	fmt.Fprintf(&want, "group %d %d %d %d %d\n", engine.KindDecode, engine.KindPrompt, groupCommit, engine.HiddenF32,
		engine.HiddenBF16)
	for name, typ := range structs {
		fmt.Fprintf(&source, "  printf(\"%s %%zu\\n\", sizeof(%s));\n", name, name)
		fmt.Fprintf(&want, "%s %d\n", name, typ.Size())
		for i := range typ.NumField() {
			f := typ.Field(i)
			field := f.Tag.Get("c")
			fmt.Fprintf(&source, "  printf(\"%s.%s %%zu %%zu\\n\", offsetof(%s, %s), sizeof(((%s*)0)->%s));\n", name, field, name, field, name, field)
			fmt.Fprintf(&want, "%s.%s %d %d\n", name, field, f.Offset, f.Type.Size())
		}
	}
	source.WriteString("  return 0;\n}\n")
	dir := t.TempDir()
	c, bin := filepath.Join(dir, "layout.c"), filepath.Join(dir, "layout")
	if err := os.WriteFile(c, []byte(source.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(gcc, "-std=c99", "-I../../../include", "-o", bin, c).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	got, err := exec.Command(bin).Output()
	if err != nil {
		t.Fatal(err)
	}
	g, w := strings.Split(string(got), "\n"), strings.Split(want.String(), "\n")
	for i := range w {
		if i >= len(g) || g[i] != w[i] {
			t.Errorf("C says %q, Go %q", g[min(i, len(g)-1)], w[i])
		}
	}
}

// TestSharedLayout: rows of the Go contract are handed to C without translation.
func TestSharedLayout(t *testing.T) {
	for _, c := range []struct{ a, b reflect.Type }{
		{reflect.TypeFor[cRow](), reflect.TypeFor[engine.Row]()},
	} {
		if c.a.Size() != c.b.Size() || c.a.NumField() != c.b.NumField() {
			t.Fatalf("%v has %d bytes, %v %d", c.a, c.a.Size(), c.b, c.b.Size())
		}
		for i := range c.a.NumField() {
			f, g := c.a.Field(i), c.b.Field(i)
			if f.Name != g.Name || f.Offset != g.Offset || f.Type.Kind() != g.Type.Kind() {
				t.Errorf("field %d: %v at %d, %v at %d", i, f.Name, f.Offset, g.Name, g.Offset)
			}
		}
	}
	if unsafe.Sizeof(uintptr(0)) != 8 {
		t.Error("only 64-bit platforms are supported")
	}
}
