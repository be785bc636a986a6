package tools

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tandem-inference/tandem/tests/cluster"
)

// pages are the documents whose code spans name files of the tree.
var pages = []string{"CONTRIBUTING.md", "docs/english.md", "docs/style.md", "docs/how-to-add.md",
	"docs/models.md", "docs/design.md", "docs/defects.md"}

var (
	codeSpan = regexp.MustCompile("`([^`\n]+)`")
	// named is a path from the root, perhaps with {a,b} and *, perhaps with :Name or :Name,Name, which stand in each of
	// its files.
	named = regexp.MustCompile(`^([\w.@-]+(?:/[\w.{},*@-]+)*/?)(?::([A-Za-z_]\w*(?:,[A-Za-z_]\w*)*))?$`)
	// fileName tells a file at the root or beside the page from any other word.
	fileName = regexp.MustCompile(`^\.?[\w-]+\.(c|cmake|cpp|cu|cuh|go|gguf|h|json|md|mod|proto|py|sh|sum|tsv|work|ya?ml)$`)
)

// tracked returns the tracked files with one of the endings, as paths from the root, and the root.
func tracked(t *testing.T, endings ...string) (root string, files []string) {
	t.Helper()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("git", "-C", root, "ls-files", "-z").Output()
	if err != nil {
		t.Skipf("git lists no files of this tree: %v", err)
	}
	for _, name := range strings.Split(string(out), "\x00") {
		if _, err := os.Stat(filepath.Join(root, name)); err == nil && slices.Contains(endings, filepath.Ext(name)) {
			files = append(files, name)
		}
	}
	if len(files) < 20 {
		t.Fatalf("found %d files only", len(files))
	}
	return root, files
}

// fault says what is wrong with a code span of a page, "" if nothing is or if it names no file.
func fault(root, page, span string) string {
	m := named.FindStringSubmatch(span)
	if m == nil || !strings.Contains(m[1], "/") && !fileName.MatchString(m[1]) && m[1] != "Makefile" {
		return ""
	}
	if first, _, _ := strings.Cut(m[1], "/"); first == "bin" || first == "build" {
		return "" // made by a build
	}
	for _, path := range alternatives(m[1]) {
		var found []string
		for _, dir := range []string{root, filepath.Join(root, filepath.Dir(page))} {
			matches, err := filepath.Glob(filepath.Join(dir, path))
			if err != nil {
				return err.Error()
			}
			found = append(found, matches...)
		}
		if len(found) == 0 {
			return path + " does not exist"
		}
		if m[2] == "" {
			continue
		}
		text, err := os.ReadFile(found[0])
		if err != nil {
			return err.Error()
		}
		for _, name := range strings.Split(m[2], ",") {
			if !regexp.MustCompile(`\b` + name + `\b`).Match(text) {
				return path + " has no " + name
			}
		}
	}
	return ""
}

// alternatives writes out the first {a,b} of a path, and those in what follows.
func alternatives(path string) []string {
	before, rest, ok := strings.Cut(path, "{")
	if !ok {
		return []string{path}
	}
	choices, after, _ := strings.Cut(rest, "}")
	var out []string
	for _, c := range strings.Split(choices, ",") {
		out = append(out, alternatives(before+c+after)...)
	}
	return out
}

// prose returns the lines of a page outside code blocks, those inside empty.
func prose(text string) []string {
	lines := strings.Split(text, "\n")
	inside := false
	for i, l := range lines {
		fence := strings.HasPrefix(strings.TrimSpace(l), "```")
		if inside || fence {
			lines[i] = ""
		}
		inside = inside != fence
	}
	return lines
}

// TestPagesNameWhatExists holds documents to the tree. In the pages for developers every path in a code span exists,
// and every path:Name stands in its file. Code spans of other documents name much besides files: those that begin with
// a folder of the tree are checked.
func TestPagesNameWhatExists(t *testing.T) {
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		data, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		for i, l := range prose(string(data)) {
			for _, m := range codeSpan.FindAllStringSubmatch(l, -1) {
				if f := fault(root, page, m[1]); f != "" {
					t.Errorf("%s:%d: %s", page, i+1, f)
				}
			}
		}
	}
	checked := 0
	_, documents := tracked(t, ".md")
	for _, page := range documents {
		data, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		for i, l := range prose(string(data)) {
			for _, m := range codeSpan.FindAllStringSubmatch(l, -1) {
				folder, rest, ok := strings.Cut(m[1], "/")
				if info, err := os.Stat(filepath.Join(root, folder)); !ok || rest == "" || err != nil || !info.IsDir() {
					continue
				}
				checked++
				if f := fault(root, page, m[1]); f != "" {
					t.Errorf("%s:%d: %s", page, i+1, f)
				}
			}
		}
	}
	if checked < 100 {
		t.Errorf("checked %d paths in other documents only", checked)
	}
}

// TestDefectsHaveTests: each row of docs/defects.md names tests in files of tests, which TestPagesNameWhatExists looks
// for there, and a commit of the tree's history.
func TestDefectsHaveTests(t *testing.T) {
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs/defects.md"))
	if err != nil {
		t.Fatal(err)
	}
	whole := exec.Command("git", "-C", root, "rev-parse", "--is-shallow-repository")
	out, err := whole.Output()
	history := err == nil && strings.TrimSpace(string(out)) == "false"
	rows := 0
	for i, line := range strings.Split(string(text), "\n") {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if !strings.HasPrefix(line, "| ") || cells[0] == "What was wrong" {
			continue
		}
		rows++
		if len(cells) != 3 {
			t.Errorf("docs/defects.md:%d has %d cells, want 3", i+1, len(cells))
			continue
		}
		for _, span := range strings.Split(cells[1], ", ") {
			if m := named.FindStringSubmatch(strings.Trim(span, "`")); m == nil || m[2] == "" ||
				!strings.Contains(filepath.Base(m[1]), "_test.") {
				t.Errorf("docs/defects.md:%d: %s is no file of tests with names of tests", i+1, span)
			}
		}
		if history && exec.Command("git", "-C", root, "cat-file", "-e", cells[2]+"^{commit}").Run() != nil {
			t.Errorf("docs/defects.md:%d: there is no commit %s", i+1, cells[2])
		}
	}
	if rows < 70 {
		t.Errorf("%d defects are listed", rows)
	}
}

// TestSpansThatNameFiles holds the check itself: what it takes for a path, and what it finds wrong.
func TestSpansThatNameFiles(t *testing.T) {
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	for span, want := range map[string]string{
		"docs/style.md":                          "",
		"style.md":                               "", // beside the page
		"tests/tools/pages_test.go:alternatives": "",
		"docs/{style,english}.md":                "",
		"services/*/doc.go":                      "",
		"--max-ctx":                              "",
		"/v1/models":                             "",
		"bin/tandem":                             "",
		"a.b":                                    "",
		"docs/stile.md":                          "docs/stile.md does not exist",
		"stile.md":                               "stile.md does not exist",
		"docs/{style,englisch}.md":               "docs/englisch.md does not exist",
		"go.mod:module,require":                  "",
		"go.mod:module,nothing":                  "go.mod has no nothing",
		"go.mod:nothing":                         "go.mod has no nothing",
		"nothing/here":                           "nothing/here does not exist",
	} {
		if got := fault(root, "docs/design.md", span); got != want {
			t.Errorf("%s: %q, want %q", span, got, want)
		}
	}
}

// TestPagesAreWrapped: prose of every document has at most 120 columns. Tables, headings, indented code, long code
// spans and link targets cannot be wrapped.
func TestPagesAreWrapped(t *testing.T) {
	root, documents := tracked(t, ".md")
	longSpan := regexp.MustCompile("`[^`]{60,}`")
	for _, page := range documents {
		data, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		for i, l := range prose(string(data)) {
			for _, start := range []string{"|", "#", "    "} {
				if strings.HasPrefix(l, start) {
					l = ""
				}
			}
			l = longSpan.ReplaceAllString(l, "``")
			if utf8.RuneCountInString(l) > 120 && strings.Contains(strings.TrimSpace(l), " ") {
				t.Errorf("%s:%d has %d columns", page, i+1, utf8.RuneCountInString(l))
			}
		}
	}
}
