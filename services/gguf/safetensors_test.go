package gguf_test

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/services/gguf"
	"github.com/tandem-inference/tandem/services/gguf/gguftest"
)

// TestSafetensorsDraft: a draft in safetensors describes itself like the GGUF it was made of, from its folder and from
// its file; its digest follows both files; the part that targets fetch can be cut from it.
func TestSafetensorsDraft(t *testing.T) {
	want, err := describe(demoDraft)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	gguftest.SafetensorsDraft(t, demoDraft, dir, gguf.BF16)
	for _, path := range []string{dir, filepath.Join(dir, "model.safetensors")} {
		m, err := describe(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.CheckComplete(); err != nil {
			t.Error(err)
		}
		if d := cmp.Diff(want.Draft, m.Draft); d != "" {
			t.Error(d)
		}
		type shape struct {
			Layers, Hidden, Vocab, Context, FFN, Heads, KeyDim int
			KVHeads                                            []int
			Eps, Base                                          float64
			Parameters                                         int64
		}
		of := func(m *gguf.Model) shape {
			return shape{m.Layers, m.Hidden, m.Vocab, m.Context, m.FFN, m.Heads, m.KeyDim, m.KVHeads, m.NormEps,
				m.RopeBase, m.Parameters}
		}
		if d := cmp.Diff(of(want), of(m)); d != "" {
			t.Error(d)
		}
		if m.TensorBytes != 2*m.Parameters || m.GroupBytes[gguf.GroupDraft] == 0 || m.GroupBytes[gguf.GroupOther] != 0 {
			t.Errorf("%d bytes for %d parameters, groups %v", m.TensorBytes, m.Parameters, m.GroupBytes)
		}
	}
	f := gguftest.Open(t, dir)
	if d := cmp.Diff([]string{filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "config.json")},
		f.Paths()); d != "" {
		t.Error(d)
	}
	names, err := gguf.FuseTensors(f)
	if err != nil {
		t.Fatal(err)
	}
	cut := filepath.Join(t.TempDir(), "fuse.gguf")
	if err := gguf.ExtractTensors(f, cut, names); err != nil {
		t.Fatal(err)
	}
	fuse := gguftest.Open(t, cut)
	for _, name := range names {
		a, _ := f.Tensor(name)
		b, _ := fuse.Tensor(name)
		if string(f.Data(a)) != string(fuse.Data(b)) || !cmp.Equal(a.Shape, b.Shape) {
			t.Errorf("%s differs in the cut file", name)
		}
	}
	digest := func() string {
		f, err := gguf.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		sum, err := f.Digest(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}
	first := digest()
	config := filepath.Join(dir, "config.json")
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, append(text, '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
	if digest() == first {
		t.Error("the digest does not follow config.json")
	}
}

func TestDamagedSafetensorsDraft(t *testing.T) {
	dir := t.TempDir()
	gguftest.SafetensorsDraft(t, demoDraft, dir, gguf.BF16)
	config, model := filepath.Join(dir, "config.json"), filepath.Join(dir, "model.safetensors")
	read := func(path string) string {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	write := func(path, data string) {
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, weights := read(config), read(model)
	refused := func(what, wants string) {
		t.Helper()
		if _, err := describe(dir); !errors.Is(err, gguf.ErrInvalid) || !strings.Contains(err.Error(), wants) {
			t.Errorf("%s: %v, want %q", what, err, wants)
		}
	}
	for _, c := range []struct{ from, to, wants string }{
		{`DFlashDraftModel`, `DFlash2DraftModel`, "config.json: architectures: is a DFlash2 draft"},
		{`DFlashDraftModel`, `Qwen3ForCausalLM`, "architectures"},
		{`"rope_scaling":null`, `"rope_scaling":{"type":"yarn"}`, "rope_scaling"},
		{`"attention_bias":false`, `"attention_bias":true`, "attention_bias"},
		{`"dflash_config"`, `"other"`, "dflash_config"},
		{`"block_size":16`, `"block_size":"16"`, "block_size"},
		{`"hidden_size":512`, `"hidden_size":0`, "hidden_size"},
		{`"hidden_size":512`, `"hidden_size":256`, "shape"},
		{`"target_layer_ids":[1,3,5]`, `"target_layer_ids":[1,-3,5]`, "target_layer_ids"},
		{`"rope_theta"`, `"rope"`, "rope_theta"},
		{`{`, `[`, "config.json"},
	} {
		if !strings.Contains(text, c.from) {
			t.Fatalf("config.json lacks %s: %s", c.from, text)
		}
		write(config, strings.Replace(text, c.from, c.to, 1))
		refused(c.from+" to "+c.to, c.wants)
	}
	write(config, text)
	header := int(binary.LittleEndian.Uint64([]byte(weights)))
	for _, c := range []struct{ what, data, wants string }{
		{"cut off", weights[:len(weights)-1], "data_offsets"},
		{"cut in the header", weights[:100], "header"},
		{"empty", "", "header"},
		{"another dtype", strings.Replace(weights, `"dtype":"BF16"`, `"dtype":"I64" `, 1), "dtype"},
		{"no object", weights[:8] + "[" + weights[9:], "header"},
		{"duplicate", weights[:8] + strings.Replace(weights[8:8+header], `"norm.weight"`, `"fc.weight"  `,
			1) + weights[8+header:], "fc.weight"},
	} {
		write(model, c.data)
		refused(c.what, c.wants)
	}
	write(model, weights)
	if err := os.Rename(model, filepath.Join(dir, "model-00001-of-00002.safetensors")); err != nil {
		t.Fatal(err)
	}
	write(filepath.Join(dir, "model.safetensors.index.json"), "{}")
	refused("shards", "sharded safetensors sets are not read")
	if err := os.Remove(filepath.Join(dir, "model.safetensors.index.json")); err != nil {
		t.Fatal(err)
	}
	if _, err := describe(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder without a model: %v", err)
	}
}
