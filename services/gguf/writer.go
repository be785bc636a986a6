package gguf

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
)

// Writer collects metadata and tensors in order and writes them as one GGUF version 3 file. The same rules hold as for
// reading: what a Writer accepts, OpenBytes accepts. Not safe for concurrent use.
type Writer struct {
	keys      map[string]struct{}
	kv        []byte // encoded metadata records
	alignment int64
	names     map[string]struct{}
	tensors   []pendingTensor
}

type pendingTensor struct {
	Tensor
	src io.Reader
}

// NewWriter makes an empty Writer with the default alignment of 32.
func NewWriter() *Writer {
	return &Writer{keys: map[string]struct{}{}, names: map[string]struct{}{}, alignment: defaultAlignment}
}

// Put appends a metadata value. The Go type decides the stored type: uint8 … int64, float32, float64, bool, string, and
// slices of string, bool, int32, uint32, int64, uint64, float32. The key general.alignment (uint32) sets the
// alignment too.
func (w *Writer) Put(key string, val any) error {
	v, err := encodeValue(val)
	if err != nil {
		return invalid(key, "%v", err)
	}
	return w.PutValue(key, v)
}

// PutValue appends a metadata value taken from a File.
func (w *Writer) PutValue(key string, v Value) error {
	if len(key) == 0 || len(key) > maxKeyBytes {
		return invalid(key, "key of %d bytes, want 1 to %d", len(key), maxKeyBytes)
	}
	if _, dup := w.keys[key]; dup {
		return invalid(key, "duplicate metadata key")
	}
	if key == "general.alignment" {
		a, ok := v.Int()
		if v.Type != TypeUint32 || !ok || a < minAlignment || a > maxAlignment || a&(a-1) != 0 {
			return invalid(key, "%v is not a u32 power of two from %d to %d", v, minAlignment, maxAlignment)
		}
		w.alignment = a
	}
	w.keys[key] = struct{}{}
	w.kv = appendString(w.kv, key)
	w.kv = binary.LittleEndian.AppendUint32(w.kv, uint32(v.Type))
	switch v.Type {
	case TypeString:
		w.kv = appendString(w.kv, string(v.raw))
	case TypeArray:
		w.kv = binary.LittleEndian.AppendUint32(w.kv, uint32(v.Elem))
		w.kv = binary.LittleEndian.AppendUint64(w.kv, uint64(v.Count))
		w.kv = append(w.kv, v.raw...)
	default:
		w.kv = append(w.kv, v.raw...)
	}
	return nil
}

// AddTensor appends a tensor whose data is read from src when the file is written: exactly the bytes that type and
// shape (ggml order) say, no more and no less.
func (w *Writer) AddTensor(name string, typ Type, shape []int64, src io.Reader) error {
	t := Tensor{Name: name, Type: typ, Shape: slices.Clone(shape)}
	switch _, dup := w.names[name]; {
	case dup:
		return invalid(name, "duplicate tensor")
	case len(name) == 0 || len(name) > maxTensorNameBytes || slices.Contains([]byte(name), 0):
		return invalid(name, "tensor name must have 1 to %d bytes and no zero byte", maxTensorNameBytes)
	case !typ.Known():
		return invalid(name, "storage %v is unknown or not supported", typ)
	case len(shape) < 1 || len(shape) > maxDims:
		return invalid(name, "%d dimensions, want 1 to %d", len(shape), maxDims)
	}
	for i, ne := range shape {
		if ne < 1 {
			return invalid(name, "dimension %d is %d", i, ne)
		}
	}
	var err error
	if t.Bytes, err = tensorBytes(name, typ, shape); err != nil {
		return err
	}
	w.names[name] = struct{}{}
	w.tensors = append(w.tensors, pendingTensor{t, src})
	return nil
}

// head is what comes before the tensors' data, which Writer places at the offsets that it sets, counted from there.
// end is the size of that data.
func (w *Writer) head() (head []byte, end int64, err error) {
	head = append([]byte("GGUF"), 3, 0, 0, 0)
	head = binary.LittleEndian.AppendUint64(head, uint64(len(w.tensors)))
	head = binary.LittleEndian.AppendUint64(head, uint64(len(w.keys)))
	head = append(head, w.kv...)
	for i := range w.tensors {
		t := &w.tensors[i]
		t.Offset = end
		head = appendString(head, t.Name)
		head = binary.LittleEndian.AppendUint32(head, uint32(len(t.Shape)))
		for _, ne := range t.Shape {
			head = binary.LittleEndian.AppendUint64(head, uint64(ne))
		}
		head = binary.LittleEndian.AppendUint32(head, uint32(t.Type))
		head = binary.LittleEndian.AppendUint64(head, uint64(end))
		if t.Bytes > math.MaxInt64-2*maxAlignment-end {
			return nil, 0, invalid(t.Name, "file would be too large")
		}
		end = roundUp(end+t.Bytes, w.alignment)
	}
	return append(head, make([]byte, roundUp(int64(len(head)), w.alignment)-int64(len(head)))...), end, nil
}

// WriteTo writes the file. It reads every tensor source once, so it can be called once.
func (w *Writer) WriteTo(dst io.Writer) (int64, error) {
	head, _, err := w.head()
	if err != nil {
		return 0, err
	}
	n, err := dst.Write(head)
	total := int64(n)
	if err != nil {
		return total, err
	}
	pad := make([]byte, w.alignment)
	for _, t := range w.tensors {
		n, err := copyTensor(dst, t)
		total += n
		if err != nil {
			return total, err
		}
		m, err := dst.Write(pad[:roundUp(t.Bytes, w.alignment)-t.Bytes])
		total += int64(m)
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

func copyTensor(dst io.Writer, t pendingTensor) (int64, error) {
	n, err := io.CopyN(dst, t.src, t.Bytes)
	if err != nil {
		if errors.Is(err, io.EOF) {
			return n, invalid(t.Name, "source ends after %d of %d bytes", n, t.Bytes)
		}
		return n, fmt.Errorf("gguf: write %s: %w", t.Name, err)
	}
	var extra [1]byte
	if m, _ := t.src.Read(extra[:]); m != 0 {
		return n, invalid(t.Name, "source holds more than %d bytes", t.Bytes)
	}
	return n, nil
}

// WriteFile writes the file under a temporary name in the same folder, syncs it and renames it to path, so that a
// reader sees either nothing or all of it.
func (w *Writer) WriteFile(path string) (err error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("gguf: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, tmp.Close(), os.Remove(tmp.Name()))
		}
	}()
	buf := bufio.NewWriterSize(tmp, 1<<20)
	if _, err := w.WriteTo(buf); err != nil {
		return err
	}
	if err := buf.Flush(); err != nil {
		return fmt.Errorf("gguf: write %s: %w", path, err)
	}
	if err := tmp.Sync(); err != nil {
		return fmt.Errorf("gguf: %w", err)
	}
	if err := tmp.Chmod(0o644); err != nil {
		return fmt.Errorf("gguf: %w", err)
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return fmt.Errorf("gguf: %w", err)
	}
	if err := tmp.Close(); err != nil {
		return fmt.Errorf("gguf: %w", err)
	}
	return nil
}

func appendString(b []byte, s string) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(len(s)))
	return append(b, s...)
}

// encodeValue turns a Go value into its stored form.
func encodeValue(val any) (Value, error) {
	le := binary.LittleEndian
	switch x := val.(type) {
	case uint8:
		return Value{Type: TypeUint8, raw: []byte{x}}, nil
	case int8:
		return Value{Type: TypeInt8, raw: []byte{byte(x)}}, nil
	case uint16:
		return Value{Type: TypeUint16, raw: le.AppendUint16(nil, x)}, nil
	case int16:
		return Value{Type: TypeInt16, raw: le.AppendUint16(nil, uint16(x))}, nil
	case uint32:
		return Value{Type: TypeUint32, raw: le.AppendUint32(nil, x)}, nil
	case int32:
		return Value{Type: TypeInt32, raw: le.AppendUint32(nil, uint32(x))}, nil
	case uint64:
		return Value{Type: TypeUint64, raw: le.AppendUint64(nil, x)}, nil
	case int64:
		return Value{Type: TypeInt64, raw: le.AppendUint64(nil, uint64(x))}, nil
	case float32:
		return Value{Type: TypeFloat32, raw: le.AppendUint32(nil, math.Float32bits(x))}, nil
	case float64:
		return Value{Type: TypeFloat64, raw: le.AppendUint64(nil, math.Float64bits(x))}, nil
	case bool:
		return Value{Type: TypeBool, raw: boolBytes(x)}, nil
	case string:
		return Value{Type: TypeString, raw: []byte(x)}, nil
	case []string:
		return encodeArray(x, TypeString, appendString), nil
	case []bool:
		return encodeArray(x, TypeBool, func(b []byte, v bool) []byte { return append(b, boolBytes(v)...) }), nil
	case []int32:
		return encodeArray(x, TypeInt32, func(b []byte, v int32) []byte { return le.AppendUint32(b, uint32(v)) }), nil
	case []uint32:
		return encodeArray(x, TypeUint32, le.AppendUint32), nil
	case []int64:
		return encodeArray(x, TypeInt64, func(b []byte, v int64) []byte { return le.AppendUint64(b, uint64(v)) }), nil
	case []uint64:
		return encodeArray(x, TypeUint64, le.AppendUint64), nil
	case []float32:
		return encodeArray(x, TypeFloat32,
			func(b []byte, v float32) []byte { return le.AppendUint32(b, math.Float32bits(v)) }), nil
	}
	return Value{}, fmt.Errorf("cannot store a value of Go type %T", val)
}

func boolBytes(b bool) []byte {
	if b {
		return []byte{1}
	}
	return []byte{0}
}

func encodeArray[T any](xs []T, elem ValueType, app func([]byte, T) []byte) Value {
	raw := []byte{} // never nil: an empty array is a value, a missing key is not
	for _, x := range xs {
		raw = app(raw, x)
	}
	return Value{Type: TypeArray, Elem: elem, Count: len(xs), raw: raw}
}
