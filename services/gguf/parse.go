package gguf

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/bits"
)

// Limits of the container. The upper alignment limit is ours; the rest is the format's.
const (
	minVersion, maxVersion = 2, 3
	defaultAlignment       = 32
	minAlignment           = 8
	maxAlignment           = 1 << 20
	maxCount               = 1 << 31
	maxStringBytes         = 1 << 30
	maxKeyBytes            = 65535
	maxTensorNameBytes     = 63
	maxArrayElems          = 1 << 30
	maxDims                = 4
	headerBytes            = 24
	minKVRecordBytes       = 14 // key of one byte, type, value of one byte
	minTensorRecordBytes   = 33 // name of one byte, one dimension
)

// shard is one parsed file.
type shard struct {
	path      string
	data      []byte
	version   uint32
	alignment int64
	keys      []string
	values    map[string]Value
	tensors   []Tensor
}

// cursor walks over the header. All reads are bounded by the bytes that remain.
type cursor struct {
	data []byte
	pos  int
}

func (c *cursor) remaining() int { return len(c.data) - c.pos }

func (c *cursor) u32(field string) (uint32, error) {
	if c.remaining() < 4 {
		return 0, c.truncated(field)
	}
	v := binary.LittleEndian.Uint32(c.data[c.pos:])
	c.pos += 4
	return v, nil
}

func (c *cursor) u64(field string) (uint64, error) {
	if c.remaining() < 8 {
		return 0, c.truncated(field)
	}
	v := binary.LittleEndian.Uint64(c.data[c.pos:])
	c.pos += 8
	return v, nil
}

func (c *cursor) truncated(field string) error {
	return invalid(field, "file ends at byte %d inside the header (truncated?)", len(c.data))
}

// str reads a length-prefixed string without copying it.
func (c *cursor) str(field string, limit uint64) ([]byte, error) {
	n, err := c.u64(field)
	if err != nil {
		return nil, err
	}
	if n > limit {
		return nil, invalid(field, "string of %d bytes, at most %d allowed", n, limit)
	}
	if n > uint64(c.remaining()) {
		return nil, invalid(field, "string of %d bytes, but only %d remain in the file", n, c.remaining())
	}
	s := c.data[c.pos : c.pos+int(n) : c.pos+int(n)]
	c.pos += int(n)
	return s, nil
}

// value reads a metadata value of type t.
func (c *cursor) value(field string, t ValueType) (Value, error) {
	v := Value{Type: t}
	switch {
	case t == TypeString:
		raw, err := c.str(field, maxStringBytes)
		v.raw = raw
		return v, err
	case t == TypeArray:
		return c.array(field)
	case t.size() == 0:
		return v, invalid(field, "unknown %v", t)
	}
	n := t.size()
	if c.remaining() < n {
		return v, c.truncated(field)
	}
	v.raw = c.data[c.pos : c.pos+n : c.pos+n]
	c.pos += n
	if t == TypeBool && v.raw[0] > 1 {
		return v, invalid(field, "bool is %d, want 0 or 1", v.raw[0])
	}
	return v, nil
}

func (c *cursor) array(field string) (Value, error) {
	v := Value{Type: TypeArray}
	et, err := c.u32(field)
	if err != nil {
		return v, err
	}
	v.Elem = ValueType(et)
	n, err := c.u64(field)
	if err != nil {
		return v, err
	}
	if n > maxArrayElems {
		return v, invalid(field, "array of %d elements, at most %d allowed", n, maxArrayElems)
	}
	start := c.pos
	switch {
	case v.Elem == TypeArray:
		return v, invalid(field, "array of arrays")
	case v.Elem == TypeString:
		if n > uint64(c.remaining())/8 {
			return v, invalid(field, "array of %d strings, but only %d bytes remain", n, c.remaining())
		}
		for range n {
			if _, err := c.str(field, maxStringBytes); err != nil {
				return v, err
			}
		}
	case v.Elem.size() == 0:
		return v, invalid(field, "array of unknown %v", v.Elem)
	default:
		size := uint64(v.Elem.size())
		if n > uint64(c.remaining())/size {
			return v, invalid(field, "array of %d %v, but only %d bytes remain", n, v.Elem, c.remaining())
		}
		c.pos += int(n * size)
		if v.Elem == TypeBool {
			for i, b := range c.data[start:c.pos] {
				if b > 1 {
					return v, invalid(field, "bool %d of the array is %d, want 0 or 1", i, b)
				}
			}
		}
	}
	v.Count = int(n)
	v.raw = c.data[start:c.pos:c.pos]
	return v, nil
}

// parse checks one whole file. data stays referenced by the result.
func parse(data []byte) (*shard, error) {
	if len(data) < headerBytes {
		return nil, invalid("header", "file has %d bytes, a GGUF header has %d", len(data), headerBytes)
	}
	if string(data[:4]) != "GGUF" {
		return nil, invalid("magic", "file starts with %q, want \"GGUF\"", data[:4])
	}
	s := &shard{data: data, alignment: defaultAlignment}
	s.version = binary.LittleEndian.Uint32(data[4:])
	if s.version&0xFFFF == 0 {
		return nil, invalid("version", "%#x: big-endian files are not supported", s.version)
	}
	if s.version < minVersion || s.version > maxVersion {
		return nil, invalid("version", "%d is not supported (want %d or %d)", s.version, minVersion, maxVersion)
	}
	nTensors := binary.LittleEndian.Uint64(data[8:])
	nKV := binary.LittleEndian.Uint64(data[16:])
	c := &cursor{data: data, pos: headerBytes}
	left := uint64(c.remaining())
	if nKV > maxCount || nKV > left/minKVRecordBytes {
		return nil, invalid("kv_count", "%d records cannot fit into a file of %d bytes", nKV, len(data))
	}
	if nTensors > maxCount || nTensors > (left-nKV*minKVRecordBytes)/minTensorRecordBytes {
		return nil, invalid("tensor_count", "%d records cannot fit into a file of %d bytes", nTensors, len(data))
	}
	if err := s.parseKV(c, nKV); err != nil {
		return nil, err
	}
	if err := s.parseTensors(c, nTensors); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *shard) parseKV(c *cursor, n uint64) error {
	s.values = make(map[string]Value)
	for i := range n {
		raw, err := c.str("metadata key", maxKeyBytes)
		if err != nil {
			return err
		}
		if len(raw) == 0 {
			return invalid("metadata key", "key %d is empty", i)
		}
		key := string(raw)
		if _, dup := s.values[key]; dup {
			return invalid(key, "duplicate metadata key")
		}
		t, err := c.u32(key)
		if err != nil {
			return err
		}
		v, err := c.value(key, ValueType(t))
		if err != nil {
			return err
		}
		s.keys = append(s.keys, key)
		s.values[key] = v
	}
	const alignKey = "general.alignment"
	if v, ok := s.values[alignKey]; ok {
		if v.Type != TypeUint32 {
			return invalid(alignKey, "is %s, want u32", v.TypeName())
		}
		a, _ := v.Int()
		if a < minAlignment || a > maxAlignment || bits.OnesCount64(uint64(a)) != 1 {
			return invalid(alignKey, "%d is not a power of two from %d to %d", a, minAlignment, maxAlignment)
		}
		s.alignment = a
	}
	return nil
}

func (s *shard) parseTensors(c *cursor, n uint64) error {
	seen := make(map[string]struct{})
	for i := range n {
		t, err := parseTensor(c, i)
		if err != nil {
			return err
		}
		if _, dup := seen[t.Name]; dup {
			return invalid(t.Name, "duplicate tensor")
		}
		seen[t.Name] = struct{}{}
		s.tensors = append(s.tensors, t)
	}
	if n == 0 {
		return nil
	}
	// data_start is rounded up from the position after the last record; pos is at most the file size, so this
	// cannot overflow.
	dataStart := roundUp(int64(c.pos), s.alignment)
	running := int64(0)
	size := int64(len(s.data))
	for i := range s.tensors {
		t := &s.tensors[i]
		if t.Offset%s.alignment != 0 {
			return invalid(t.Name, "offset %d is not a multiple of the alignment %d", t.Offset, s.alignment)
		}
		if t.Offset != running {
			return invalid(t.Name, "offset %d, want %d (tensors must follow each other without gaps)", t.Offset, running)
		}
		if t.Bytes > size-dataStart-running {
			return invalid(t.Name, "needs %d bytes at %d but the file ends at %d: incomplete download?", t.Bytes,
				dataStart+running, size)
		}
		t.Offset = dataStart + running
		running = roundUp(running+t.Bytes, s.alignment)
	}
	return nil
}

// parseTensor reads one tensor record. Offset is still relative to the data section.
func parseTensor(c *cursor, index uint64) (Tensor, error) {
	var t Tensor
	raw, err := c.str("tensor name", maxTensorNameBytes)
	if err != nil {
		return t, err
	}
	if len(raw) == 0 || bytes.IndexByte(raw, 0) >= 0 {
		return t, invalid("tensor name", "name of tensor %d is empty or holds a zero byte", index)
	}
	t.Name = string(raw)
	nDims, err := c.u32(t.Name)
	if err != nil {
		return t, err
	}
	if nDims < 1 || nDims > maxDims {
		return t, invalid(t.Name, "%d dimensions, want 1 to %d", nDims, maxDims)
	}
	t.Shape = make([]int64, nDims)
	for i := range t.Shape {
		ne, err := c.u64(t.Name)
		if err != nil {
			return t, err
		}
		if ne < 1 || ne > math.MaxInt64 {
			return t, invalid(t.Name, "dimension %d is %d", i, ne)
		}
		t.Shape[i] = int64(ne)
	}
	typ, err := c.u32(t.Name)
	if err != nil {
		return t, err
	}
	t.Type = Type(typ)
	if !t.Type.Known() {
		return t, invalid(t.Name, "storage %v is unknown, removed or not supported", t.Type)
	}
	off, err := c.u64(t.Name)
	if err != nil {
		return t, err
	}
	if off > math.MaxInt64 {
		return t, invalid(t.Name, "offset %d", off)
	}
	t.Offset = int64(off)
	t.Bytes, err = tensorBytes(t.Name, t.Type, t.Shape)
	return t, err
}

// tensorBytes is the size of a tensor, with overflow checks on the number of elements and of bytes.
func tensorBytes(name string, typ Type, shape []int64) (int64, error) {
	if shape[0]%typ.BlockElems() != 0 {
		return 0, invalid(name, "first dimension %d is not a multiple of %d, the block of %v",
			shape[0], typ.BlockElems(), typ)
	}
	elems, size := uint64(1), uint64(typ.BlockBytes())
	for i, ne := range shape {
		blocks := uint64(ne)
		if i == 0 {
			blocks /= uint64(typ.BlockElems())
		}
		var hi uint64
		if hi, elems = bits.Mul64(elems, uint64(ne)); hi != 0 || elems > math.MaxInt64 {
			return 0, invalid(name, "shape %v has too many elements", shape)
		}
		// A row that is all overflow-free in elements can still overflow in bytes (8-byte types).
		if hi, size = bits.Mul64(size, blocks); hi != 0 || size > math.MaxInt64 {
			return 0, invalid(name, "shape %v is too large", shape)
		}
	}
	return int64(size), nil
}

func roundUp(n, a int64) int64 { return (n + a - 1) &^ (a - 1) }
