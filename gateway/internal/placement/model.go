package placement

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/tandem-inference/tandem/services/gguf"
)

// Layer is a layer of a model.
type Layer struct {
	Read    int64 // bytes of its tensors as the file stores them, which a step reads
	Packed  int64 // bytes that they take in an engine
	Weights int64 // products for each row of a step
	// KVHeads of KeyDim and ValueDim values are cached for each position; 0 in recurrent layers.
	KVHeads, KeyDim, ValueDim int64
	State                     int64 // bytes of a sequence's state, whatever its length
	Replay                    int64 // bytes that a pending row keeps until it is committed
	width                     int64 // floats of its widest intermediate row
	longest                   int64 // most inputs of its products
	forms                     forms
}

// forms are the ways in which inputs of products are stored, by the types of the weights.
type forms uint8

const (
	formQ256 forms = 1 << iota
	formQ32
	formF32
)

// Model is what a plan needs of a model file.
type Model struct {
	Name   string
	Path   string // as commands name it; empty of a description
	Arch   string
	Layers []Layer
	// Embedding and Head are tables; Head has no bytes when the embedding serves as head.
	Embedding, Head Layer
	Tied            bool
	Ends            int64 // packed bytes of the norms after the last layer
	Hidden, Vocab   int64
	Heads, HeadDim  int64 // of queries
	RopeDims        int64
	Context         int64
	Conv, Gates     int64 // of recurrent layers: channels of the convolution, 2 gates for each head
	Values          int64 // of recurrent layers: values of a row
	Draft           *DraftShape
}

// DraftShape is what is special about a draft.
type DraftShape struct {
	Block    int   // rows of a proposal
	Captured int   // layers of the target whose features it reads
	Fuse     Layer // the projection of features, which the target loads
	Window   int64 // newest positions that its sliding layers keep; 0 = it has none
	Sliding  []bool
}

// matrix is a tensor of a model: k inputs, n outputs; of vectors n is 1.
type matrix struct {
	name string
	typ  gguf.Type
	k, n int64
	dims int
}

// ReadModel reads a GGUF file, a folder with a safetensors draft, or a description (Shape) in a .json file.
func ReadModel(path string) (*Model, error) {
	if strings.HasSuffix(path, ".json") {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var s Shape
		if err := decodeStrict(data, &s); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		m, err := s.Model()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		m.Path = path
		return m, nil
	}
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m, err := FromFile(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	m.Path = path
	return m, nil
}

// FromFile adds up the tensors of an open model.
func FromFile(f *gguf.File) (*Model, error) {
	g, err := f.Model()
	if err != nil {
		return nil, err
	}
	var all []matrix
	for _, t := range f.Tensors() {
		m := matrix{name: t.Name, typ: t.Type, k: t.Shape[0], n: 1, dims: len(t.Shape)}
		for _, ne := range t.Shape[1:] {
			m.n *= ne
		}
		all = append(all, m)
	}
	shape := modelShape{name: g.Name, arch: g.Arch, layers: g.Layers, hidden: int64(g.Hidden), vocab: int64(g.Vocab),
		context: int64(g.Context), heads: int64(g.Heads), keyDim: int64(g.KeyDim), valueDim: int64(g.ValueDim),
		ropeDims: int64(g.RopeDims), tied: g.TiedHead, delta: g.DeltaNet}
	for i := range g.Layers {
		recurrent := i < len(g.Recurrent) && g.Recurrent[i]
		shape.recurrent = append(shape.recurrent, recurrent)
		shape.kvHeads = append(shape.kvHeads, int64(g.KVHeads[i]))
	}
	if d := g.Draft; d != nil {
		if err := d.CheckRuns(); err != nil {
			return nil, err
		}
		shape.draft = &DraftShape{Block: d.BlockSize, Captured: len(d.TargetLayers)}
		if window, found, err := f.Uint(g.Arch + ".attention.sliding_window"); err == nil && found && window > 0 {
			if sliding, found, err := f.Bools(g.Arch + ".attention.sliding_window_pattern"); err == nil && found {
				shape.draft.Window, shape.draft.Sliding = int64(window), sliding
			}
		}
	}
	return shape.add(all)
}

// modelShape are the sizes of a model beside its tensors.
type modelShape struct {
	name, arch                        string
	layers                            int
	hidden, vocab, context            int64
	heads, keyDim, valueDim, ropeDims int64
	kvHeads                           []int64
	recurrent                         []bool
	delta                             gguf.DeltaNet
	tied                              bool
	draft                             *DraftShape
}

// add makes the model of a shape and its tensors.
func (s *modelShape) add(all []matrix) (*Model, error) {
	if s.layers == 0 || s.hidden == 0 {
		return nil, errors.New("no layers or no hidden size: this is no language model")
	}
	m := &Model{Name: s.name, Arch: s.arch, Layers: make([]Layer, s.layers), Hidden: s.hidden, Vocab: s.vocab,
		Tied: s.tied, Heads: s.heads, HeadDim: s.keyDim, RopeDims: s.ropeDims, Context: s.context, Draft: s.draft}
	d := s.delta
	key, value := int64(d.KeyHeads)*int64(d.HeadDim), int64(d.ValueHeads)*int64(d.HeadDim)
	for i := range m.Layers {
		l := &m.Layers[i]
		if s.recurrent[i] {
			conv := int64(d.ConvChannels())
			l.State = round64(conv*int64(max(d.ConvKernel-1, 0))*4) + round64(value*int64(d.HeadDim)*4)
			l.Replay = 4 * (conv + key + value + int64(d.ValueHeads))
			l.width = conv + value + 2*int64(d.ValueHeads)
			m.Conv, m.Gates, m.Values = conv, 2*int64(d.ValueHeads), value
		} else {
			l.KVHeads, l.KeyDim, l.ValueDim = s.kvHeads[i], s.keyDim, s.valueDim
		}
	}
	for _, t := range all {
		layer, rest, in := layerOf(t.name)
		switch {
		case in && layer < s.layers:
			m.Layers[layer].take(t)
			if !s.recurrent[layer] && strings.HasPrefix(rest, "attn_q.") {
				m.Layers[layer].width = t.n + 2*s.kvHeads[layer]*s.keyDim
			}
		case in: // blocks after the trunk are not loaded
		case t.name == "token_embd.weight":
			m.Embedding.take(t)
		case t.name == "output.weight":
			m.Head.take(t)
		case s.draft != nil && t.dims > 1:
			s.draft.Fuse.take(t)
		default:
			m.Ends += packed(t)
		}
	}
	for i := range m.Layers {
		m.Layers[i].width = max(m.Layers[i].width, m.Layers[i].gateWidth(all, i))
	}
	return m, nil
}

// gateWidth is the room of a feed-forward layer's gate and up rows.
func (l *Layer) gateWidth(all []matrix, layer int) int64 {
	name := "blk." + strconv.Itoa(layer) + ".ffn_gate.weight"
	for _, t := range all {
		if t.name == name {
			return 2 * t.n
		}
	}
	return 0
}

// layerOf splits blk.N.rest.
func layerOf(name string) (layer int, rest string, ok bool) {
	after, found := strings.CutPrefix(name, "blk.")
	if !found {
		return 0, "", false
	}
	number, rest, found := strings.Cut(after, ".")
	layer, err := strconv.Atoi(number)
	return layer, rest, found && err == nil && layer >= 0
}

// take adds a tensor to a layer.
func (l *Layer) take(t matrix) {
	l.Read += t.k * t.n / t.typ.BlockElems() * t.typ.BlockBytes()
	l.Packed += packed(t)
	if t.isVector() {
		return
	}
	l.Weights += t.k * t.n
	l.longest = max(l.longest, t.k)
	l.forms |= formOf(t.typ)
}

// isVector reports tensors that no product reads: norms, biases, taps of a convolution.
func (t matrix) isVector() bool { return t.dims < 2 || strings.Contains(t.name, "ssm_conv1d") }

func formOf(t gguf.Type) forms {
	switch t {
	case gguf.Q4_K, gguf.Q5_K, gguf.Q6_K, gguf.IQ4_XS:
		return formQ256
	case gguf.F32, gguf.F16, gguf.BF16:
		return formF32
	}
	return formQ32
}

const tileOuts = 16 // outputs of a tile: rows of a weight are padded to it

// packed is what a tensor takes in the CPU's engine: native/src/cpu/matmul_pack.cpp:packed_bytes. Cards pack as tightly
// or a little tighter.
func packed(t matrix) int64 {
	if t.isVector() {
		return round64(4 * t.k * t.n)
	}
	const super = 256
	tile := t.k / super * superBytes(t.typ, super)
	if rest := t.k % super; rest != 0 {
		tile += superBytes(t.typ, rest)
	}
	return (t.n + tileOuts - 1) / tileOuts * tile
}

// superBytes is a tile's share of so many inputs: native/src/cpu/matmul_layout.h.
func superBytes(t gguf.Type, elems int64) int64 {
	block32 := func(header, codes, plane int64) int64 {
		n := (elems + 31) / 32
		return round64(n*header) + n*(codes+plane)
	}
	switch t {
	case gguf.Q4_K:
		return 2368
	case gguf.Q5_K:
		return 2880
	case gguf.Q6_K:
		return 3392
	case gguf.IQ4_XS:
		return 2240
	case gguf.F32:
		return round64(elems * tileOuts * 4)
	case gguf.F16, gguf.BF16:
		return round64(elems * tileOuts * 2)
	case gguf.Q8_0:
		return block32(32, 512, 0)
	case gguf.Q4_1:
		return block32(64, 256, 0)
	case gguf.Q5_0:
		return block32(32, 256, 64)
	case gguf.Q5_1:
		return block32(64, 256, 64)
	}
	return block32(32, 256, 0)
}

func round64(n int64) int64 { return (n + 63) / 64 * 64 }

// Tables are embedding and head as one step's products use them: the bytes that are loaded by the engine of the first
// layer, and what the engine of the last layer reads for its head.
func (m *Model) head() Layer {
	if m.Tied {
		return m.Embedding
	}
	return m.Head
}

// tables is the room for embedding and head in an engine with the first or the last layer.
func (m *Model) tables(first, last bool) (bytes int64) {
	if first || last && m.Tied {
		bytes += m.Embedding.Packed
	}
	if last {
		bytes += m.Head.Packed + m.Ends
	}
	return bytes
}

// packedBytes of the whole model.
func (m *Model) packedBytes() int64 {
	bytes := m.tables(true, true)
	for _, l := range m.Layers {
		bytes += l.Packed
	}
	return bytes
}

func decodeStrict(data []byte, out any) error {
	d := json.NewDecoder(strings.NewReader(string(data)))
	d.DisallowUnknownFields()
	if err := d.Decode(out); err != nil {
		return err
	}
	if d.More() {
		return errors.New("more than one JSON value")
	}
	return nil
}
