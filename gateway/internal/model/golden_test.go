package model

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/gateway/internal/chattemplate"
)

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
