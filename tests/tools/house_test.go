package tools

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/tests/cluster"
)

const module = "github.com/tandem-inference/tandem/"

// sources returns the files under dirs with one of the endings, as paths from the root. Generated files are left out.
func sources(t *testing.T, dirs []string, endings ...string) (root string, files []string) {
	t.Helper()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				// native/build, native/build-asan
				if err == nil && (strings.HasPrefix(d.Name(), "build") || d.Name() == "node_modules") {
					return filepath.SkipDir
				}
				return err
			}
			rel, err := filepath.Rel(root, path)
			if slices.Contains(endings, filepath.Ext(path)) && !strings.HasSuffix(path, ".pb.go") {
				files = append(files, filepath.ToSlash(rel))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(files) < 20 {
		t.Fatalf("found %d files only", len(files))
	}
	return root, files
}

var product = []string{"proto", "services", "gateway", "worker-target", "worker-draft", "worker-prefill", "native"}

// TestImportsPointDownwards: programs import services, services import proto, and no program imports another.
func TestImportsPointDownwards(t *testing.T) {
	root, files := sources(t, product, ".go")
	seen := map[string]bool{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		own, _, _ := strings.Cut(file, "/")
		allowed := map[string][]string{"proto": {"proto"}, "services": {"services", "proto"}}[own]
		if allowed == nil {
			allowed = []string{own, "services", "proto"}
		}
		for _, i := range parsed.Imports {
			path, _ := strconv.Unquote(i.Path.Value)
			if below, ok := strings.CutPrefix(path, module); ok {
				top, _, _ := strings.Cut(below, "/")
				seen[own+" "+top] = true
				if !slices.Contains(allowed, top) {
					t.Errorf("%s imports %s", file, path)
				}
			}
		}
	}
	if !seen["gateway services"] || !seen["services proto"] {
		t.Errorf("imports were not read: %v", seen)
	}
}

// TestPackagesHaveNames: a package is called after the noun that it is about.
func TestPackagesHaveNames(t *testing.T) {
	vague := []string{"utils", "util", "common", "helpers", "types", "misc"}
	_, files := sources(t, product, ".go")
	for _, file := range files {
		if name := filepath.Base(filepath.Dir(file)); slices.Contains(vague, name) {
			t.Errorf("%s: a package called %s says nothing about what is in it", file, name)
		}
	}
}

// mostLines of a source file; well before that a second thing can be found inside.
const mostLines = 800

// TestDepsAreNotEmbedded: a struct that embeds Deps lends what it was given to everyone who holds it.
func TestDepsAreNotEmbedded(t *testing.T) {
	root, files := sources(t, product, ".go")
	constructors := 0
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		deps := func(f *ast.Field) bool {
			id, ok := f.Type.(*ast.Ident)
			return ok && id.Name == "Deps"
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if slices.ContainsFunc(n.Type.Params.List, deps) {
					constructors++
				}
			case *ast.StructType:
				for _, f := range n.Fields.List {
					if deps(f) && len(f.Names) == 0 {
						t.Errorf("%s embeds Deps: keep what is needed of it in unexported fields", file)
					}
				}
			}
			return true
		})
	}
	if constructors < 5 {
		t.Errorf("found %d functions that take Deps", constructors)
	}
}

// TestFilesAreSmall bounds the files of the product and the engine's tests; Go's tests may be long lists of cases.
func TestFilesAreSmall(t *testing.T) {
	root, files := sources(t, product, ".go", ".cpp", ".h", ".cu", ".cuh")
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		data, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(data), "\n"); n > mostLines {
			t.Errorf("%s has %d lines, at most %d", file, n, mostLines)
		}
	}
}

// TestGoroutinesAreWatched: a package that starts goroutines has a TestMain that finds those which its tests
// leave behind.
func TestGoroutinesAreWatched(t *testing.T) {
	root, files := sources(t, product, ".go")
	starts, watched, tested := map[string]string{}, map[string]bool{}, map[string]bool{}
	for _, file := range files {
		dir := filepath.Dir(file)
		if strings.HasSuffix(file, "_test.go") {
			tested[dir] = true
			data, err := os.ReadFile(filepath.Join(root, file))
			if err != nil {
				t.Fatal(err)
			}
			watched[dir] = watched[dir] || strings.Contains(string(data), "goleak.")
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if _, ok := n.(*ast.GoStmt); ok {
				starts[dir] = file
			}
			return true
		})
	}
	if len(starts) < 10 {
		t.Fatalf("found goroutines in %d packages only", len(starts))
	}
	for _, dir := range slices.Sorted(maps.Keys(starts)) {
		if tested[dir] && !watched[dir] {
			t.Errorf("%s starts goroutines and the tests of its package have no goleak.VerifyTestMain", starts[dir])
		}
	}
}

// TestKernelsAreCalledKernels: the name of every GPU kernel ends in _kernel, so that profiles and the table of
// resources show which functions are launched.
func TestKernelsAreCalledKernels(t *testing.T) {
	root, files := sources(t, []string{"native/src"}, ".cu", ".cuh")
	kernel := regexp.MustCompile(`__global__\s+void\s+(?:__launch_bounds__\((?:[^()]|\([^()]*\))*\)\s*)?(\w+)\s*\(`)
	count := 0
	for _, file := range files {
		data, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range kernel.FindAllStringSubmatch(string(data), -1) {
			count++
			if !strings.HasSuffix(m[1], "_kernel") {
				t.Errorf("%s: kernel %s", file, m[1])
			}
		}
	}
	if count < 30 {
		t.Errorf("found %d kernels only", count)
	}
}

// TestSwitchesOfTheEngineAreListed: the native engine and its emulation read just the environment variables that
// docs/style.md names.
func TestSwitchesOfTheEngineAreListed(t *testing.T) {
	root, files := sources(t, []string{"native/src", "native/sim/host"}, ".cpp", ".h", ".cu", ".cuh")
	read, listed := map[string]bool{}, map[string]bool{}
	for _, file := range files {
		data, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?:getenv|env_number)\("(\w+)"`).FindAllStringSubmatch(string(data), -1) {
			read[m[1]] = true
		}
	}
	page, err := os.ReadFile(filepath.Join(root, "docs/style.md"))
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile("`((?:TANDEM_(?:CPU|GPU)|TND_EMU|TND_STEP)_[A-Z]+)`")
	for _, m := range name.FindAllStringSubmatch(string(page), -1) {
		listed[m[1]] = true
	}
	if !maps.Equal(read, listed) {
		t.Errorf("docs/style.md lists %v, the sources read %v", slices.Sorted(maps.Keys(listed)),
			slices.Sorted(maps.Keys(read)))
	}
}

// TestDependenciesAreListed: docs/dependencies.md names every module that the product, the tests and the
// measurements require.
func TestDependenciesAreListed(t *testing.T) {
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs/dependencies.md"))
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, file := range []string{"go.mod", "tests/go.mod", "bench/go.mod"} {
		data, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		required := regexp.MustCompile(`(?m)^(?:require )?\s*([\w.-]+\.[\w]+/\S+) v\S+$`)
		for _, m := range required.FindAllStringSubmatch(string(data), -1) {
			if strings.HasPrefix(m[1]+"/", module) {
				continue
			}
			count++
			name := filepath.Base(regexp.MustCompile(`/v\d+$`).ReplaceAllString(m[1], ""))
			if !regexp.MustCompile("[`/]" + regexp.QuoteMeta(name) + "(?:/v\\d+)?[` ]").Match(page) {
				t.Errorf("%s requires %s, which docs/dependencies.md does not name", file, m[1])
			}
		}
	}
	if count < 20 {
		t.Errorf("found %d requirements only", count)
	}
}
