// Package tools tests the scripts that make runs.
package tools

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/tests/cluster"
)

// script runs a script of tools/ with programs of the test's own in front of PATH.
func script(t *testing.T, programs map[string]string, env []string, name string, args ...string) (string, error) {
	t.Helper()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for program, text := range programs {
		if err := os.WriteFile(filepath.Join(dir, program), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(filepath.Join(root, "tools", name), args...)
	cmd.Env = append(append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "GO=go", "GOTOOLCHAIN="), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// goOf is a go that says it has a version.
func goOf(version string) map[string]string {
	p := map[string]string{"go": fmt.Sprintf(`case "$1" in version) echo "go version go%s linux/amd64" ;; env) echo auto ;; esac`, version)}
	for _, tool := range []string{"gcc", "g++", "cmake", "ninja", "git"} {
		p[tool] = "exit 0"
	}
	return p
}

func TestSetupComparesGoWithTheWorkspace(t *testing.T) {
	for _, c := range []struct {
		version string
		env     []string
		fails   bool
		says    string
	}{
		{"1.19.8", nil, true, "Go 1.26.0 or newer is needed"},
		{"1.22.3", nil, false, "fetches Go 1.26.0 by itself (GOTOOLCHAIN=auto)"},
		{"1.22.3", []string{"GOTOOLCHAIN=local"}, true, "GOTOOLCHAIN=local keeps it from fetching another"},
		{"1.26.8", nil, false, ""},
		{"1.30", nil, false, ""},
	} {
		out, err := script(t, goOf(c.version), append(c.env, "TANDEM_NO_APT=1"), "setup.sh", "build")
		if (err != nil) != c.fails || !strings.Contains(out, c.says) || c.says == "" && out != "" {
			t.Errorf("Go %s %v: %v, %q, want %q", c.version, c.env, err, out, c.says)
		}
	}
}

// TestNothingIsInstalledUnasked: packages are named before, and not installed with TANDEM_NO_APT.
func TestNothingIsInstalledUnasked(t *testing.T) {
	asRoot := map[string]string{"apt-get": `echo "apt-get $*" >> "$LOG"`, "id": "echo 0"}
	log := filepath.Join(t.TempDir(), "log")
	out, err := script(t, asRoot, []string{"TANDEM_NO_APT=1", "LOG=" + log}, "setup.sh", "apt", "a test", "one", "two")
	if _, statErr := os.Stat(log); err == nil || statErr == nil || !strings.Contains(out, "missing for a test") ||
		!strings.Contains(out, "apt-get install one two") {
		t.Errorf("with TANDEM_NO_APT: %v, %q", err, out)
	}
	out, err = script(t, asRoot, []string{"TANDEM_NO_APT=", "LOG=" + log}, "setup.sh", "apt", "a test", "one", "two")
	calls, _ := os.ReadFile(log)
	if err != nil || !strings.HasPrefix(out, "installing by apt-get, for a test: one two") ||
		!strings.Contains(string(calls), "install -y") {
		t.Errorf("as root: %v, %q, %q", err, out, calls)
	}
	asUser := map[string]string{"apt-get": "exit 1", "id": "echo 1000"}
	if out, err := script(t, asUser, nil, "setup.sh", "apt", "a test", "one"); err == nil ||
		!strings.Contains(out, "sudo apt-get install one") {
		t.Errorf("as another user: %v, %q", err, out)
	}
}

// TestPartsAreCountedAndResumed runs three parts of which the second fails at first.
func TestPartsAreCountedAndResumed(t *testing.T) {
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	tree := t.TempDir()
	if err := os.MkdirAll(filepath.Join(tree, "tools"), 0o755); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "tools", "test.sh"))
	if err != nil {
		t.Fatal(err)
	}
	makefile := "test-a test-c:\n\t@touch build/test/$@.result.json\ntest-b:\n\t@touch build/test/$@.result.json; test -e mended\n"
	for name, data := range map[string]string{"tools/test.sh": string(text), "Makefile": makefile} {
		if err := os.WriteFile(filepath.Join(tree, name), []byte(data), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run := func(env ...string) (string, error) {
		cmd := exec.Command(filepath.Join(tree, "tools", "test.sh"), "a", "b", "c")
		cmd.Env = append(os.Environ(), env...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	exists := func(name string) bool {
		_, err := os.Stat(filepath.Join(tree, "build", "test", name))
		return err == nil
	}
	out, err := run()
	if err == nil || !strings.Contains(out, "3 parts: a b c\nnever ran here") ||
		!strings.Contains(out, "=== 2 of 3: b\n") || strings.Contains(out, "3 of 3") {
		t.Errorf("first run: %v\n%s", err, out)
	}
	if !exists("test-a.result.json") || exists("test-b.result.json") {
		t.Error("what a part that failed had reported is kept, or that of another is lost")
	}
	if err := os.WriteFile(filepath.Join(tree, "mended"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	out, err = run("RESUME=1")
	if err != nil || !strings.Contains(out, "=== 1 of 3: a is done already\n=== 2 of 3: b\n=== b took ") ||
		!strings.Contains(out, "=== 3 of 3: c\n") {
		t.Errorf("second run: %v\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(tree, "build", "test-times", "a"), []byte("85\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err = run()
	if err != nil || !strings.Contains(out, "=== 1 of 3: a, 85 s the last time\n") {
		t.Errorf("third run: %v\n%s", err, out)
	}
}
