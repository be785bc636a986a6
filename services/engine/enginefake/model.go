package enginefake

import (
	"encoding/binary"
	"math"

	"github.com/tandem-inference/tandem/services/engine"
)

// rootHash is the hash of the empty history.
const rootHash uint64 = 0x9e3779b97f4a7c15

// mix scrambles a word (the finaliser of SplitMix64, public domain).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// extend is the hash of a history with one more token.
func extend(h uint64, token int32) uint64 { return mix(h ^ mix(uint64(uint32(token))+1)) }

// unit is a number in [0, 1) of (h, stream).
func unit(h, stream uint64) float64 { return float64(mix(h^mix(stream))>>11) / (1 << 53) }

// model is the function from histories to logits.
type model struct {
	o Options
}

// likeliest returns the argmax after the history with hash h. history is only read when Options.Next is set.
func (m *model) likeliest(h uint64, history []int32) int32 {
	if m.o.Next != nil {
		if t, ok := m.o.Next(history); ok {
			return t
		}
	}
	if m.o.EOSChance > 0 && unit(h, 1<<40) < m.o.EOSChance {
		return m.o.EOS
	}
	t := int32(mix(h^0x70) % uint64(m.o.Vocab))
	if m.o.EOSChance > 0 || m.o.EOS != 0 { // the end token comes by its own chance only
		for t == m.o.EOS {
			t = (t + 1) % int32(m.o.Vocab)
		}
	}
	return t
}

// shade is the part of a hash that says where the prompt pieces of its history began, where such pieces have bits of
// their own; 0 = there are none. A piece that continues 64 positions after its start leaves no trace of the cut.
const (
	shade      = 0xff
	promptRows = 64
)

// chunk is the shade of a history after the first row, at a position, of 64 of a prompt piece.
func chunk(h uint64, position int32) uint64 {
	return 1 + mix(h&shade<<32|uint64(uint32(position)))%shade
}

// extend is the hash of a history with one more token. starts reports that its row begins 64 of a prompt piece.
func (m *model) extend(h uint64, token, position int32, starts bool) uint64 {
	if m.o.PromptRows == 0 {
		return extend(h, token)
	}
	before := h & shade
	if h == rootHash {
		before = 0
	} else {
		h &^= shade
	}
	return m.under(extend(h, token)&^shade|before, position, starts)
}

// under marks a hash whose newest row, at a position, may begin 64 of a prompt piece.
func (m *model) under(h uint64, position int32, starts bool) uint64 {
	if m.o.PromptRows > 0 && starts {
		h = h&^shade | chunk(h, position)
	}
	return h
}

// text is the hash of a history, however it was computed.
func (m *model) text(h uint64) uint64 {
	if m.o.PromptRows > 0 && h != rootHash {
		h &^= shade
	}
	return h
}

// logits writes the raw logits after the history with hash h: noise in [0, 2), the likeliest token at 9, three
// runners-up at 7, 6 and 5.
func (m *model) logits(h uint64, history []int32, out []float32) {
	marked := h - m.text(h)
	h = m.text(h)
	for v := range out {
		out[v] = float32(2 * unit(h, uint64(v)))
	}
	for i, peak := range [...]float32{5, 6, 7} {
		t := mix(h^uint64(0x71+i)) % uint64(len(out))
		out[t] = peak + float32(unit(h, 1<<41+uint64(i)))*0.5
	}
	out[m.likeliest(h, history)] = 9 + float32(unit(h, 1<<42))
	if marked > 0 {
		for v := range out {
			out[v] *= 1 + float32(marked)/(1<<20)
		}
	}
}

// logSumExp of raw logits at a temperature.
func logSumExp(logits []float32, temperature float64) float64 {
	top := math.Inf(-1)
	for _, l := range logits {
		top = max(top, float64(l)/temperature)
	}
	sum := 0.0
	for _, l := range logits {
		sum += math.Exp(float64(l)/temperature - top)
	}
	return top + math.Log(sum)
}

// topK writes the ids of the k largest values, ties to the lower id.
func topK(values []float32, ids []int32) {
	for i := range ids {
		best := int32(-1)
		for v := range values {
			if taken(ids[:i], int32(v)) {
				continue
			}
			if best < 0 || values[v] > values[best] {
				best = int32(v)
			}
		}
		ids[i] = best
	}
}

func taken(ids []int32, id int32) bool {
	for _, t := range ids {
		if t == id {
			return true
		}
	}
	return false
}

// Feature rows: every layer's row and the fused row begin with the eight bytes of the history's hash as numbers 0..255,
// which bf16 holds exactly; the rest is noise of (hash, layer), or the hint of a model of texts.

// hashValues is the number of values that hold the hash.
const hashValues = 8

// fusedLayer stands for the fused row where a layer is asked for.
const fusedLayer = -1

func appendFeatures(dst []byte, h uint64, hint []byte, layers []int32, hidden int, f32 bool) []byte {
	for _, layer := range layers {
		for i := range hidden {
			v := float32(byte(h >> (8 * min(i, hashValues-1))))
			switch {
			case i < hashValues:
			case i-hashValues < len(hint):
				v = float32(hint[i-hashValues])
			default:
				v = float32(int(mix(h^uint64(layer+7)<<32^uint64(i))%256) - 128)
			}
			bits := math.Float32bits(v)
			if f32 {
				dst = binary.LittleEndian.AppendUint32(dst, bits)
			} else {
				dst = binary.LittleEndian.AppendUint16(dst, uint16(bits>>16))
			}
		}
	}
	return dst
}

// hashOfFeatures reads the hash back from the first eight values.
func hashOfFeatures(row []byte, f32 bool) uint64 {
	h := uint64(0)
	for i := range hashValues {
		h |= uint64(byteOfFeature(row, i, f32)) << (8 * i)
	}
	return h
}

// byteOfFeature reads value i of a row, 0 when it is not a number that stands for a byte.
func byteOfFeature(row []byte, i int, f32 bool) byte {
	var bits uint32
	if f32 {
		bits = binary.LittleEndian.Uint32(row[4*i:])
	} else {
		bits = uint32(binary.LittleEndian.Uint16(row[2*i:])) << 16
	}
	if v := math.Float32frombits(bits); v >= 0 && v < 256 {
		return byte(v)
	}
	return 0
}

func isF32(e engine.FeatureEncoding) bool {
	return e == engine.FeatureRawF32 || e == engine.FeatureFusedF32
}

func valueBytes(e engine.FeatureEncoding) int {
	if isF32(e) {
		return 4
	}
	return 2
}

// appendHidden appends a row between shards: the hash in the first eight values, as of features, whose numbers both
// encodings hold. hashOfFeatures reads it.
func appendHidden(dst []byte, h uint64, hidden int, encoding engine.HiddenEncoding) []byte {
	for i := range hidden {
		bits := math.Float32bits(float32(byte(h >> (8 * min(i, hashValues-1)))))
		if encoding == engine.HiddenF32 {
			dst = binary.LittleEndian.AppendUint32(dst, bits)
		} else {
			dst = binary.LittleEndian.AppendUint16(dst, uint16(bits>>16))
		}
	}
	return dst
}
