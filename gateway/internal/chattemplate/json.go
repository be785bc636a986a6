package chattemplate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// maxValueDepth bounds the nesting of values, from JSON or built by templates.
const maxValueDepth = 200

var errTooDeep = errors.New("value is nested too deeply")

// FromJSON reads one JSON document. Objects keep the order of their keys, integers stay integers of any size, and all
// text is user text.
func FromJSON(raw []byte) (Value, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	v, err := readJSON(dec, 0)
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("chattemplate: JSON: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("chattemplate: JSON: more than one document")
	}
	return v, nil
}

func readJSON(dec *json.Decoder, depth int) (Value, error) {
	tok, err := dec.Token()
	if err != nil {
		return nil, err
	}
	if depth > maxValueDepth {
		return nil, errTooDeep
	}
	switch x := tok.(type) {
	case json.Delim:
		if x == '[' {
			l := &List{}
			for dec.More() {
				v, err := readJSON(dec, depth+1)
				if err != nil {
					return nil, err
				}
				l.items = append(l.items, v)
			}
			_, err := dec.Token()
			return l, err
		}
		d := NewDict()
		for dec.More() {
			key, err := dec.Token()
			if err != nil {
				return nil, err
			}
			v, err := readJSON(dec, depth+1)
			if err != nil {
				return nil, err
			}
			d.Set(key.(string), v)
		}
		_, err := dec.Token()
		return d, err
	case string:
		return Text(x), nil
	case json.Number:
		return jsonNumber(x.String())
	}
	return tok, nil // bool or nil
}

func jsonNumber(s string) (Value, error) {
	if strings.ContainsAny(s, ".eE") {
		f, err := strconv.ParseFloat(s, 64)
		if err != nil && !math.IsInf(f, 0) {
			return nil, err
		}
		return f, nil
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return n, nil
	}
	const maxDigits = 4300 // Python's own limit; parsing is quadratic
	n, ok := new(big.Int), len(s) <= maxDigits
	if ok {
		n, ok = n.SetString(s, 10)
	}
	if !ok {
		return nil, fmt.Errorf("number of %d digits", len(s))
	}
	return n, nil
}

// ToJSON writes a value as the tojson filter does without arguments: ", " and ": " between items, keys in order, no
// escapes but the necessary ones.
func ToJSON(v Value) (string, error) {
	w := jsonWriter{in: newInterp(&Template{}), itemSep: ", ", keySep: ": "}
	if err := w.write(v, 0); err != nil {
		return "", fmt.Errorf("chattemplate: %w", err)
	}
	return string(w.b), nil
}

// jsonWriter is Python's json.dumps.
type jsonWriter struct {
	in              *interp
	b               []byte
	indent          *string // nil: one line
	itemSep, keySep string
	ascii, sort     bool
	user            bool // some text that was written is a user's
}

func (w *jsonWriter) write(v Value, depth int) error {
	if depth > maxValueDepth {
		return errTooDeep
	}
	if err := w.in.charge(1, len(w.b)); err != nil {
		return err
	}
	switch x := v.(type) {
	case nil:
		w.b = append(w.b, "null"...)
	case bool:
		w.b = strconv.AppendBool(w.b, x)
	case int64:
		w.b = strconv.AppendInt(w.b, x, 10)
	case *big.Int:
		w.b = x.Append(w.b, 10)
	case float64:
		w.b = append(w.b, jsonFloat(x)...)
	case Str:
		if err := w.in.charge(len(x.s)/64, 0); err != nil {
			return err
		}
		w.quote(x)
	case *List:
		return w.items('[', ']', len(x.items), depth, func(i int) error { return w.write(x.items[i], depth+1) })
	case *Dict:
		return w.dict(x, depth)
	default:
		return fmt.Errorf("object of type %s is not JSON serializable", typeName(v))
	}
	return nil
}

func jsonFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	return pyFloat(f)
}

func (w *jsonWriter) dict(d *Dict, depth int) error {
	order := make([]int, len(d.keys))
	for i := range order {
		order[i] = i
	}
	if w.sort {
		var failed error
		slices.SortStableFunc(order, func(a, b int) int {
			c, err := w.in.compare(d.keys[a], d.keys[b])
			if err != nil {
				failed = err
			}
			return c
		})
		if failed != nil {
			return failed
		}
	}
	return w.items('{', '}', len(order), depth, func(n int) error {
		i := order[n]
		switch k := d.keys[i].(type) {
		case Str:
			w.quote(k)
		case nil, bool, int64, float64:
			w.b = append(w.b, '"')
			if err := w.write(k, depth+1); err != nil {
				return err
			}
			w.b = append(w.b, '"')
		default:
			return fmt.Errorf("keys must be str, int, float, bool or None, not %s", typeName(k))
		}
		w.b = append(w.b, w.keySep...)
		return w.write(d.vals[i], depth+1)
	})
}

// items writes n things between brackets, with line breaks when an indent is set.
func (w *jsonWriter) items(open, end byte, n, depth int, item func(int) error) error {
	w.b = append(w.b, open)
	newline := func(d int) {
		if w.indent != nil {
			w.b = append(w.b, '\n')
			for range d {
				w.b = append(w.b, *w.indent...)
			}
		}
	}
	for i := range n {
		if i > 0 {
			w.b = append(w.b, w.itemSep...)
		}
		newline(depth + 1)
		if err := item(i); err != nil {
			return err
		}
	}
	if n > 0 {
		newline(depth)
	}
	w.b = append(w.b, end)
	return nil
}

func (w *jsonWriter) quote(text Str) {
	w.user = w.user || text.tainted()
	const hex = "0123456789abcdef"
	u16 := func(r rune) {
		w.b = append(w.b, '\\', 'u', hex[r>>12&15], hex[r>>8&15], hex[r>>4&15], hex[r&15])
	}
	w.b = append(w.b, '"')
	for _, r := range text.s {
		switch {
		case r == '"' || r == '\\':
			w.b = append(w.b, '\\', byte(r))
		case r == '\n':
			w.b = append(w.b, `\n`...)
		case r == '\r':
			w.b = append(w.b, `\r`...)
		case r == '\t':
			w.b = append(w.b, `\t`...)
		case r == '\b':
			w.b = append(w.b, `\b`...)
		case r == '\f':
			w.b = append(w.b, `\f`...)
		case r < 0x20:
			u16(r)
		case w.ascii && r > 0xffff:
			r -= 0x10000
			u16(0xd800 + r>>10)
			u16(0xdc00 + r&0x3ff)
		case w.ascii && r >= 0x7f && r != 0x7f:
			u16(r)
		default:
			w.b = append(w.b, string(r)...)
		}
	}
	w.b = append(w.b, '"')
}
