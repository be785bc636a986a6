package grammar

import (
	"fmt"
	"math/big"
	"strings"
)

// number writes integers and numbers. With bounds it writes digits only, without exponents.
func (c *schemaCompiler) number(n *numberShape, path string) string {
	integer, lo, hi, loOpen, hiOpen := n.integer, n.lo, n.hi, n.loOpen, n.hiOpen
	digits := func(b *big.Rat) bool { return b == nil || len(new(big.Int).Abs(b.Num()).String()) <= maxDigits }
	if integer {
		if lo != nil {
			lo, loOpen = inward(lo, loOpen, 1), false
		}
		if hi != nil {
			hi, hiOpen = inward(hi, hiOpen, -1), false
		}
	}
	bounded := lo != nil || hi != nil
	// Bounds that no number of so many digits reaches do not matter.
	if lo != nil && lo.Sign() < 0 && !digits(new(big.Rat).SetInt(inward(lo, false, 1).Num())) {
		lo = nil
	}
	if hi != nil && hi.Sign() > 0 && !digits(new(big.Rat).SetInt(inward(hi, false, -1).Num())) {
		hi = nil
	}
	if !n.plain() || lo != nil && !lo.IsInt() || hi != nil && !hi.IsInt() {
		return c.numberLang(&numberShape{integer, n.fraction, lo, hi, loOpen, hiOpen, n.multiple, n.notMultiple, n.except},
			path)
	}
	if lo == nil && hi == nil {
		if integer {
			return c.w.JSON("int")
		}
		if bounded {
			return c.w.Rule(c.w.JSON("int") + " " + anyFraction) // an exponent would exceed them
		}
		return c.w.JSON("number")
	}
	for _, b := range []struct {
		v   *big.Rat
		key string
	}{{lo, "minimum"}, {hi, "maximum"}} {
		if !digits(b.v) {
			c.drop(path+"."+b.key, fmt.Sprintf("has more than %d digits", maxDigits))
			return c.number(&numberShape{integer: integer}, path)
		}
	}
	zero := new(big.Rat)
	var list []string
	// The part from 0 upwards, then the part below, mirrored.
	if hi == nil || hi.Sign() > 0 || hi.Sign() == 0 && !hiOpen {
		from, open := zero, false
		if lo != nil && lo.Sign() >= 0 {
			from, open = lo, loOpen
		}
		list = append(list, magnitudes(from, open, hi, hiOpen, integer)...)
	}
	if lo == nil || lo.Sign() < 0 {
		from, open := zero, true
		if hi != nil && hi.Sign() < 0 {
			from, open = new(big.Rat).Neg(hi), hiOpen
		}
		var to *big.Rat
		if lo != nil {
			to = new(big.Rat).Neg(lo)
		}
		for _, x := range magnitudes(from, open, to, loOpen, integer) {
			list = append(list, `"-" `+x)
		}
	}
	if len(list) == 0 {
		return ""
	}
	return c.w.Rule(strings.Join(list, " | "))
}

// plain reports whether the only conditions are bounds and whole numbers.
func (a *numberShape) plain() bool {
	return !a.fraction && len(a.multiple)+len(a.notMultiple)+len(a.except) == 0
}

// bound reads the stricter of an inclusive and an exclusive bound; sign is 1 for lower ones. The exclusive form may be
// a boolean that makes the inclusive one open, as in older schemas.
func (c *schemaCompiler) bound(s *jsonNode, key, exclusive string, sign int) (v *big.Rat, open bool) {
	read := func(k string, n *jsonNode) *big.Rat {
		r := n.number()
		if r == nil {
			c.fail(s.path+"."+k, "must be a number of reasonable size")
		}
		return r
	}
	if n := s.get(key); n != nil {
		v = read(key, n)
	}
	switch n := s.get(exclusive); {
	case n == nil:
	case n.kind == 'b':
		open = n.text == "true" && v != nil
	default:
		if x := read(exclusive, n); v == nil || x.Cmp(v)*sign >= 0 {
			v, open = x, true
		}
	}
	return v, open
}

// inward is the nearest whole number on the allowed side of a bound.
func inward(v *big.Rat, open bool, sign int64) *big.Rat {
	if v.IsInt() {
		if open {
			return new(big.Rat).Add(v, new(big.Rat).SetInt64(sign))
		}
		return v
	}
	q := new(big.Int).Div(v.Num(), v.Denom()) // rounds down
	if sign > 0 {
		q.Add(q, big.NewInt(1))
	}
	return new(big.Rat).SetInt(q)
}

// fraction of a number: any, or one that is not zero.
const (
	anyFraction     = `("." [0-9]{1,16})?`
	nonzeroFraction = `"." [0-9]{0,15} [1-9]`
)

// magnitudes writes numbers of 0 and more between whole bounds; to nil = without end.
func magnitudes(from *big.Rat, fromOpen bool, to *big.Rat, toOpen bool, integer bool) []string {
	lo := from.Num()
	one := big.NewInt(1)
	if integer {
		if fromOpen {
			lo = new(big.Int).Add(lo, one)
		}
		var hi *big.Int
		if to != nil {
			hi = to.Num()
		}
		return digitsBetween(lo, hi)
	}
	var list []string
	if fromOpen {
		// Just above the bound, then from the next whole number on.
		if to == nil || to.Num().Cmp(lo) > 0 {
			list = append(list, fmt.Sprintf(`"%s" %s`, lo, nonzeroFraction))
		}
		lo = new(big.Int).Add(lo, one)
	}
	if to == nil {
		for _, x := range digitsBetween(lo, nil) {
			list = append(list, "("+x+") "+anyFraction)
		}
		return list
	}
	for _, x := range digitsBetween(lo, new(big.Int).Sub(to.Num(), one)) {
		list = append(list, "("+x+") "+anyFraction)
	}
	if !toOpen && to.Num().Cmp(lo) >= 0 {
		list = append(list, fmt.Sprintf(`"%s"`, to.Num()))
	}
	return list
}

// maxDigits of bounds, and of numbers without an upper bound: enough for ±(2^53-1), which generators of schemas like
// to write.
const maxDigits = 16

// digitsBetween writes the decimal numbers lo..hi, 0 and more, without leading zeros; hi nil = as far as maxDigits go.
func digitsBetween(lo, hi *big.Int) []string {
	if hi == nil {
		hi = new(big.Int).Sub(new(big.Int).Exp(big.NewInt(10), big.NewInt(maxDigits), nil), big.NewInt(1))
	}
	if lo.Cmp(hi) > 0 {
		return nil
	}
	var list []string
	a, z := lo.String(), hi.String()
	for n := len(a); n <= len(z); n++ {
		from, to := "1"+strings.Repeat("0", n-1), strings.Repeat("9", n)
		if n == 1 {
			from = "0"
		}
		if n == len(a) {
			from = a
		}
		if n == len(z) {
			to = z
		}
		list = append(list, sameLength(from, to))
	}
	return list
}

// sameLength writes the numbers between two of the same number of digits.
func sameLength(a, z string) string {
	if a == z {
		return `"` + a + `"`
	}
	same := 0
	for a[same] == z[same] {
		same++
	}
	prefix := ""
	if same > 0 {
		prefix = `"` + a[:same] + `" `
		a, z = a[same:], z[same:]
	}
	n := len(a) - 1
	any := ""
	if n > 0 {
		any = fmt.Sprintf(" [0-9]{%d}", n)
	}
	if n == 0 {
		return prefix + fmt.Sprintf("[%c-%c]", a[0], z[0])
	}
	var list []string
	first, last := a[0], z[0]
	if strings.Trim(a[1:], "0") != "" {
		list = append(list, fmt.Sprintf(`"%c" (%s)`, first, sameLength(a[1:], strings.Repeat("9", n))))
		first++
	}
	tail := ""
	if strings.Trim(z[1:], "9") != "" {
		tail = fmt.Sprintf(`"%c" (%s)`, last, sameLength(strings.Repeat("0", n), z[1:]))
		last--
	}
	if first <= last {
		list = append(list, fmt.Sprintf("[%c-%c]%s", first, last, any))
	}
	if tail != "" {
		list = append(list, tail)
	}
	return prefix + "(" + strings.Join(list, " | ") + ")"
}
