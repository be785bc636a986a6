package cli

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

var update = flag.Bool("update", false, "rewrite the flags table of README.md")

const (
	readme     = "../../../README.md"
	tableBegin = "<!-- flags: made by go test ./gateway/internal/cli -run TestFlagsTable -update -->\n"
	tableEnd   = "<!-- end of flags -->\n"
)

// TestFlagsTable holds the table of README.md to the flags that tandem serve really has.
func TestFlagsTable(t *testing.T) {
	data, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok1 := strings.Cut(string(data), tableBegin)
	have, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok1 || !ok2 {
		t.Fatalf("README.md lacks the marks of the flags table")
	}
	want := flagsTable(t)
	if have == want {
		return
	}
	if !*update {
		t.Fatalf("README.md is not up to date; run: go test ./gateway/internal/cli -run TestFlagsTable -update")
	}
	if err := os.WriteFile(readme, []byte(before+tableBegin+want+tableEnd+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

func flagsTable(t *testing.T) string {
	t.Helper()
	var serve ServeCmd
	parser, err := kong.New(&serve)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("| Flag | Default | What |\n|---|---|---|\n")
	for _, f := range parser.Model.Flags {
		if f.Hidden || f.Name == "help" {
			continue
		}
		def := f.Default
		switch {
		case f.IsBool() && def == "true":
			def = "on"
		case f.IsBool():
			def = "off"
		case def == "":
			def = "–"
		}
		name := "--" + f.Name
		if f.Negated || f.Tag.Negatable != "" {
			name = "--[no-]" + f.Name
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", name, def, strings.ReplaceAll(f.Help, "|", "\\|"))
	}
	return b.String()
}

// TestSampleConfig holds deploy/tandem.yaml to the flags: every key in it is one, those commented out too.
func TestSampleConfig(t *testing.T) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	workers := programs(t)
	t.Chdir(root)
	sample := filepath.Join("deploy", "tandem.yaml")
	if code, _, errOut := tandem(t, "", "serve", "--config", sample, "--programs", workers, "--verify-config"); code != 0 {
		t.Errorf("as it is: %s", errOut)
	}
	data, err := os.ReadFile(sample)
	if err != nil {
		t.Fatal(err)
	}
	all := regexp.MustCompile(`(?m)^# ([a-z-]+: )`).ReplaceAllString(string(data), "$1")
	if all == string(data) {
		t.Fatal("no key is commented out")
	}
	path := filepath.Join(t.TempDir(), "all.yaml")
	if err := os.WriteFile(path, []byte(all), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errOut := tandem(t, "", "serve", "--config", path, "--programs", workers, "--verify-config"); code != 0 {
		t.Errorf("with everything on: %s", errOut)
	}
}
