package gguf

import (
	"fmt"
	"slices"
)

// want is a tensor that the architecture prescribes.
type want struct {
	name     string
	shape    []int64
	optional bool
}

// checkShapes compares the tensors that are present with what the metadata says and notes the first that is missing.
// The lists cover the architectures of this package and the drafts; files of others are only accounted for.
func (m *Model) checkShapes(f *File) error {
	for _, w := range m.expected() {
		t, ok := f.Tensor(w.name)
		if !ok {
			if !w.optional && m.missingTensor == "" {
				m.missingTensor = w.name
			}
			continue
		}
		if !sameShape(t.Shape, w.shape) {
			return invalid(w.name, "shape is %v, but the metadata asks for %v", t.Shape, w.shape)
		}
	}
	return nil
}

// sameShape ignores trailing dimensions of 1.
func sameShape(a, b []int64) bool {
	trim := func(s []int64) []int64 {
		for len(s) > 1 && s[len(s)-1] == 1 {
			s = s[:len(s)-1]
		}
		return s
	}
	return slices.Equal(trim(a), trim(b))
}

// expected lists the tensors of the architecture.
func (m *Model) expected() []want {
	h, v := int64(m.Hidden), int64(m.Vocab)
	var ws []want
	add := func(name string, shape ...int64) { ws = append(ws, want{name: name, shape: shape}) }
	opt := func(name string, shape ...int64) { ws = append(ws, want{name: name, shape: shape, optional: true}) }
	arch, known := architectures[m.Arch]
	gated := arch.hybrid
	switch {
	case known:
		add("token_embd.weight", h, v)
		add("output_norm.weight", h)
		opt("output.weight", h, v)
	case m.Draft != nil:
		add("output_norm.weight", h)
		if n := int64(m.Draft.Features); n != 0 {
			for _, d := range fuseDialects {
				opt(d[0], n, h)
				opt(d[1], h)
			}
		}
	default:
		return nil
	}
	for i := range m.Layers {
		p := fmt.Sprintf("blk.%d.", i)
		add(p+"attn_norm.weight", h)
		if gated {
			add(p+"post_attention_norm.weight", h)
		} else {
			// Drafts exist with either name of the second norm.
			ws = append(ws, want{p + "ffn_norm.weight", []int64{h}, m.Draft != nil})
			opt(p+"post_attention_norm.weight", h)
		}
		if m.Recurrent[i] {
			ws = append(ws, m.deltaNetTensors(p)...)
		} else {
			ws = append(ws, m.attentionTensors(p, int64(m.KVHeads[i]), gated)...)
		}
		ws = append(ws, m.ffnTensors(p)...)
	}
	return ws
}

func (m *Model) attentionTensors(p string, kvHeads int64, gated bool) []want {
	h, nq, kd, vd := int64(m.Hidden), int64(m.Heads), int64(m.KeyDim), int64(m.ValueDim)
	q := nq * kd
	if gated {
		q *= 2 // query and output gate, interleaved per head
	}
	return []want{
		{name: p + "attn_q.weight", shape: []int64{h, q}},
		{name: p + "attn_k.weight", shape: []int64{h, kvHeads * kd}},
		{name: p + "attn_v.weight", shape: []int64{h, kvHeads * vd}},
		{name: p + "attn_output.weight", shape: []int64{nq * vd, h}},
		{name: p + "attn_q_norm.weight", shape: []int64{kd}},
		{name: p + "attn_k_norm.weight", shape: []int64{kd}},
	}
}

func (m *Model) deltaNetTensors(p string) []want {
	h, d := int64(m.Hidden), m.DeltaNet
	nv, dim, conv := int64(d.ValueHeads), int64(d.HeadDim), int64(d.ConvChannels())
	return []want{
		{name: p + "attn_qkv.weight", shape: []int64{h, conv}},
		{name: p + "attn_gate.weight", shape: []int64{h, nv * dim}},
		{name: p + "ssm_alpha.weight", shape: []int64{h, nv}},
		{name: p + "ssm_beta.weight", shape: []int64{h, nv}},
		{name: p + "ssm_conv1d.weight", shape: []int64{int64(d.ConvKernel), conv}},
		{name: p + "ssm_a", shape: []int64{nv}},
		{name: p + "ssm_dt.bias", shape: []int64{nv}},
		{name: p + "ssm_norm.weight", shape: []int64{dim}},
		{name: p + "ssm_out.weight", shape: []int64{nv * dim, h}},
	}
}

func (m *Model) ffnTensors(p string) []want {
	h, ff := int64(m.Hidden), int64(m.FFN)
	if m.Experts > 0 {
		return []want{{name: p + "ffn_gate_inp.weight", shape: []int64{h, int64(m.Experts)}}}
	}
	return []want{
		{name: p + "ffn_gate.weight", shape: []int64{h, ff}},
		{name: p + "ffn_up.weight", shape: []int64{h, ff}},
		{name: p + "ffn_down.weight", shape: []int64{ff, h}},
	}
}
