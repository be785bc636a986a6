package compress

import (
	"math"
	"strings"
	"testing"
)

func TestCurve(t *testing.T) {
	c, err := ParseCurve("32k:0.10, 64K:0.05,131072:0.02")
	if err != nil {
		t.Fatal(err)
	}
	for tokens, want := range map[int]float64{1: .1, 32768: .1, 65536: .05, 131072: .02, 1 << 20: .02,
		46341: .075, 92682: .035} {
		if got := c.At(tokens); math.Abs(got-want) > 1e-5 {
			t.Errorf("At(%d) = %v, want %v", tokens, got, want)
		}
	}
	if c, err := ParseCurve(" "); c != nil || err != nil {
		t.Errorf("empty: %v, %v", c, err)
	}
	for text, want := range map[string]string{
		"32k": "LENGTH:RATIO", "x:0.1": "no length", "0:0.1": "no length", "-1k:0.1": "no length",
		"9999999k:0.1": "no length", "1k:0": "no ratio", "1k:1.1": "no ratio", "1k:nan": "no ratio",
		"2k:0.1,1k:0.1": "must rise", "1k:0.1,1k:0.2": "must rise", "1k:0.1,": "LENGTH:RATIO",
	} {
		if _, err := ParseCurve(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseCurve(%q) = %v, want %q", text, err, want)
		}
	}
}
