package chattemplate

import (
	"errors"
	"testing"
)

// FuzzTemplate feeds foreign templates to the engine: no panic, no hang, errors with a line, segments that join to
// the text.
func FuzzTemplate(f *testing.F) {
	vars, cases := loadGoldens(f)
	for _, c := range cases {
		f.Add(c.Template)
	}
	f.Fuzz(func(t *testing.T, src string) {
		tmpl, err := Compile(src)
		if err != nil {
			var te *Error
			if !errors.As(err, &te) || te.Line < 1 {
				t.Fatalf("error without line: %v", err)
			}
			return
		}
		tmpl.Limits = Limits{OutputBytes: 1 << 20, Steps: 100_000, Depth: 20}
		text, err := tmpl.Render(vars)
		if err != nil {
			var te *Error
			if !errors.As(err, &te) || te.Line < 1 {
				t.Fatalf("error without line: %v", err)
			}
			return
		}
		segs, err := tmpl.RenderSegments(vars)
		if err != nil || joinSegments(segs) != text {
			t.Fatalf("segments: %v, %v", segs, err)
		}
	})
}

// FuzzFromJSON checks that what FromJSON accepts survives ToJSON.
func FuzzFromJSON(f *testing.F) {
	for _, s := range []string{`{"b":[1,2.5,"x"],"a":{}}`, `"\ud83d\ude00"`, `1e400`, `-0`, `[[[]]]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		v, err := FromJSON(raw)
		if err != nil {
			return
		}
		out, err := ToJSON(v)
		if err != nil {
			t.Fatal(err)
		}
		again, err := FromJSON([]byte(out))
		if err != nil {
			return // infinities are printed as the reference does, which is not JSON
		}
		if same, err := newInterp(&Template{}).equal(v, again); !same && err == nil {
			t.Fatalf("%s became %s", raw, out)
		}
	})
}

func BenchmarkRender(b *testing.B) {
	tmpl := qwenLike(b)
	msg := `{"role": "user", "content": "What is a tree of drafts?"}, {"role": "assistant", "content": "It is a tree of tokens."}, `
	raw := `{"add_generation_prompt": true, "messages": [`
	for range 20 {
		raw += msg
	}
	vars := fromJSON(b, raw+`{"role": "user", "content": "Thanks."}]}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := tmpl.RenderSegments(vars); err != nil {
			b.Fatal(err)
		}
	}
}
