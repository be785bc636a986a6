package probe

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/tandem-inference/tandem/services/gguf"
)

// Sizes of the model that is made when none is given: about 130 MB in Q4_K, more than caches hold, read in seconds.
const (
	madeLayers, madeHidden, madeFFN      = 4, 2048, 6144
	madeHeads, madeKVHeads, madeHeadDim  = 16, 4, 128
	madeVocab                            = 4096
	blockBytes, blockValues, scaleOfMade = 144, 256, 0x1400 // of Q4_K; 2⁻¹⁰ in binary16
)

// writeModel writes a dense model with random weights.
func writeModel(path string) error {
	w := gguf.NewWriter()
	const arch = "qwen3"
	for _, kv := range []struct {
		key   string
		value any
	}{
		{"general.architecture", arch}, {"general.name", "probe"}, {arch + ".block_count", uint32(madeLayers)},
		{arch + ".context_length", uint32(8192)}, {arch + ".embedding_length", uint32(madeHidden)},
		{arch + ".feed_forward_length", uint32(madeFFN)}, {arch + ".attention.head_count", uint32(madeHeads)},
		{arch + ".attention.head_count_kv", uint32(madeKVHeads)}, {arch + ".attention.key_length", uint32(madeHeadDim)},
		{arch + ".attention.value_length", uint32(madeHeadDim)}, {arch + ".rope.dimension_count", uint32(madeHeadDim)},
		{arch + ".attention.layer_norm_rms_epsilon", float32(1e-6)}, {arch + ".rope.freq_base", float32(1e6)},
	} {
		if err := w.Put(kv.key, kv.value); err != nil {
			return err
		}
	}
	var failed error
	add := func(name string, t gguf.Type, shape ...int64) {
		if failed == nil {
			failed = w.AddTensor(name, t, shape, source(t, shape))
		}
	}
	add("token_embd.weight", gguf.Q4_K, madeHidden, madeVocab)
	add("output.weight", gguf.Q4_K, madeHidden, madeVocab)
	add("output_norm.weight", gguf.F32, madeHidden)
	for i := range madeLayers {
		p := fmt.Sprintf("blk.%d.", i)
		const q, kv = madeHeads * madeHeadDim, madeKVHeads * madeHeadDim
		add(p+"attn_norm.weight", gguf.F32, madeHidden)
		add(p+"attn_q.weight", gguf.Q4_K, madeHidden, q)
		add(p+"attn_k.weight", gguf.Q4_K, madeHidden, kv)
		add(p+"attn_v.weight", gguf.Q4_K, madeHidden, kv)
		add(p+"attn_output.weight", gguf.Q4_K, q, madeHidden)
		add(p+"attn_q_norm.weight", gguf.F32, madeHeadDim)
		add(p+"attn_k_norm.weight", gguf.F32, madeHeadDim)
		add(p+"ffn_norm.weight", gguf.F32, madeHidden)
		add(p+"ffn_gate.weight", gguf.Q4_K, madeHidden, madeFFN)
		add(p+"ffn_up.weight", gguf.Q4_K, madeHidden, madeFFN)
		add(p+"ffn_down.weight", gguf.Q4_K, madeFFN, madeHidden)
	}
	if failed != nil {
		return failed
	}
	return w.WriteFile(path)
}

// source is the data of a tensor: ones for vectors, blocks with small scales and random codes for matrices.
func source(t gguf.Type, shape []int64) io.Reader {
	n := int64(1)
	for _, ne := range shape {
		n *= ne
	}
	if t == gguf.F32 {
		return io.LimitReader(&cycle{data: []byte{0, 0, 0x80, 0x3F}}, 4*n)
	}
	// So many blocks that their cycle fits no pattern of a tensor's rows.
	const blocks = 1021
	data := make([]byte, blocks*blockBytes)
	state := uint64(1)
	for i := range data {
		state = state*6364136223846793005 + 1442695040888963407
		data[i] = byte(state >> 56)
	}
	for i := range blocks {
		binary.LittleEndian.PutUint16(data[i*blockBytes:], scaleOfMade)
		binary.LittleEndian.PutUint16(data[i*blockBytes+2:], scaleOfMade)
	}
	return io.LimitReader(&cycle{data: data}, n/blockValues*blockBytes)
}

// cycle reads data again and again.
type cycle struct {
	data []byte
	at   int
}

// Read implements io.Reader.
func (c *cycle) Read(p []byte) (int, error) {
	n := copy(p, c.data[c.at:])
	c.at = (c.at + n) % len(c.data)
	return n, nil
}
