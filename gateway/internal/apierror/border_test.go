package apierror_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestBorder: the shapes of HTTP are known at its border alone. A package reaches this one, directly or through others,
// only if it serves a dialect of HTTP, or builds the whole gateway (gatewaytest/rig does that for tests).
func TestBorder(t *testing.T) {
	const base = "github.com/tandem-inference/tandem/gateway/internal/"
	border := []string{"anthropic", "apierror", "app", "cli", "gatewaytest/rig", "httpapi", "openai", "responses"}
	imports := map[string][]string{} // by package, those of gateway/internal without tests
	err := filepath.WalkDir("..", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		pkg := strings.TrimPrefix(path.Dir(filepath.ToSlash(file)), "../")
		for _, i := range f.Imports {
			if name, _ := strconv.Unquote(i.Path.Value); strings.HasPrefix(name, base) {
				imports[pkg] = append(imports[pkg], strings.TrimPrefix(name, base))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(imports["turn"], "generate") {
		t.Fatalf("the imports were not read: %v", imports)
	}
	reached := map[string]bool{"apierror": true}
	for grown := true; grown; {
		grown = false
		for pkg, list := range imports {
			if !reached[pkg] && slices.ContainsFunc(list, func(i string) bool { return reached[i] }) {
				reached[pkg], grown = true, true
			}
		}
	}
	for pkg := range reached {
		if !slices.Contains(border, pkg) {
			t.Errorf("package %s is below the HTTP border and reaches apierror: use reqerr there", pkg)
		}
	}
	for _, pkg := range border {
		if !reached[pkg] {
			t.Errorf("package %s no longer reaches apierror: take it off the list", pkg)
		}
	}
}
