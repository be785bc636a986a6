package gguf

import (
	"math"
	"slices"
)

// Keys lists the metadata keys in file order (first shard).
func (f *File) Keys() []string { return slices.Clone(f.shards[0].keys) }

// Lookup finds a metadata value.
func (f *File) Lookup(key string) (Value, bool) {
	v, ok := f.shards[0].values[key]
	return v, ok
}

// typed looks a key up and converts it. ok is false when the key is absent; a value of another type is an error.
func typed[T any](f *File, key, want string, conv func(Value) (T, bool)) (val T, ok bool, err error) {
	v, found := f.Lookup(key)
	if !found {
		return val, false, nil
	}
	val, fits := conv(v)
	if !fits {
		return val, false, invalid(key, "is %s (%s), want %s", v.TypeName(), v, want)
	}
	return val, true, nil
}

// Uint reads a count: an integer of any width and sign that is not negative. ok is false when the key is absent.
func (f *File) Uint(key string) (val uint64, ok bool, err error) {
	return typed(f, key, "an integer ≥ 0", Value.Uint)
}

// Int reads an integer of any width. ok is false when the key is absent.
func (f *File) Int(key string) (val int64, ok bool, err error) {
	return typed(f, key, "an integer", Value.Int)
}

// Float reads an f32 or f64. ok is false when the key is absent.
func (f *File) Float(key string) (val float64, ok bool, err error) {
	return typed(f, key, "f32", Value.Float)
}

// Bool reads a bool. ok is false when the key is absent.
func (f *File) Bool(key string) (val, ok bool, err error) { return typed(f, key, "bool", Value.Bool) }

// String reads a string. ok is false when the key is absent.
func (f *File) String(key string) (val string, ok bool, err error) {
	return typed(f, key, "string", Value.Str)
}

// Strings reads an array of strings. ok is false when the key is absent.
func (f *File) Strings(key string) (val []string, ok bool, err error) {
	return typed(f, key, "array of string", Value.Strings)
}

// Bools reads an array of bool. ok is false when the key is absent.
func (f *File) Bools(key string) (val []bool, ok bool, err error) {
	return typed(f, key, "array of bool", Value.Bools)
}

// Floats reads an array of f32 or f64. ok is false when the key is absent.
func (f *File) Floats(key string) (val []float64, ok bool, err error) {
	return typed(f, key, "array of f32", Value.Floats)
}

// Ints reads an array of integers of any width. ok is false when the key is absent.
func (f *File) Ints(key string) (val []int64, ok bool, err error) {
	return typed(f, key, "array of integers", Value.Ints)
}

// Int32s reads an array of integers of any width whose values fit into int32 (token ids, token types, layer ids). ok is
// false when the key is absent.
func (f *File) Int32s(key string) (val []int32, ok bool, err error) {
	return typed(f, key, "array of i32", func(v Value) ([]int32, bool) {
		wide, ok := v.Ints()
		if !ok {
			return nil, false
		}
		out := make([]int32, len(wide))
		for i, n := range wide {
			if n < math.MinInt32 || n > math.MaxInt32 {
				return nil, false
			}
			out[i] = int32(n)
		}
		return out, true
	})
}

// Architecture is general.architecture. It is an error when the key is missing or not a string.
func (f *File) Architecture() (string, error) {
	arch, ok, err := f.String("general.architecture")
	if err != nil {
		return "", err
	}
	if !ok || arch == "" {
		return "", invalid("general.architecture", "is missing")
	}
	return arch, nil
}
