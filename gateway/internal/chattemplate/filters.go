package chattemplate

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/big"
	"strconv"
	"strings"
	"sync"
	"unicode"
)

// filterFunc is what stands after "|".
type filterFunc func(in *interp, v Value, args callArgs) (Value, error)

func (in *interp) applyFilter(x *filterExpr, v Value) (Value, error) {
	if x.fn == nil {
		return nil, fmt.Errorf("no filter named %q", x.name)
	}
	args, err := in.callArgs(x.args)
	if err != nil {
		return nil, err
	}
	out, err := x.fn(in, v, args)
	if err != nil {
		return nil, fmt.Errorf("filter %s: %w", x.name, err)
	}
	return out, nil
}

// registry holds the filters and tests by name. It is filled on first use, not by an initialiser, because map, select
// and their like look others up while they run.
var registry struct {
	once    sync.Once
	filters map[string]filterFunc
	tests   map[string]testFunc
}

func fillRegistry() {
	registry.once.Do(func() {
		registry.filters = textFilters()
		maps.Copy(registry.filters, sequenceFilters())
		registry.tests = makeTests()
	})
}

func filters() map[string]filterFunc {
	fillRegistry()
	return registry.filters
}

func tests() map[string]testFunc {
	fillRegistry()
	return registry.tests
}

// onText wraps a filter that works on the printed form of its input.
func onText(f func(in *interp, s Str, p []Value) (Value, error), params ...string) filterFunc {
	return func(in *interp, v Value, a callArgs) (Value, error) {
		s, err := in.toStr(v)
		if err != nil {
			return nil, err
		}
		p, err := a.params(params...)
		if err != nil {
			return nil, err
		}
		if err := in.text(len(s.s)); err != nil {
			return nil, err
		}
		return f(in, s, p)
	}
}

func textFilters() map[string]filterFunc {
	simple := func(f func(Str) Str) filterFunc {
		return onText(func(_ *interp, s Str, _ []Value) (Value, error) { return f(s), nil })
	}
	keep := simple(func(s Str) Str { return s })
	safe := simple(func(s Str) Str { s.html = true; return s })
	def := func(_ *interp, v Value, a callArgs) (Value, error) {
		p, err := a.params("default_value", "boolean")
		if err != nil {
			return nil, err
		}
		_, undef := v.(undefined)
		if !undef && (truth(v) || !argBool(p[1], false)) {
			return v, nil
		}
		if !given(p[0]) {
			return Str{}, nil
		}
		return p[0], nil
	}
	escape := onText(func(in *interp, s Str, _ []Value) (Value, error) {
		names := map[rune]string{'&': "&amp;", '<': "&lt;", '>': "&gt;", '\'': "&#39;", '"': "&#34;"}
		s = s.mapRunes(func(_ int, r rune) string {
			if n, ok := names[r]; ok {
				return n
			}
			return string(r)
		})
		s.html = true
		return s, nil
	})
	return map[string]filterFunc{
		"string": keep, "safe": safe, "escape": escape, "e": escape, "forceescape": escape,
		"truncate": onText(truncate, "length", "killwords", "end", "leeway"),
		"center": onText(func(in *interp, s Str, p []Value) (Value, error) {
			width, err := argInt(p[0], "width", 80)
			if err != nil {
				return nil, err
			}
			return in.center(s, width, Trusted(" "))
		}, "width"),
		"format": func(in *interp, v Value, a callArgs) (Value, error) {
			s, err := in.toStr(v)
			switch {
			case err != nil:
				return nil, err
			case len(a.pos) > 0 && len(a.names) > 0:
				return nil, errors.New("takes positional or named arguments, not both")
			case len(a.names) > 0:
				d := NewDict()
				for i, n := range a.names {
					d.put(Trusted(n), n, a.named[i])
				}
				return in.percent(s, d)
			}
			return in.percent(s, &List{items: a.pos, tuple: true})
		},
		"default": def, "d": def,
		"tojson":     tojson,
		"upper":      simple(Str.upper),
		"lower":      simple(Str.lower),
		"capitalize": simple(Str.capitalize),
		"title": simple(func(s Str) Str {
			return s.title(func(r rune) bool { return pySpace(r) || strings.ContainsRune("-({[<", r) })
		}),
		"trim": onText(func(_ *interp, s Str, p []Value) (Value, error) {
			set, ok, err := argStr(p[0], "chars")
			if !ok {
				return s.strip(nil, true, true), err
			}
			return s.strip(&set.s, true, true), nil
		}, "chars"),
		"replace": onText(func(in *interp, s Str, p []Value) (Value, error) { return in.replace(s, p[0], p[1], p[2]) }, "old",
			"new", "count"),
		"indent": func(in *interp, v Value, a callArgs) (Value, error) {
			if _, ok := v.(Str); !ok {
				return nil, fmt.Errorf("needs str, not %s", typeName(v))
			}
			return onText(indent, "width", "first", "blank")(in, v, a)
		},
		"wordcount": onText(func(_ *interp, s Str, _ []Value) (Value, error) {
			words := strings.FieldsFunc(s.s,
				func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsNumber(r) })
			return int64(len(words)), nil
		}),
		"int":   toInt,
		"float": toFloat,
		"abs":   abs,
		"round": round,
	}
}

// truncate shortens a text to a length in characters, at a word unless killwords is set. A text that is longer by no
// more than leeway stays whole.
func truncate(_ *interp, s Str, p []Value) (Value, error) {
	length, err := argInt(p[0], "length", 255)
	if err != nil {
		return nil, err
	}
	end := Trusted("...")
	if given(p[2]) {
		var ok bool
		if end, ok = p[2].(Str); !ok {
			return nil, fmt.Errorf("end must be str, not %s", typeName(p[2]))
		}
	}
	leeway, err := argInt(p[3], "leeway", 5)
	switch {
	case err != nil:
		return nil, err
	case length < end.runeLen():
		return nil, fmt.Errorf("expected length >= %d, got %d", end.runeLen(), length)
	case leeway < 0:
		return nil, fmt.Errorf("expected leeway >= 0, got %d", leeway)
	case s.runeLen() <= length+leeway:
		return s, nil
	}
	cut := s.slice(0, s.byteAt(length-end.runeLen()))
	if !argBool(p[1], false) {
		if i := strings.LastIndexByte(cut.s, ' '); i >= 0 {
			cut = cut.slice(0, i)
		}
	}
	return Join(cut, end), nil
}

// tojson is the filter as Hugging Face defines it: json.dumps with its arguments, non-ASCII kept.
func tojson(in *interp, v Value, a callArgs) (Value, error) {
	p, err := a.params("ensure_ascii", "indent", "separators", "sort_keys")
	if err != nil {
		return nil, err
	}
	// The indent is the first argument of the plain filter, and templates call it both ways.
	if len(a.pos) == 1 {
		if _, isBool := a.pos[0].(bool); !isBool {
			p[1], p[0] = a.pos[0], notGiven{}
		}
	}
	w := jsonWriter{in: in, itemSep: ", ", keySep: ": ", ascii: argBool(p[0], false), sort: argBool(p[3], false)}
	switch x := p[1].(type) {
	case notGiven, nil:
	case Str:
		w.indent = &x.s
	default:
		n, err := argInt(x, "indent", 0)
		if err != nil {
			return nil, err
		}
		s := strings.Repeat(" ", min(max(n, 0), 64))
		w.indent = &s
	}
	if w.indent != nil {
		w.itemSep = ","
	}
	if l, ok := p[2].(*List); ok {
		if len(l.items) != 2 {
			return nil, fmt.Errorf("separators must be a pair")
		}
		for i, dst := range []*string{&w.itemSep, &w.keySep} {
			s, ok, err := argStr(l.items[i], "separator")
			if err != nil || !ok {
				return nil, cmpErr(err, "separators must be a pair of str")
			}
			*dst = s.s
		}
	}
	if u, ok := v.(undefined); ok {
		return nil, fmt.Errorf("%s (not JSON serializable)", u.what)
	}
	if err := w.write(v, 0); err != nil {
		return nil, err
	}
	return like(string(w.b), w.user), nil
}

// indent puts spaces before lines, as the reference does: not before the first and not before empty ones unless
// told to.
func indent(in *interp, s Str, p []Value) (Value, error) {
	pad, ok := p[0].(Str)
	if !ok {
		n, err := argInt(p[0], "width", 4)
		if err != nil {
			return nil, err
		}
		pad = Trusted(strings.Repeat(" ", min(max(n, 0), 1024)))
	}
	first, blank := argBool(p[1], false), argBool(p[2], false)
	if err := in.parts(2 + lineEnds(s.s)); err != nil {
		return nil, err
	}
	lines := Join(s, Trusted("\n")).lines(false)
	var b strBuilder
	for i, l := range lines {
		if i > 0 {
			b.add(Trusted("\n"))
		}
		if (i == 0 && first) || (i > 0 && (blank || l.s != "")) {
			b.add(pad)
		}
		b.add(l)
		if err := in.charge(1, b.size()); err != nil {
			return nil, err
		}
	}
	return b.str(), nil
}

func toInt(_ *interp, v Value, a callArgs) (Value, error) {
	p, err := a.params("default", "base")
	if err != nil {
		return nil, err
	}
	base, err := argInt(p[1], "base", 10)
	if err != nil {
		return nil, err
	}
	var def Value = int64(0)
	if given(p[0]) {
		def = p[0]
	}
	switch x := v.(type) {
	case undefined:
		return nil, x.err()
	case int64, *big.Int:
		return x, nil
	case bool:
		n, _, _, _ := number(x)
		return n, nil
	case float64:
		if math.Abs(x) < 1<<62 {
			return int64(x), nil
		}
	case Str:
		s := strings.ReplaceAll(strings.TrimFunc(x.s, pySpace), "_", "")
		if base >= 2 && base <= 36 {
			prefixes := map[int]string{2: "0b", 8: "0o", 16: "0x"}
			digits := strings.TrimPrefix(strings.ToLower(s), prefixes[base])
			if n, err := strconv.ParseInt(digits, base, 64); err == nil {
				return n, nil
			}
		}
		if f, err := strconv.ParseFloat(s, 64); err == nil && math.Abs(f) < 1<<62 {
			return int64(f), nil
		}
	}
	return def, nil
}

func toFloat(_ *interp, v Value, a callArgs) (Value, error) {
	p, err := a.params("default")
	if err != nil {
		return nil, err
	}
	if u, ok := v.(undefined); ok {
		return nil, u.err()
	}
	if _, f, _, ok := number(v); ok {
		return f, nil
	}
	if s, ok := v.(Str); ok {
		if f, err := strconv.ParseFloat(strings.TrimFunc(s.s, pySpace), 64); err == nil {
			return f, nil
		}
	}
	if given(p[0]) {
		return p[0], nil
	}
	return 0.0, nil
}

func abs(_ *interp, v Value, _ callArgs) (Value, error) {
	i, f, isFloat, ok := number(v)
	switch {
	case !ok:
		return nil, fmt.Errorf("bad operand type for abs(): '%s'", typeName(v))
	case isFloat:
		return math.Abs(f), nil
	case i < 0:
		return unary("-", i)
	}
	return i, nil
}

// round gives a float like the reference: "common" rounds half to even on the exact decimal value.
func round(_ *interp, v Value, a callArgs) (Value, error) {
	p, err := a.params("precision", "method")
	if err != nil {
		return nil, err
	}
	prec, err := argInt(p[0], "precision", 0)
	if err != nil {
		return nil, err
	}
	i, f, isFloat, ok := number(v)
	if !ok {
		return nil, fmt.Errorf("type %s has no rounding", typeName(v))
	}
	method := "common"
	if s, ok := p[1].(Str); ok {
		method = s.s
	}
	prec = min(max(prec, -300), 300)
	scale := math.Pow(10, float64(prec))
	switch method {
	case "common":
		if !isFloat && prec >= 0 {
			return i, nil // Python rounds an int to itself
		}
		if prec >= 0 {
			f, err := strconv.ParseFloat(strconv.FormatFloat(f, 'f', prec, 64), 64)
			return f, err
		}
		return math.RoundToEven(f*scale) / scale, nil
	case "ceil":
		return math.Ceil(f*scale) / scale, nil
	case "floor":
		return math.Floor(f*scale) / scale, nil
	}
	return nil, fmt.Errorf("method must be common, ceil or floor")
}
