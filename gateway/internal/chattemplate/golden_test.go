package chattemplate

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/services/tokenizer"
)

type goldenCase struct {
	Template string
	Output   string
	Error    bool
}

func loadGoldens(t testing.TB) (*Dict, []goldenCase) {
	t.Helper()
	raw, err := os.ReadFile("testdata/goldens.json")
	if err != nil {
		t.Fatal(err)
	}
	var g struct {
		Vars  json.RawMessage
		Cases []goldenCase
	}
	if err := json.Unmarshal(raw, &g); err != nil {
		t.Fatal(err)
	}
	v, err := FromJSON(g.Vars)
	if err != nil {
		t.Fatal(err)
	}
	return v.(*Dict), g.Cases
}

func joinSegments(segs []tokenizer.Segment) string {
	var b strings.Builder
	for _, s := range segs {
		b.WriteString(s.Text)
	}
	return b.String()
}

// TestGoldens compares every construct with the Python implementation.
func TestGoldens(t *testing.T) {
	vars, cases := loadGoldens(t)
	for _, c := range cases {
		tmpl, err := Compile(c.Template)
		var got string
		if err == nil {
			got, err = tmpl.Render(vars)
		}
		if c.Error {
			var te *Error
			if err == nil {
				t.Errorf("%q: no error but %q", c.Template, got)
			} else if !errors.As(err, &te) || te.Line < 1 {
				t.Errorf("%q: error without a line: %v", c.Template, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", c.Template, err)
			continue
		}
		if got != c.Output {
			t.Errorf("%q:\n got %q\nwant %q", c.Template, got, c.Output)
		}
		segs, err := tmpl.RenderSegments(vars)
		if err != nil || joinSegments(segs) != got {
			t.Errorf("%q: segments %v, %v", c.Template, segs, err)
		}
	}
}
