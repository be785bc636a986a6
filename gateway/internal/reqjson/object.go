// Package reqjson reads JSON requests field by field: null is absent, wrong types and ranges become errors that name
// the JSON path, unknown fields are ignored and listed, and aliases are tried in order.
package reqjson

import (
	"bytes"
	"encoding/json"
	"iter"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/services/bounds"
)

// MaxDepth is the deepest nesting of arrays and objects.
const MaxDepth = 256

// Object is a JSON object whose members are still raw. Members that are null are left out.
type Object struct {
	path   string // of the object itself, empty at the top
	shape  string // path without the indexes of arrays: messages[].content
	fields map[string]json.RawMessage
	extra  map[string]json.RawMessage // members of extra_body, top level only
	use    *use                       // nil for objects that are not watched
}

// use notes which members of an object were looked at. The objects of a request's body are watched.
type use struct {
	read []string          // names
	kids map[string]Object // objects among the members that were opened
	lost []string          // shapes of members of closed elements that nobody looked at, without repeats
	up   *use              // of the object whose array the object is an element of; nil for others
	all  bool              // its members are data, whatever they are called
}

// maxLost bounds the unread members of elements that an object remembers: the names are the client's choice.
const maxLost = 64

// Parse reads a request body: one JSON object, nesting at most MaxDepth. Members of extra_body are used where the top
// level lacks them.
//
// A byte order mark in front is skipped, as RFC 8259 §8.1 allows.
func Parse(body []byte) (Object, error) {
	body = bytes.TrimPrefix(body, []byte("\xef\xbb\xbf"))
	if err := checkDepth(body); err != nil {
		return Object{}, err
	}
	if !json.Valid(body) {
		err := json.Unmarshal(body, &json.RawMessage{})
		if se, ok := err.(*json.SyntaxError); ok {
			return Object{}, reqerr.InvalidJSON("the body is not valid JSON: %v at byte %d", se, se.Offset)
		}
		return Object{}, reqerr.InvalidJSON("the body is not valid JSON")
	}
	o := Object{use: &use{}}
	var ok bool
	if o.fields, ok = members(body); !ok {
		return Object{}, reqerr.InvalidJSON("the body must be a JSON object")
	}
	extra, ok, err := o.Object("extra_body")
	if err != nil {
		return Object{}, err
	}
	if ok {
		o.extra = extra.fields
		delete(o.use.kids, "extra_body") // its members count as the top level's
	}
	return o, nil
}

// members splits an object, which is valid JSON, into its members. They share its memory: copies of a large body and of
// each object in it would take several times what it takes. Members that are null are left out; of two with one name
// the last counts. ok is false for other values.
func members(text []byte) (fields map[string]json.RawMessage, ok bool) {
	if Kind(text) != 'o' {
		return nil, false
	}
	fields = map[string]json.RawMessage{}
	depth, start, name := 0, 0, ""
	put := func(end int) {
		switch value := bytes.TrimSpace(text[start:end]); {
		case len(value) == 0: // an object without members
		case string(value) == "null":
			delete(fields, name)
		default:
			fields[name] = slices.Clip(value)
		}
	}
	for i := bytes.IndexByte(text, '{'); i < len(text); i++ {
		switch c := text[i]; c {
		case '"':
			end := stringEnd(text, i)
			if after := skipSpace(text, end); depth == 1 && text[after] == ':' {
				name, start, end = unquote(text[i:end]), after+1, after+1
			}
			i = end - 1
		case '{', '[':
			if depth++; depth == 1 {
				start = i + 1
			}
		case '}', ']':
			if depth--; depth == 0 {
				put(i)
				return fields, true
			}
		case ',':
			if depth == 1 {
				put(i)
				start = i + 1
			}
		}
	}
	return fields, true
}

// stringEnd returns the offset after the string that begins at start.
func stringEnd(text []byte, start int) int {
	for i := start + 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(text)
}

func skipSpace(text []byte, i int) int {
	for i < len(text)-1 && (text[i] == ' ' || text[i] == '\t' || text[i] == '\n' || text[i] == '\r') {
		i++
	}
	return min(i, len(text)-1)
}

// unquote returns the text of a JSON string that is valid.
func unquote(quoted []byte) (name string) {
	_ = json.Unmarshal(quoted, &name)
	return name
}

// checkDepth bounds nesting before anything recurses.
func checkDepth(body []byte) error {
	depth := 0
	for _, c := range marks(body) {
		switch c {
		case '{', '[':
			if depth++; depth > MaxDepth {
				return reqerr.InvalidJSON("the body is nested deeper than %d levels", MaxDepth)
			}
		case '}', ']':
			depth--
		}
	}
	return nil
}

// marks returns the brackets and commas of JSON text that stand outside of strings, with their offsets.
func marks(text []byte) iter.Seq2[int, byte] {
	return func(yield func(int, byte) bool) {
		inString := false
		for i := 0; i < len(text); i++ {
			switch c := text[i]; {
			case inString:
				if c == '\\' {
					i++
				} else if c == '"' {
					inString = false
				}
			case c == '"':
				inString = true
			case c == '{' || c == '[' || c == '}' || c == ']' || c == ',':
				if !yield(i, c) {
					return
				}
			}
		}
	}
}

// Wrap makes an Object of raw, which lies at path. A value that is no object is an error.
func Wrap(raw json.RawMessage, path string) (Object, error) {
	if !json.Valid(raw) {
		return Object{}, reqerr.InvalidValue(path, "must be an object")
	}
	return wrap(raw, path)
}

// wrap is Wrap for a part of JSON that was checked.
func wrap(raw json.RawMessage, path string) (Object, error) {
	fields, ok := members(raw)
	if !ok {
		return Object{}, reqerr.InvalidValue(path, "must be an object")
	}
	return Object{path: path, fields: fields}, nil
}

// Element opens element i of the array under name, an object. What is not read of it until Close counts as unread.
func (o Object) Element(name string, i int, raw json.RawMessage) (Object, error) {
	e, err := wrap(raw, Index(o.Path(name), i))
	if err == nil && o.use != nil {
		e.shape, e.use = join(o.shape, name)+"[]", &use{up: o.use}
	}
	return e, err
}

// Close ends the reading of an object that Element opened.
func (o Object) Close() {
	if o.use == nil || o.use.up == nil {
		return
	}
	for _, shape := range o.Unread() {
		o.use.up.lose(shape)
	}
}

func (u *use) lose(shape string) {
	if len(u.lost) < maxLost && !slices.Contains(u.lost, shape) {
		u.lost = append(u.lost, shape)
	}
}

// Path returns the JSON path of member name.
func (o Object) Path(name string) string { return join(o.path, name) }

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// Raw finds the first of the names that is present. It counts as read with all that is in it.
func (o Object) Raw(names ...string) (raw json.RawMessage, name string, ok bool) {
	raw, name, ok = o.find(names)
	if ok && o.use != nil {
		delete(o.use.kids, name)
	}
	return raw, name, ok
}

// Peek is Raw for a look that does not count as reading.
func (o Object) Peek(names ...string) (raw json.RawMessage, name string, ok bool) {
	o.use = nil
	return o.find(names)
}

// find is Raw; what is in the member does not count as read.
func (o Object) find(names []string) (raw json.RawMessage, name string, ok bool) {
	raw, name, ok = o.first(names)
	if ok && o.use != nil {
		if !slices.Contains(o.use.read, name) {
			o.use.read = append(o.use.read, name)
		}
	}
	return raw, name, ok
}

// Unread lists the paths of members that were not read, sorted: the parts of a request without effect. Elements of
// arrays have no index in them (messages[].content[].detail), and each path occurs once.
func (o Object) Unread() []string {
	if o.use == nil || o.use.all {
		return nil
	}
	names := slices.Collect(maps.Keys(o.fields))
	for name := range o.extra {
		if _, ok := o.fields[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var out []string
	for _, name := range names {
		kid, opened := o.use.kids[name]
		switch {
		case !slices.Contains(o.use.read, name):
			out = append(out, join(o.shape, name))
		case opened:
			out = append(out, kid.Unread()...)
		}
	}
	out = append(out, o.use.lost...)
	slices.Sort(out)
	return slices.Compact(out)
}

func (o Object) first(names []string) (raw json.RawMessage, name string, ok bool) {
	for _, n := range names {
		if v, ok := o.fields[n]; ok {
			return v, n, true
		}
		if v, ok := o.extra[n]; ok {
			return v, n, true
		}
	}
	return nil, "", false
}

// Has reports whether a member is present and not null.
func (o Object) Has(name string) bool {
	_, _, ok := o.Peek(name)
	return ok
}

// String reads a string.
func (o Object) String(names ...string) (val string, ok bool, err error) {
	raw, name, ok := o.find(names)
	if !ok {
		return "", false, nil
	}
	if err := json.Unmarshal(raw, &val); err != nil {
		return "", false, reqerr.InvalidValue(o.Path(name), "must be a string")
	}
	return val, true, nil
}

// Bool reads a boolean.
func (o Object) Bool(names ...string) (val, ok bool, err error) {
	raw, name, ok := o.find(names)
	if !ok {
		return false, false, nil
	}
	if err := json.Unmarshal(raw, &val); err != nil {
		return false, false, reqerr.InvalidValue(o.Path(name), "must be true or false")
	}
	return val, true, nil
}

// Float reads a number within r.
func (o Object) Float(r bounds.Range, names ...string) (val float64, ok bool, err error) {
	raw, name, ok := o.find(names)
	if !ok {
		return 0, false, nil
	}
	if err := json.Unmarshal(raw, &val); err != nil {
		return 0, false, reqerr.InvalidValue(o.Path(name), "must be a number")
	}
	if !r.Has(val) {
		return 0, false, reqerr.InvalidValue(o.Path(name), "must be %s, got %s", r, bounds.Number(val))
	}
	return val, true, nil
}

// Int reads an integer within r. 5.0 is an integer, 5.5 is not.
func (o Object) Int(r bounds.Range, names ...string) (val int64, ok bool, err error) {
	raw, name, ok := o.find(names)
	if !ok {
		return 0, false, nil
	}
	val, ok = Int64(raw)
	if !ok {
		return 0, false, reqerr.InvalidValue(o.Path(name), "must be an integer")
	}
	if !r.Has(float64(val)) {
		return 0, false, reqerr.InvalidValue(o.Path(name), "must be %s, got %d", r, val)
	}
	return val, true, nil
}

// Int64 reads a JSON number that is an integer.
func Int64(raw json.RawMessage) (int64, bool) {
	text := strings.TrimSpace(string(raw))
	if v, err := strconv.ParseInt(text, 10, 64); err == nil {
		return v, true
	}
	var f float64
	if err := json.Unmarshal(raw, &f); err != nil || f != math.Trunc(f) || math.Abs(f) >= 1<<63 {
		return 0, false
	}
	return int64(f), true
}

// Object reads an object.
func (o Object) Object(names ...string) (val Object, ok bool, err error) {
	raw, name, ok := o.find(names)
	if !ok {
		return Object{}, false, nil
	}
	if o.use != nil {
		if kid, ok := o.use.kids[name]; ok {
			return kid, true, nil
		}
	}
	if val, err = wrap(raw, o.Path(name)); err != nil {
		return val, false, err
	}
	if o.use != nil {
		val.shape, val.use = join(o.shape, name), &use{}
		if o.use.kids == nil {
			o.use.kids = map[string]Object{}
		}
		o.use.kids[name] = val
	}
	return val, true, nil
}

// Array reads an array, its elements raw; null elements stay null.
func (o Object) Array(names ...string) (val []json.RawMessage, name string, ok bool, err error) {
	raw, name, ok := o.find(names)
	if !ok {
		return nil, "", false, nil
	}
	elements, ok := Elements(raw)
	if !ok {
		return nil, "", false, reqerr.InvalidValue(o.Path(name), "must be an array")
	}
	n := 0
	for range elements {
		n++
	}
	return slices.AppendSeq(make([]json.RawMessage, 0, n), elements), name, true, nil
}

// Elements returns the elements of a JSON array, which is part of a body that was parsed. They share its memory: an
// array of 60 MB may have 30 million. ok is false for other values.
func Elements(array json.RawMessage) (elements iter.Seq[json.RawMessage], ok bool) {
	if Kind(array) != 'a' {
		return nil, false
	}
	text := bytes.TrimSpace(array)
	return func(yield func(json.RawMessage) bool) {
		depth, start := 0, 1
		for i, c := range marks(text) {
			switch {
			case i == 0: // the array's own bracket
			case c == '{' || c == '[':
				depth++
			case depth > 0 && (c == '}' || c == ']'):
				depth--
			case depth == 0 && (c == ',' || c == ']'):
				if e := bytes.TrimSpace(text[start:i]); len(e) > 0 && !yield(slices.Clip(e)) {
					return
				}
				start = i + 1
			}
		}
	}, true
}

// Strings reads a string or an array of strings.
func (o Object) Strings(names ...string) (val []string, name string, ok bool, err error) {
	raw, name, ok := o.find(names)
	if !ok {
		return nil, "", false, nil
	}
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return []string{one}, name, true, nil
	}
	if err := json.Unmarshal(raw, &val); err != nil {
		return nil, "", false, reqerr.InvalidValue(o.Path(name), "must be a string or an array of strings")
	}
	return val, name, true, nil
}

// Members returns the members, nulls left out; extra_body is not consulted. The caller must not change them.
func (o Object) Members() map[string]json.RawMessage {
	o.ReadAll()
	return o.fields
}

// Ignore counts members as read that change nothing by a rule of docs/spec/http-api.md.
func (o Object) Ignore(names ...string) {
	for _, name := range names {
		o.find([]string{name})
	}
}

// ReadAll counts all members as read: the object is taken, or reported as left out, as a whole.
func (o Object) ReadAll() {
	if o.use != nil {
		o.use.all = true
	}
}

// Kind tells what a JSON value is by its first byte: 's'tring, 'o'bject, 'a'rray, 'n'umber, 'b'oolean, '0' for null.
func Kind(raw json.RawMessage) byte {
	t := bytes.TrimSpace(raw)
	if len(t) == 0 {
		return '0'
	}
	switch t[0] {
	case '"':
		return 's'
	case '{':
		return 'o'
	case '[':
		return 'a'
	case 't', 'f':
		return 'b'
	case 'n':
		return '0'
	}
	return 'n'
}

// Index appends an array index to a path.
func Index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }
