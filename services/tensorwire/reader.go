package tensorwire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"
	"unicode/utf8"
	"unsafe"

	"google.golang.org/grpc/mem"
)

// Errors of malformed messages.
var (
	errCut     = errors.New("the message ends too early")
	errVarint  = errors.New("a varint is too long")
	errTag     = errors.New("a tag is invalid")
	errUTF8    = errors.New("the string is not UTF-8")
	errTooDeep = errors.New("groups are nested too deep")
	errUneven  = errors.New("the array's length is not a multiple of its element's size")
	errParts   = errors.New("the parts of the payload are larger than the message")
	errWire    = errors.New("the field has another wire type")
)

// Wire types of protobuf.
const (
	Varint  = 0
	Fixed64 = 1
	Bytes   = 2
	group   = 3
	endOf   = 4
	Fixed32 = 5
)

// Tag is the key of a field: number<<3 | wire type.
func Tag(number, wireType uint32) uint32 { return number<<3 | wireType }

// Reader parses a protobuf message that lies in several buffers, wherever the cuts fall. After the first error every
// method returns zero values; Err tells.
type Reader struct {
	segs mem.BufferSlice
	cur  []byte // rest of the current buffer
	left int    // bytes left in the innermost message
	tag  uint32 // of the field that is read; 0 = none
	err  error
	said bool // err names message and field

	total   int // bytes of the whole message
	parts   int // bytes that the parts of the payload need, as announced so far
	payload struct {
		segs mem.BufferSlice
		cur  []byte
		n    int
	}
}

var readers = sync.Pool{New: func() any { return new(Reader) }}

func (r *Reader) reset(data mem.BufferSlice) {
	n := data.Len()
	*r = Reader{segs: data, left: n, total: n}
}

// Err is the first error.
func (r *Reader) Err() error { return r.err }

func (r *Reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.left, r.cur, r.segs = 0, nil, nil
}

// more makes cur non-empty; the caller knows that bytes are left.
func (r *Reader) more() {
	for len(r.cur) == 0 && len(r.segs) > 0 {
		r.cur = r.segs[0].ReadOnlyData()
		r.segs = r.segs[1:]
	}
}

// Next returns the tag of the next field, 0 at the end of the message.
func (r *Reader) Next() uint32 {
	if r.left == 0 { // also after an error, whose tag stays
		return 0
	}
	r.tag = 0
	r.tag = r.next()
	return r.tag
}

// next is Next without a trace.
func (r *Reader) next() uint32 {
	if r.left == 0 {
		return 0
	}
	tag := r.Uvarint()
	if r.err != nil {
		return 0
	}
	if tag>>3 == 0 || tag > math.MaxUint32 {
		r.fail(errTag)
		return 0
	}
	return uint32(tag)
}

// Uvarint reads a varint.
func (r *Reader) Uvarint() uint64 {
	if len(r.cur) > 0 && r.left > 0 && r.cur[0] < 0x80 {
		v := r.cur[0]
		r.cur = r.cur[1:]
		r.left--
		return uint64(v)
	}
	if len(r.cur) >= binary.MaxVarintLen64 && r.left >= binary.MaxVarintLen64 {
		if v, n := binary.Uvarint(r.cur); n > 0 {
			r.cur = r.cur[n:]
			r.left -= n
			return v
		}
	}
	return r.splitVarint()
}

// splitVarint reads a varint byte by byte: it may be cut, or too long.
func (r *Reader) splitVarint() uint64 {
	v := uint64(0)
	for shift := uint(0); shift < 70; shift += 7 {
		if r.left == 0 {
			r.fail(errCut)
			return 0
		}
		if len(r.cur) == 0 {
			r.more()
		}
		b := r.cur[0]
		r.cur = r.cur[1:]
		r.left--
		if shift == 63 && b > 1 {
			break
		}
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return v
		}
	}
	r.fail(errVarint)
	return 0
}

// Int32 reads an int32 or enum, Sint32 a zigzag one, Int64, Uint32 and Bool likewise.
func (r *Reader) Int32() int32 { return int32(r.Uvarint()) }

// Sint32 reads a zigzag-coded number.
func (r *Reader) Sint32() int32 { return unzigzag(uint32(r.Uvarint())) }

func unzigzag(v uint32) int32 { return int32(v>>1) ^ -int32(v&1) }

// Int64 reads an int64.
func (r *Reader) Int64() int64 { return int64(r.Uvarint()) }

// Uint32 reads a uint32.
func (r *Reader) Uint32() uint32 { return uint32(r.Uvarint()) }

// Bool reads a bool.
func (r *Reader) Bool() bool { return r.Uvarint() != 0 }

// Float reads a 32-bit float.
func (r *Reader) Float() float32 {
	var b [4]byte
	r.full(b[:])
	return math.Float32frombits(binary.LittleEndian.Uint32(b[:]))
}

// full fills dst with the next bytes.
func (r *Reader) full(dst []byte) {
	if len(dst) > r.left {
		r.fail(errCut)
		return
	}
	r.left -= len(dst)
	for len(dst) > 0 {
		r.more()
		n := copy(dst, r.cur)
		r.cur, dst = r.cur[n:], dst[n:]
	}
}

// Length reads the length of a bytes field and checks that so many bytes are there.
func (r *Reader) Length() int {
	n := r.Uvarint()
	if n > uint64(r.left) {
		r.fail(errCut)
		return 0
	}
	return int(n)
}

// Message enters a nested message and returns what Leave needs.
func (r *Reader) Message() (outer int) {
	n := r.Length()
	outer = r.left - n
	r.left = n
	return outer
}

// Leave leaves a nested message that was read to its end.
func (r *Reader) Leave(outer int) {
	if r.err == nil {
		r.left = outer
	}
}

// Raw fills dst with bytes of a length that the caller has read.
func (r *Reader) Raw(dst []byte) { r.full(dst) }

// Payload passes over the payload, a bytes field whose parts are described by other fields, which may come later:
// Rewind returns to it.
func (r *Reader) Payload() {
	n := r.Length()
	r.payload.segs, r.payload.cur, r.payload.n = r.segs, r.cur, n
	r.discard(n)
}

// Rewind returns to the payload, the field of this number, at the end of the message, so that its parts can be read
// with Raw. It is false when there are none, and when they are not as long together as the payload: that is an error.
func (r *Reader) Rewind(number uint32) bool {
	if r.err != nil {
		return false
	}
	if r.parts != r.payload.n {
		r.tag = Tag(number, Bytes)
		r.fail(fmt.Errorf("it has %d bytes, its parts have %d", r.payload.n, r.parts))
		return false
	}
	r.segs, r.cur, r.left = r.payload.segs, r.payload.cur, r.payload.n
	return r.left > 0
}

// Part makes room for n elements of any value, a part of the payload that is read later, in the memory of s when it is
// large enough. What all parts need is bounded by the length of the message.
func Part[T element](r *Reader, s []T, n uint32) []T {
	r.parts += int(n)*int(unsafe.Sizeof(*new(T))) - len(View(s)) // n has 32 bits
	if r.parts > r.total {
		r.fail(errParts)
		return s[:0]
	}
	return sized(s, int(n))
}

// More returns s with one more element, in whose memory an earlier message may lie.
func More[T any](s []T) []T {
	if n := len(s); n < cap(s) {
		return s[:n+1]
	}
	return append(s, *new(T))
}

// Set sets a number of one type to a number of another.
func Set[T, V ~int | ~int32 | ~int64 | ~uint32 | ~uint64](dst *T, v V) { *dst = T(v) }

// Append appends the value of a bytes field to dst[:0], with one copy; dst grows only when its capacity is too small.
func (r *Reader) Append(dst []byte) []byte {
	n := r.Length()
	dst = sized(dst, n)
	r.full(dst)
	return dst
}

// String reads a string; it keeps old when the bytes are the same, so that a repeated value costs nothing.
func (r *Reader) String(old string) string {
	n := r.Length()
	if n == 0 {
		return ""
	}
	if n == len(old) && len(r.cur) >= n {
		if string(r.cur[:n]) == old {
			r.cur = r.cur[n:]
			r.left -= n
			return old
		}
	}
	b := make([]byte, n)
	r.full(b)
	if !utf8.Valid(b) {
		r.fail(errUTF8)
		return ""
	}
	return string(b)
}

// Int32s appends the elements of a repeated int32 field: packed, or one of them, as the tag says.
func (r *Reader) Int32s(tag uint32, dst []int32) []int32 {
	if tag&7 == Varint {
		return append(dst, r.Int32())
	}
	outer := r.Message()
	for r.left > 0 && r.err == nil {
		n := 0
		for whole := r.cur[:min(len(r.cur), r.left)]; n < len(whole); { // elements that no buffer's end cuts
			v, k := binary.Uvarint(whole[n:])
			if k <= 0 {
				break
			}
			dst = append(dst, int32(v))
			n += k
		}
		r.cur = r.cur[n:]
		r.left -= n
		if n == 0 {
			if v := r.splitVarint(); r.err == nil {
				dst = append(dst, int32(v))
			}
		}
	}
	r.Leave(outer)
	return dst
}

// Sint32s appends the elements of a repeated sint32 field.
func (r *Reader) Sint32s(tag uint32, dst []int32) []int32 {
	had := len(dst)
	dst = r.Int32s(tag, dst)
	for i, v := range dst[had:] {
		dst[had+i] = unzigzag(uint32(v))
	}
	return dst
}

// Floats appends the elements of a repeated float field.
func (r *Reader) Floats(tag uint32, dst []float32) []float32 {
	if tag&7 == Fixed32 {
		return append(dst, r.Float())
	}
	n := r.Length()
	if n%4 != 0 {
		r.fail(errUneven)
		return dst
	}
	have := len(dst)
	dst = grown(dst, n/4)
	r.full(View(dst[have:]))
	return dst
}

// Names are a message's name and the names of its fields by number, for errors.
type Names struct {
	Message string
	Fields  []string
}

// Other passes over a field that the message does not have. A field of it with another wire type is an error: the peer
// means something else by it.
func (r *Reader) Other(tag uint32, n *Names) {
	if number := tag >> 3; int(number) < len(n.Fields) && n.Fields[number] != "" {
		r.fail(errWire)
		return
	}
	r.Skip(tag)
}

// Finish ends reading a message, or one that is nested in it: the first to see an error adds its own name and
// the field's.
func (r *Reader) Finish(n *Names) {
	if r.err == nil || r.said {
		return
	}
	r.said = true
	name := n.Message
	if number := r.tag >> 3; number > 0 && int(number) < len(n.Fields) && n.Fields[number] != "" {
		name += "." + n.Fields[number]
	} else if number > 0 {
		name += fmt.Sprintf(", field %d", number)
	}
	r.err = fmt.Errorf("tensorwire: %s: %w", name, r.err)
}

// Skip passes over a field that the reader does not know.
func (r *Reader) Skip(tag uint32) { r.skip(tag, 0) }

// maxGroupDepth is protobuf's limit on nesting.
const maxGroupDepth = 10000

func (r *Reader) skip(tag uint32, depth int) {
	switch tag & 7 {
	case Varint:
		r.Uvarint()
	case Fixed64:
		r.discard(8)
	case Bytes:
		r.discard(r.Length())
	case Fixed32:
		r.discard(4)
	case group:
		if depth >= maxGroupDepth {
			r.fail(errTooDeep)
			return
		}
		for r.err == nil {
			inner := r.next()
			switch {
			case inner == 0:
				r.fail(errCut)
			case inner == tag&^7|endOf:
				return
			default:
				r.skip(inner, depth+1)
			}
		}
	default:
		r.fail(errTag)
	}
}

func (r *Reader) discard(n int) {
	if n > r.left {
		r.fail(errCut)
		return
	}
	r.left -= n
	for n > 0 {
		r.more()
		k := min(n, len(r.cur))
		r.cur = r.cur[k:]
		n -= k
	}
}

// sized returns a slice of n elements of any value, in dst's memory when it is large enough.
func sized[T any](dst []T, n int) []T {
	if cap(dst) < n {
		return make([]T, n)
	}
	return dst[:n]
}

// grown returns dst with n more elements of any value.
func grown[T any](dst []T, n int) []T {
	if need := len(dst) + n; need > cap(dst) {
		larger := make([]T, need, max(need, 2*cap(dst)))
		copy(larger, dst)
		return larger
	}
	return dst[:len(dst)+n]
}

// element is a type of payload.
type element interface{ byte | uint32 | float32 }

// View returns the bytes of a slice. All platforms that Tandem serves are little-endian, as is the wire.
func View[T element](s []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(*new(T))))
}
