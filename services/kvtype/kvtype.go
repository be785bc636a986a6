// Package kvtype is the table of types in which keys and values are cached: what flags take, what help texts say, and
// what plans of memory count. The engine's table is native/src/core/kv_type.h.
package kvtype

import (
	"fmt"
	"slices"
	"strings"
)

// Block is the number of elements whose bytes a row of the table gives; quantised types share a scale among so many.
const Block = 32

// Type is a row of the table.
type Type struct {
	// Name as flags and documents write it.
	Name string
	// ID in the engine's interface, that of the tensor type in GGUF files.
	ID int32
	// BlockBytes of Block elements with their scale.
	BlockBytes int64
}

// types in the order in which help texts name them.
var types = [...]Type{
	{"f16", 1, 64},
	{"f32", 0, 128},
	{"bf16", 30, 64},
	{"q8_0", 8, 34},
	{"q5_1", 7, 24},
	{"q5_0", 6, 22},
	{"q4_1", 3, 20},
	{"q4_0", 2, 18},
	{"tq3_0", 42, 14},
}

// All returns the rows of the table.
func All() []Type { return types[:] }

// Parse finds a type by its name, in either case.
func Parse(name string) (Type, error) {
	i := slices.IndexFunc(types[:], func(t Type) bool { return strings.EqualFold(t.Name, name) })
	if i < 0 {
		return Type{}, fmt.Errorf("unknown type of cached keys and values %q (known: %s)", name, names())
	}
	return types[i], nil
}

// Auto is the name that flags take for a type that the engine chooses by memory. It is no type.
const Auto = "auto"

// Name of the type with an id of the engine's interface; "" of others.
func Name(id int32) string {
	for _, t := range types {
		if t.ID == id {
			return t.Name
		}
	}
	return ""
}

// Vars are the variables that tags of flags may use: kv_types are the names of all types, kv_choices these and Auto.
func Vars() map[string]string {
	return map[string]string{"kv_types": names(), "kv_choices": names() + ", " + Auto}
}

// names lists all types.
func names() string {
	var out []string
	for _, t := range types {
		out = append(out, t.Name)
	}
	return strings.Join(out, ", ")
}
