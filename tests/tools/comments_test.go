package tools

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	// comment is what follows // or # in a line; #include and the like are none.
	comment = regexp.MustCompile(`(?:^|\s)(?://|#)([^a-z].*)$`)
	// commentFile is the name of a source file or document, perhaps with folders before it.
	commentFile = regexp.MustCompile(`(?:^|[\s("'\x60])((?:[\w.-]+/)*[A-Za-z][\w-]*\.` +
		`(?:h|cpp|cu|cuh|cmake|md|go|proto|sh))\b`)
	// commentPath begins with a folder of the tree.
	commentPath = regexp.MustCompile(`(?:^|[\s("'\x60])` +
		`((?:docs|native|services|gateway|worker-\w+|tests|tools|bench|deploy|proto|models)(?:/[\w.*-]+)+)(?:[^\w<{]|$)`)
)

// otherFiles are names in comments that no file of the tree has, each with what it is.
var otherFiles = map[string]string{
	"llama.cpp": "the project",
}

// commented returns the files and folders that a line's comment names.
func commented(line string) (names []string) {
	m := comment.FindStringSubmatch(line)
	if m == nil {
		return nil
	}
	for _, re := range []*regexp.Regexp{commentFile, commentPath} {
		for _, found := range re.FindAllStringSubmatch(m[1], -1) {
			names = append(names, strings.TrimRight(found[1], ".-"))
		}
	}
	return names
}

// TestCommentsNameWhatExists: files and folders that comments name are in the tree. A name may leave out its first
// folders. What a build makes, and patterns with <name> or {a,b}, are not looked at.
func TestCommentsNameWhatExists(t *testing.T) {
	root, files := tracked(t, "", ".md", ".go", ".cpp", ".h", ".cu", ".cuh", ".cmake", ".txt", ".sh", ".py", ".proto",
		".yaml", ".yml", ".work", ".mod", ".json", ".gguf", ".worker-cuda", ".worker-rocm")
	ends := map[string]bool{} // of paths of files and folders
	for _, file := range files {
		for path := file; path != "."; path = filepath.Dir(path) {
			parts := strings.Split(path, "/")
			for i := range parts {
				ends[strings.Join(parts[i:], "/")] = true
			}
		}
	}
	sources := []string{".go", ".cpp", ".h", ".cu", ".cuh", ".cmake", ".sh", ".py", ".proto", ".yaml", ".yml", ""}
	checked := 0
	for _, file := range files {
		if file == "" || strings.HasSuffix(file, ".pb.go") || file == "tests/tools/comments_test.go" {
			continue
		}
		if !slices.Contains(sources, filepath.Ext(file)) && filepath.Base(file) != "CMakeLists.txt" {
			continue
		}
		for i, l := range linesOf(t, root, file) {
			for _, name := range commented(l) {
				if strings.HasPrefix(name, "native/build") || otherFiles[name] != "" {
					continue
				}
				checked++
				if ends[name] {
					continue
				}
				if found, err := filepath.Glob(filepath.Join(root, name)); err != nil || len(found) == 0 {
					t.Errorf("%s:%d: %s does not exist", file, i+1, name)
				}
			}
		}
	}
	if checked < 300 {
		t.Errorf("checked %d names only", checked)
	}
}

// TestCommentsThatNameFiles holds the check itself.
func TestCommentsThatNameFiles(t *testing.T) {
	for line, want := range map[string][]string{
		"// The head of sim/host/emu.h says how.":   {"sim/host/emu.h"},
		"x := 1 // see docs/style.md.":              {"docs/style.md", "docs/style.md"},
		"# tools/setup.sh, native/src/gpu/*/*.cu":   {"tools/setup.sh", "tools/setup.sh", "native/src/gpu/*/*.cu"},
		"#include \"gpu/matmul/matmul.h\"":          nil,
		"// tests/<name>_test.cpp becomes one":      nil,
		"cmake -S native -B native/build":           nil,
		"// github.com/tandem-inference/services/x": nil,
	} {
		if got := commented(line); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}
