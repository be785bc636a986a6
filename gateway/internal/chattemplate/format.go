package chattemplate

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxWidth bounds the width and precision of a formatted value.
const maxWidth = 1 << 16

// strFormat is str.format: fields in braces, numbered or named, with attributes and items, a conversion and
// a specification.
func (in *interp) strFormat(s Str, a callArgs) (Str, error) {
	next := 0
	return in.formatFields(s, &next, func(name string) (Value, error) {
		if n, err := strconv.Atoi(name); err == nil {
			if n < 0 || n >= len(a.pos) {
				return nil, fmt.Errorf("there is no argument %d for the format", n)
			}
			return a.pos[n], nil
		}
		for i, k := range a.names {
			if k == name {
				return a.named[i], nil
			}
		}
		return nil, fmt.Errorf("there is no argument %q for the format", name)
	}, 2)
}

// formatFields replaces the fields of s; next is the number of the next field without a name, -1 once fields
// were numbered.
func (in *interp) formatFields(s Str, next *int, arg func(name string) (Value, error), depth int) (Str, error) {
	if depth == 0 {
		return Str{}, errors.New("fields are nested too deeply")
	}
	var b strBuilder
	for pos := 0; pos < len(s.s); {
		at := strings.IndexAny(s.s[pos:], "{}")
		if at < 0 {
			b.add(s.slice(pos, len(s.s)))
			break
		}
		b.add(s.slice(pos, pos+at))
		pos += at
		if pos+1 < len(s.s) && s.s[pos+1] == s.s[pos] {
			b.add(s.slice(pos, pos+1))
			pos += 2
			continue
		}
		if s.s[pos] == '}' {
			return Str{}, errors.New("single '}' in the format")
		}
		end, open := pos+1, 1
		for ; end < len(s.s); end++ {
			if s.s[end] == '{' {
				open++
			} else if s.s[end] == '}' {
				if open--; open == 0 {
					break
				}
			}
		}
		if open > 0 {
			return Str{}, errors.New("single '{' in the format")
		}
		out, err := in.formatField(s.slice(pos+1, end), next, arg, depth)
		if err != nil {
			return Str{}, err
		}
		b.add(out)
		if err := in.charge(1+len(out.s)/64, b.size()); err != nil {
			return Str{}, err
		}
		pos = end + 1
	}
	return b.str(), nil
}

// formatField gives the text of one field, what stands between its braces.
func (in *interp) formatField(field Str, next *int, arg func(name string) (Value, error), depth int) (Str, error) {
	name, spec, conversion := field.s, Str{}, byte(0)
	if i := strings.IndexAny(name, "!:"); i >= 0 {
		rest := name[i:]
		name = name[:i]
		if rest[0] == '!' {
			if len(rest) < 2 || len(rest) > 2 && rest[2] != ':' {
				return Str{}, errors.New("expected ':' after the conversion of a field")
			}
			conversion, rest = rest[1], rest[2:]
		}
		if rest != "" {
			var err error
			if spec, err = in.formatFields(field.slice(len(field.s)-len(rest)+1, len(field.s)), next, arg, depth-1); err != nil {
				return Str{}, err
			}
		}
	}
	first, rest := name, ""
	if i := strings.IndexAny(name, ".["); i >= 0 {
		first, rest = name[:i], name[i:]
	}
	_, err := strconv.Atoi(first)
	switch numbered := err == nil; {
	case first == "" && *next < 0, numbered && *next > 0:
		return Str{}, errors.New("a format cannot have both numbered fields and fields without a number")
	case first == "":
		first = strconv.Itoa(*next)
		*next++
	case numbered:
		*next = -1
	}
	v, err := arg(first)
	if err != nil {
		return Str{}, err
	}
	if v, err = in.fieldPath(v, rest); err != nil {
		return Str{}, err
	}
	switch conversion {
	case 0:
	case 's', 'r', 'a':
		if v, err = in.convertField(v, conversion); err != nil {
			return Str{}, err
		}
	default:
		return Str{}, fmt.Errorf("unknown conversion %q", conversion)
	}
	return in.formatValue(v, spec)
}

// fieldPath follows .name and [key] after the name of a field.
func (in *interp) fieldPath(v Value, path string) (Value, error) {
	for path != "" {
		var key string
		var err error
		if path[0] == '.' {
			end := strings.IndexAny(path[1:], ".[")
			if end < 0 {
				end = len(path) - 1
			}
			key, path = path[1:1+end], path[1+end:]
			v, err = in.attr(v, key)
		} else {
			end := strings.IndexByte(path, ']')
			if end < 0 || path[0] != '[' {
				return nil, errors.New("missing ']' in a field of the format")
			}
			key, path = path[1:end], path[end+1:]
			if n, bad := strconv.ParseInt(key, 10, 64); bad == nil {
				v, err = in.item(v, n)
			} else {
				v, err = in.item(v, Trusted(key))
			}
		}
		if err != nil {
			return nil, err
		}
		if key == "" {
			return nil, errors.New("empty attribute in a field of the format")
		}
		if u, ok := v.(undefined); ok {
			return nil, u.err()
		}
	}
	return v, nil
}

// convertField is !s, !r and !a.
func (in *interp) convertField(v Value, c byte) (Value, error) {
	if c == 's' {
		return in.toStr(v)
	}
	p := printer{in: in}
	if err := p.repr(v, 0); err != nil {
		return nil, err
	}
	text := string(p.b)
	if c == 'a' {
		var b strings.Builder
		for _, r := range text {
			switch {
			case r < 0x80:
				b.WriteRune(r)
			case r < 0x100:
				fmt.Fprintf(&b, `\x%02x`, r)
			case r < 0x10000:
				fmt.Fprintf(&b, `\u%04x`, r)
			default:
				fmt.Fprintf(&b, `\U%08x`, r)
			}
		}
		text = b.String()
	}
	return like(text, p.user), nil
}

// formatSpec is [[fill]align][sign][#][0][width][grouping][.precision][type].
type formatSpec struct {
	fill      Str
	align     byte // 0 = the type's own
	sign      byte // 0 = '-'
	alternate bool
	width     int
	group     byte // ',' or '_', 0 = none
	precision int  // -1 = none
	kind      byte // 0 = the type's own
}

func parseSpec(spec Str) (f formatSpec, err error) {
	f = formatSpec{fill: Trusted(" "), precision: -1}
	s := spec.s
	isAlign := func(c byte) bool { return strings.IndexByte("<>^=", c) >= 0 }
	if _, w := utf8.DecodeRuneInString(s); len(s) > w && w > 0 && isAlign(s[w]) {
		f.fill, f.align = spec.slice(0, w), s[w]
		s = s[w+1:]
	} else if s != "" && isAlign(s[0]) {
		f.align = s[0]
		s = s[1:]
	}
	take := func(set string) byte {
		if s != "" && strings.IndexByte(set, s[0]) >= 0 {
			c := s[0]
			s = s[1:]
			return c
		}
		return 0
	}
	number := func() (int, error) {
		n := 0
		for s != "" && s[0] >= '0' && s[0] <= '9' {
			if n = 10*n + int(s[0]-'0'); n > maxWidth {
				return 0, fmt.Errorf("width or precision of more than %d", maxWidth)
			}
			s = s[1:]
		}
		return n, nil
	}
	f.sign = take("+- ")
	f.alternate = take("#") != 0
	if take("0") != 0 && f.align == 0 {
		f.fill, f.align = Trusted("0"), '='
	}
	if f.width, err = number(); err != nil {
		return f, err
	}
	f.group = take(",_")
	if take(".") != 0 {
		if s == "" || s[0] < '0' || s[0] > '9' {
			return f, errors.New("format specification lacks the precision")
		}
		if f.precision, err = number(); err != nil {
			return f, err
		}
	}
	f.kind = take("bcdeEfFgGnosxX%")
	if s != "" {
		return f, fmt.Errorf("invalid format specification %q", spec.s)
	}
	return f, nil
}

// formatValue is Python's format().
func (in *interp) formatValue(v Value, spec Str) (Str, error) {
	if spec.s == "" {
		return in.toStr(v)
	}
	f, err := parseSpec(spec)
	if err != nil {
		return Str{}, err
	}
	if x, ok := v.(bool); ok && f.kind != 's' {
		n, _, _, _ := number(x)
		v = n
	}
	switch x := v.(type) {
	case Str:
		if f.kind != 0 && f.kind != 's' || f.sign != 0 || f.group != 0 || f.align == '=' && f.fill.s != "0" {
			return Str{}, fmt.Errorf("invalid format specification %q for str", spec.s)
		}
		if f.precision >= 0 && f.precision < x.runeLen() {
			x = x.slice(0, x.byteAt(f.precision))
		}
		if f.align == '=' {
			f.align = '<'
		}
		return in.pad(x, f, '<')
	case int64, *big.Int:
		n, ok := x.(*big.Int)
		if !ok {
			n = big.NewInt(x.(int64))
		}
		if f.kind == 0 || strings.IndexByte("bcdnoxX", f.kind) >= 0 {
			return in.formatInt(n, f)
		}
		fl, _ := new(big.Float).SetInt(n).Float64()
		return in.formatFloat(fl, f)
	case float64:
		return in.formatFloat(x, f)
	}
	return Str{}, fmt.Errorf("a format specification cannot be applied to '%s'", typeName(v))
}

func (in *interp) formatInt(n *big.Int, f formatSpec) (Str, error) {
	if f.precision >= 0 {
		return Str{}, errors.New("an integer has no precision")
	}
	base, prefix := 10, ""
	switch f.kind {
	case 'b':
		base, prefix = 2, "0b"
	case 'o':
		base, prefix = 8, "0o"
	case 'x', 'X':
		base, prefix = 16, "0"+string(f.kind)
	case 'c':
		if !n.IsInt64() || n.Int64() < 0 || n.Int64() > utf8.MaxRune {
			return Str{}, errors.New("no character has this number")
		}
		return in.pad(Trusted(string(rune(n.Int64()))), f, '<')
	}
	digits := new(big.Int).Abs(n).Text(base)
	if f.kind == 'X' {
		digits = strings.ToUpper(digits)
	}
	if !f.alternate {
		prefix = ""
	}
	size := 3
	if base != 10 {
		size = 4
	}
	return in.padNumber(n.Sign() < 0, prefix, digits, "", size, f)
}

func (in *interp) formatFloat(x float64, f formatSpec) (Str, error) {
	kind, precision := f.kind, f.precision
	if kind == 's' || kind == 'b' || kind == 'c' || kind == 'd' || kind == 'o' || kind == 'x' || kind == 'X' {
		return Str{}, fmt.Errorf("unknown format code %q for float", kind)
	}
	text := floatText(math.Abs(x), kind, precision, f.alternate)
	digits, rest := text, ""
	if i := strings.IndexAny(text, ".e%E"); i >= 0 {
		digits, rest = text[:i], text[i:]
	}
	return in.padNumber(math.Signbit(x) && !math.IsNaN(x), "", digits, rest, 3, f)
}

// floatText writes a float that is not negative by the codes e, f, g, % and n, 0 for the default.
func floatText(x float64, kind byte, precision int, alternate bool) string {
	upper := kind == 'E' || kind == 'F' || kind == 'G'
	low := kind
	if upper {
		low = kind + 'a' - 'A'
	}
	suffix := ""
	if low == '%' {
		x, low, suffix = x*100, 'f', "%"
	}
	if math.IsInf(x, 0) || math.IsNaN(x) {
		text := "inf"
		if math.IsNaN(x) {
			text = "nan"
		}
		if upper {
			text = strings.ToUpper(text)
		}
		return text + suffix
	}
	var text string
	switch low {
	case 'e', 'f':
		if precision < 0 {
			precision = 6
		}
		text = strconv.FormatFloat(x, low, precision, 64)
	default:
		if low == 0 && precision < 0 {
			text = pyFloat(x)
			break
		}
		if precision < 0 {
			precision = 6
		}
		text = general(x, max(precision, 1), low == 0, alternate)
	}
	if upper {
		text = strings.ToUpper(text)
	}
	return text + suffix
}

// general is the code g with p significant digits; plain asks for a ".0" and an earlier exponent, as without a code.
func general(x float64, p int, plain, alternate bool) string {
	e := strconv.FormatFloat(x, 'e', p-1, 64)
	exp, _ := strconv.Atoi(e[strings.IndexByte(e, 'e')+1:])
	limit := p
	if plain {
		limit = p - 1
	}
	trim := func(s string) string {
		if alternate || !strings.Contains(s, ".") {
			return s
		}
		return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
	}
	if exp < -4 || exp >= limit {
		i := strings.IndexByte(e, 'e')
		return trim(e[:i]) + e[i:]
	}
	out := trim(strconv.FormatFloat(x, 'f', max(p-1-exp, 0), 64))
	if plain && !strings.Contains(out, ".") {
		out += ".0"
	}
	return out
}

// padNumber puts sign, prefix, digits in groups and the rest of a number together.
func (in *interp) padNumber(negative bool, prefix, digits, rest string, size int, f formatSpec) (Str, error) {
	sign := ""
	switch {
	case negative:
		sign = "-"
	case f.sign == '+' || f.sign == ' ':
		sign = string(f.sign)
	}
	if f.fill.s == "0" && f.align == '=' {
		// Zeros count as digits, for the groups too.
		for len(sign)+len(prefix)+len(grouped(digits, f.group, size))+len(rest) < f.width {
			digits = "0" + digits
			if err := in.charge(1, 0); err != nil {
				return Str{}, err
			}
		}
		return Trusted(sign + prefix + grouped(digits, f.group, size) + rest), nil
	}
	digits = grouped(digits, f.group, size)
	if f.align == '=' {
		body := prefix + digits + rest
		f.align = '>'
		f.width -= len(sign)
		out, err := in.pad(Trusted(body), f, '>')
		return Join(Trusted(sign), out), err
	}
	return in.pad(Trusted(sign+prefix+digits+rest), f, '>')
}

// grouped puts a separator between groups of size digits.
func grouped(digits string, sep byte, size int) string {
	if sep == 0 {
		return digits
	}
	var b strings.Builder
	for i := range len(digits) {
		if i > 0 && (len(digits)-i)%size == 0 {
			b.WriteByte(sep)
		}
		b.WriteByte(digits[i])
	}
	return b.String()
}

// pad fills a text up to the width.
func (in *interp) pad(s Str, f formatSpec, align byte) (Str, error) {
	n := f.width - s.runeLen()
	if n <= 0 {
		return s, nil
	}
	if f.align != 0 {
		align = f.align
	}
	if err := in.charge(1+n/64, n*len(f.fill.s)); err != nil {
		return Str{}, err
	}
	left := 0
	switch align {
	case '>', '=':
		left = n
	case '^':
		left = n / 2
	}
	fill := func(n int) Str {
		var b strBuilder
		for range n {
			b.add(f.fill)
		}
		return b.str()
	}
	return Join(fill(left), s, fill(n-left)), nil
}

// percent is the % operator of strings: conversions %s, %r, %d, %f and their like, positional or %(name)s.
func (in *interp) percent(s Str, v Value) (Value, error) {
	args, named := []Value{v}, (*Dict)(nil)
	switch x := v.(type) {
	case *List:
		if x.tuple {
			args = x.items
		}
	case *Dict:
		named = x
	}
	used := 0
	var b strBuilder
	for pos := 0; pos < len(s.s); {
		at := strings.IndexByte(s.s[pos:], '%')
		if at < 0 {
			b.add(s.slice(pos, len(s.s)))
			break
		}
		b.add(s.slice(pos, pos+at))
		pos += at + 1
		if pos < len(s.s) && s.s[pos] == '%' {
			b.add(s.slice(pos, pos+1))
			pos++
			continue
		}
		var arg Value
		taken := false
		if pos < len(s.s) && s.s[pos] == '(' {
			end := strings.IndexByte(s.s[pos:], ')')
			if end < 0 || named == nil {
				return nil, errors.New("format requires a mapping")
			}
			key := s.s[pos+1 : pos+end]
			x, ok := named.Get(key)
			if !ok {
				return nil, fmt.Errorf("there is no value %q for the format", key)
			}
			arg, taken, pos, used = x, true, pos+end+1, len(args)
		}
		f, zero, length, err := percentSpec(s.s[pos:])
		if err != nil {
			return nil, err
		}
		pos += length
		if pos == len(s.s) {
			return nil, errors.New("incomplete format")
		}
		kind := s.s[pos]
		pos++
		if !taken {
			if used >= len(args) {
				return nil, errors.New("not enough arguments for the format")
			}
			arg = args[used]
			used++
		}
		out, err := in.percentValue(arg, kind, f, zero)
		if err != nil {
			return nil, err
		}
		b.add(out)
		if err := in.charge(1+len(out.s)/64, b.size()); err != nil {
			return nil, err
		}
	}
	if used < len(args) && named == nil {
		return nil, errors.New("not all arguments were converted by the format")
	}
	return b.str(), nil
}

// percentSpec reads flags, width and precision at the start of s, length bytes of it. zero: numbers are filled with
// zeros.
func percentSpec(s string) (f formatSpec, zero bool, length int, err error) {
	f = formatSpec{fill: Trusted(" "), align: '>', precision: -1}
	pos := 0
flags:
	for ; pos < len(s); pos++ {
		switch s[pos] {
		case '-':
			f.align = '<'
		case '+':
			f.sign = '+'
		case ' ':
			if f.sign == 0 {
				f.sign = ' '
			}
		case '0':
			zero = true
		case '#':
			f.alternate = true
		default:
			break flags
		}
	}
	n := &f.width
	for ; pos < len(s) && (s[pos] >= '0' && s[pos] <= '9' || s[pos] == '.' && f.precision < 0); pos++ {
		if s[pos] == '.' {
			n, f.precision = &f.precision, 0
			continue
		}
		if *n = 10**n + int(s[pos]-'0'); *n > maxWidth {
			return f, zero, pos, fmt.Errorf("width or precision of more than %d", maxWidth)
		}
	}
	return f, zero, pos, nil
}

func (in *interp) percentValue(v Value, kind byte, f formatSpec, zero bool) (Str, error) {
	switch kind {
	case 's', 'r', 'a':
		text, err := in.convertField(v, kind)
		if err != nil {
			return Str{}, err
		}
		s := text.(Str)
		if f.precision >= 0 && f.precision < s.runeLen() {
			s = s.slice(0, s.byteAt(f.precision))
		}
		return in.pad(s, f, '>')
	}
	if zero && f.align != '<' {
		f.fill, f.align = Trusted("0"), '='
	}
	i, x, isFloat, ok := number(v)
	n, isBig := v.(*big.Int)
	if !ok && !isBig {
		return Str{}, fmt.Errorf("%%%c format: a number is required, not %s", kind, typeName(v))
	}
	switch kind {
	case 'd', 'i', 'u', 'x', 'X', 'o':
		if !isBig {
			n = big.NewInt(i)
		}
		if isFloat {
			if kind == 'x' || kind == 'X' || kind == 'o' {
				return Str{}, fmt.Errorf("%%%c format: an integer is required, not float", kind)
			}
			if math.IsInf(x, 0) || math.IsNaN(x) {
				return Str{}, errors.New("cannot convert float to integer")
			}
			n, _ = big.NewFloat(math.Trunc(x)).Int(nil)
		}
		if f.kind = kind; kind == 'i' || kind == 'u' {
			f.kind = 'd'
		}
		f.precision = -1
		return in.formatInt(n, f)
	case 'e', 'E', 'f', 'F', 'g', 'G':
		if isBig {
			x, _ = new(big.Float).SetInt(n).Float64()
		}
		f.kind = kind
		return in.formatFloat(x, f)
	case 'c':
		f.kind, f.precision = 'c', -1
		return in.formatInt(big.NewInt(i), f)
	}
	return Str{}, fmt.Errorf("unsupported format character %q", kind)
}
