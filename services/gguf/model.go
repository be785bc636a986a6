package gguf

import (
	"fmt"
	"math"

	"github.com/tandem-inference/tandem/services/kvtype"
)

// Group is a part of a model for accounts of memory.
type Group string

// The groups of Model.GroupBytes.
const (
	GroupEmbedding Group = "embedding"
	GroupHead      Group = "head"
	GroupAttention Group = "attention"
	GroupDeltaNet  Group = "deltanet"
	GroupFFN       Group = "ffn"
	GroupNorms     Group = "norms"
	GroupDraft     Group = "draft" // feature projection of a DFlash draft, MTP block
	GroupOther     Group = "other"
)

// Groups lists the groups in the order in which they are shown.
var Groups = []Group{GroupEmbedding, GroupHead, GroupAttention, GroupDeltaNet, GroupFFN,
	GroupNorms, GroupDraft, GroupOther}

// TypeCount counts the tensors and bytes of one storage type.
type TypeCount struct {
	Type    Type
	Tensors int
	Bytes   int64
}

// DeltaNet holds the shapes of the Gated-DeltaNet layers (qwen35, qwen35moe).
type DeltaNet struct {
	KeyHeads   int // nk
	ValueHeads int // nv, a multiple of nk
	HeadDim    int // key and value head size
	ConvKernel int // taps of the causal convolution
}

// ConvChannels is the number of channels of the convolution: q and k heads once each, v heads once.
func (d DeltaNet) ConvChannels() int { return (2*d.KeyHeads + d.ValueHeads) * d.HeadDim }

// Model summarises what a file holds.
type Model struct {
	Arch          string
	Name          string // general.name, may be empty
	Layers        int    // trunk layers, without MTP blocks
	NextNLayers   int    // MTP blocks after the trunk
	Hidden        int
	Vocab         int // rows of the embedding table; 0 when neither table nor key is in the file
	Context       int // native context length in tokens
	FFN           int // 0 for mixture-of-experts files without a dense FFN
	Experts       int // 0 for dense models
	ExpertsUsed   int
	Heads         int   // query heads
	KVHeads       []int // per trunk layer; 0 on DeltaNet layers
	KeyDim        int   // per head
	ValueDim      int   // per head
	RopeBase      float64
	RopeDims      int // rotated dimensions of a head
	NormEps       float64
	Recurrent     []bool   // per trunk layer: Gated DeltaNet instead of attention
	DeltaNet      DeltaNet // zero for models without recurrent layers
	TiedHead      bool     // the file has an embedding and no head of its own
	Draft         *Draft   // set for DFlash drafts
	Tensors       int
	TensorBytes   int64
	Parameters    int64
	Types         []TypeCount // by bytes, largest first
	Uncomputed    []Type      // of tensors that no engine of this build computes with, ascending; MTP blocks do not count
	GroupBytes    map[Group]int64
	FileType      int // general.file_type, -1 when absent; informative
	PreTokenizer  string
	HasTemplate   bool
	embedPresent  bool
	missingTensor string
}

// KindDFlash is the kind of draft that the engines run.
const KindDFlash = "DFlash"

// Draft holds what is special about a DFlash draft.
type Draft struct {
	Kind         string // KindDFlash, or the successor that the file holds parts of: "DFlash2", "DSpark"
	BlockSize    int
	MaskToken    int   // -1 when the file does not say
	TargetLayers []int // ids of captured target layers, output of that block; nil when the file gives only their number
	Features     int   // width of the concatenated features
}

// CheckRuns reports a draft that no engine of this build runs, nil for KindDFlash.
func (d *Draft) CheckRuns() error {
	if d.Kind != KindDFlash {
		return fmt.Errorf("is a %s draft: this build runs DFlash drafts only", d.Kind)
	}
	return nil
}

// KVBytesPerToken is the growth of one sequence's KV cache per token over all attention layers, for the given types of
// K and V.
func (m *Model) KVBytesPerToken(typeK, typeV string) (int64, error) {
	k, err := kvtype.Parse(typeK)
	if err != nil {
		return 0, err
	}
	v, err := kvtype.Parse(typeV)
	if err != nil {
		return 0, err
	}
	total := int64(0)
	for _, heads := range m.KVHeads {
		total += int64(heads) * (int64(m.KeyDim)*k.BlockBytes + int64(m.ValueDim)*v.BlockBytes) / kvtype.Block
	}
	return total, nil
}

// StateBytes is the size of one sequence's recurrent state, whatever its length: FP32 delta-rule state and convolution
// taps of all DeltaNet layers.
func (m *Model) StateBytes() int64 {
	d := m.DeltaNet
	taps := int64(d.ConvChannels()) * int64(max(d.ConvKernel-1, 0))
	perLayer := 4 * (int64(d.ValueHeads)*int64(d.HeadDim)*int64(d.HeadDim) + taps)
	total := int64(0)
	for _, rec := range m.Recurrent {
		if rec {
			total += perLayer
		}
	}
	return total
}

// AttentionLayers is the number of trunk layers with a KV cache.
func (m *Model) AttentionLayers() int {
	n := 0
	for _, rec := range m.Recurrent {
		if !rec {
			n++
		}
	}
	return n
}

// CheckComplete reports the first tensor that a whole model of this architecture must have and this file lacks. Files
// cut by ExtractTensors are not complete. It is nil for architectures whose tensors the package does not know.
func (m *Model) CheckComplete() error {
	if m.missingTensor != "" {
		return invalid(m.missingTensor, "tensor is missing: the file is not a whole %s model", m.Arch)
	}
	return nil
}

// FeedForwardLabel names the FFN for display: "17408" or "8 of 256 experts".
func (m *Model) FeedForwardLabel() string {
	if m.Experts > 0 {
		return fmt.Sprintf("%d of %d experts", m.ExpertsUsed, m.Experts)
	}
	return fmt.Sprint(m.FFN)
}

// Model reads the architecture's metadata, checks it and the shapes of the tensors that are present against each other,
// and adds up sizes. It fails for files without the keys every transformer has.
func (f *File) Model() (*Model, error) {
	r := &modelReader{f: f}
	m := r.read()
	if r.err != nil {
		return nil, atPath(f.shards[0].path, r.err)
	}
	m.account(f)
	if err := m.checkShapes(f); err != nil {
		return nil, atPath(f.shards[0].path, err)
	}
	return m, nil
}

// modelReader collects metadata; after the first error it keeps returning zeros.
type modelReader struct {
	f    *File
	arch string
	err  error
}

func (r *modelReader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// count reads an optional integer from 0 to limit.
func (r *modelReader) count(key string, limit int) (int, bool) {
	key = r.arch + "." + key
	n, ok, err := r.f.Uint(key)
	switch {
	case err != nil:
		r.fail(err)
	case n > uint64(limit):
		r.fail(invalid(key, "%d is more than %d", n, limit))
	default:
		return int(n), ok
	}
	return 0, false
}

// need reads a required integer from 1 to limit.
func (r *modelReader) need(key string, limit int) int {
	n, ok := r.count(key, limit)
	if r.err == nil && !ok {
		r.fail(invalid(r.arch+"."+key, "is missing"))
	}
	if r.err == nil && n == 0 {
		r.fail(invalid(r.arch+"."+key, "is 0"))
	}
	return n
}

func (r *modelReader) float(key string, def float64) float64 {
	key = r.arch + "." + key
	v, ok, err := r.f.Float(key)
	if err != nil {
		r.fail(err)
	}
	if !ok {
		return def
	}
	if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
		r.fail(invalid(key, "is %v", v))
	}
	return v
}

// perLayer reads a count that is a scalar or an array with one entry per block.
func (r *modelReader) perLayer(key string, blocks, limit int) []int {
	out := make([]int, blocks)
	full := r.arch + "." + key
	v, ok := r.f.Lookup(full)
	if !ok {
		return nil
	}
	if v.Type != TypeArray {
		n := r.need(key, limit)
		for i := range out {
			out[i] = n
		}
		return out
	}
	ns, _, err := r.f.Ints(full)
	if err != nil {
		r.fail(err)
		return nil
	}
	if len(ns) < blocks {
		r.fail(invalid(full, "has %d entries for %d blocks", len(ns), blocks))
		return nil
	}
	for i := range out {
		if ns[i] < 0 || ns[i] > int64(limit) {
			r.fail(invalid(full, "entry %d is %d", i, ns[i]))
			return nil
		}
		out[i] = int(ns[i])
	}
	return out
}
