package chattemplate

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// partSteps is the price of making one string out of a part of another.
const partSteps = 8

// parts pays for cutting a string into n parts.
func (in *interp) parts(n int) error {
	if err := in.use(partBytes * n); err != nil {
		return err
	}
	return in.charge(partSteps*n, 0)
}

// strFunc is a method of strings.
type strFunc func(in *interp, s Str, args callArgs) (Value, error)

func strMethod(s Str, name string) *function {
	m, ok := strMethods()[name]
	if !ok {
		return nil
	}
	return &function{name, func(in *interp, args callArgs) (Value, error) {
		if err := in.text(len(s.s)); err != nil {
			return nil, err
		}
		v, err := m(in, s, args)
		if err != nil {
			return nil, fmt.Errorf("str.%s: %w", name, err)
		}
		return v, nil
	}}
}

// methodRegistry holds the methods of strings. It is filled on first use, not by an initialiser, because format looks
// methods up.
var methodRegistry struct {
	once    sync.Once
	methods map[string]strFunc
}

func strMethods() map[string]strFunc {
	methodRegistry.once.Do(func() { methodRegistry.methods = makeStrMethods() })
	return methodRegistry.methods
}

func makeStrMethods() map[string]strFunc {
	noArgs := func(f func(Str) Value) strFunc {
		return func(_ *interp, s Str, a callArgs) (Value, error) {
			_, err := a.params()
			return f(s), err
		}
	}
	stripper := func(left, right bool) strFunc {
		return func(_ *interp, s Str, a callArgs) (Value, error) {
			p, err := a.params("chars")
			if err != nil {
				return nil, err
			}
			set, ok, err := argStr(p[0], "chars")
			if !ok {
				return s.strip(nil, left, right), err
			}
			return s.strip(&set.s, left, right), nil
		}
	}
	affix := func(has func(s, x string) bool) strFunc {
		return func(in *interp, s Str, a callArgs) (Value, error) {
			if len(a.pos) != 1 || len(a.names) != 0 {
				return nil, errors.New("takes one argument")
			}
			options := []Value{a.pos[0]}
			if l, ok := a.pos[0].(*List); ok && l.tuple {
				options = l.items
			}
			for _, o := range options {
				x, ok, err := argStr(o, "argument")
				if err != nil || !ok {
					return nil, cmpErr(err, "argument must be str or a tuple of str")
				}
				if has(s.s, x.s) {
					return true, nil
				}
			}
			return false, in.charge(len(options), 0)
		}
	}
	finder := func(find func(s, x string) int, must bool) strFunc {
		return func(_ *interp, s Str, a callArgs) (Value, error) {
			x, err := a.str("sub")
			if err != nil {
				return nil, err
			}
			at := find(s.s, x.s)
			if at < 0 && must {
				return nil, errors.New("substring not found")
			}
			if at > 0 {
				at = utf8.RuneCountInString(s.s[:at])
			}
			return int64(at), nil
		}
	}
	// every is true for a string that is not empty and all of whose characters pass.
	every := func(f func(rune) bool) strFunc {
		return noArgs(func(s Str) Value {
			return s.s != "" && strings.IndexFunc(s.s, func(r rune) bool { return !f(r) }) < 0
		})
	}
	cut := func(prefix bool) strFunc {
		return func(_ *interp, s Str, a callArgs) (Value, error) {
			x, err := a.str("affix")
			if err != nil {
				return nil, err
			}
			switch {
			case prefix && strings.HasPrefix(s.s, x.s):
				return s.slice(len(x.s), len(s.s)), nil
			case !prefix && strings.HasSuffix(s.s, x.s):
				return s.slice(0, len(s.s)-len(x.s)), nil
			}
			return s, nil
		}
	}
	notLetter := func(r rune) bool { return !unicode.IsLetter(r) }
	return map[string]strFunc{
		"strip": stripper(true, true), "lstrip": stripper(true, false), "rstrip": stripper(false, true),
		"startswith": affix(strings.HasPrefix), "endswith": affix(strings.HasSuffix),
		"upper": noArgs(func(s Str) Value { return s.upper() }), "lower": noArgs(func(s Str) Value { return s.lower() }),
		"capitalize": noArgs(func(s Str) Value { return s.capitalize() }),
		"title":      noArgs(func(s Str) Value { return s.title(notLetter) }),
		"find":       finder(strings.Index, false), "rfind": finder(strings.LastIndex, false),
		"index": finder(strings.Index, true), "rindex": finder(strings.LastIndex, true),
		"removeprefix": cut(true), "removesuffix": cut(false),
		"isdigit": every(unicode.IsDigit), "isalpha": every(unicode.IsLetter), "isspace": every(pySpace),
		"isalnum": every(func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) }),
		"isupper": noArgs(func(s Str) Value { return s.s == strings.ToUpper(s.s) && s.s != strings.ToLower(s.s) }),
		"islower": noArgs(func(s Str) Value { return s.s == strings.ToLower(s.s) && s.s != strings.ToUpper(s.s) }),
		"split":   splitMethod(false), "rsplit": splitMethod(true),
		"splitlines": func(in *interp, s Str, a callArgs) (Value, error) {
			p, err := a.params("keepends")
			if err != nil {
				return nil, err
			}
			if err := in.parts(1 + lineEnds(s.s)); err != nil {
				return nil, err
			}
			return strList(s.lines(argBool(p[0], false))), nil
		},
		"replace": func(in *interp, s Str, a callArgs) (Value, error) {
			p, err := a.params("old", "new", "count")
			if err != nil {
				return nil, err
			}
			return in.replace(s, p[0], p[1], p[2])
		},
		"join": func(in *interp, s Str, a callArgs) (Value, error) {
			p, err := a.params("iterable")
			if err != nil {
				return nil, err
			}
			items, err := in.iterate(p[0])
			if err != nil {
				return nil, err
			}
			for i, v := range items {
				if _, ok := v.(Str); !ok {
					return nil, fmt.Errorf("sequence item %d: expected str instance, %s found", i, typeName(v))
				}
			}
			return in.joinStrs(items, s)
		},
		"count": func(_ *interp, s Str, a callArgs) (Value, error) {
			x, err := a.str("sub")
			if err != nil {
				return nil, err
			}
			return int64(strings.Count(s.s, x.s)), nil
		},
		"format": func(in *interp, s Str, a callArgs) (Value, error) { return in.strFormat(s, a) },
		"format_map": func(in *interp, s Str, a callArgs) (Value, error) {
			p, err := a.params("mapping")
			if err != nil {
				return nil, err
			}
			d, ok := p[0].(*Dict)
			if !ok {
				return nil, fmt.Errorf("needs a mapping, not %s", typeName(p[0]))
			}
			named := callArgs{}
			for i, k := range d.keys {
				if name, ok := k.(Str); ok {
					named.names, named.named = append(named.names, name.s), append(named.named, d.vals[i])
				}
			}
			return in.strFormat(s, named)
		},
		"center": justify(func(in *interp, s Str, width int, fill Str) (Str, error) { return in.center(s, width, fill) }),
		"ljust": justify(func(in *interp, s Str, width int, fill Str) (Str, error) {
			return in.pad(s, formatSpec{fill: fill, width: width}, '<')
		}),
		"rjust": justify(func(in *interp, s Str, width int, fill Str) (Str, error) {
			return in.pad(s, formatSpec{fill: fill, width: width}, '>')
		}),
		"zfill": func(in *interp, s Str, a callArgs) (Value, error) {
			p, err := a.params("width")
			if err != nil {
				return nil, err
			}
			width, err := argInt(p[0], "width", 0)
			if err != nil {
				return nil, err
			}
			sign := 0
			if s.s != "" && (s.s[0] == '-' || s.s[0] == '+') {
				sign = 1
			}
			rest, err := in.pad(s.slice(sign, len(s.s)), formatSpec{fill: Trusted("0"), width: width - sign}, '>')
			return Join(s.slice(0, sign), rest), err
		},
		"swapcase": noArgs(func(s Str) Value {
			return s.mapRunes(func(_ int, r rune) string {
				if unicode.IsUpper(r) {
					return string(unicode.ToLower(r))
				}
				return upperRune(r)
			})
		}),
		"partition":  partition(strings.Index, false),
		"rpartition": partition(strings.LastIndex, true),
	}
}

// justify is a method that fills a text up to a width.
func justify(f func(in *interp, s Str, width int, fill Str) (Str, error)) strFunc {
	return func(in *interp, s Str, a callArgs) (Value, error) {
		p, err := a.params("width", "fillchar")
		if err != nil {
			return nil, err
		}
		width, err := argInt(p[0], "width", 0)
		if err != nil {
			return nil, err
		}
		fill, ok, err := argStr(p[1], "fillchar")
		if err != nil {
			return nil, err
		}
		if !ok {
			fill = Trusted(" ")
		}
		if fill.runeLen() != 1 {
			return nil, errors.New("the fill character must be exactly one character long")
		}
		return f(in, s, width, fill)
	}
}

// center is str.center: with an odd number of fill characters the extra one stands at the left if the width is odd.
func (in *interp) center(s Str, width int, fill Str) (Str, error) {
	n := width - s.runeLen()
	if n <= 0 {
		return s, nil
	}
	left := n/2 + n&width&1
	out, err := in.pad(s, formatSpec{fill: fill, width: width - left}, '<')
	if err != nil {
		return Str{}, err
	}
	return in.pad(out, formatSpec{fill: fill, width: width}, '>')
}

// cmpErr gives err, or a new error when there is none.
func cmpErr(err error, msg string) error {
	if err != nil {
		return err
	}
	return errors.New(msg)
}

func partition(find func(s, x string) int, last bool) strFunc {
	return func(_ *interp, s Str, a callArgs) (Value, error) {
		p, err := a.params("sep")
		if err != nil {
			return nil, err
		}
		x, ok, err := argStr(p[0], "argument")
		if err != nil || !ok || x.s == "" {
			return nil, cmpErr(err, "separator must be a str that is not empty")
		}
		at := find(s.s, x.s)
		switch {
		case at < 0 && last:
			return &List{items: []Value{Str{}, Str{}, s}, tuple: true}, nil
		case at < 0:
			return &List{items: []Value{s, Str{}, Str{}}, tuple: true}, nil
		}
		end := at + len(x.s)
		return &List{items: []Value{s.slice(0, at), s.slice(at, end), s.slice(end, len(s.s))}, tuple: true}, nil
	}
}

func strList(parts []Str) *List {
	l := &List{items: make([]Value, len(parts))}
	for i, p := range parts {
		l.items[i] = p
	}
	return l
}

// splitMethod is split and rsplit: by a separator, or by runs of white space without one.
func splitMethod(fromRight bool) strFunc {
	return func(in *interp, s Str, a callArgs) (Value, error) {
		p, err := a.params("sep", "maxsplit")
		if err != nil {
			return nil, err
		}
		sep, hasSep, err := argStr(p[0], "separator")
		if err != nil {
			return nil, err
		}
		limit, err := argInt(p[1], "maxsplit", -1)
		if err != nil {
			return nil, err
		}
		if hasSep && sep.s == "" {
			return nil, errors.New("empty separator")
		}
		n := 1
		if hasSep {
			n += strings.Count(s.s, sep.s)
		} else {
			n += words(s.s)
		}
		if limit >= 0 {
			n = min(n, limit+1)
		}
		if err := in.parts(n); err != nil {
			return nil, err
		}
		if hasSep {
			return strList(splitBy(s, sep.s, limit, fromRight)), nil
		}
		return strList(splitSpace(s, limit, fromRight)), nil
	}
}

// words counts the runs of other characters than white space.
func words(s string) (n int) {
	inside := false
	for _, r := range s {
		space := pySpace(r)
		if !space && !inside {
			n++
		}
		inside = !space
	}
	return n
}

func splitBy(s Str, sep string, limit int, fromRight bool) []Str {
	var cuts []int // positions of separators
	if fromRight {
		for end := len(s.s); limit < 0 || len(cuts) < limit; {
			at := strings.LastIndex(s.s[:end], sep)
			if at < 0 {
				break
			}
			cuts = append(cuts, at)
			end = at
		}
		slices.Reverse(cuts)
	} else {
		for from := 0; limit < 0 || len(cuts) < limit; {
			at := strings.Index(s.s[from:], sep)
			if at < 0 {
				break
			}
			cuts = append(cuts, from+at)
			from += at + len(sep)
		}
	}
	var out []Str
	from := 0
	for _, c := range cuts {
		out = append(out, s.slice(from, c))
		from = c + len(sep)
	}
	return append(out, s.slice(from, len(s.s)))
}

func splitSpace(s Str, limit int, fromRight bool) []Str {
	var out []Str
	rest := s.strip(nil, !fromRight, fromRight)
	for rest.s != "" {
		if limit >= 0 && len(out) >= limit {
			out = append(out, rest) // white space at its far end stays
			break
		}
		var at int
		if fromRight {
			at = strings.LastIndexFunc(rest.s, pySpace)
		} else {
			at = strings.IndexFunc(rest.s, pySpace)
		}
		if at < 0 {
			out = append(out, rest)
			break
		}
		_, w := utf8.DecodeRuneInString(rest.s[at:])
		if fromRight {
			out = append(out, rest.slice(at+w, len(rest.s)))
			rest = rest.slice(0, at).strip(nil, false, true)
		} else {
			out = append(out, rest.slice(0, at))
			rest = rest.slice(at+w, len(rest.s)).strip(nil, true, false)
		}
	}
	if fromRight {
		slices.Reverse(out)
	}
	return out
}

// lineEnds counts the characters at which lines may cut.
func lineEnds(s string) (n int) {
	for _, r := range s {
		switch r {
		case '\r', '\n', '\v', '\f', 0x1c, 0x1d, 0x1e, 0x85, 0x2028, 0x2029:
			n++
		}
	}
	return n
}

// lines cuts at line boundaries as str.splitlines does.
func (s Str) lines(keep bool) []Str {
	var out []Str
	start := 0
	for i := 0; i < len(s.s); {
		r, w := utf8.DecodeRuneInString(s.s[i:])
		end := i
		i += w
		switch r {
		case '\r':
			if i < len(s.s) && s.s[i] == '\n' {
				i++
			}
		case '\n', '\v', '\f', 0x1c, 0x1d, 0x1e, 0x85, 0x2028, 0x2029:
		default:
			continue
		}
		if keep {
			end = i
		}
		out = append(out, s.slice(start, end))
		start = i
	}
	if start < len(s.s) {
		out = append(out, s.slice(start, len(s.s)))
	}
	return out
}

// replace is str.replace; each part keeps its origin.
func (in *interp) replace(s Str, oldV, newV, countV Value) (Value, error) {
	old, ok1, err1 := argStr(oldV, "old")
	repl, ok2, err2 := argStr(newV, "new")
	if err := errors.Join(err1, err2); err != nil || !ok1 || !ok2 {
		return nil, cmpErr(err, "replace needs two strings")
	}
	limit, err := argInt(countV, "count", -1)
	if err != nil {
		return nil, err
	}
	n := strings.Count(s.s, old.s) + 1
	if limit >= 0 {
		n = min(n, limit+1)
	}
	if err := in.parts(n); err != nil {
		return nil, err
	}
	var b strBuilder
	if old.s == "" { // between all characters
		if err := in.parts(s.runeLen()); err != nil {
			return nil, err
		}
		for i, r := range append([]Str{{}}, s.runes()...) {
			b.add(r)
			if limit < 0 || i < limit {
				b.add(repl)
			}
			if err := in.charge(1, b.size()); err != nil {
				return nil, err
			}
		}
		return b.str(), nil
	}
	for i, part := range splitBy(s, old.s, limit, false) {
		if i > 0 {
			b.add(repl)
		}
		b.add(part)
		if err := in.charge(1, b.size()); err != nil {
			return nil, err
		}
	}
	return b.str(), nil
}

// joinStrs joins the printed items.
func (in *interp) joinStrs(items []Value, sep Str) (Value, error) {
	var b strBuilder
	for i, v := range items {
		s, err := in.toStr(v)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			b.add(sep)
		}
		b.add(s)
		if err := in.charge(1+(len(s.s)+len(sep.s))/64, b.size()); err != nil {
			return nil, err
		}
	}
	return b.str(), nil
}

// mutating lists the methods of Python's containers that the reference sandbox forbids.
var mutating = []string{"append", "clear", "extend", "insert", "pop", "popitem", "remove", "reverse",
	"setdefault", "sort", "update"}

func forbidden(name string) *function {
	return &function{name, func(*interp, callArgs) (Value, error) {
		return nil, fmt.Errorf("method %q changes its object, which templates may not do", name)
	}}
}

func dictMethod(d *Dict, name string) *function {
	list := func(f func(i int) Value) *function {
		return &function{name, func(in *interp, a callArgs) (Value, error) {
			if _, err := a.params(); err != nil {
				return nil, err
			}
			if err := in.use(pairBytes * len(d.keys)); err != nil {
				return nil, err
			}
			l := &List{items: make([]Value, len(d.keys))}
			for i := range l.items {
				l.items[i] = f(i)
			}
			return l, in.charge(len(d.keys), 0)
		}}
	}
	switch name {
	case "items":
		return list(func(i int) Value { return &List{items: []Value{d.keys[i], d.vals[i]}, tuple: true} })
	case "keys":
		return list(func(i int) Value { return d.keys[i] })
	case "values":
		return list(func(i int) Value { return d.vals[i] })
	case "copy":
		return &function{name, func(in *interp, _ callArgs) (Value, error) { return d, in.charge(1, 0) }} // immutable
	case "get":
		return &function{name, func(_ *interp, a callArgs) (Value, error) {
			p, err := a.params("key", "default")
			if err != nil {
				return nil, err
			}
			hash, err := hashKey(p[0])
			if err != nil {
				return nil, err
			}
			if i, ok := d.find(hash); ok {
				return d.vals[i], nil
			}
			if !given(p[1]) {
				return nil, nil
			}
			return p[1], nil
		}}
	}
	if slices.Contains([]string{"clear", "pop", "popitem", "setdefault", "update"}, name) {
		return forbidden(name)
	}
	return nil
}

func listMethod(l *List, name string) *function {
	switch name {
	case "count":
		return &function{name, func(in *interp, a callArgs) (Value, error) {
			p, err := a.params("value")
			if err != nil {
				return nil, err
			}
			n := int64(0)
			for _, v := range l.items {
				same, err := in.equal(v, p[0])
				if err != nil {
					return nil, err
				}
				if same {
					n++
				}
			}
			return n, nil
		}}
	case "index":
		return &function{name, func(in *interp, a callArgs) (Value, error) {
			p, err := a.params("value")
			if err != nil {
				return nil, err
			}
			for i, v := range l.items {
				if same, err := in.equal(v, p[0]); same || err != nil {
					return int64(i), err
				}
			}
			return nil, errors.New("value is not in list")
		}}
	case "copy":
		return &function{name, func(*interp, callArgs) (Value, error) { return l, nil }} // immutable
	}
	if slices.Contains(mutating, name) {
		return forbidden(name)
	}
	return nil
}
