package placement

import (
	"github.com/tandem-inference/tandem/services/kvtype"
)

// Sizes of engines that workers open, and of the engine's plan (native/src/roles).
const (
	treeRows     = 64  // pending rows of a sequence: the engine's default
	batchRows    = 512 // rows of a step: the engine's default
	headRows     = 64  // rows of one product with the head
	kvPage       = 64  // positions of a page of keys and values
	keptRows     = 32  // rows of a sequence whose features stay in the engine
	queryRows    = 32  // rows of a prompt that a scorer compares with: native/src/roles/scorer_role.cpp
	scorerTokens = 40960
)

// cardProcess is what a process takes on a card beside the engine's plan: the driver's context and its code. Measured
// contexts are between 0.3 and 0.5 GB.
const cardProcess = 400 << 20

// Room is what engines are opened for.
type Room struct {
	Context int64  // positions of a request
	Lanes   int64  // requests at a time
	KV      string // type of cached keys and values
	Threads int64  // of the CPU's engine
}

// Memory is what an engine takes, by purpose: the engine names the same parts when a cap is too small.
type Memory struct {
	Weights, KV, State, Replay, Scratch, Features, Process int64
}

// Total of all parts.
func (m Memory) Total() int64 {
	return m.Weights + m.KV + m.State + m.Replay + m.Scratch + m.Features + m.Process
}

// slots is the pool of keys and values in positions: native/src/roles/kv_plan.cpp:pool_slots.
func slots(r Room, pending int64) int64 {
	positions := r.Context * r.Lanes
	together := positions + r.Lanes*(pending+kvPage-1)
	apart := r.Lanes * ((r.Context + pending + kvPage - 1) / kvPage) * kvPage
	return (min(together, apart) + kvPage - 1) / kvPage * kvPage
}

// kvBytes of a layer's pool of so many positions.
func (l *Layer) kvBytes(positions int64, kv string) int64 {
	t, err := kvtype.Parse(kv)
	if err != nil || l.KVHeads == 0 {
		return 0
	}
	return round64(positions*l.KVHeads*l.KeyDim/kvtype.Block*t.BlockBytes) +
		round64(positions*l.KVHeads*l.ValueDim/kvtype.Block*t.BlockBytes)
}

// TargetMemory plans the engine of the layers [first, last). draft is the one that the target serves, nil = none: its
// projection and the features that it reads take room in every stage.
func (m *Model) TargetMemory(first, last int, r Room, draft *Model, card bool) Memory {
	n := len(m.Layers)
	out := Memory{Weights: m.tables(first == 0, last == n)}
	pool := slots(r, treeRows)
	var width, longest, kvHeads int64
	var f forms
	recurrent := false
	for _, l := range m.Layers[first:last] {
		out.Weights += l.Packed
		out.KV += l.kvBytes(pool, r.KV)
		out.State += r.Lanes * l.State
		out.Replay += r.Lanes * treeRows * l.Replay
		width, longest, f = max(width, l.width), max(longest, l.longest), f|l.forms
		recurrent = recurrent || l.State > 0
		kvHeads = max(kvHeads, l.KVHeads)
	}
	if last == n {
		f |= m.head().forms
	}
	longest = max(longest, m.Hidden)
	s := scratch{rows: batchRows, threads: r.Threads, longest: longest, forms: f, context: r.Context}
	if kvHeads > 0 {
		s.heads, s.dim, s.kvHeads = m.Heads, m.HeadDim, kvHeads
	}
	if recurrent {
		s.recurrent = m.Conv + m.Gates + m.Values
	}
	if last == n {
		s.vocab = m.Vocab
	}
	out.Scratch = 4*batchRows*(m.Hidden+width+m.RopeDims) + actBytes(longest, batchRows, f) + s.bytes()
	if last < n {
		out.Scratch += 4 * batchRows * m.Hidden
	}
	if draft != nil && draft.Draft != nil {
		out.Features = (batchRows + r.Lanes*keptRows) * int64(draft.Draft.Captured) * m.Hidden * 4
		if last == n {
			out.Features += draft.Draft.Fuse.Packed + 4*batchRows*m.Hidden +
				actBytes(int64(draft.Draft.Captured)*m.Hidden, batchRows, draft.Draft.Fuse.forms)
		}
	}
	return out.on(card)
}

// DraftMemory plans the engine of a draft of target.
func (m *Model) DraftMemory(target *Model, r Room, card bool) Memory {
	block := int64(m.Draft.Block)
	out := Memory{Weights: m.Draft.Fuse.Packed + m.Ends + target.Embedding.Packed + target.Head.Packed}
	full := slots(r, block)
	sliding := full
	if m.Draft.Window > 0 {
		held := r.Lanes*(m.Draft.Window-1+block+2*(kvPage-1)) + r.Lanes*batchRows
		sliding = min(full, (held+kvPage-1)/kvPage*kvPage)
	}
	var width, longest, kv, kvHeads int64
	var f forms
	for i, l := range m.Layers {
		out.Weights += l.Packed
		pool := full
		if i < len(m.Draft.Sliding) && m.Draft.Sliding[i] {
			pool = sliding
		}
		out.KV += l.kvBytes(pool, r.KV)
		kv += l.KVHeads * (l.KeyDim + l.ValueDim)
		width, longest, f, kvHeads = max(width, l.width), max(longest, l.longest), f|l.forms, max(kvHeads, l.KVHeads)
	}
	longest = max(longest, m.Hidden)
	rows := max(r.Lanes*block, batchRows)
	features := int64(m.Draft.Captured) * m.Hidden
	s := scratch{rows: rows, threads: r.Threads, longest: longest, forms: f | target.head().forms, heads: m.Heads,
		dim: m.HeadDim, kvHeads: kvHeads, context: r.Context + block, vocab: target.Vocab,
		headRows: min(headRows, r.Lanes*block)}
	out.Scratch = 4*(rows*(m.Hidden+m.RopeDims)+max(r.Lanes*block*width, batchRows*kv)+batchRows*features) +
		actBytes(longest, rows, f) + actBytes(features, batchRows, m.Draft.Fuse.forms) + s.bytes()
	return out.on(card)
}

// ScorerMemory plans the engine of a scorer of prompts up to the model's context, at most 40,960 tokens, with the keys
// and values of one layer in f16. A processor with AVX512-BF16 takes up to a quarter less for those.
func (m *Model) ScorerMemory(r Room, card bool) Memory {
	tokens := min(m.Context, scorerTokens)
	out := Memory{Weights: m.packedBytes()}
	if !m.Tied {
		out.Weights -= m.Head.Packed // scores need no head
	}
	var width, longest, kvHeads int64
	var f forms
	for _, l := range m.Layers {
		width, longest, f, kvHeads = max(width, l.width), max(longest, l.longest), f|l.forms, max(kvHeads, l.KVHeads)
	}
	longest = max(longest, m.Hidden)
	const rows = 1024 // of a pass: native/src/roles/scorer_role.cpp
	out.KV = (tokens + 255) / 256 * 256 * kvHeads * m.HeadDim * 4
	s := scratch{rows: rows, threads: r.Threads, longest: longest, forms: f}
	out.Scratch = 4*(tokens*(m.Hidden+m.RopeDims)+queryRows*(m.Heads+1)*tokens+rows*(m.Hidden+width)) +
		actBytes(longest, rows, f) + s.bytes()
	return out.on(card)
}

// on adds what a process on a card takes besides.
func (m Memory) on(card bool) Memory {
	if card {
		m.Process = cardProcess
	}
	return m
}

// scratch is the backend's working memory: native/src/cpu/backend.cpp:plan_scratch. Cards take about as much.
type scratch struct {
	rows, threads, longest, context int64
	forms                           forms
	heads, dim, kvHeads             int64 // of attention, 0 = there is none
	recurrent                       int64 // floats of a row in recurrent layers
	vocab, headRows                 int64 // of the head, 0 = there is none
}

func (s *scratch) bytes() int64 {
	threads := max(s.threads, 1)
	bytes := 4 * s.rows * s.longest
	if s.recurrent > 0 {
		// Save slots of a tree: one for each halving of its rows, and two.
		const saved, dim, slice = 8, 128, 32
		bytes += 4*s.rows*s.recurrent + 4*threads*saved*dim*slice
	}
	if s.heads > 0 {
		const queries, segment = 96, 256
		thread := 4 * (2*queries*s.dim + queries*(segment+16) + max(64*s.dim, segment*64) + 16*s.dim + 4*queries)
		partial := min(4*queries*s.kvHeads*(s.context/segment+2)*(s.dim+2), 64<<20)
		const row, group = 40, 40 // AttentionRow, AttentionGroup
		bytes += 4*s.rows*s.heads*s.dim + s.rows*(row+group) + threads*round64(thread) + partial
	}
	if s.vocab > 0 {
		rows := s.headRows
		if rows == 0 {
			rows = headRows
		}
		const buckets = (4096 + 16) * 8
		sample := 3*round64(4*s.vocab) + round64(2*s.vocab) + buckets + round64((s.vocab+1023)/1024*8)
		bytes += 4*rows*((s.vocab+15)/16*16) + actBytes(s.longest, rows, s.forms) + threads*sample
	}
	return bytes
}

// actBytes is the room for inputs of products: native/src/cpu/matmul.cpp:act_bytes.
func actBytes(longest, rows int64, f forms) int64 {
	blocks := (rows + 15) / 16 * ((longest + 255) / 256)
	bytes := int64(0)
	for _, form := range []struct {
		form  forms
		bytes int64
	}{{formQ256, 77 * 64}, {formQ32, 89 * 64}, {formF32, 257 * 64}} {
		if f&form.form != 0 {
			bytes += blocks * form.bytes
		}
	}
	return bytes
}
