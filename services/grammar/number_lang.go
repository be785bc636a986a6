package grammar

import (
	"math/big"
	"strings"
)

// numberSyntax is how numbers with conditions are written: without exponents, -0 and more than maxDigits digits.
const numberSyntax = `^-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,16})?$`

// numberCuts are the intervals of the characters of numbers: "-" is the one at 1, "." at 2, the digits begin at 4.
var numberCuts = []rune{0, '-', '.', '/', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', ':'}

// numberLang writes numbers with conditions that are more than whole bounds, as an automaton over their digits.
func (c *schemaCompiler) numberLang(n *numberShape, path string) string {
	var list []operand
	match := func(not bool, pattern string) {
		d, err := patternLang(pattern, &c.cells)
		if err != nil {
			panic(err) // made here
		}
		list = append(list, operand{d[0].dfa, not})
	}
	match(false, numberSyntax)
	if n.integer {
		match(false, `^[^.]*$`)
	}
	if n.fraction {
		match(false, `\.[0-9]*[1-9]`)
	}
	if n.lo != nil {
		list = append(list, operand{atLeast(n.lo, n.loOpen), false})
	}
	if n.hi != nil {
		// x <= hi is -x >= -hi.
		list = append(list, operand{atMost(n.hi, n.hiOpen), false})
	}
	var err error
	multiples := func(of []*big.Rat, not bool) {
		for _, m := range of {
			d := multiplesOf(m)
			if d == nil {
				err = errLangSize
				continue
			}
			list = append(list, operand{d, not})
		}
	}
	multiples(n.multiple, false)
	multiples(n.notMultiple, true)
	for _, x := range n.except {
		match(true, "^"+spellings(x)+"$")
	}
	var d *dfa
	if err == nil {
		d, err = c.intersect(list, 0, -1)
	}
	if err != nil {
		c.drop(path+".multipleOf", err.Error())
		return c.number(&numberShape{integer: n.integer}, path)
	}
	if d.empty() {
		return ""
	}
	c.spend(len(d.next)/16, path)
	p := &patternWriter{c: c, path: path}
	return c.w.Rule(c.writeLang(d, p.class, path))
}

// decimal returns the digits of a number before and after the point, without its sign, and whether its expansion ends.
func decimal(x *big.Rat) (whole, fraction string, ok bool) {
	x = new(big.Rat).Abs(x)
	prec, exact := x.FloatPrec()
	if !exact || prec > 40 {
		return "", "", false
	}
	whole, fraction, _ = strings.Cut(x.FloatString(prec), ".")
	return whole, strings.TrimRight(fraction, "0"), true
}

// spellings is a pattern of the ways to write a number.
func spellings(x *big.Rat) string {
	whole, fraction, ok := decimal(x)
	if !ok {
		return `[^\x00-\x{10FFFF}]`
	}
	sign := ""
	switch {
	case x.Sign() < 0:
		sign = "-"
	case x.Sign() == 0:
		sign = "-?"
	}
	if fraction == "" {
		return sign + whole + `(\.0*)?`
	}
	return sign + whole + `\.` + fraction + "0*"
}

// states of an automaton that compares a number with a bound, digit by digit.
type comparison struct {
	sign   byte // 0 = nothing read, '-' or '+'
	phase  byte // 'i' digits before the point, 'f' after it
	digits int  // read in this phase
	order  int  // of what was read and the same digits of the bound's magnitude
}

// atLeast is the language of numbers from a bound on, open = above it; of texts that are numbers.
func atLeast(bound *big.Rat, open bool) *dfa { return compared(bound, open, 1) }

// atMost is the language of numbers up to a bound.
func atMost(bound *big.Rat, open bool) *dfa { return compared(bound, open, -1) }

// compared reads the digits of a number beside those of the bound's magnitude. Numbers have no leading zeros, so that
// one with more digits before the point is larger.
func compared(bound *big.Rat, open bool, direction int) *dfa {
	whole, fraction, _ := decimal(bound)
	d := &dfa{cuts: numberCuts}
	made := map[comparison]int32{}
	var states []comparison
	add := func(s comparison) int32 {
		if n, ok := made[s]; ok {
			return n
		}
		made[s] = int32(len(states))
		states = append(states, s)
		return int32(len(states) - 1)
	}
	add(comparison{phase: 'i'})
	for n := 0; n < len(states); n++ {
		s := states[n]
		row := make([]int32, len(d.cuts))
		for k := range row {
			row[k] = -1
		}
		if s.sign == 0 {
			row[1] = add(comparison{sign: '-', phase: 'i'})
		}
		if s.phase == 'i' && s.digits > 0 {
			t := s
			t.phase, t.digits = 'f', 0
			t.order = wholeOrder(s, whole)
			row[2] = add(t)
		}
		for digit := range 10 {
			t := s
			if t.sign == 0 {
				t.sign = '+'
			}
			of := whole
			if s.phase == 'f' {
				of = fraction
			}
			if t.digits < len(of)+1 {
				t.digits++
			}
			if t.order == 0 {
				other := byte('0')
				if s.digits < len(of) {
					other = of[s.digits]
				}
				if s.phase == 'i' && s.digits >= len(of) {
					other = '0' - 1 // one more digit: larger
				}
				switch c := byte('0' + digit); {
				case c > other:
					t.order = 1
				case c < other:
					t.order = -1
				}
			}
			row[4+digit] = add(t)
		}
		d.next = append(d.next, row)
		d.final = append(d.final, s.digits > 0 && meets(s, whole, fraction, bound, open, direction))
	}
	return d.trimmed().minimal()
}

// wholeOrder compares the digits before the point with those of the bound once all of them were read.
func wholeOrder(s comparison, whole string) int {
	switch {
	case s.digits > len(whole):
		return 1
	case s.digits < len(whole):
		return -1
	}
	return s.order
}

// meets reports whether the number that was read is on the right side of the bound.
func meets(s comparison, whole, fraction string, bound *big.Rat, open bool, direction int) bool {
	order := s.order
	if s.phase == 'i' {
		if order = wholeOrder(s, whole); order == 0 && fraction != "" {
			order = -1
		}
	} else if order == 0 && s.digits < len(fraction) {
		order = -1
	}
	// Turns the order of magnitudes into that of numbers. Zero has no sign.
	switch {
	case s.sign == '-' && bound.Sign() < 0:
		order = -order
	case s.sign == '-' && bound.Sign() > 0:
		order = -1
	case s.sign == '-': // the bound is 0
		order = -order
	case bound.Sign() < 0:
		order = 1
	}
	return order == direction || order == 0 && !open
}

// multiplesOf is the language of numbers that are multiples of m; nil when it needs too many states.
func multiplesOf(m *big.Rat) *dfa {
	whole, fraction, ok := decimal(m)
	p, isInt := new(big.Int).SetString(whole+fraction, 10)
	if !ok || !isInt || !p.IsInt64() || p.Int64() > maxLangStates/2 || p.Sign() <= 0 || len(fraction) > 16 {
		return nil
	}
	mod, places := int(p.Int64()), len(fraction)
	// rest of what was read, times 10 for every place after the point that is still missing.
	type state struct {
		phase byte // 's' start, '-', 'i', 'f'
		place int  // digits after the point, places = all that matter
		rest  int
	}
	power := make([]int, places+1)
	power[0] = 1 % mod
	for i := range places {
		power[i+1] = power[i] * 10 % mod
	}
	d := &dfa{cuts: numberCuts}
	made := map[state]int32{}
	var states []state
	add := func(s state) int32 {
		if n, ok := made[s]; ok {
			return n
		}
		made[s] = int32(len(states))
		states = append(states, s)
		return int32(len(states) - 1)
	}
	add(state{phase: 's'})
	for n := 0; n < len(states); n++ {
		if n > maxLangStates {
			return nil
		}
		s := states[n]
		row := make([]int32, len(d.cuts))
		for k := range row {
			row[k] = -1
		}
		if s.phase == 's' {
			row[1] = add(state{phase: '-'})
		}
		if s.phase == 'i' {
			row[2] = add(state{phase: 'f', rest: s.rest})
		}
		for digit := range 10 {
			t := s
			switch {
			case s.phase != 'f':
				t.phase, t.rest = 'i', (s.rest*10+digit)%mod
			case s.place < places:
				t.place, t.rest = s.place+1, (s.rest*10+digit)%mod
			case digit != 0:
				continue // after the last place that a multiple has
			}
			row[4+digit] = add(t)
		}
		d.next = append(d.next, row)
		final := false
		switch s.phase {
		case 'i':
			final = s.rest*power[places]%mod == 0
		case 'f':
			final = s.rest*power[places-s.place]%mod == 0
		}
		d.final = append(d.final, final)
	}
	return d.trimmed().minimal()
}
