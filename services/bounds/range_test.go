package bounds

import (
	"math"
	"testing"
)

func TestRange(t *testing.T) {
	tiny := float64(math.SmallestNonzeroFloat32)
	for _, tt := range []struct {
		r               Range
		words, interval string
		in, out         []float64
	}{
		{Between(-2, 2), "between -2 and 2", "-2…2", []float64{-2, 0, 2}, []float64{-2.001, 2.001, math.Inf(1)}},
		{Between(1, math.MaxInt32), "between 1 and 2147483647", "1…2147483647",
			[]float64{1, math.MaxInt32}, []float64{0, math.MaxInt32 + 1}},
		{Above(0, 1), "above 0 and at most 1", "above 0 and at most 1", []float64{5e-324, 1}, []float64{0, 1.001}},
		{Positive(4), "above 0 (at least 1.401298464324817e-45) and at most 4", "0…4 without 0",
			[]float64{tiny, 4}, []float64{0, tiny / 2, 4.001}},
		{AtLeast(1), "at least 1", "at least 1", []float64{1, 1e9}, []float64{0, -1}},
		{Any(), "a number", "any", []float64{-1e300, 0, 1e300}, nil},
	} {
		if tt.r.String() != tt.words || tt.r.Interval() != tt.interval {
			t.Errorf("%q, %q; want %q, %q", tt.r, tt.r.Interval(), tt.words, tt.interval)
		}
		for _, x := range tt.in {
			if !tt.r.Has(x) {
				t.Errorf("%v is not in %v", x, tt.r)
			}
		}
		for _, x := range append(tt.out, math.NaN()) {
			if tt.r.Has(x) {
				t.Errorf("%v is in %v", x, tt.r)
			}
		}
	}
}

func TestNumber(t *testing.T) {
	for x, want := range map[float64]string{
		0: "0", -2: "-2", 0.05: "0.05", math.MaxInt32: "2147483647", 5e-324: "5e-324", 1e300: "1e+300",
		1e-6: "0.000001", -1e-20: "-1e-20",
	} {
		if got := Number(x); got != want {
			t.Errorf("%g is written %s, want %s", x, got, want)
		}
	}
}
