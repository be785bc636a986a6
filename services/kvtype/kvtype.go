// Package kvtype is the table of types in which keys and values are cached: what flags take, what help texts say, and
// what plans of memory count. Its other side is native/src/core/kv_type.h.
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
	// ID in the engine's interface, that of the tensor type in GGUF files; -1 = not assigned.
	ID int32
	// BlockBytes of Block elements with their scale.
	BlockBytes int64
	// Cached: engines of this build cache keys and values in it. The others are known to plans of memory alone
	// (docs/spec/kv-cache.md).
	Cached bool
}

// types in the order in which help texts name them.
var types = [...]Type{
	{"f16", 1, 64, true},
	{"f32", 0, 128, true},
	{"q8_0", 8, 34, true},
	{"q4_0", 2, 18, true},
	{"bf16", 30, 64, false},
	{"q5_1", 7, 24, false},
	{"q5_0", 6, 22, false},
	{"q4_1", 3, 20, false},
	{"tq3_0", -1, 14, false},
}

// All returns the rows of the table.
func All() []Type { return types[:] }

// Parse finds a type by its name, in either case.
func Parse(name string) (Type, error) {
	i := slices.IndexFunc(types[:], func(t Type) bool { return strings.EqualFold(t.Name, name) })
	if i < 0 {
		return Type{}, fmt.Errorf("unknown type of cached keys and values %q (known: %s)", name, names(false))
	}
	return types[i], nil
}

// Vars are the variables that tags of flags may use: kv_types are the names of those that engines of this build cache,
// kv_known those of all.
func Vars() map[string]string {
	return map[string]string{"kv_types": names(true), "kv_known": names(false)}
}

func names(cached bool) string {
	var out []string
	for _, t := range types {
		if t.Cached || !cached {
			out = append(out, t.Name)
		}
	}
	return strings.Join(out, ", ")
}
