package modelcard

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const least = `{"name":"M","source":"https://example.org/m","verified_at":"2026-01-02","max_tokens":100`

func TestParse(t *testing.T) {
	c, warnings, err := Parse([]byte(least +
		`,"hard_limit_reply_budget":256,"sampling":{"top_k":3},"reasoning_effort_tiers":{"x-high":7}}`))
	if err != nil || len(warnings) != 0 {
		t.Fatal(err, warnings)
	}
	if c.Name != "M" || c.MaxTokens != 100 || c.HardLimitReplyBudget != 256 || *c.Sampling.TopK != 3 ||
		c.Tiers != [5]int{3: 7} {
		t.Errorf("card %+v", c)
	}
	tests := []struct{ name, in, fatal, warning string }{
		{"no JSON", `{`, "not a JSON object", ""},
		{"null", `null`, "not a JSON object", ""},
		{"missing", `{"name":"M","source":"https://x","verified_at":"2026-01-02"}`, "max_tokens: is required", ""},
		{"required wrong", strings.Replace(least, "100", "0", 1) + "}", "max_tokens: must be an integer of at least 1", ""},
		{"fraction", strings.Replace(least, "100", "1.5", 1) + "}", "max_tokens: must be an integer", ""},
		{"date", strings.Replace(least, "2026-01-02", "yesterday", 1) + "}", "verified_at: must be a date", ""},
		{"source", strings.Replace(least, "https://example.org/m", "here", 1) + "}", "source: \"here\" is no URI", ""},
		{"unknown key", least + `,"colour":"red"}`, "", "colour: is no key of a model card"},
		{"reply too small", least + `,"hard_limit_reply_budget":255}`, "",
			"hard_limit_reply_budget: must be an integer of at least 256"},
		{"sampling unknown", least + `,"sampling":{"heat":1}}`, "", "sampling: "},
		{"sampling range", least + `,"sampling":{"temperature":3}}`, "", "sampling: temperature: 3 is not in 0…2"},
		{"sampling tiny", least + `,"sampling":{"top_p":1e-50}}`, "", "sampling: top_p: 1e-50 is not in 0…1 without 0"},
		{"sampling huge", least + `,"sampling":{"top_k":1099511627776}}`, "",
			"sampling: top_k: 1099511627776 is not in -2147483648…2147483647"},
		{"sampling fraction", least + `,"sampling":{"top_k":1.5}}`, "", "sampling: top_k: must be an integer"},
		{"sampling text", least + `,"sampling":{"min_p":"0"}}`, "", "sampling: min_p: must be a number"},
		{"sampling of requests only", least + `,"sampling":{"penalty_window":9}}`, "",
			"sampling: penalty_window: is no sampler field of a model card"},
		{"sampling no object", least + `,"sampling":[]}`, "", "sampling: must be an object"},
		{"sampling null", least + `,"sampling":null}`, "", "sampling: must be an object"},
		{"tier unknown", least + `,"reasoning_effort_tiers":{"xhigh":1}}`, "", "reasoning_effort_tiers: xhigh: is no effort"},
		{"tier small", least + `,"reasoning_effort_tiers":{"low":0}}`, "", "reasoning_effort_tiers: low: must be"},
		{"optional null", least + `,"notes":null}`, "", "notes: must be a string"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, warnings, err := Parse([]byte(tt.in))
			if (err != nil) != (tt.fatal != "") || (err == nil) != (c != nil) {
				t.Fatalf("card %v, error %v", c, err)
			}
			if err != nil && !strings.Contains(err.Error(), tt.fatal) {
				t.Errorf("error %q, want %q", err, tt.fatal)
			}
			if tt.warning != "" && (len(warnings) != 1 || !strings.Contains(warnings[0].Error(), tt.warning)) {
				t.Errorf("warnings %v, want %q", warnings, tt.warning)
			}
		})
	}
}

func TestShippedCardsAreClean(t *testing.T) {
	entries, err := shipped.ReadDir("cards")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		data, err := shipped.ReadFile("cards/" + e.Name())
		if err != nil {
			t.Fatal(err)
		}
		c, warnings, err := Parse(data)
		if err != nil || len(warnings) > 0 {
			t.Errorf("%s: %v %v", e.Name(), err, warnings)
		} else if FileName(c.Name) != e.Name() {
			t.Errorf("%s: its model is looked up as %s", e.Name(), FileName(c.Name))
		}
	}
}

func TestFileName(t *testing.T) {
	for in, want := range map[string]string{"Qwen3.6 27B": "qwen3.6-27b.json", "A_b\tC/d(é)": "a-b-cd.json", "": ".json"} {
		if got := FileName(in); got != want {
			t.Errorf("FileName(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestLookup(t *testing.T) {
	dir1, dir2 := t.TempDir(), t.TempDir()
	write := func(dir, name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(dir2, "qwen3.6-27b.json", least+"}")
	f, err := Lookup("Qwen3.6 27B", []string{dir1, dir2})
	if err != nil || f == nil || f.Name != "M" || f.Path != filepath.Join(dir2, "qwen3.6-27b.json") {
		t.Fatalf("found %+v, %v", f, err)
	}
	write(dir1, "qwen3.6-27b.json", "{}")
	if f, err = Lookup("Qwen3.6 27B", []string{dir1, dir2}); err == nil || f != nil ||
		!strings.Contains(err.Error(), dir1) {
		t.Errorf("a broken card gave %v, %v", f, err)
	}
	if f, err = Lookup("Qwen3.6 27B", nil); err != nil || f == nil || f.Path != "built-in/qwen3.6-27b.json" {
		t.Errorf("shipped card: %v, %v", f, err)
	}
	for _, name := range []string{"nobody knows it", "", "é"} {
		if f, err = Lookup(name, []string{dir1}); f != nil || err != nil {
			t.Errorf("%q: %v, %v", name, f, err)
		}
	}
	if _, err := Read(filepath.Join(dir1, "none.json")); err == nil {
		t.Error("a missing file was read")
	}
	want := []string{"flag", "env", filepath.Join("opt", "bin", "share", "model_cards"),
		filepath.Join("opt", "share", "model_cards"), filepath.Join("share", "model_cards")}
	if d := cmp.Diff(want, Dirs("flag", "env", filepath.Join("opt", "bin", "tandem"))); d != "" {
		t.Error(d)
	}
}
