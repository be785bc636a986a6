package gguf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

// FuzzOpen feeds foreign bytes to the reader. What it accepts must be usable: every accessor, the summary and every
// tensor's data.
func FuzzOpen(f *testing.F) {
	good := tiny(f, nil)
	f.Add(good)
	f.Add([]byte("GGUF\x03\x00\x00\x00"))
	f.Add(tiny(f, func(w *Writer) { _ = w.Put("general.alignment", uint32(64)) }))
	f.Add(tiny(f, func(w *Writer) {
		_ = w.Put("tiny.block_count", uint32(2))
		_ = w.Put("tiny.embedding_length", uint32(64))
		_ = w.Put("tiny.attention.head_count", []int32{4, 4})
	}))
	for i := 0; i < len(good); i += 7 {
		mutated := bytes.Clone(good)
		mutated[i] ^= 0xFF
		f.Add(mutated)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := OpenBytes(data)
		if err != nil {
			return
		}
		for _, key := range file.Keys() {
			v, _ := file.Lookup(key)
			_ = v.String()
			_, _ = v.Uint()
			_, _ = v.Float()
			_, _ = v.Strings()
			_, _ = v.Ints()
			_, _ = v.Bools()
			_, _ = v.Floats()
		}
		total := int64(0)
		for _, tn := range file.Tensors() {
			total += int64(len(file.Data(tn)))
			_ = tn.Elems()
		}
		if total > int64(len(data)) {
			t.Fatalf("%d bytes of tensors in a file of %d", total, len(data))
		}
		if m, err := file.Model(); err == nil {
			_ = m.StateBytes()
			_ = m.CheckComplete()
		}
	})
}

// FuzzSafetensors: whatever the bytes, parsing ends with an error of the package or with tensors inside the file.
func FuzzSafetensors(f *testing.F) {
	for _, header := range []string{
		`{"fc.weight":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`,
		`{"__metadata__":{},"layers.0.mlp.up_proj.weight":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]}}`,
		`{"a":{"dtype":"F16","shape":[9223372036854775807,2],"data_offsets":[-1,8]}}`, `{"a":{}}`, `{"a":1`, `[]`,
	} {
		f.Add(append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header+"01234567"...))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := parseSafetensors(data)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		for _, tensor := range s.tensors {
			if len(data[tensor.Offset:tensor.Offset+tensor.Bytes]) != int(tensor.Elems()*tensor.Type.BlockBytes()) {
				t.Fatalf("%+v", tensor)
			}
		}
	})
}
