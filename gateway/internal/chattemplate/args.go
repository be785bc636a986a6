package chattemplate

import (
	"fmt"
	"slices"
)

// params matches arguments with parameter names and gives the values by position; a parameter that was not given has
// the value of notGiven.
func (a callArgs) params(names ...string) ([]Value, error) {
	if len(a.pos) > len(names) {
		return nil, fmt.Errorf("takes at most %d argument(s), got %d", len(names), len(a.pos))
	}
	out := make([]Value, len(names))
	for i := range out {
		out[i] = notGiven{}
	}
	copy(out, a.pos)
	for i, n := range a.names {
		at := slices.Index(names, n)
		if at < 0 {
			return nil, fmt.Errorf("unexpected argument %q", n)
		}
		if at < len(a.pos) {
			return nil, fmt.Errorf("argument %q is given twice", n)
		}
		out[at] = a.named[i]
	}
	return out, nil
}

// notGiven marks a parameter without argument.
type notGiven struct{}

func given(v Value) bool {
	_, missing := v.(notGiven)
	return !missing
}

// str returns the one argument, a string; name is what calls may call it.
func (a callArgs) str(name string) (Str, error) {
	p, err := a.params(name)
	if err != nil {
		return Str{}, err
	}
	x, ok, err := argStr(p[0], "argument")
	if err != nil || !ok {
		return Str{}, cmpErr(err, "argument must be str")
	}
	return x, nil
}

// argStr reads a text argument; absent or None gives ok false.
func argStr(v Value, what string) (s Str, ok bool, err error) {
	switch x := v.(type) {
	case notGiven, nil:
		return Str{}, false, nil
	case Str:
		return x, true, nil
	case undefined:
		return Str{}, false, x.err()
	}
	return Str{}, false, fmt.Errorf("%s must be str, not %s", what, typeName(v))
}

// argInt reads an integer argument; absent or None gives the default.
func argInt(v Value, what string, def int) (int, error) {
	switch x := v.(type) {
	case notGiven, nil:
		return def, nil
	case undefined:
		return 0, x.err()
	}
	i, _, isFloat, ok := number(v)
	if !ok || isFloat || i > 1<<31 || i < -1<<31 {
		return 0, fmt.Errorf("%s must be a small int, not %s", what, typeName(v))
	}
	return int(i), nil
}

// argBool reads a flag; absent gives the default.
func argBool(v Value, def bool) bool {
	if !given(v) {
		return def
	}
	return truth(v)
}
