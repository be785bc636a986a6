package bounds

import (
	"math"
	"strconv"
)

// Range is a condition on a number with the words that describe it.
type Range struct {
	least, most float64
	open        bool // least itself is excluded
	words       string
	interval    string
}

// Between is least ≤ x ≤ most.
func Between(least, most float64) Range {
	from, to := Number(least), Number(most)
	return Range{least: least, most: most, words: "between " + from + " and " + to, interval: from + "…" + to}
}

// Above is least < x ≤ most.
func Above(least, most float64) Range {
	words := "above " + Number(least) + " and at most " + Number(most)
	return Range{least: least, most: most, open: true, words: words, interval: words}
}

// AtLeast is least ≤ x.
func AtLeast(least float64) Range {
	words := "at least " + Number(least)
	return Range{least: least, most: math.MaxInt64, words: words, interval: words}
}

// Positive is 0 < x ≤ most for a number that the engine keeps in 32 bits: what rounds to 0 there is no positive number.
func Positive(most float64) Range {
	return Range{
		least: math.SmallestNonzeroFloat32, most: most,
		words:    "above 0 (at least " + Number(math.SmallestNonzeroFloat32) + ") and at most " + Number(most),
		interval: Between(0, most).interval + " without 0",
	}
}

// Any allows every number.
func Any() Range {
	return Range{least: math.Inf(-1), most: math.Inf(1), words: "a number", interval: "any"}
}

// String says in words which numbers are in the range: "between 0 and 2".
func (r Range) String() string { return r.words }

// Interval says it in short, for tables: "0…2".
func (r Range) Interval() string { return r.interval }

// Ends returns the smallest and the largest number of the range; of Above the bound below, which is not in it.
func (r Range) Ends() (least, most float64) { return r.least, r.most }

// Has reports whether x is in the range. NaN is in none.
func (r Range) Has(x float64) bool { return x <= r.most && (x > r.least || (x == r.least && !r.open)) }

// Number writes a number as people do: 2147483647, not 2.147483647e+09. What is beyond whole numbers or tiny keeps its
// exponent.
func Number(x float64) string {
	if a := math.Abs(x); x == 0 || a >= 1e-6 && a < 1<<53 {
		return strconv.FormatFloat(x, 'f', -1, 64)
	}
	return strconv.FormatFloat(x, 'g', -1, 64)
}
