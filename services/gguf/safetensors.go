package gguf

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Limits of a safetensors draft; the engine has the same.
const (
	maxSafetensorsHeader = 16 << 20
	maxDraftConfig       = 1 << 20
)

// safetensorsPath returns the safetensors file that path stands for: the file itself, or model.safetensors of a folder.
func safetensorsPath(path string) (file string, ok bool) {
	if strings.HasSuffix(path, ".safetensors") {
		return path, true
	}
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		return filepath.Join(path, "model.safetensors"), true
	}
	return "", false
}

// openSafetensors maps a DFlash draft in safetensors with the config.json beside it. Its metadata and tensors get the
// names of the GGUF dialect "dflash", so that whoever reads the File need not ask in which format the draft came.
func (f *File) openSafetensors(path string) error {
	dir := filepath.Dir(path)
	part := strings.Contains(filepath.Base(path), "-of-")
	if index := filepath.Join(dir, "model.safetensors.index.json"); exists(index) && (part || !exists(path)) {
		return atPath(index, invalid("",
			"sharded safetensors sets are not read: merge them into one model.safetensors, or convert to GGUF"))
	}
	if err := f.mapShard(path, parseSafetensors); err != nil {
		return err
	}
	config := filepath.Join(dir, "config.json")
	err := f.mapShard(config, func(data []byte) (*shard, error) {
		if len(data) > maxDraftConfig {
			return nil, invalid("", "has %d bytes, at most %d are read", len(data), maxDraftConfig)
		}
		return &shard{data: data, alignment: 1}, f.shards[0].readDraftConfig(data)
	})
	if err != nil {
		return err
	}
	return atPath(path, f.index())
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// safetensorsTypes are the element types that the engine reads.
var safetensorsTypes = map[string]Type{"F32": F32, "F16": F16, "BF16": BF16}

// parseSafetensors checks one whole file: u64 length of the header, the header in JSON, data.
func parseSafetensors(data []byte) (*shard, error) {
	if len(data) < 10 {
		return nil, invalid("header", "file has %d bytes, too few for safetensors", len(data))
	}
	n := binary.LittleEndian.Uint64(data)
	if n > maxSafetensorsHeader || n > uint64(len(data)-8) {
		return nil, invalid("header", "of %d bytes in a file of %d; at most %d are read", n, len(data), maxSafetensorsHeader)
	}
	s := &shard{data: data, alignment: 1, values: map[string]Value{}}
	dec := json.NewDecoder(bytes.NewReader(data[8 : 8+n]))
	if token, err := dec.Token(); err != nil || token != json.Delim('{') {
		return nil, invalid("header", "is no JSON object")
	}
	seen := map[string]struct{}{}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, invalid("header", "%v", err)
		}
		name, _ := key.(string) // a key is a string, or Token fails
		var entry json.RawMessage
		if err := dec.Decode(&entry); err != nil {
			return nil, invalid(name, "%v", err)
		}
		if name == "__metadata__" {
			continue
		}
		t, err := safetensorsTensor(name, entry, int64(8+n), int64(len(data)))
		if err != nil {
			return nil, err
		}
		if _, dup := seen[name]; dup {
			return nil, invalid(name, "duplicate tensor")
		}
		seen[name] = struct{}{}
		s.tensors = append(s.tensors, t)
	}
	if _, err := dec.Token(); err != nil {
		return nil, invalid("header", "%v", err)
	}
	slices.SortFunc(s.tensors, func(a, b Tensor) int { return int(min(max(a.Offset-b.Offset, -1), 1)) })
	for i := 1; i < len(s.tensors); i++ {
		if a, b := s.tensors[i-1], s.tensors[i]; a.Offset+a.Bytes > b.Offset {
			return nil, invalid(b.Name, "its data overlaps with that of %s", a.Name)
		}
	}
	return s, nil
}

// safetensorsTensor reads one entry of the header; offsets in it count from start. The result's Offset counts from the
// file's first byte.
func safetensorsTensor(name string, raw json.RawMessage, start, size int64) (Tensor, error) {
	var entry struct {
		Dtype   string  `json:"dtype"`
		Shape   []int64 `json:"shape"`
		Offsets []int64 `json:"data_offsets"`
	}
	if err := json.Unmarshal(raw, &entry); err != nil {
		return Tensor{}, invalid(name, "%v", err)
	}
	typ, ok := safetensorsTypes[entry.Dtype]
	if !ok {
		return Tensor{}, invalid(name, "dtype is %.32q; BF16, F16 and F32 are read", entry.Dtype)
	}
	if len(entry.Shape) > maxDims {
		return Tensor{}, invalid(name, "%d dimensions, want at most %d", len(entry.Shape), maxDims)
	}
	t := Tensor{Name: draftName(name), Type: typ, Shape: slices.Clone(entry.Shape)}
	slices.Reverse(t.Shape)
	if len(t.Shape) == 0 {
		t.Shape = []int64{1}
	}
	t.Bytes = typ.BlockBytes()
	for i, ne := range t.Shape {
		if ne < 1 || ne > math.MaxInt64/t.Bytes {
			return Tensor{}, invalid(name, "dimension %d is %d", i, ne)
		}
		t.Bytes *= ne
	}
	o := entry.Offsets
	if len(o) != 2 || o[0] < 0 || o[1] < o[0] || o[1] > size-start || o[1]-o[0] != t.Bytes {
		return Tensor{}, invalid(name, "data_offsets %v do not fit %d bytes of shape %v in a file of %d", o,
			t.Bytes, entry.Shape, size)
	}
	t.Offset = start + o[0]
	return t, nil
}

// draftNames and draftLayerNames give the tensors of a safetensors draft their names in the GGUF dialect "dflash".
var (
	draftNames      = map[string]string{"fc": "fc", "hidden_norm": "enc.output_norm", "norm": "output_norm"}
	draftLayerNames = map[string]string{
		"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
		"self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
		"self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
		"mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
	}
)

// draftName returns the GGUF name of a tensor; one that a draft does not have keeps its own.
func draftName(name string) string {
	stem, ok := strings.CutSuffix(name, ".weight")
	if !ok {
		return name
	}
	if to := draftNames[stem]; to != "" {
		return to + ".weight"
	}
	if rest, ok := strings.CutPrefix(stem, "layers."); ok {
		number, part, _ := strings.Cut(rest, ".")
		if to := draftLayerNames[part]; to != "" {
			return "blk." + number + "." + to + ".weight"
		}
	}
	return name
}

// draftConfig is config.json of a DFlash draft (docs/spec/dflash.md §2.1).
type draftConfig struct {
	Architectures []string        `json:"architectures"`
	ModelType     string          `json:"model_type"`
	Layers        *uint32         `json:"num_hidden_layers"`
	Context       *uint32         `json:"max_position_embeddings"`
	Hidden        *uint32         `json:"hidden_size"`
	FFN           *uint32         `json:"intermediate_size"`
	Heads         *uint32         `json:"num_attention_heads"`
	KVHeads       *uint32         `json:"num_key_value_heads"`
	HeadDim       *uint32         `json:"head_dim"`
	NormEps       *float32        `json:"rms_norm_eps"`
	RopeBase      *float32        `json:"rope_theta"`
	RopeScaling   json.RawMessage `json:"rope_scaling"`
	AttentionBias bool            `json:"attention_bias"`
	Causal        bool            `json:"is_causal"`
	BlockSize     *uint32         `json:"block_size"`
	Vocab         uint32          `json:"vocab_size"`
	LayerTypes    []string        `json:"layer_types"`
	SlidingWindow *uint32         `json:"sliding_window"`
	DFlash        *dflashConfig   `json:"dflash_config"`
}

type dflashConfig struct {
	MaskToken    *uint32 `json:"mask_token_id"`
	TargetLayers []int32 `json:"target_layer_ids"`
	Causal       bool    `json:"causal"`
	UseSWA       bool    `json:"use_swa"`
}

// readDraftConfig turns config.json into the metadata of the GGUF dialect "dflash". What the engine does not run is
// refused here too, so that a worker says so when it starts and not when a target comes.
func (s *shard) readDraftConfig(data []byte) error {
	var c draftConfig
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&c); err != nil {
		return invalid("", "%v", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return invalid("", "holds more than one JSON value")
	}
	if err := c.check(); err != nil {
		return err
	}
	put := func(key string, val any) {
		v, err := encodeValue(val)
		if err != nil {
			panic(fmt.Sprintf("gguf: %s: %v", key, err)) // the types below are all known
		}
		s.keys = append(s.keys, key)
		s.values[key] = v
	}
	put("general.architecture", "dflash")
	put("dflash.block_count", *c.Layers)
	put("dflash.context_length", *c.Context)
	put("dflash.embedding_length", *c.Hidden)
	put("dflash.feed_forward_length", *c.FFN)
	put("dflash.attention.head_count", *c.Heads)
	put("dflash.attention.head_count_kv", *c.KVHeads)
	put("dflash.attention.key_length", *c.HeadDim)
	put("dflash.attention.value_length", *c.HeadDim)
	put("dflash.attention.layer_norm_rms_epsilon", *c.NormEps)
	put("dflash.rope.freq_base", *c.RopeBase)
	put("dflash.block_size", *c.BlockSize)
	put("tokenizer.ggml.mask_token_id", *c.DFlash.MaskToken)
	stored := make([]int32, len(c.DFlash.TargetLayers))
	for i, id := range c.DFlash.TargetLayers {
		stored[i] = id + 1
	}
	put("dflash.target_layers", stored)
	put("dflash.n_target_features", *c.Hidden*uint32(len(stored)))
	if c.Vocab > 0 {
		put("dflash.vocab_size", c.Vocab)
	}
	sliding := make([]bool, len(c.LayerTypes))
	for i, kind := range c.LayerTypes {
		sliding[i] = kind == "sliding_attention"
	}
	if slices.Contains(sliding, true) {
		put("dflash.attention.sliding_window", *c.SlidingWindow)
		put("dflash.attention.sliding_window_pattern", sliding)
	}
	return nil
}

func (c *draftConfig) check() error {
	switch arch := strings.Join(c.Architectures, ", "); {
	case arch == "DFlash2DraftModel":
		return invalid("architectures", "is a DFlash2 draft: this build runs DFlash drafts only")
	case arch != "DFlashDraftModel":
		return invalid("architectures",
			"is %.64q: of safetensors models only DFlash drafts (DFlashDraftModel) are read, others as GGUF", arch)
	case c.ModelType != "qwen3":
		return invalid("model_type", "is %.64q, want qwen3", c.ModelType)
	case len(c.RopeScaling) > 0 && string(c.RopeScaling) != "null":
		return invalid("rope_scaling", "is not supported")
	case c.AttentionBias:
		return invalid("attention_bias", "is not supported")
	case c.Causal:
		return invalid("is_causal", "is not supported")
	case c.DFlash == nil:
		return invalid("dflash_config", "is missing")
	case c.DFlash.Causal:
		return invalid("dflash_config.causal", "is not supported")
	case c.DFlash.UseSWA:
		return invalid("dflash_config.use_swa", "is not supported")
	case c.NormEps == nil:
		return invalid("rms_norm_eps", "is missing")
	case c.RopeBase == nil:
		return invalid("rope_theta", "is missing")
	case c.DFlash.MaskToken == nil:
		return invalid("dflash_config.mask_token_id", "is missing")
	case len(c.DFlash.TargetLayers) == 0 || len(c.DFlash.TargetLayers) > 64:
		return invalid("dflash_config.target_layer_ids", "names %d layers, want 1 to 64", len(c.DFlash.TargetLayers))
	}
	for _, n := range []struct {
		name  string
		value *uint32
		most  uint32
	}{
		{"num_hidden_layers", c.Layers, maxLayers}, {"max_position_embeddings", c.Context, maxContext},
		{"hidden_size", c.Hidden, maxHidden},
		{"intermediate_size", c.FFN, maxHidden}, {"num_attention_heads", c.Heads, maxHeads},
		{"num_key_value_heads", c.KVHeads, maxHeads},
		{"head_dim", c.HeadDim, maxHidden}, {"block_size", c.BlockSize, 1 << 12},
	} {
		if n.value == nil {
			return invalid(n.name, "is missing")
		}
		if *n.value < 1 || *n.value > n.most {
			return invalid(n.name, "is %d, want 1 to %d", *n.value, n.most)
		}
	}
	for i, id := range c.DFlash.TargetLayers {
		if id < 0 || id >= maxLayers {
			return invalid("dflash_config.target_layer_ids", "entry %d is %d", i, id)
		}
	}
	if len(c.LayerTypes) != 0 && uint32(len(c.LayerTypes)) != *c.Layers {
		return invalid("layer_types", "has %d entries for %d layers", len(c.LayerTypes), *c.Layers)
	}
	for i, kind := range c.LayerTypes {
		if kind != "full_attention" && kind != "sliding_attention" {
			return invalid("layer_types", "entry %d is %.64q", i, kind)
		}
		if kind == "sliding_attention" && (c.SlidingWindow == nil || *c.SlidingWindow < 1) {
			return invalid("sliding_window", "is missing, but layer %d is a sliding one", i)
		}
	}
	return nil
}
