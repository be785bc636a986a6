package gguf

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Sanity limits of model metadata; the layer limit is the project's, the others keep products far from overflow.
const (
	maxLayers  = 1024
	maxHidden  = 1 << 20
	maxHeads   = 1 << 14
	maxVocab   = 1 << 24
	maxContext = 1 << 30
)

func (r *modelReader) read() *Model {
	m := &Model{GroupBytes: map[Group]int64{}, FileType: -1}
	var err error
	if m.Arch, err = r.f.Architecture(); err != nil {
		r.fail(err)
		return m
	}
	r.arch = m.Arch
	if m.Name, _, err = r.f.String("general.name"); err != nil {
		r.fail(err)
	}
	if n, ok, err := r.f.Uint("general.file_type"); err == nil && ok && n < 1<<16 {
		m.FileType = int(n)
	}
	m.PreTokenizer, _, _ = r.f.String("tokenizer.ggml.pre")
	_, m.HasTemplate = r.f.Lookup("tokenizer.chat_template")

	blocks := r.need("block_count", maxLayers)
	m.NextNLayers, _ = r.count("nextn_predict_layers", maxLayers)
	if r.err == nil && m.NextNLayers >= blocks {
		r.fail(invalid(r.arch+".nextn_predict_layers", "%d of %d blocks", m.NextNLayers, blocks))
	}
	if r.err != nil {
		return m
	}
	m.Layers = blocks - m.NextNLayers
	m.Hidden = r.need("embedding_length", maxHidden)
	m.Context, _ = r.count("context_length", maxContext)
	m.FFN, _ = r.count("feed_forward_length", maxHidden)
	m.Experts, _ = r.count("expert_count", 1<<16)
	m.ExpertsUsed, _ = r.count("expert_used_count", 1<<16)
	m.NormEps = r.float("attention.layer_norm_rms_epsilon", 1e-6)
	m.RopeBase = r.float("rope.freq_base", 10000)
	r.readHeads(m, blocks)
	r.readLayerKinds(m)
	r.readVocab(m)
	r.readDraft(m)
	return m
}

func (r *modelReader) readHeads(m *Model, blocks int) {
	heads := r.perLayer("attention.head_count", blocks, maxHeads)
	if r.err != nil {
		return
	}
	if heads == nil || slices.Max(heads) == 0 {
		r.fail(invalid(r.arch+".attention.head_count", "is missing or 0"))
		return
	}
	m.Heads = slices.Max(heads)
	kv := r.perLayer("attention.head_count_kv", blocks, maxHeads)
	if kv == nil {
		kv = slices.Clone(heads)
	}
	m.KVHeads = kv[:m.Layers:m.Layers]
	for i, n := range m.KVHeads {
		if n != 0 && m.Heads%n != 0 {
			r.fail(invalid(r.arch+".attention.head_count_kv", "%d query heads are not a multiple of %d (layer %d)",
				m.Heads, n, i))
			return
		}
	}
	def := m.Hidden / m.Heads
	var ok bool
	if m.KeyDim, ok = r.count("attention.key_length", maxHidden); !ok {
		m.KeyDim = def
	}
	if m.ValueDim, ok = r.count("attention.value_length", maxHidden); !ok {
		m.ValueDim = def
	}
	if m.RopeDims, ok = r.count("rope.dimension_count", maxHidden); !ok {
		m.RopeDims = m.KeyDim
	}
	if r.err == nil && m.RopeDims > m.KeyDim {
		r.fail(invalid(r.arch+".rope.dimension_count", "%d is more than the head size %d", m.RopeDims, m.KeyDim))
	}
}

// readLayerKinds finds out which layers are recurrent and the shapes of those.
func (r *modelReader) readLayerKinds(m *Model) {
	m.Recurrent = make([]bool, m.Layers)
	if r.err != nil || !architectures[m.Arch].hybrid {
		return
	}
	interval, ok := r.count("full_attention_interval", maxLayers)
	if !ok || interval == 0 {
		interval = 4
	}
	for i := range m.Recurrent {
		m.Recurrent[i] = (i+1)%interval != 0
	}
	key := r.arch + ".attention.recurrent_layers"
	if rec, ok, err := r.f.Bools(key); err != nil {
		r.fail(err)
	} else if ok {
		if len(rec) < m.Layers {
			r.fail(invalid(key, "has %d entries for %d layers", len(rec), m.Layers))
			return
		}
		copy(m.Recurrent, rec)
	}
	for i, rec := range m.Recurrent {
		if rec {
			m.KVHeads[i] = 0
		}
	}
	if !slices.Contains(m.Recurrent, true) {
		return
	}
	d := &m.DeltaNet
	d.ConvKernel = r.need("ssm.conv_kernel", 64)
	d.HeadDim = r.need("ssm.state_size", 4096)
	d.KeyHeads = r.need("ssm.group_count", maxHeads)
	d.ValueHeads = r.need("ssm.time_step_rank", maxHeads)
	inner := r.need("ssm.inner_size", maxHidden)
	if r.err != nil {
		return
	}
	if d.ValueHeads%d.KeyHeads != 0 {
		r.fail(invalid(r.arch+".ssm.time_step_rank", "%d value heads are not a multiple of %d key heads",
			d.ValueHeads, d.KeyHeads))
	}
	if inner != d.ValueHeads*d.HeadDim {
		r.fail(invalid(r.arch+".ssm.inner_size", "is %d, want %d value heads × %d", inner, d.ValueHeads, d.HeadDim))
	}
}

func (r *modelReader) readVocab(m *Model) {
	if n, ok := r.count("vocab_size", maxVocab); ok {
		m.Vocab = n
	}
	if t, ok := r.f.Tensor("token_embd.weight"); ok && len(t.Shape) == 2 {
		m.embedPresent = true
		if t.Shape[1] > maxVocab {
			r.fail(invalid(t.Name, "%d rows", t.Shape[1]))
			return
		}
		if m.Vocab != 0 && int64(m.Vocab) != t.Shape[1] {
			r.fail(invalid(r.arch+".vocab_size", "is %d but the embedding has %d rows", m.Vocab, t.Shape[1]))
		}
		m.Vocab = int(t.Shape[1])
	}
	tokens, hasTokens := r.f.Lookup("tokenizer.ggml.tokens")
	if hasTokens {
		if m.Vocab == 0 {
			m.Vocab = tokens.Count
		}
		if tokens.Type != TypeArray || tokens.Count != m.Vocab {
			r.fail(invalid("tokenizer.ggml.tokens", "has %d entries for a vocabulary of %d", tokens.Count, m.Vocab))
		}
	}
	if kinds, ok := r.f.Lookup("tokenizer.ggml.token_type"); ok && hasTokens && kinds.Count != tokens.Count {
		r.fail(invalid("tokenizer.ggml.token_type", "has %d entries for %d tokens", kinds.Count, tokens.Count))
	}
	_, head := r.f.Tensor("output.weight")
	m.TiedHead = m.embedPresent && !head
}

// readDraft recognises the DFlash dialects by their architecture names.
func (r *modelReader) readDraft(m *Model) {
	if !strings.Contains(m.Arch, "dflash") {
		return
	}
	d := &Draft{Kind: draftKind(r.f), MaskToken: -1}
	d.BlockSize, _ = r.ownCount("block_size", 1<<12)
	if n, ok := r.ownCount("mask_token_id", maxVocab); ok {
		d.MaskToken = n
	} else if n, ok, err := r.f.Uint("tokenizer.ggml.mask_token_id"); err == nil && ok && n < maxVocab {
		d.MaskToken = int(n)
	}
	d.Features, _ = r.ownCount("n_target_features", maxHidden)
	key, ids := r.ownInts("target_layer_ids")
	bias := int64(0)
	if ids == nil {
		// The upstream dialect stores "the tensor that enters layer id+1", which is the output of layer id.
		key, ids = r.ownInts("target_layers")
		bias = 1
	}
	for _, id := range ids {
		if id < bias || id-bias >= maxLayers {
			r.fail(invalid(key, "layer id %d", id))
			return
		}
		d.TargetLayers = append(d.TargetLayers, int(id-bias))
	}
	m.Draft = d
}

// draftKind tells DFlash from its successors, which carry its architecture name, by their extra parts
// (docs/spec/dflash2.md §4.3).
func draftKind(f *File) string {
	for _, name := range []string{"conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"} {
		for _, key := range ownKeys(f, name) {
			if n, ok, err := f.Uint(key); err == nil && ok && n > 0 {
				return "DFlash2"
			}
		}
	}
	for _, t := range f.tensors {
		rest := t.Name
		if strings.HasPrefix(rest, "blk.") {
			_, rest, _ = strings.Cut(rest[len("blk."):], ".")
		}
		if strings.HasPrefix(rest, "markov_w") {
			return "DSpark"
		}
		for _, part := range []string{"selector_", "selector.", "attn_conv", "ffn_conv"} {
			if strings.HasPrefix(rest, part) {
				return "DFlash2"
			}
		}
	}
	return KindDFlash
}

// ownKeys lists the metadata keys under which f holds a setting of DFlash: "<arch>.dflash.<name>", and in the dialect
// "dflash" also "dflash.<name>", which comes first. It lists at least one, which a file without the setting lacks.
func ownKeys(f *File, name string) []string {
	arch, _ := f.Architecture()
	plain := "dflash." + name
	prefixed := arch + "." + plain
	_, hasPlain := f.Lookup(plain)
	_, hasPrefixed := f.Lookup(prefixed)
	switch {
	case arch != "dflash", hasPrefixed && !hasPlain:
		return []string{prefixed}
	case !hasPrefixed:
		return []string{plain}
	}
	return []string{plain, prefixed}
}

// ownCount reads an optional integer of DFlash from 0 to limit. Two keys that disagree are an error.
func (r *modelReader) ownCount(name string, limit int) (int, bool) {
	keys := ownKeys(r.f, name)
	n, ok, err := r.f.Uint(keys[0])
	if err == nil && len(keys) == 2 {
		var other uint64
		if other, _, err = r.f.Uint(keys[1]); err == nil && other != n {
			err = invalid(keys[0], "is %d, but %s is %d", n, keys[1], other)
		}
	}
	if err == nil && n > uint64(limit) {
		err = invalid(keys[0], "%d is more than %d", n, limit)
	}
	if err != nil {
		r.fail(err)
		return 0, false
	}
	return int(n), ok
}

// ownInts reads an optional list of DFlash, nil when the file has none, with the key that holds it. Two keys that
// disagree are an error.
func (r *modelReader) ownInts(name string) (key string, list []int64) {
	keys := ownKeys(r.f, name)
	list, _, err := r.f.Ints(keys[0])
	if err == nil && len(keys) == 2 {
		var other []int64
		if other, _, err = r.f.Ints(keys[1]); err == nil && !slices.Equal(list, other) {
			err = invalid(keys[0], "is %v, but %s is %v", list, keys[1], other)
		}
	}
	if err != nil {
		r.fail(err)
		return keys[0], nil
	}
	return keys[0], list
}

// account adds up tensors by type and group.
func (m *Model) account(f *File) {
	types := map[Type]*TypeCount{}
	for _, t := range f.tensors {
		m.Tensors++
		m.TensorBytes += t.Bytes
		m.Parameters += t.Elems()
		m.GroupBytes[m.group(t.Name)] += t.Bytes
		c := types[t.Type]
		if c == nil {
			c = &TypeCount{Type: t.Type}
			types[t.Type] = c
		}
		c.Tensors++
		c.Bytes += t.Bytes
		if !t.Type.Computed(len(t.Shape) > 1) && !m.beyondTrunk(t.Name) && !slices.Contains(m.Uncomputed, t.Type) {
			m.Uncomputed = append(m.Uncomputed, t.Type)
		}
	}
	slices.Sort(m.Uncomputed)
	for _, c := range types {
		m.Types = append(m.Types, *c)
	}
	slices.SortFunc(m.Types, func(a, b TypeCount) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Type, b.Type))
	})
}

// beyondTrunk reports whether a tensor belongs to an MTP block, which no engine reads.
func (m *Model) beyondTrunk(name string) bool {
	block := -1
	_, err := fmt.Sscanf(name, "blk.%d.", &block)
	return err == nil && block >= m.Layers
}

// group files a tensor under the part of the model it belongs to.
func (m *Model) group(name string) Group {
	rest, block := name, -1
	if strings.HasPrefix(name, "blk.") {
		if n, err := fmt.Sscanf(name, "blk.%d.", &block); n != 1 || err != nil {
			return GroupOther
		}
		_, rest, _ = strings.Cut(name[len("blk."):], ".")
	}
	switch {
	case block >= m.Layers, strings.HasPrefix(rest, "dflash"), rest == "fc.weight", rest == "enc.output_norm.weight":
		return GroupDraft
	case rest == "token_embd.weight":
		return GroupEmbedding
	case rest == "output.weight":
		return GroupHead
	case strings.HasSuffix(rest, "_norm.weight"), strings.HasSuffix(rest, "_norm.bias"):
		return GroupNorms
	case strings.HasPrefix(rest, "ffn_"):
		return GroupFFN
	case strings.HasPrefix(rest, "ssm_"), strings.HasPrefix(rest, "attn_qkv."), strings.HasPrefix(rest, "attn_gate."):
		return GroupDeltaNet
	case strings.HasPrefix(rest, "attn_"):
		return GroupAttention
	}
	return GroupOther
}
