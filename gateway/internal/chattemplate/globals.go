package chattemplate

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// globals are the functions every template has.
func globals() map[string]Value {
	return map[string]Value{
		"range":           &function{"range", rangeFunc},
		"dict":            &function{"dict", dictFunc},
		"namespace":       &function{"namespace", namespaceFunc},
		"raise_exception": &function{"raise_exception", raiseFunc},
		"strftime_now":    &function{"strftime_now", strftimeFunc},
		"joiner":          &function{"joiner", joinerFunc},
	}
}

// maxRange is the reference sandbox's limit for range.
const maxRange = 100_000

func rangeFunc(in *interp, a callArgs) (Value, error) {
	if len(a.names) > 0 || len(a.pos) < 1 || len(a.pos) > 3 {
		return nil, errors.New("range takes 1 to 3 arguments")
	}
	var n [3]int
	for i, v := range a.pos {
		var err error
		if n[i], err = argInt(v, "range argument", 0); err != nil {
			return nil, err
		}
	}
	start, stop, step := 0, n[0], 1
	if len(a.pos) > 1 {
		start, stop = n[0], n[1]
	}
	if len(a.pos) > 2 {
		step = n[2]
	}
	if step == 0 {
		return nil, errors.New("range step must not be zero")
	}
	size := 0
	if step > 0 && stop > start {
		size = (stop - start + step - 1) / step
	} else if step < 0 && start > stop {
		size = (start - stop - step - 1) / -step
	}
	if size > maxRange {
		return nil, fmt.Errorf("range of %d items, at most %d allowed", size, maxRange)
	}
	l := &List{items: make([]Value, size)}
	for i := range l.items {
		l.items[i] = int64(start + i*step)
	}
	return l, in.charge(size, 0)
}

func dictFunc(in *interp, a callArgs) (Value, error) {
	d := NewDict()
	if len(a.pos) > 1 {
		return nil, errors.New("dict takes at most one positional argument")
	}
	if len(a.pos) == 1 {
		switch src := a.pos[0].(type) {
		case *Dict:
			d = src.Clone()
		default:
			pairs, err := in.iterate(src)
			if err != nil {
				return nil, err
			}
			for _, p := range pairs {
				kv, err := in.iterate(p)
				if err != nil {
					return nil, err
				}
				if len(kv) != 2 {
					return nil, errors.New("dict needs pairs")
				}
				hash, err := hashKey(kv[0])
				if err != nil {
					return nil, err
				}
				d.put(kv[0], hash, kv[1])
			}
		}
	}
	for i, n := range a.names {
		d.put(Trusted(n), n, a.named[i])
	}
	return d, in.charge(len(d.keys), 0)
}

func namespaceFunc(in *interp, a callArgs) (Value, error) {
	v, err := dictFunc(in, a)
	if err != nil {
		return nil, err
	}
	return &namespace{v.(*Dict)}, nil
}

func raiseFunc(in *interp, a callArgs) (Value, error) {
	p, err := a.params("message")
	if err != nil {
		return nil, err
	}
	if !given(p[0]) {
		return nil, errors.New("raise_exception needs a message")
	}
	msg, err := in.toStr(p[0])
	if err != nil {
		return nil, err
	}
	return nil, &Error{Msg: msg.s, Raised: true}
}

// joinerFunc makes a function that gives nothing the first time and the separator afterwards.
func joinerFunc(_ *interp, a callArgs) (Value, error) {
	p, err := a.params("sep")
	if err != nil {
		return nil, err
	}
	sep := p[0]
	if !given(sep) {
		sep = Trusted(", ")
	}
	used := false
	return &function{"joiner", func(*interp, callArgs) (Value, error) {
		if !used {
			used = true
			return Str{}, nil
		}
		return sep, nil
	}}, nil
}

func strftimeFunc(in *interp, a callArgs) (Value, error) {
	p, err := a.params("format")
	if err != nil {
		return nil, err
	}
	f, ok, err := argStr(p[0], "format")
	if err != nil || !ok {
		return nil, cmpErr(err, "strftime_now needs a format")
	}
	now := time.Now
	if in.t.Now != nil {
		now = in.t.Now
	}
	s, err := strftime(now(), f.s)
	return like(s, f.tainted()), err
}

// strftime formats a time with the directives of C that make sense in a prompt (C locale).
func strftime(t time.Time, format string) (string, error) {
	layouts := map[byte]string{
		'Y': "2006", 'm': "01", 'd': "02", 'H': "15", 'I': "03", 'M': "04", 'S': "05", 'y': "06", 'p': "PM",
		'b': "Jan", 'h': "Jan", 'B': "January", 'a': "Mon", 'A': "Monday", 'Z': "MST", 'z': "-0700", 'e': "_2", 'j': "002",
		'F': "2006-01-02", 'T': "15:04:05", 'D': "01/02/06", 'R': "15:04", 'c': "Mon Jan _2 15:04:05 2006",
		'x': "01/02/06", 'X': "15:04:05",
	}
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		c := format[i]
		plain := c == '-' && i+1 < len(format) // "%-d": without padding
		if plain {
			i++
			c = format[i]
		}
		var part string
		switch layout, ok := layouts[c]; {
		case c == '%':
			part = "%"
		case c == 'f':
			part = fmt.Sprintf("%06d", t.Nanosecond()/1000)
		case c == 's':
			part = fmt.Sprint(t.Unix())
		case c == 'u':
			part = fmt.Sprint((int(t.Weekday())+6)%7 + 1)
		case c == 'w':
			part = fmt.Sprint(int(t.Weekday()))
		case ok:
			part = t.Format(layout)
		default:
			return "", fmt.Errorf("strftime_now: unknown directive %%%c", c)
		}
		if plain {
			if part = strings.TrimLeft(part, "0 "); part == "" {
				part = "0"
			}
		}
		b.WriteString(part)
	}
	return b.String(), nil
}
