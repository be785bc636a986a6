package tensorwire

import (
	"encoding/binary"
	"math"
	"math/bits"
)

// The Append functions write one field each; like proto3 they leave out zero values.

// AppendUint appends a varint field.
func AppendUint(b []byte, number uint32, v uint64) []byte {
	if v == 0 {
		return b
	}
	return binary.AppendUvarint(binary.AppendUvarint(b, uint64(Tag(number, Varint))), v)
}

// AppendInt appends an int32, int64 or enum field.
func AppendInt[T ~int32 | ~int64 | ~int](b []byte, number uint32, v T) []byte {
	return AppendUint(b, number, uint64(int64(v)))
}

// AppendSint appends a sint32 field.
func AppendSint(b []byte, number uint32, v int32) []byte {
	return AppendUint(b, number, uint64(zigzag(v)))
}

// AppendBool appends a bool field.
func AppendBool(b []byte, number uint32, v bool) []byte {
	if !v {
		return b
	}
	return AppendUint(b, number, 1)
}

// AppendFloat appends a float field.
func AppendFloat(b []byte, number uint32, v float32) []byte {
	if math.Float32bits(v) == 0 {
		return b
	}
	return binary.LittleEndian.AppendUint32(binary.AppendUvarint(b, uint64(Tag(number, Fixed32))), math.Float32bits(v))
}

// AppendString appends a string field.
func AppendString(b []byte, number uint32, v string) []byte {
	if v == "" {
		return b
	}
	return append(AppendLength(b, number, len(v)), v...)
}

// AppendLength appends tag and length of a bytes field or nested message of n bytes, which follow.
func AppendLength(b []byte, number uint32, n int) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(b, uint64(Tag(number, Bytes))), uint64(n))
}

// AppendInt32s appends a packed repeated int32 field.
func AppendInt32s(b []byte, number uint32, v []int32) []byte {
	if len(v) == 0 {
		return b
	}
	n := 0
	for _, x := range v {
		n += SizeVarint(uint64(int64(x)))
	}
	b = AppendLength(b, number, n)
	for _, x := range v {
		b = binary.AppendUvarint(b, uint64(int64(x)))
	}
	return b
}

// AppendSint32s appends a packed repeated sint32 field.
func AppendSint32s(b []byte, number uint32, v []int32) []byte {
	if len(v) == 0 {
		return b
	}
	n := 0
	for _, x := range v {
		n += SizeVarint(uint64(zigzag(x)))
	}
	b = AppendLength(b, number, n)
	for _, x := range v {
		b = binary.AppendUvarint(b, uint64(zigzag(x)))
	}
	return b
}

// AppendFloats appends a packed repeated float field.
func AppendFloats(b []byte, number uint32, v []float32) []byte {
	if len(v) == 0 {
		return b
	}
	return append(AppendLength(b, number, 4*len(v)), View(v)...)
}

// Nest makes what was appended since mark, a message body, the value of a bytes field: the body is moved to make room
// for tag and length, which is cheaper than sizing small messages first.
func Nest(b []byte, mark int, number uint32) []byte {
	body := len(b) - mark
	head := SizeVarint(uint64(Tag(number, Bytes))) + SizeVarint(uint64(body))
	for range head {
		b = append(b, 0)
	}
	copy(b[mark+head:], b[mark:mark+body])
	AppendLength(b[:mark], number, body)
	return b
}

// SizeVarint is the encoded size of a varint.
func SizeVarint(v uint64) int { return (bits.Len64(v|1) + 6) / 7 }

func zigzag(v int32) uint32 { return uint32(v<<1) ^ uint32(v>>31) }
