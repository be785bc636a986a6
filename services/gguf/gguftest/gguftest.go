// Package gguftest writes drafts for tests in the forms in which others publish them.
package gguftest

import (
	"bytes"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/services/gguf"
)

// Open opens a model until the test ends.
func Open(tb testing.TB, path string) *gguf.File {
	tb.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := f.Close(); err != nil {
			tb.Error(err)
		}
	})
	return f
}

// PublishedDraft writes the draft src, a GGUF of the dialect "dflash-draft", to dst in the dialect "dflash": its own metadata keys
// follow the architecture's name once. extra holds more metadata, which replaces keys of the same name.
func PublishedDraft(tb testing.TB, src, dst string, extra map[string]any) {
	tb.Helper()
	f := Open(tb, src)
	model, err := f.Model()
	if err != nil {
		tb.Fatal(err)
	}
	must := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	w := gguf.NewWriter()
	put := func(key string, value any) {
		if _, replaced := extra[key]; !replaced {
			must(w.Put(key, value))
		}
	}
	for _, key := range f.Keys() {
		value, _ := f.Lookup(key)
		name, own := strings.CutPrefix(key, "dflash-draft.")
		if _, replaced := extra["dflash."+name]; key == "general.architecture" || replaced || strings.HasPrefix(name, "dflash.") {
			continue
		}
		if own {
			key = "dflash." + name
		}
		must(w.PutValue(key, value))
	}
	stored := make([]int32, len(model.Draft.TargetLayers)) // each id plus one
	for i, id := range model.Draft.TargetLayers {
		stored[i] = int32(id) + 1
	}
	put("general.architecture", "dflash")
	put("dflash.block_size", uint32(model.Draft.BlockSize))
	put("dflash.target_layers", stored)
	put("tokenizer.ggml.mask_token_id", uint32(model.Draft.MaskToken))
	for key, value := range extra {
		must(w.Put(key, value))
	}
	names := map[string]string{"dflash_fc.weight": "fc.weight", "dflash_hidden_norm.weight": "enc.output_norm.weight"}
	for _, t := range f.Tensors() {
		name := strings.Replace(t.Name, ".post_attention_norm.", ".ffn_norm.", 1)
		if published, ok := names[name]; ok {
			name = published
		}
		must(w.AddTensor(name, t.Type, t.Shape, bytes.NewReader(f.Data(t))))
	}
	must(w.WriteFile(dst))
}
