package model

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/gateway/internal/chattemplate"
)

// published is a conversation as a published template renders it.
type published struct {
	Template, Name, Text string
	Variables            json.RawMessage
}

func publishedGoldens(t *testing.T) []published {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", "published-goldens.json"))
	if err != nil {
		t.Fatal(err)
	}
	var out []published
	if err := json.Unmarshal(raw, &out); err != nil || len(out) < 40 {
		t.Fatalf("%d goldens, %v", len(out), err)
	}
	return out
}

// render renders a golden's variables with a template.
func (p published) render(t *testing.T, source string) string {
	t.Helper()
	tmpl, err := chattemplate.Compile(source)
	if err != nil {
		t.Fatal(err)
	}
	vars, err := chattemplate.FromJSON(p.Variables)
	if err != nil {
		t.Fatal(err)
	}
	text, err := tmpl.Render(vars.(*chattemplate.Dict))
	if err != nil {
		t.Errorf("%s, %s: %v", p.Template, p.Name, err)
	}
	return text
}

// TestBuiltInIsThePublished: the built-in template of Qwen renders what the published one of Qwen3.5 does.
func TestBuiltInIsThePublished(t *testing.T) {
	for _, g := range publishedGoldens(t) {
		if g.Template != "Qwen3.5-4B" {
			continue
		}
		// Qwen3.5 writes True where 3.6 and the built-in one write true.
		want := strings.ReplaceAll(g.Text, "\nTrue\n", "\ntrue\n")
		if d := cmp.Diff(want, g.render(t, qwenTemplate)); d != "" {
			t.Errorf("%s %s: %s", g.Name, g.Variables, d)
		}
	}
}

// TestPublishedTemplates: the project's engine renders the published templates byte for byte like Python's.
func TestPublishedTemplates(t *testing.T) {
	for _, g := range publishedGoldens(t) {
		source, err := os.ReadFile(filepath.Join("..", "..", "..", "build", "templates", g.Template+".jinja"))
		if err != nil {
			t.Skip("the templates are not here: make templates fetches them")
		}
		if d := cmp.Diff(g.Text, g.render(t, string(source))); d != "" {
			t.Errorf("%s, %s: %s", g.Template, g.Name, d)
		}
	}
}

// TestBuiltInGoldens: the project's engine renders the built-in templates byte for byte like Python's.
func TestBuiltInGoldens(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("testdata", "builtin-goldens.json"))
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Family, Name, Text string
		Variables          json.RawMessage
	}
	if err := json.Unmarshal(raw, &cases); err != nil || len(cases) == 0 {
		t.Fatalf("%d cases, %v", len(cases), err)
	}
	sources := map[string]string{"qwen": qwenTemplate, "gemma4": gemmaTemplate, "laguna": lagunaTemplate}
	for _, c := range cases {
		tmpl, err := chattemplate.Compile(sources[c.Family])
		if err != nil {
			t.Fatal(err)
		}
		vars, err := chattemplate.FromJSON(c.Variables)
		if err != nil {
			t.Fatal(err)
		}
		got, err := tmpl.Render(vars.(*chattemplate.Dict))
		if err != nil {
			t.Errorf("%s, %s: %v", c.Family, c.Name, err)
			continue
		}
		if d := cmp.Diff(c.Text, got); d != "" {
			t.Errorf("%s, %s: %s", c.Family, c.Name, d)
		}
	}
}
