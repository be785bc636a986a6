package tools

import (
	"go/scanner"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// replaced are words that docs/english.md replaces, each with the word to use.
var replaced = []struct{ word, use string }{
	{`soundings?`, "probe"},
	{`promised (?:nodes|tokens)|beliefs?`, "prior, calibration or acceptance"},
	{`foretell(?:s|ing)?|foretold`, "predict, or prompt lookup"},
	{`owed`, "pending"},
	{`anew`, "again"},
	{`hears of`, "gets, or is told by name"},
	{`surroundings`, "caller, or dependencies"},
	{`(?:no|all) lanes? (?:is|are) free|lanes? of a worker`, "slot"},
	{`guided (?:step|request|round)`, "constrained"},
	{`prefill (?:role|worker)`, "scorer"},
	{`wish(?:es)? (?:about|of|for)`, "settings, or what is asked for"},
}

// allowedWords are files in which a replaced word stays, with the reason.
var allowedWords = map[string]string{
	"docs/english.md": "the list itself",
}

// TestGlossary: no tracked text has a word that docs/english.md replaces.
func TestGlossary(t *testing.T) {
	root, files := tracked(t, ".go", ".md", ".proto", ".py", ".sh", ".yaml", ".yml", ".cpp", ".h", ".cu", ".cuh", ".cmake")
	var list []*regexp.Regexp
	for _, r := range replaced {
		list = append(list, regexp.MustCompile(`(?i)\b(?:`+r.word+`)\b`))
	}
	used := map[string]bool{}
	for _, file := range files {
		if strings.HasSuffix(file, ".pb.go") || file == "tests/tools/words_test.go" {
			continue
		}
		for i, l := range linesOf(t, root, file) {
			for k, re := range list {
				word := re.FindString(l)
				if word == "" {
					continue
				}
				if used[file] = true; allowedWords[file] == "" {
					t.Errorf("%s:%d: %q: say %s", file, i+1, word, replaced[k].use)
				}
			}
		}
	}
	for file := range allowedWords {
		if !used[file] {
			t.Errorf("%s has none of the words: take it off the list", file)
		}
	}
}

const (
	// columns of a line of Go.
	columns = 120
	// A literal of so many columns, or a line of a raw string, stays whole: help texts, JSON of tests, digests.
	wholeLiteral = 60
)

// aligned are the spaces by which gofmt aligns values and comments: they are not counted.
var aligned = regexp.MustCompile(` {2,}`)

// wide returns the lines of a Go file that have too many columns and could have been broken.
func wide(src []byte) (lines []int) {
	text := strings.Split(string(src), "\n")
	whole := map[int]bool{}
	files := token.NewFileSet()
	file := files.AddFile("", -1, len(src))
	var s scanner.Scanner
	s.Init(file, src, nil, scanner.ScanComments)
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			break
		}
		line := file.Line(pos)
		switch {
		case tok == token.STRING && strings.Contains(lit, "\n"):
			for i := range strings.Count(lit, "\n") + 1 {
				whole[line+i] = true
			}
		case tok == token.STRING && utf8.RuneCountInString(lit) >= wholeLiteral:
			whole[line] = true
		case tok == token.COMMENT && (strings.HasPrefix(lit, "//\t") || strings.HasPrefix(lit, "//go:")):
			whole[line] = true // code and directives
		}
	}
	for i, l := range text {
		if utf8.RuneCountInString(aligned.ReplaceAllString(l, " ")) > columns && !whole[i+1] {
			lines = append(lines, i+1)
		}
	}
	return lines
}

// wideSignatures are lines that hold nothing but a method with generated names of its protocol.
var wideSignatures = regexp.MustCompile(`^func \(\w+ \*\w+\) \w+\(stream grpc\.\w+\[`)

// TestGoIsWrapped: lines of Go have at most 120 columns.
func TestGoIsWrapped(t *testing.T) {
	root, files := tracked(t, ".go")
	for _, file := range files {
		if strings.HasSuffix(file, ".pb.go") || strings.Contains(file, "generated") {
			continue
		}
		data, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Split(string(data), "\n")
		for _, n := range wide(data) {
			if !wideSignatures.MatchString(text[n-1]) {
				t.Errorf("%s:%d has %d columns", file, n, utf8.RuneCountInString(text[n-1]))
			}
		}
	}
}

// TestNothingIsHalfMerged: no text holds both sides of a conflict.
func TestNothingIsHalfMerged(t *testing.T) {
	root, files := tracked(t, ".go", ".md", ".proto", ".cpp", ".cc", ".h", ".cu", ".cuh", ".yaml", ".yml", ".sh", ".cmake",
		".json", ".tsv", ".mod", ".sum", ".txt")
	for _, file := range files {
		for i, line := range linesOf(t, root, file) {
			if strings.HasPrefix(line, "<<<<<<< ") || strings.HasPrefix(line, ">>>>>>> ") {
				t.Errorf("%s:%d: %s", file, i+1, line)
			}
		}
	}
}

// linesOf returns the lines of a tracked file.
func linesOf(t *testing.T, root, file string) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(data), "\n")
}

// instructions are lines of the processor's own language, which are as long as the instruction.
const instructions = "asm volatile("

// TestNativeIsWrapped: lines of native code, messages and comments among them, have at most 120 columns. clang-format
// breaks code but no comment (ReflowComments), and it is not installed everywhere.
func TestNativeIsWrapped(t *testing.T) {
	root, files := tracked(t, ".c", ".cpp", ".h", ".cu", ".cuh", ".proto")
	for _, file := range files {
		for i, l := range linesOf(t, root, file) {
			if n := utf8.RuneCountInString(l); n > columns && !strings.Contains(l, instructions) {
				t.Errorf("%s:%d has %d columns", file, i+1, n)
			}
		}
	}
}

// scripts reports whether a file is one of the kinds whose lines clang-format and gofmt do not look after.
func scripts(file string) bool {
	name := filepath.Base(file)
	return file == ".ci/run" || strings.HasPrefix(name, "Dockerfile") ||
		slices.Contains([]string{"Makefile", "CMakeLists.txt"}, name) ||
		slices.Contains([]string{".sh", ".py", ".cmake", ".yaml", ".yml"}, filepath.Ext(file))
}

// quoted is a literal that stays whole.
var quoted = regexp.MustCompile(`"(?:[^"\\]|\\.){60,}"|'[^']{60,}'`)

// TestScriptsAreWrapped: lines of scripts, of the build and of configuration have at most 120 columns, not counting the
// spaces that align a comment. Long literals stay whole. Programs beside test data are lists of texts, as is the one
// for the tokenizer's goldens.
func TestScriptsAreWrapped(t *testing.T) {
	root, files := tracked(t, "", ".sh", ".py", ".cmake", ".yaml", ".yml", ".txt", ".worker", ".gateway",
		".worker-cuda", ".worker-rocm")
	checked := 0
	for _, file := range files {
		if !scripts(file) || strings.Contains(file, "/testdata/") || file == "tools/tokenizer-goldens.py" {
			continue
		}
		checked++
		for i, l := range linesOf(t, root, file) {
			if n := utf8.RuneCountInString(aligned.ReplaceAllString(l, " ")); n > columns && !quoted.MatchString(l) {
				t.Errorf("%s:%d has %d columns", file, i+1, n)
			}
		}
	}
	if checked < 30 {
		t.Errorf("checked %d files only", checked)
	}
}

// A comment's line of one or two words is an orphan when it follows a line of more than fullLine columns and the
// paragraph goes on after it: somebody has broken lines and not filled the paragraph again.
const fullLine = 90

// commentLine is a line of a paragraph: no item of a list, no code, no rule.
var commentLine = regexp.MustCompile(`^(\s*)// ([^\s\-*].*)$`)

// orphans returns the lines that hold a word or two of a paragraph that goes on.
func orphans(text []string) (found []int) {
	for i := 1; i+1 < len(text); i++ {
		before, here, after := commentLine.FindStringSubmatch(text[i-1]), commentLine.FindStringSubmatch(text[i]),
			commentLine.FindStringSubmatch(text[i+1])
		if before == nil || here == nil || after == nil || before[1] != here[1] || after[1] != here[1] {
			continue
		}
		if len(strings.Fields(here[2])) <= 2 && utf8.RuneCountInString(text[i-1]) > fullLine &&
			!strings.ContainsAny(here[2], "|=`(){}[]") {
			found = append(found, i+1)
		}
	}
	return found
}

// TestNoOrphans: paragraphs of comments are filled.
func TestNoOrphans(t *testing.T) {
	root, files := tracked(t, ".go", ".c", ".cpp", ".h", ".cu", ".cuh", ".proto")
	for _, file := range files {
		if strings.HasSuffix(file, ".pb.go") {
			continue
		}
		for _, n := range orphans(linesOf(t, root, file)) {
			t.Errorf("%s:%d: a line of one or two words: fill the paragraph", file, n)
		}
	}
}

// TestOrphans holds the check itself.
func TestOrphans(t *testing.T) {
	long := strings.Repeat("word ", 20) + "end"
	for name, c := range map[string]struct {
		text []string
		want int
	}{
		"orphan":        {[]string{"// " + long, "// and two", "// go on"}, 2},
		"last line":     {[]string{"// " + long, "// and two"}, 0},
		"short lines":   {[]string{"// one", "// two", "// three"}, 0},
		"list":          {[]string{"// " + long, "// - two", "// - three"}, 0},
		"end of a part": {[]string{"// " + long, "// and two", "//", "// next"}, 0},
		"code":          {[]string{"// " + long, "// f(x)", "// go on"}, 0},
	} {
		got := orphans(c.text)
		if c.want == 0 && len(got) > 0 || c.want > 0 && (len(got) != 1 || got[0] != c.want) {
			t.Errorf("%s: %v, want %d", name, got, c.want)
		}
	}
}

// TestWide holds the check itself: code and comments are found, literals are not.
func TestWide(t *testing.T) {
	long := strings.Repeat("x", 130)
	words := strings.Repeat("a, ", 50)
	for name, c := range map[string]struct {
		src  string
		want int
	}{
		"comment":    {"package p\n\n// " + words + "\nvar a int\n", 3},
		"code":       {"package p\n\nvar a = f(" + words + "a)\n", 3},
		"literal":    {"package p\n\nvar a = \"" + long + "\"\n", 0},
		"raw string": {"package p\n\nvar a = `x\n" + words + "\n`\n", 0},
		"code block": {"package p\n\n//\t" + words + "\nvar a int\n", 0},
		"narrow":     {"package p\n\nvar a = 1 // short\n", 0},
	} {
		got := wide([]byte(c.src))
		if c.want == 0 && len(got) > 0 || c.want > 0 && (len(got) != 1 || got[0] != c.want) {
			t.Errorf("%s: %v, want %d", name, got, c.want)
		}
	}
}
