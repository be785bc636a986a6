package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// ValueType is the type of a metadata value: the id that stands in the file.
type ValueType uint32

// Metadata value types.
const (
	TypeUint8   ValueType = 0
	TypeInt8    ValueType = 1
	TypeUint16  ValueType = 2
	TypeInt16   ValueType = 3
	TypeUint32  ValueType = 4
	TypeInt32   ValueType = 5
	TypeFloat32 ValueType = 6
	TypeBool    ValueType = 7
	TypeString  ValueType = 8
	TypeArray   ValueType = 9
	TypeUint64  ValueType = 10
	TypeInt64   ValueType = 11
	TypeFloat64 ValueType = 12
)

var valueTypes = [...]struct {
	name string
	size int // bytes of a fixed-size value, 0 for string and array
}{
	{"u8", 1}, {"i8", 1}, {"u16", 2}, {"i16", 2}, {"u32", 4}, {"i32", 4}, {"f32", 4},
	{"bool", 1}, {"string", 0}, {"array", 0}, {"u64", 8}, {"i64", 8}, {"f64", 8},
}

// String is the short name used in messages: u8 … f64, bool, string, array.
func (t ValueType) String() string {
	if int(t) < len(valueTypes) {
		return valueTypes[t].name
	}
	return fmt.Sprintf("value type %d", uint32(t))
}

func (t ValueType) size() int {
	if int(t) < len(valueTypes) {
		return valueTypes[t].size
	}
	return 0
}

// Value is one metadata value. It refers to the bytes of its File and must not be used after File.Close; what the
// accessors return is copied and stays valid.
type Value struct {
	Type  ValueType
	Elem  ValueType // element type when Type is TypeArray
	Count int       // number of elements when Type is TypeArray

	// raw holds the payload without its header: scalar bytes, string bytes, or all array elements (strings with
	// their lengths).
	raw []byte
}

// Raw returns a copy of the payload's bytes without the header, as the file holds them.
func (v Value) Raw() []byte { return slices.Clone(v.raw) }

// TypeName is the type for messages: "u32", "string", "array of i32".
func (v Value) TypeName() string {
	if v.Type == TypeArray {
		return "array of " + v.Elem.String()
	}
	return v.Type.String()
}

// scalarInt decodes one integer; ok is false when t is not an integer type or the value does not fit into int64.
func scalarInt(t ValueType, raw []byte) (int64, bool) {
	switch t {
	case TypeUint8:
		return int64(raw[0]), true
	case TypeInt8:
		return int64(int8(raw[0])), true
	case TypeUint16:
		return int64(binary.LittleEndian.Uint16(raw)), true
	case TypeInt16:
		return int64(int16(binary.LittleEndian.Uint16(raw))), true
	case TypeUint32:
		return int64(binary.LittleEndian.Uint32(raw)), true
	case TypeInt32:
		return int64(int32(binary.LittleEndian.Uint32(raw))), true
	case TypeUint64:
		u := binary.LittleEndian.Uint64(raw)
		return int64(u), u <= math.MaxInt64
	case TypeInt64:
		return int64(binary.LittleEndian.Uint64(raw)), true
	}
	return 0, false
}

func scalarFloat(t ValueType, raw []byte) (float64, bool) {
	switch t {
	case TypeFloat32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(raw))), true
	case TypeFloat64:
		return math.Float64frombits(binary.LittleEndian.Uint64(raw)), true
	}
	return 0, false
}

// Uint gives an integer of any width that is not negative.
func (v Value) Uint() (uint64, bool) {
	if v.Type == TypeUint64 {
		return binary.LittleEndian.Uint64(v.raw), true
	}
	n, ok := scalarInt(v.Type, v.raw)
	return uint64(n), ok && n >= 0
}

// Int gives an integer of any width.
func (v Value) Int() (int64, bool) { return scalarInt(v.Type, v.raw) }

// Float gives an f32 or f64. Integers are not converted: a wrong type is a wrong file.
func (v Value) Float() (float64, bool) { return scalarFloat(v.Type, v.raw) }

// Bool gives a bool.
func (v Value) Bool() (val, ok bool) {
	if v.Type != TypeBool {
		return false, false
	}
	return v.raw[0] != 0, true
}

// Str gives a string.
func (v Value) Str() (string, bool) {
	if v.Type != TypeString {
		return "", false
	}
	return string(v.raw), true
}

// Strings gives an array of strings.
func (v Value) Strings() ([]string, bool) {
	if v.Type != TypeArray || v.Elem != TypeString {
		return nil, false
	}
	// One copy of all bytes, then substrings of it: a vocabulary has 250 000 entries and would otherwise be as
	// many allocations.
	blob := string(v.raw)
	out := make([]string, v.Count)
	pos := 0
	for i := range out {
		n := int(binary.LittleEndian.Uint64(v.raw[pos:])) // bounded when the file was parsed
		pos += 8
		out[i] = blob[pos : pos+n]
		pos += n
	}
	return out, true
}

// Ints gives an array of integers of any width; ok is false when an element does not fit into int64.
func (v Value) Ints() ([]int64, bool) {
	if v.Type != TypeArray {
		return nil, false
	}
	size := v.Elem.size()
	out := make([]int64, v.Count)
	for i := range out {
		n, ok := scalarInt(v.Elem, v.raw[i*size:])
		if !ok {
			return nil, false
		}
		out[i] = n
	}
	if v.Count == 0 && !isInt(v.Elem) {
		return nil, false
	}
	return out, true
}

func isInt(t ValueType) bool {
	switch t {
	case TypeUint8, TypeInt8, TypeUint16, TypeInt16, TypeUint32, TypeInt32, TypeUint64, TypeInt64:
		return true
	}
	return false
}

// Bools gives an array of bool.
func (v Value) Bools() ([]bool, bool) {
	if v.Type != TypeArray || v.Elem != TypeBool {
		return nil, false
	}
	out := make([]bool, v.Count)
	for i := range out {
		out[i] = v.raw[i] != 0
	}
	return out, true
}

// Floats gives an array of f32 or f64.
func (v Value) Floats() ([]float64, bool) {
	if v.Type != TypeArray || (v.Elem != TypeFloat32 && v.Elem != TypeFloat64) {
		return nil, false
	}
	size := v.Elem.size()
	out := make([]float64, v.Count)
	for i := range out {
		out[i], _ = scalarFloat(v.Elem, v.raw[i*size:])
	}
	return out, true
}

// String shows the value for people: long strings and arrays are cut.
func (v Value) String() string {
	const maxRunes, maxElems = 60, 8
	switch v.Type {
	case TypeString:
		r := []rune(string(v.raw[:min(len(v.raw), 4*maxRunes)]))
		if len(r) > maxRunes {
			return strconv.Quote(string(r[:maxRunes])) + fmt.Sprintf("… (%d bytes)", len(v.raw))
		}
		return strconv.Quote(string(r))
	case TypeArray:
		var b strings.Builder
		b.WriteByte('[')
		pos := 0
		for i := range min(v.Count, maxElems) {
			if i > 0 {
				b.WriteString(", ")
			}
			e := Value{Type: v.Elem}
			if v.Elem == TypeString {
				n := int(binary.LittleEndian.Uint64(v.raw[pos:]))
				e.raw = v.raw[pos+8 : pos+8+n]
				pos += 8 + n
			} else {
				e.raw = v.raw[pos : pos+v.Elem.size()]
				pos += v.Elem.size()
			}
			b.WriteString(e.String())
		}
		if v.Count > maxElems {
			fmt.Fprintf(&b, ", … (%d)", v.Count)
		}
		b.WriteByte(']')
		return b.String()
	case TypeBool:
		return strconv.FormatBool(v.raw[0] != 0)
	case TypeFloat32:
		f, _ := v.Float()
		return strconv.FormatFloat(f, 'g', -1, 32)
	case TypeFloat64:
		f, _ := v.Float()
		return strconv.FormatFloat(f, 'g', -1, 64)
	case TypeUint64:
		u, _ := v.Uint()
		return strconv.FormatUint(u, 10)
	default:
		n, _ := v.Int()
		return strconv.FormatInt(n, 10)
	}
}
