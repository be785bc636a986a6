// Package gguftest writes models for tests: drafts in the formats in which other projects publish them, and random
// targets.
package gguftest

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
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

// PublishedDraft writes the draft src, a GGUF of the dialect "dflash-draft", to dst in the dialect "dflash": its own
// metadata keys follow the architecture's name once. extra holds more metadata, which replaces keys of the same name.
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
		if _, replaced := extra["dflash."+name]; key == "general.architecture" || replaced ||
			strings.HasPrefix(name, "dflash.") {
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

// layerNames are the stems of a layer's tensors in GGUF and in safetensors.
var layerNames = map[string]string{
	"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
	"attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
	"attn_k_norm": "self_attn.k_norm", "post_attention_norm": "post_attention_layernorm",
	"ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
	"ffn_down": "mlp.down_proj",
}

// safetensorsName is the name of a tensor of the dialect "dflash-draft" in a safetensors file.
func safetensorsName(name string) string {
	switch name {
	case "dflash_fc.weight":
		return "fc.weight"
	case "dflash_hidden_norm.weight":
		return "hidden_norm.weight"
	case "output_norm.weight":
		return "norm.weight"
	}
	parts := strings.Split(name, ".") // blk.N.stem.weight
	return "layers." + parts[1] + "." + layerNames[parts[2]] + ".weight"
}

// SafetensorsDraft writes the draft src, a GGUF of the dialect "dflash-draft" with tensors of F32 and Q8_0, to the
// folder dir as config.json and model.safetensors with elements of the type dtype, BF16 (rounded) or F32.
func SafetensorsDraft(tb testing.TB, src, dir string, dtype gguf.Type) {
	tb.Helper()
	f := Open(tb, src)
	m, err := f.Model()
	if err != nil {
		tb.Fatal(err)
	}
	type entry struct {
		Dtype   string  `json:"dtype"`
		Shape   []int64 `json:"shape"`
		Offsets [2]int  `json:"data_offsets"`
	}
	header := map[string]any{"__metadata__": map[string]string{"format": "pt"}}
	var data []byte
	for _, t := range f.Tensors() {
		begin := len(data)
		for _, v := range decode(tb, t, f.Data(t)) {
			bits := math.Float32bits(v)
			if dtype == gguf.F32 {
				data = binary.LittleEndian.AppendUint32(data, bits)
			} else {
				data = binary.LittleEndian.AppendUint16(data, uint16((bits+0x7FFF+bits>>16&1)>>16)) // to nearest, ties to even
			}
		}
		shape := slices.Clone(t.Shape)
		slices.Reverse(shape)
		header[safetensorsName(t.Name)] = entry{dtype.String(), shape, [2]int{begin, len(data)}}
	}
	layerTypes := slices.Repeat([]string{"full_attention"}, m.Layers)
	window, _, err := f.Uint("dflash-draft.attention.sliding_window")
	if err != nil {
		tb.Fatal(err)
	}
	if window > 0 {
		sliding, _, err := f.Bools("dflash-draft.attention.sliding_window_pattern")
		if err != nil {
			tb.Fatal(err)
		}
		for i, yes := range sliding {
			if yes {
				layerTypes[i] = "sliding_attention"
			}
		}
	}
	config := map[string]any{
		"architectures": []string{"DFlashDraftModel"}, "model_type": "qwen3", "hidden_act": "silu",
		"attention_bias": false, "rope_scaling": nil, "num_hidden_layers": m.Layers, "max_position_embeddings": m.Context,
		"hidden_size": m.Hidden, "intermediate_size": m.FFN, "num_attention_heads": m.Heads,
		"num_key_value_heads": m.KVHeads[0], "head_dim": m.KeyDim, "rms_norm_eps": m.NormEps,
		"rope_theta": m.RopeBase, "vocab_size": m.Vocab, "block_size": m.Draft.BlockSize, "layer_types": layerTypes,
		"sliding_window": window, "dflash_config": map[string]any{"mask_token_id": m.Draft.MaskToken,
			"target_layer_ids": m.Draft.TargetLayers},
	}
	encoded, err := json.Marshal(header)
	if err != nil {
		tb.Fatal(err)
	}
	text, err := json.Marshal(config)
	if err != nil {
		tb.Fatal(err)
	}
	whole := append(binary.LittleEndian.AppendUint64(nil, uint64(len(encoded))), encoded...)
	for name, content := range map[string][]byte{"model.safetensors": append(whole, data...), "config.json": text} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			tb.Fatal(err)
		}
	}
}

// decode returns the values of a tensor of F32 or Q8_0.
func decode(tb testing.TB, t gguf.Tensor, data []byte) []float32 {
	tb.Helper()
	var out []float32
	switch t.Type {
	case gguf.F32:
		for i := 0; i < len(data); i += 4 {
			out = append(out, math.Float32frombits(binary.LittleEndian.Uint32(data[i:])))
		}
	case gguf.Q8_0:
		for i := 0; i < len(data); i += 34 {
			scale := half(binary.LittleEndian.Uint16(data[i:]))
			for _, q := range data[i+2 : i+34] {
				out = append(out, scale*float32(int8(q)))
			}
		}
	default:
		tb.Fatalf("%s: %v is not decoded here", t.Name, t.Type)
	}
	return out
}

// half converts a finite binary16 number.
func half(bits uint16) float32 {
	mantissa, exponent := float64(bits&0x3FF), int(bits>>10&0x1F)
	if exponent == 0 {
		exponent = 1
	} else {
		mantissa += 0x400
	}
	v := math.Ldexp(mantissa, exponent-25)
	if bits>>15 != 0 {
		v = -v
	}
	return float32(v)
}
