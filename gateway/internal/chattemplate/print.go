package chattemplate

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode"
)

// toStr is Python's str(): what printing a value gives. Text keeps its marks.
func (in *interp) toStr(v Value) (Str, error) {
	switch x := v.(type) {
	case Str:
		return x, nil
	case undefined:
		return Str{}, nil
	}
	p := printer{in: in}
	if err := p.repr(v, 0); err != nil {
		return Str{}, err
	}
	return like(string(p.b), p.user), nil
}

// printer writes Python's repr() of values.
type printer struct {
	in   *interp
	b    []byte
	user bool // some text that was written is a user's
}

func (p *printer) repr(v Value, depth int) error {
	if depth > maxValueDepth {
		return errTooDeep
	}
	if err := p.in.charge(1, len(p.b)); err != nil {
		return err
	}
	switch x := v.(type) {
	case nil:
		p.b = append(p.b, "None"...)
	case bool:
		if x {
			p.b = append(p.b, "True"...)
		} else {
			p.b = append(p.b, "False"...)
		}
	case int64:
		p.b = strconv.AppendInt(p.b, x, 10)
	case *big.Int:
		p.b = x.Append(p.b, 10)
	case float64:
		p.b = append(p.b, pyFloat(x)...)
	case Str:
		if err := p.in.charge(len(x.s)/64, 0); err != nil {
			return err
		}
		p.user = p.user || x.tainted()
		p.b = append(p.b, pyQuote(x.s)...)
	case undefined:
		p.b = append(p.b, "Undefined"...)
	case *List:
		return p.list(x, depth)
	case *Dict:
		return p.dict(x, depth)
	case *namespace:
		p.b = append(p.b, "<Namespace "...)
		if err := p.dict(x.d, depth); err != nil {
			return err
		}
		p.b = append(p.b, '>')
	default:
		p.b = append(p.b, "<"+typeName(v)+">"...)
	}
	return nil
}

func (p *printer) list(l *List, depth int) error {
	open, end := byte('['), byte(']')
	if l.tuple {
		open, end = '(', ')'
	}
	p.b = append(p.b, open)
	for i, v := range l.items {
		if i > 0 {
			p.b = append(p.b, ", "...)
		}
		if err := p.repr(v, depth+1); err != nil {
			return err
		}
	}
	if l.tuple && len(l.items) == 1 {
		p.b = append(p.b, ',')
	}
	p.b = append(p.b, end)
	return nil
}

func (p *printer) dict(d *Dict, depth int) error {
	p.b = append(p.b, '{')
	for i, k := range d.keys {
		if i > 0 {
			p.b = append(p.b, ", "...)
		}
		if err := p.repr(k, depth+1); err != nil {
			return err
		}
		p.b = append(p.b, ": "...)
		if err := p.repr(d.vals[i], depth+1); err != nil {
			return err
		}
	}
	p.b = append(p.b, '}')
	return nil
}

// pyFloat is Python's repr of a float: the shortest digits that read back, an exponent from 1e16 and below 1e-4.
func pyFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64) // exponent of at least two digits in both languages
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// pyQuote is Python's repr of a string.
func pyQuote(s string) string {
	quote := '\''
	if strings.ContainsRune(s, '\'') && !strings.ContainsRune(s, '"') {
		quote = '"'
	}
	var b strings.Builder
	b.WriteRune(quote)
	const hex = "0123456789abcdef"
	for _, r := range s {
		switch {
		case r == quote || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			digits, letter := 2, byte('x')
			if r > 0xffff {
				digits, letter = 8, 'U'
			} else if r > 0xff {
				digits, letter = 4, 'u'
			}
			b.WriteByte('\\')
			b.WriteByte(letter)
			for i := digits - 1; i >= 0; i-- {
				b.WriteByte(hex[r>>(4*i)&15])
			}
		}
	}
	b.WriteRune(quote)
	return b.String()
}
