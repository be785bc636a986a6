package placement

import (
	"errors"
	"fmt"

	"github.com/tandem-inference/tandem/services/gguf"
)

// Shape describes a model that is not at hand, for questions of the kind "what if": its sizes and the mix of types in
// which its matrices are stored.
type Shape struct {
	Name           string      `json:"name"`
	Arch           string      `json:"arch"` // qwen35, qwen3; dflash of drafts
	Mix            string      `json:"mix"`  // Q4_K_M, Q8_0, BF16
	Layers         int         `json:"layers"`
	Hidden         int64       `json:"hidden"`
	FFN            int64       `json:"ffn"`
	Heads          int64       `json:"heads"`
	KVHeads        int64       `json:"kv_heads"`
	HeadDim        int64       `json:"head_dim"`
	RopeDims       int64       `json:"rope_dims"`
	Vocab          int64       `json:"vocab,omitempty"` // 0 of drafts
	Context        int64       `json:"context"`
	Tied           bool        `json:"tied,omitempty"`
	AttentionEvery int         `json:"attention_every,omitempty"` // 4: three of four layers are recurrent; 0: none is
	Delta          *DeltaShape `json:"delta,omitempty"`
	Block          int         `json:"block,omitempty"`    // of drafts
	Captured       int         `json:"captured,omitempty"` // of drafts: layers of the target that it reads
}

// DeltaShape are the sizes of recurrent layers.
type DeltaShape struct {
	KeyHeads   int `json:"key_heads"`
	ValueHeads int `json:"value_heads"`
	HeadDim    int `json:"head_dim"`
	ConvKernel int `json:"conv_kernel"`
}

// problems names the fields that cannot be.
func (s *Shape) problems() error {
	var errs []error
	atLeast := func(field string, value, least int64) {
		if value < least || value > 1<<30 {
			errs = append(errs, fmt.Errorf("%s: is %d, must be %d..%d", field, value, least, 1<<30))
		}
	}
	atLeast("layers", int64(s.Layers), 1)
	if s.Layers > 1024 {
		errs = append(errs, fmt.Errorf("layers: is %d, must be at most 1024", s.Layers))
	}
	for _, f := range []struct {
		name  string
		value int64
	}{{"hidden", s.Hidden}, {"ffn", s.FFN}, {"heads", s.Heads}, {"kv_heads", s.KVHeads}, {"head_dim", s.HeadDim},
		{"rope_dims", s.RopeDims}, {"context", s.Context}} {
		atLeast(f.name, f.value, 1)
	}
	if s.Block > 0 {
		atLeast("captured", int64(s.Captured), 1)
	} else {
		atLeast("vocab", s.Vocab, 1)
	}
	if s.AttentionEvery < 0 {
		errs = append(errs, fmt.Errorf("attention_every: is %d, must not be negative", s.AttentionEvery))
	}
	if s.AttentionEvery > 0 && s.Delta == nil {
		errs = append(errs, errors.New("delta: is needed with attention_every"))
	}
	if d := s.Delta; d != nil {
		atLeast("delta.key_heads", int64(d.KeyHeads), 1)
		atLeast("delta.value_heads", int64(d.ValueHeads), 1)
		atLeast("delta.head_dim", int64(d.HeadDim), 1)
		atLeast("delta.conv_kernel", int64(d.ConvKernel), 1)
	}
	if _, ok := mixes[s.Mix]; !ok {
		errs = append(errs, fmt.Errorf("mix: is %q, must be Q4_K_M, Q8_0 or BF16", s.Mix))
	}
	return errors.Join(errs...)
}

// mixes by name: a type for all matrices; Q4_K_M has one for each.
var mixes = map[string]gguf.Type{"Q4_K_M": gguf.Q4_K, "Q8_0": gguf.Q8_0, "BF16": gguf.BF16}

// Model adds up the tensors that a file of the shape has. The mix Q4_K_M is that of docs/spec/gguf.md §6.
func (s *Shape) Model() (*Model, error) {
	if err := s.problems(); err != nil {
		return nil, err
	}
	shape := modelShape{name: s.Name, arch: s.Arch, layers: s.Layers, hidden: s.Hidden, vocab: s.Vocab,
		context: s.Context, heads: s.Heads, keyDim: s.HeadDim, valueDim: s.HeadDim, ropeDims: s.RopeDims, tied: s.Tied}
	if d := s.Delta; d != nil {
		shape.delta = gguf.DeltaNet{KeyHeads: d.KeyHeads, ValueHeads: d.ValueHeads, HeadDim: d.HeadDim,
			ConvKernel: d.ConvKernel}
	}
	var all []matrix
	vector := func(name string, n int64) {
		all = append(all, matrix{name: name, typ: gguf.F32, k: n, n: 1, dims: 1})
	}
	product := func(name string, k, n int64, quantised gguf.Type) {
		t := mixes[s.Mix]
		if s.Mix == "Q4_K_M" {
			t = quantised
		}
		all = append(all, matrix{name: name, typ: t, k: k, n: n, dims: 2})
	}
	if s.Block > 0 {
		shape.draft = &DraftShape{Block: s.Block, Captured: s.Captured}
		product("dflash_fc.weight", int64(s.Captured)*s.Hidden, s.Hidden, gguf.Q8_0)
		vector("dflash_hidden_norm.weight", s.Hidden)
	}
	if s.Vocab > 0 {
		table := gguf.Q4_K
		if s.Tied {
			table = gguf.Q6_K
		} else {
			product("output.weight", s.Hidden, s.Vocab, gguf.Q6_K)
		}
		product("token_embd.weight", s.Hidden, s.Vocab, table)
	}
	vector("output_norm.weight", s.Hidden)
	attention := 0
	for i := range s.Layers {
		recurrent := s.AttentionEvery > 0 && (i+1)%s.AttentionEvery != 0
		shape.recurrent = append(shape.recurrent, recurrent)
		heads := s.KVHeads
		if recurrent {
			heads = 0
		}
		shape.kvHeads = append(shape.kvHeads, heads)
		p := fmt.Sprintf("blk.%d.", i)
		vector(p+"attn_norm.weight", s.Hidden)
		vector(p+"post_attention_norm.weight", s.Hidden)
		if recurrent {
			s.recurrentLayer(p, shape.delta, vector, product, &all)
		} else {
			s.attentionLayer(p, attention%8 < 5, vector, product)
			attention++
		}
		eighth, down := s.Layers/8, gguf.Q4_K
		if i < eighth || i >= 7*s.Layers/8 || (i-eighth)%3 == 2 {
			down = gguf.Q6_K
		}
		product(p+"ffn_gate.weight", s.Hidden, s.FFN, gguf.Q4_K)
		product(p+"ffn_up.weight", s.Hidden, s.FFN, gguf.Q4_K)
		product(p+"ffn_down.weight", s.FFN, s.Hidden, down)
	}
	return shape.add(all)
}

// attentionLayer: ten of sixteen of the 27B's layers have values of six bits.
func (s *Shape) attentionLayer(p string, sixBits bool, vector func(string, int64),
	product func(string, int64, int64, gguf.Type)) {
	q, kv, v := s.Heads*s.HeadDim, s.KVHeads*s.HeadDim, gguf.Q4_K
	if sixBits {
		v = gguf.Q6_K
	}
	vector(p+"attn_q_norm.weight", s.HeadDim)
	vector(p+"attn_k_norm.weight", s.HeadDim)
	gated := int64(1)
	if s.AttentionEvery > 0 {
		gated = 2
	}
	product(p+"attn_q.weight", s.Hidden, q*gated, gguf.Q4_K)
	product(p+"attn_k.weight", s.Hidden, kv, gguf.Q4_K)
	product(p+"attn_v.weight", s.Hidden, kv, v)
	product(p+"attn_output.weight", q, s.Hidden, gguf.Q4_K)
}

func (s *Shape) recurrentLayer(p string, d gguf.DeltaNet, vector func(string, int64),
	product func(string, int64, int64, gguf.Type), all *[]matrix) {
	value, heads, conv := int64(d.ValueHeads*d.HeadDim), int64(d.ValueHeads), int64(d.ConvChannels())
	product(p+"attn_qkv.weight", s.Hidden, conv, gguf.Q5_K)
	product(p+"attn_gate.weight", s.Hidden, value, gguf.Q5_K)
	product(p+"ssm_alpha.weight", s.Hidden, heads, gguf.Q8_0)
	product(p+"ssm_beta.weight", s.Hidden, heads, gguf.Q8_0)
	*all = append(*all, matrix{name: p + "ssm_conv1d.weight", typ: gguf.F32, k: int64(d.ConvKernel), n: conv, dims: 2})
	vector(p+"ssm_a", heads)
	vector(p+"ssm_dt.bias", heads)
	vector(p+"ssm_norm.weight", int64(d.HeadDim))
	product(p+"ssm_out.weight", value, s.Hidden, gguf.Q4_K)
}
