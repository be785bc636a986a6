package cli

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
	"github.com/tandem-inference/tandem/services/kvtype"
	"github.com/tandem-inference/tandem/services/sampling"
)

var update = flag.Bool("update", false, "rewrite the generated tables in README.md and the specification")

// made is a generated part of a document, between two marks.
type made struct {
	path, begin, end string
	text             func(t *testing.T) string
}

var tables = []made{
	{"README.md", "<!-- flags: made by go test ./gateway/internal/cli -run TestFlagsTable -update -->\n",
		"<!-- end of flags -->\n", flagsTable},
	{"docs/spec/http-api.md", "<!-- defaults: made by go test ./gateway/internal/cli -run TestFlagsTable -update -->\n",
		"<!-- end of defaults -->\n", defaultsTable},
	{"docs/spec/http-api.md", "<!-- sampler: made by go test ./gateway/internal/cli -run TestFlagsTable -update -->\n",
		"<!-- end of sampler -->\n", samplerTable},
}

// TestFlagsTable holds the table of README.md to the flags that tandem serve really has, and those of the specification
// to their defaults and to the declared fields of the sampler.
func TestFlagsTable(t *testing.T) {
	for _, m := range tables {
		t.Run(m.path, func(t *testing.T) {
			file := filepath.Join("..", "..", "..", m.path)
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			before, rest, ok1 := strings.Cut(string(data), m.begin)
			have, after, ok2 := strings.Cut(rest, m.end)
			if !ok1 || !ok2 {
				t.Fatal("lacks the marks of the table")
			}
			want := m.text(t)
			if have == want {
				return
			}
			if !*update {
				t.Fatal("is not up to date; run: go test ./gateway/internal/cli -run TestFlagsTable -update")
			}
			if err := os.WriteFile(file, []byte(before+m.begin+want+m.end+after), 0o644); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestSpecificationNamesFlags: flags in the text of the specification exist.
func TestSpecificationNamesFlags(t *testing.T) {
	data, err := os.ReadFile("../../../docs/spec/http-api.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{"help": true}
	for _, f := range slices.Concat(shown(t, new(ServeCmd)), shown(t, new(GatewayCmd))) {
		known[f.Name] = true
		known["no-"+f.Name] = known["no-"+f.Name] || f.Tag.Negatable != ""
	}
	found := regexp.MustCompile("`--([a-z][a-z-]*[a-z])[`= ]").FindAllStringSubmatch(string(data), -1)
	if len(found) < 50 {
		t.Fatalf("found %d flags only", len(found))
	}
	for _, m := range found {
		if !known[m[1]] {
			t.Errorf("--%s is no flag of tandem serve or tandem gateway", m[1])
		}
	}
}

// shown returns the flags of a command that its help shows.
func shown(t *testing.T, command any) (flags []*kong.Flag) {
	t.Helper()
	parser, err := kong.New(command, kong.Vars(kvtype.Vars()))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range parser.Model.Flags {
		if !f.Hidden && f.Name != "help" {
			flags = append(flags, f)
		}
	}
	return flags
}

// named is a flag as it is written, byDefault its default.
func named(f *kong.Flag) string {
	if f.Negated || f.Tag.Negatable != "" {
		return "--[no-]" + f.Name
	}
	return "--" + f.Name
}

func byDefault(f *kong.Flag) string {
	switch {
	case f.IsBool() && f.Default == "true":
		return "on"
	case f.IsBool():
		return "off"
	case f.Default == "":
		return "–"
	}
	return f.Default
}

// samplerTable has a row for every declared field of the sampler.
func samplerTable(*testing.T) string {
	var b strings.Builder
	b.WriteString("| Field (aliases) | gRPC | Type, range | Default | What |\n|---|---|---|---|---|\n")
	for _, f := range sampling.Fields() {
		names := turn.SamplerNames(&f)
		field := "`" + names[0] + "`"
		if len(names) > 1 {
			field += " (`" + strings.Join(names[1:], "`, `") + "`)"
		}
		kind := "number"
		switch {
		case f.Map():
			kind = "map from token ids to numbers"
		case f.Whole():
			kind = "integer"
		}
		absent := f.Text()
		if f.InCard {
			absent = "the card's, else " + absent
		}
		fmt.Fprintf(&b, "| %s | `%s` | %s, %s | %s | %s |\n", field, f.Name, kind, f.Interval, absent, f.Effect)
	}
	return b.String()
}

func flagsTable(t *testing.T) string {
	var b strings.Builder
	b.WriteString("| Flag | Default | What |\n|---|---|---|\n")
	for _, f := range shown(t, new(ServeCmd)) {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", named(f), byDefault(f), strings.ReplaceAll(f.Help, "|", "\\|"))
	}
	return b.String()
}

// defaultsTable has a row for every flag of serve and gateway, in the order of their help.
func defaultsTable(t *testing.T) string {
	t.Helper()
	serve, gateway := shown(t, new(ServeCmd)), shown(t, new(GatewayCmd))
	of := func(flags []*kong.Flag, name string) string {
		for _, f := range flags {
			if f.Name == name {
				return byDefault(f)
			}
		}
		return "no flag"
	}
	var b strings.Builder
	b.WriteString("| Flag | `tandem serve` | `tandem gateway` |\n|---|---|---|\n")
	seen := map[string]bool{}
	for _, f := range slices.Concat(serve, gateway) {
		if seen[f.Name] {
			continue
		}
		seen[f.Name] = true
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", named(f), of(serve, f.Name), of(gateway, f.Name))
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
