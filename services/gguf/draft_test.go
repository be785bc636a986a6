package gguf_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/services/gguf"
	"github.com/tandem-inference/tandem/services/gguf/gguftest"
)

const demoDraft = "../../models/tandem-tiny-draft-q8_0.gguf"

func describe(path string) (*gguf.Model, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Model()
}

// TestPublishedDraft: a draft of the dialect "dflash" describes itself like the demonstration draft that it was made
// of, with its keys after the architecture's name once, twice or both; keys that disagree are refused by name.
func TestPublishedDraft(t *testing.T) {
	want, err := describe(demoDraft)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "draft.gguf")
	doubled := map[string]any{"dflash.dflash.block_size": uint32(16), "dflash.dflash.target_layers": []int32{2, 4, 6},
		"dflash.dflash.n_target_features": uint32(1536)}
	for name, extra := range map[string]map[string]any{"plain": {"dflash.n_target_features": uint32(1536)},
		"both": doubled} {
		gguftest.PublishedDraft(t, demoDraft, path, extra)
		got, err := describe(path)
		if err != nil {
			t.Fatal(name, err)
		}
		if d := cmp.Diff(want.Draft, got.Draft); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		if err := got.CheckComplete(); err != nil || got.TensorBytes != want.TensorBytes || got.Hidden != want.Hidden {
			t.Errorf("%s: %v, %d bytes of tensors", name, err, got.TensorBytes)
		}
		if names, err := gguf.FuseTensors(gguftest.Open(t, path)); err != nil || names[0] != "fc.weight" {
			t.Errorf("%s: projection %v, %v", name, names, err)
		}
	}
	for _, c := range []struct {
		key   string
		value any
		wants []string
	}{
		{"dflash.dflash.block_size", uint32(8), []string{": dflash.block_size: is 16", "dflash.dflash.block_size is 8"}},
		{"dflash.dflash.target_layers", []int32{2, 4, 7},
			[]string{": dflash.target_layers: is [2 4 6]", "dflash.dflash.target_layers is [2 4 7]"}},
		{"dflash.target_layers", []int32{0, 4, 6}, []string{": dflash.target_layers: layer id 0"}},
		{"dflash.block_size", uint32(1 << 20), []string{": dflash.block_size: "}},
	} {
		gguftest.PublishedDraft(t, demoDraft, path, map[string]any{c.key: c.value})
		_, err := describe(path)
		for _, want := range c.wants {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s = %v: %v, want %q", c.key, c.value, err, want)
			}
		}
	}
}

// TestSuccessorsOfDFlash: files of DFlash2 carry the architecture name "dflash"; they are told apart by their parts.
func TestSuccessorsOfDFlash(t *testing.T) {
	path := filepath.Join(t.TempDir(), "draft.gguf")
	for key, value := range map[string]any{
		"dflash.conv_kernel_size": uint32(2), "dflash.conv_group_size": uint32(16), "dflash.selector_rank": uint32(256),
		"dflash.selector_top_k": uint32(16), "dflash.dflash.selector_top_k": uint32(16),
	} {
		gguftest.PublishedDraft(t, demoDraft, path, map[string]any{key: value})
		m, err := describe(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Draft.CheckRuns(); m.Draft.Kind != "DFlash2" || err == nil || !strings.Contains(err.Error(), "DFlash2") {
			t.Errorf("%s: kind %s, %v", key, m.Draft.Kind, err)
		}
	}
	for tensor, kind := range map[string]string{
		"selector_hidden.weight": "DFlash2", "selector.pred_codebook": "DFlash2", "blk.0.attn_conv_base": "DFlash2",
		"blk.11.ffn_conv_proj.weight": "DFlash2", "markov_w1.weight": "DSpark", "blk.0.attn_sinks.weight": gguf.KindDFlash,
	} {
		w := gguf.NewWriter()
		for key, value := range map[string]any{"general.architecture": "dflash", "dflash.block_count": uint32(1),
			"dflash.embedding_length": uint32(32), "dflash.attention.head_count": uint32(1)} {
			if err := w.Put(key, value); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.AddTensor(tensor, gguf.F32, []int64{1}, strings.NewReader("\x00\x00\x00\x00")); err != nil {
			t.Fatal(err)
		}
		if err := w.WriteFile(path); err != nil {
			t.Fatal(err)
		}
		m, err := describe(path)
		if err != nil {
			t.Fatal(err)
		}
		if m.Draft.Kind != kind {
			t.Errorf("%s: kind %s, want %s", tensor, m.Draft.Kind, kind)
		}
	}
}
