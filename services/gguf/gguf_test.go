package gguf

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

const modelDir = "../../models"

func openModel(t *testing.T, name string) *File {
	t.Helper()
	f, err := Open(filepath.Join(modelDir, name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func TestShippedModels(t *testing.T) {
	f := openModel(t, "tandem-tiny-target-q4_k_m.gguf")
	m, err := f.Model()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.CheckComplete(); err != nil {
		t.Error(err)
	}
	type summary struct {
		Arch, Name                                       string
		Layers, Hidden, Vocab, Context, Heads, FFN, Attn int
		DeltaNet                                         DeltaNet
		Tied                                             bool
		KVHeads                                          []int
		KV, State, Params                                int64
		Tensors                                          int
	}
	kv, err := m.KVBytesPerToken("q8_0", "f16")
	if err != nil {
		t.Fatal(err)
	}
	got := summary{m.Arch, m.Name, m.Layers, m.Hidden, m.Vocab, m.Context, m.Heads, m.FFN, m.AttentionLayers(),
		m.DeltaNet, m.TiedHead, m.KVHeads, kv, m.StateBytes(), m.Parameters, m.Tensors}
	want := summary{"qwen35", "Tandem Tiny", 8, 512, 8192, 32768, 4, 1536, 2,
		DeltaNet{2, 4, 128, 4}, true, []int{0, 0, 0, 1, 0, 0, 0, 1},
		2 * (272 + 512), 6 * (4*128*128*4 + 1024*3*4), 33089840, 108}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	sum := int64(0)
	for _, g := range Groups {
		sum += m.GroupBytes[g]
	}
	if sum != m.TensorBytes || m.GroupBytes[GroupOther] != 0 {
		t.Errorf("groups sum to %d of %d, other %d", sum, m.TensorBytes, m.GroupBytes[GroupOther])
	}

	d, err := openModel(t, "tandem-tiny-draft-q8_0.gguf").Model()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.CheckComplete(); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(&Draft{Kind: KindDFlash, BlockSize: 16, MaskToken: 8169, TargetLayers: []int{1, 3, 5},
		Features: 1536}, d.Draft); diff != "" {
		t.Error(diff)
	}
	p, err := openModel(t, "tandem-tiny-prefill-q8_0.gguf").Model()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.CheckComplete(); err != nil {
		t.Error(err)
	}
}

// TestPublishedSizes checks the accounts against the published figures of Qwen3.5-27B, without the 17 GB file.
func TestPublishedSizes(t *testing.T) {
	m := &Model{Layers: 64, KeyDim: 256, ValueDim: 256, DeltaNet: DeltaNet{16, 48, 128, 4}}
	for i := range 64 {
		rec := (i+1)%4 != 0
		heads := 4
		if rec {
			heads = 0
		}
		m.Recurrent, m.KVHeads = append(m.Recurrent, rec), append(m.KVHeads, heads)
	}
	for typ, want := range map[string]int64{"f16": 65536, "q8_0": 34816, "q5_1": 24576, "q5_0": 22528, "q4_1": 20480,
		"q4_0": 18432, "tq3_0": 14336} {
		if got, err := m.KVBytesPerToken(typ, typ); err != nil || got != want {
			t.Errorf("%s: %d bytes per token (%v), want %d", typ, got, err, want)
		}
	}
	if got, _ := m.KVBytesPerToken("q8_0", "q4_0"); got != 26624 {
		t.Errorf("mixed pair: %d", got)
	}
	if got := m.StateBytes(); got != 150994944+5898240 {
		t.Errorf("state: %d", got)
	}
	if _, err := m.KVBytesPerToken("q9", "f16"); err == nil {
		t.Error("unknown type accepted")
	}
}

func TestDigest(t *testing.T) {
	path := filepath.Join(modelDir, "tandem-tiny-prefill-q8_0.gguf")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := sha256.Sum256(raw)
	f := openModel(t, filepath.Base(path))
	for range 2 {
		got, err := f.Digest(context.Background())
		if err != nil || got != hex.EncodeToString(want[:]) {
			t.Errorf("%s, %v", got, err)
		}
	}
	mem, err := OpenBytes(raw)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := mem.Digest(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled digest: %v", err)
	}
}

func TestExtract(t *testing.T) {
	dir := t.TempDir()
	cases := []struct {
		file  string
		names func(*File) ([]string, error)
		want  []string
		key   string
	}{
		{"tandem-tiny-target-q4_k_m.gguf", TableTensors, []string{"token_embd.weight"}, "qwen35.block_count"},
		{"tandem-tiny-draft-q8_0.gguf", FuseTensors, []string{"dflash_fc.weight", "dflash_hidden_norm.weight"},
			"dflash-draft.dflash.target_layer_ids"},
	}
	for _, c := range cases {
		src := openModel(t, c.file)
		names, err := c.names(src)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(c.want, names); d != "" {
			t.Fatal(d)
		}
		dst := filepath.Join(dir, c.file)
		if err := ExtractTensors(src, dst, names); err != nil {
			t.Fatal(err)
		}
		cut, err := Open(dst)
		if err != nil {
			t.Fatal(err)
		}
		defer cut.Close()
		for _, n := range names {
			a, _ := src.Tensor(n)
			b, ok := cut.Tensor(n)
			if !ok || a.Type != b.Type || !bytes.Equal(src.Data(a), cut.Data(b)) {
				t.Errorf("%s differs", n)
			}
		}
		if _, ok := cut.Lookup(c.key); !ok {
			t.Errorf("%s lost", c.key)
		}
		if _, ok := cut.Lookup("tokenizer.ggml.tokens"); ok {
			t.Error("vocabulary kept")
		}
		m, err := cut.Model()
		if err != nil {
			t.Fatal(err)
		}
		if err := m.CheckComplete(); !errors.Is(err, ErrInvalid) {
			t.Errorf("CheckComplete of a cut file: %v", err)
		}
	}
	src := openModel(t, "tandem-tiny-draft-q8_0.gguf")
	if err := ExtractTensors(src, filepath.Join(dir, "none"), []string{"nope"}); !errors.Is(err, ErrInvalid) {
		t.Errorf("unknown tensor: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*none*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// tiny makes a small valid file: one value of every kind and three tensors.
func tiny(t testing.TB, mutate func(w *Writer)) []byte {
	t.Helper()
	w := NewWriter()
	puts := []struct {
		key string
		val any
	}{
		{"general.architecture", "tiny"}, {"a.u8", uint8(7)}, {"a.i8", int8(-7)}, {"a.u16", uint16(9)}, {"a.i16", int16(-9)},
		{"a.u32", uint32(11)}, {"a.i32", int32(-11)}, {"a.u64", uint64(1) << 63}, {"a.i64", int64(-13)},
		{"a.f32", float32(0.5)},
		{"a.f64", 0.25}, {"a.bool", true}, {"a.strs", []string{"x", "", "日本"}}, {"a.ints", []int32{1, -2, 3}},
		{"a.bools", []bool{true, false}}, {"a.floats", []float32{1, 2}}, {"a.empty", []string{}},
	}
	for _, p := range puts {
		if err := w.Put(p.key, p.val); err != nil {
			t.Fatal(err)
		}
	}
	addZero := func(name string, typ Type, shape ...int64) {
		n, err := tensorBytes(name, typ, shape)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.AddTensor(name, typ, shape, bytes.NewReader(bytes.Repeat([]byte{0xAB}, int(n)))); err != nil {
			t.Fatal(err)
		}
	}
	addZero("one", F32, 3)
	addZero("two", Q8_0, 64, 2)
	addZero("three", Q4_K, 256, 1, 2)
	if mutate != nil {
		mutate(w)
	}
	var buf bytes.Buffer
	if _, err := w.WriteTo(&buf); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func TestMetadata(t *testing.T) {
	f, err := OpenBytes(tiny(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]uint64{"a.u8": 7, "a.u16": 9, "a.u32": 11, "a.u64": 1 << 63} {
		if got, ok, err := f.Uint(key); got != want || !ok || err != nil {
			t.Errorf("%s: %d %v %v", key, got, ok, err)
		}
	}
	for key, want := range map[string]int64{"a.i8": -7, "a.i16": -9, "a.i32": -11, "a.i64": -13, "a.u8": 7} {
		if got, ok, err := f.Int(key); got != want || !ok || err != nil {
			t.Errorf("%s: %d %v %v", key, got, ok, err)
		}
	}
	wrong := []struct {
		name string
		err  error
	}{}
	add := func(name string, err error) {
		wrong = append(wrong, struct {
			name string
			err  error
		}{name, err})
	}
	_, _, err = f.Uint("a.f32")
	add("float as count", err)
	_, _, err = f.Uint("a.i32")
	add("negative count", err)
	_, _, err = f.Int("a.u64")
	add("too large for int64", err)
	_, _, err = f.Float("a.u32")
	add("int as float", err)
	_, _, err = f.Strings("a.ints")
	add("ints as strings", err)
	_, _, err = f.Int32s("a.floats")
	add("floats as ints", err)
	_, _, err = f.String("a.u8")
	add("int as string", err)
	for _, w := range wrong {
		if !errors.Is(w.err, ErrInvalid) {
			t.Errorf("%s: %v", w.name, w.err)
		}
	}
	if s, ok, err := f.Strings("a.strs"); !ok || err != nil || cmp.Diff([]string{"x", "", "日本"}, s) != "" {
		t.Errorf("%q %v %v", s, ok, err)
	}
	if s, ok, err := f.Int32s("a.ints"); !ok || err != nil || cmp.Diff([]int32{1, -2, 3}, s) != "" {
		t.Errorf("%v %v %v", s, ok, err)
	}
	if s, ok, err := f.Bools("a.bools"); !ok || err != nil || cmp.Diff([]bool{true, false}, s) != "" {
		t.Errorf("%v %v %v", s, ok, err)
	}
	if _, ok, err := f.Uint("absent"); ok || err != nil {
		t.Errorf("absent key: %v %v", ok, err)
	}
	if v, _ := f.Lookup("a.strs"); v.String() != `["x", "", "日本"]` {
		t.Error(v.String())
	}
	if got := f.Keys(); got[0] != "general.architecture" || len(got) != 17 {
		t.Errorf("%v", got)
	}
}

// patch overwrites the first occurrence of a record's bytes.
func patch(b []byte, find, repl string) []byte {
	return bytes.Replace(bytes.Clone(b), []byte(find), []byte(repl), 1)
}

func le64(n uint64) string { return string(binary.LittleEndian.AppendUint64(nil, n)) }
func le32(n uint32) string { return string(binary.LittleEndian.AppendUint32(nil, n)) }

func TestRejects(t *testing.T) {
	good := tiny(t, nil)
	str := func(s string) string { return le64(uint64(len(s))) + s }
	withKV := func(nKV uint64, body string) []byte { return []byte("GGUF" + le32(3) + le64(0) + le64(nKV) + body) }
	withTensor := func(body string, data int) []byte {
		head := "GGUF" + le32(3) + le64(1) + le64(0) + body
		for len(head)%32 != 0 {
			head += "\x00"
		}
		return []byte(head + strings.Repeat("\x00", data))
	}
	rec := func(name string, typ uint32, off uint64, ne ...uint64) string {
		s := str(name) + le32(uint32(len(ne)))
		for _, n := range ne {
			s += le64(n)
		}
		return s + le32(typ) + le64(off)
	}
	cases := []struct {
		name string
		data []byte
		want string // part of the message
	}{
		{"empty", nil, "header"},
		{"magic", patch(good, "GGUF", "GGML"), "magic"},
		{"version 1", patch(good, "GGUF\x03", "GGUF\x01"), "not supported"},
		{"version 4", patch(good, "GGUF\x03", "GGUF\x04"), "not supported"},
		{"big endian", patch(good, "GGUF\x03\x00\x00\x00", "GGUF\x00\x00\x00\x03"), "big-endian"},
		{"kv count", []byte("GGUF" + le32(3) + le64(0) + le64(1<<40)), "kv_count"},
		{"kv count for size", withKV(3, str("k")+le32(0)+"\x01"), "kv_count"},
		{"tensor count", []byte("GGUF" + le32(3) + le64(1<<63) + le64(0)), "tensor_count"},
		{"empty key", withKV(1, str("")+le32(4)+le32(1)+"    "), "empty"},
		{"long key", withKV(1, str(strings.Repeat("k", 65536))+le32(0)+"\x01"), "at most 65535"},
		{"duplicate key", withKV(2, str("k")+le32(4)+le32(1)+str("k")+le32(4)+le32(1)), "duplicate"},
		{"value type", withKV(1, str("k")+le32(13)+le32(1)), "unknown value type 13"},
		{"bool", withKV(1, str("k")+le32(7)+"\x02"), "bool"},
		{"bool array", withKV(1, str("k")+le32(9)+le32(7)+le64(1)+"\x03"), "bool 0"},
		{"array of arrays", withKV(1, str("k")+le32(9)+le32(9)+le64(0)), "array of arrays"},
		{"array elem", withKV(1, str("k")+le32(9)+le32(99)+le64(0)), "unknown"},
		{"array count", withKV(1, str("k")+le32(9)+le32(4)+le64(1<<31)), "elements"},
		{"array bytes", withKV(1, str("k")+le32(9)+le32(4)+le64(1<<20)), "remain"},
		{"string array", withKV(1, str("k")+le32(9)+le32(8)+le64(1<<20)), "remain"},
		{"string length", withKV(1, str("k")+le32(8)+le64(1<<62)), "at most"},
		{"string remains", withKV(1, str("k")+le32(8)+le64(1<<20)), "remain"},
		{"alignment type", withKV(1, str("general.alignment")+le32(5)+le32(32)), "want u32"},
		{"alignment 24", withKV(1, str("general.alignment")+le32(4)+le32(24)), "power of two"},
		{"alignment 4", withKV(1, str("general.alignment")+le32(4)+le32(4)), "power of two"},
		{"alignment huge", withKV(1, str("general.alignment")+le32(4)+le32(1<<21)), "power of two"},
		{"no dims", withTensor(rec("t", 0, 0)+"        ", 64), "dimensions"},
		{"five dims", withTensor(rec("t", 0, 0, 1, 1, 1, 1, 1), 64), "dimensions"},
		{"zero dim", withTensor(rec("t", 0, 0, 0), 64), "dimension 0 is 0"},
		{"huge dim", withTensor(rec("t", 0, 0, 1<<63), 64), "dimension 0"},
		{"elements overflow", withTensor(rec("t", 0, 0, 1<<40, 1<<40), 64), "elements"},
		{"bytes overflow", withTensor(rec("t", 28, 0, 1<<61), 64), "too large"},
		{"removed type", withTensor(rec("t", 4, 0, 32), 64), "removed"},
		{"unknown type", withTensor(rec("t", 77, 0, 32), 64), "type 77"},
		{"unsettled type", withTensor(rec("t", 42, 0, 256), 64), "Q2_0"},
		{"block", withTensor(rec("t", 8, 0, 33), 64), "multiple of 32"},
		{"empty name", withTensor(rec("", 0, 0, 8)+" ", 64), "empty"},
		{"long name", withTensor(rec(strings.Repeat("n", 64), 0, 0, 8), 64), "at most 63"},
		{"zero in name", withTensor(rec("a\x00b", 0, 0, 8), 64), "zero byte"},
		{"unaligned offset", withTensor(rec("t", 0, 8, 8), 64), "alignment"},
		{"gap", withTensor(rec("t", 0, 32, 8), 64), "without gaps"},
		{"truncated data", good[:len(good)-40], "incomplete download"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := OpenBytes(c.data)
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	dup := "GGUF" + le32(3) + le64(2) + le64(0) + rec("t", 0, 0, 8) + rec("t", 0, 32, 8)
	if _, err := OpenBytes([]byte(dup + strings.Repeat("\x00", 96))); err == nil ||
		!strings.Contains(err.Error(), "duplicate tensor") {
		t.Errorf("duplicate tensor: %v", err)
	}
	// Only the padding after the last tensor may be missing.
	f, _ := OpenBytes(good)
	last := f.Tensors()[2]
	if _, err := OpenBytes(good[:last.Offset+last.Bytes]); err != nil {
		t.Errorf("missing final padding: %v", err)
	}
	for n := range len(good) - 32 {
		if _, err := OpenBytes(good[:n]); err == nil {
			t.Fatalf("prefix of %d of %d bytes accepted", n, len(good))
		}
	}
}

func TestShards(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, no, count uint16, total int32, tensors ...string) {
		t.Helper()
		w := NewWriter()
		put := func(k string, v any) {
			if err := w.Put(k, v); err != nil {
				t.Fatal(err)
			}
		}
		if no == 0 {
			put("general.architecture", "tiny")
		}
		put("split.no", no)
		put("split.count", count)
		put("split.tensors.count", total)
		for _, n := range tensors {
			if err := w.AddTensor(n, F32, []int64{4}, strings.NewReader(n+strings.Repeat("-", 16-len(n)))); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.WriteFile(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	write("m-00001-of-00002.gguf", 0, 2, 3, "a", "b")
	write("m-00002-of-00002.gguf", 1, 2, 3, "c")
	f, err := Open(filepath.Join(dir, "m-00001-of-00002.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	c, _ := f.Tensor("c")
	if c.Shard != 1 || string(f.Data(c)[:2]) != "c-" || len(f.Paths()) != 2 {
		t.Errorf("%+v", c)
	}
	if d, err := f.Digest(context.Background()); err != nil || len(d) != 64 {
		t.Error(d, err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}

	write("dup-00001-of-00002.gguf", 0, 2, 3, "a", "b")
	write("dup-00002-of-00002.gguf", 1, 2, 3, "b")
	write("sum-00001-of-00002.gguf", 0, 2, 4, "a", "b")
	write("sum-00002-of-00002.gguf", 1, 2, 4, "c")
	write("no-00001-of-00002.gguf", 0, 2, 3, "a", "b")
	write("no-00002-of-00002.gguf", 0, 2, 3, "c")
	write("gone-00001-of-00002.gguf", 0, 2, 3, "a", "b")
	write("renamed.gguf", 0, 2, 3, "a", "b")
	for name, want := range map[string]string{
		"m-00002-of-00002.gguf":    "open the first one",
		"dup-00001-of-00002.gguf":  "two shards",
		"sum-00001-of-00002.gguf":  "hold 3 tensors",
		"no-00001-of-00002.gguf":   "split.no",
		"gone-00001-of-00002.gguf": "gone-00002-of-00002.gguf",
		"renamed.gguf":             "named like",
	} {
		if _, err := Open(filepath.Join(dir, name)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}

// TestWriteRead writes random files and reads them back.
func TestWriteRead(t *testing.T) {
	types := []Type{F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q6_K, IQ4_XS, MXFP4, NVFP4, I64}
	rapid.Check(t, func(t *rapid.T) {
		w := NewWriter()
		align := int64(8) << rapid.IntRange(0, 6).Draw(t, "align")
		if err := w.Put("general.alignment", uint32(align)); err != nil {
			t.Fatal(err)
		}
		strs := rapid.MapOf(rapid.StringN(1, 20, 60), rapid.String()).Draw(t, "strings")
		delete(strs, "general.alignment")
		for k, v := range strs {
			if err := w.Put(k, v); err != nil {
				t.Fatal(err)
			}
		}
		type want struct {
			Tensor
			data []byte
		}
		var wants []want
		for i := range rapid.IntRange(0, 5).Draw(t, "tensors") {
			typ := rapid.SampledFrom(types).Draw(t, "type")
			shape := rapid.SliceOfN(rapid.Int64Range(1, 3), 1, 4).Draw(t, "shape")
			shape[0] *= typ.BlockElems()
			tn := Tensor{Name: strings.Repeat("n", i+1), Type: typ, Shape: shape}
			n, _ := tensorBytes("", typ, shape)
			data := bytes.Repeat([]byte{byte(i + 1)}, int(n))
			if err := w.AddTensor(tn.Name, typ, shape, bytes.NewReader(data)); err != nil {
				t.Fatal(err)
			}
			wants = append(wants, want{tn, data})
		}
		var buf bytes.Buffer
		if _, err := w.WriteTo(&buf); err != nil {
			t.Fatal(err)
		}
		f, err := OpenBytes(buf.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range strs {
			if got, ok, err := f.String(k); got != v || !ok || err != nil {
				t.Fatalf("%q: %q %v %v", k, got, ok, err)
			}
		}
		for i, tn := range f.Tensors() {
			if tn.Name != wants[i].Name || tn.Type != wants[i].Type || cmp.Diff(tn.Shape, wants[i].Shape) != "" ||
				tn.Offset%align != 0 || !bytes.Equal(f.Data(tn), wants[i].data) {
				t.Fatalf("tensor %d: %+v", i, tn)
			}
		}
	})
}

func TestWriterRefuses(t *testing.T) {
	w := NewWriter()
	for name, err := range map[string]error{
		"empty key":   w.Put("", 1),
		"go type":     w.Put("k", struct{}{}),
		"alignment":   w.Put("general.alignment", uint32(33)),
		"name":        w.AddTensor("", F32, []int64{1}, nil),
		"block":       w.AddTensor("t", Q8_0, []int64{1}, nil),
		"type":        w.AddTensor("t", Type(5), []int64{1}, nil),
		"dims":        w.AddTensor("t", F32, nil, nil),
		"dim":         w.AddTensor("t", F32, []int64{-1}, nil),
		"short data":  writeOne(strings.NewReader("abc")),
		"excess data": writeOne(strings.NewReader("abcde")),
	} {
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func writeOne(r *strings.Reader) error {
	w := NewWriter()
	if err := w.AddTensor("t", F32, []int64{1}, r); err != nil {
		return err
	}
	_, err := w.WriteTo(&bytes.Buffer{})
	return err
}

func TestModelRejects(t *testing.T) {
	base := map[string]any{
		"general.architecture": "qwen3", "qwen3.block_count": uint32(1), "qwen3.embedding_length": uint32(64),
		"qwen3.attention.head_count": uint32(4), "qwen3.attention.head_count_kv": uint32(2),
		"qwen3.feed_forward_length": uint32(64),
	}
	cases := []struct {
		key  string
		val  any
		want string
	}{
		{"qwen3.block_count", float32(1), "want an integer"},
		{"qwen3.block_count", uint32(0), "is 0"},
		{"qwen3.block_count", uint64(1025), "more than 1024"},
		{"qwen3.attention.head_count_kv", uint32(3), "not a multiple"},
		{"qwen3.attention.head_count", nil, "missing"},
		{"qwen3.embedding_length", nil, "missing"},
		{"qwen3.vocab_size", uint32(9), "embedding has 8 rows"},
		{"tokenizer.ggml.tokens", []string{"a"}, "vocabulary of 8"},
		{"qwen3.rope.dimension_count", uint32(17), "head size 16"},
		{"qwen3.nextn_predict_layers", uint32(1), "1 of 1"},
		{"general.architecture", nil, "general.architecture"},
	}
	build := func(key string, val any) []byte {
		w := NewWriter()
		for k, v := range base {
			if k == key {
				continue
			}
			if err := w.Put(k, v); err != nil {
				t.Fatal(err)
			}
		}
		if val != nil {
			if err := w.Put(key, val); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.AddTensor("token_embd.weight", F32, []int64{64, 8}, bytes.NewReader(make([]byte, 64*8*4))); err != nil {
			t.Fatal(err)
		}
		var buf bytes.Buffer
		if _, err := w.WriteTo(&buf); err != nil {
			t.Fatal(err)
		}
		return buf.Bytes()
	}
	for _, c := range cases {
		f, err := OpenBytes(build(c.key, c.val))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Model(); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s=%v: %v, want %q", c.key, c.val, err, c.want)
		}
	}
	f, err := OpenBytes(build("none", nil))
	if err != nil {
		t.Fatal(err)
	}
	m, err := f.Model()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.CheckComplete(); err == nil || !strings.Contains(err.Error(), "output_norm.weight") {
		t.Error(err)
	}
}
