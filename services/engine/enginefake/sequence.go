package enginefake

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/crc32"
	"slices"
	"time"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// sequence is the committed state and the rows that wait for a commit.
type sequence struct {
	tokens  []int32   // of targets
	hashes  []uint64  // hash after each position
	fold    uint64    // drafts: hash of all appended bytes, so that every row matters
	hints   [][]byte  // drafts of a model of texts: one per position
	due     time.Time // targets of a model of texts: when the newest token is there
	sampler engine.Sampler
	set     bool // a sampler was set
	broken  bool // a cancelled committing step: only free, restore and import work
	pending []pendingRow
	kept    kept // features, of targets
	pages   []*page
	gone    int    // pages whose hashes are 0, since they were released where the state comes from
	writing *parts // snapshots: not finished yet
}

// pendingRow is a row of the sequence's last group, in its order.
type pendingRow struct {
	parent int32
	token  int32
	hash   uint64
	kept   bool
}

func (s *sequence) length() int { return len(s.hashes) }

func (s *sequence) tip() uint64 {
	if len(s.hashes) == 0 {
		return rootHash
	}
	return s.hashes[len(s.hashes)-1]
}

func (s *sequence) append(token int32, hash uint64) {
	s.tokens = append(s.tokens, token)
	s.hashes = append(s.hashes, hash)
}

// clone copies committed state: no sampler, nothing pending, no pages.
func (s *sequence) clone() *sequence {
	return &sequence{tokens: slices.Clone(s.tokens), hashes: slices.Clone(s.hashes), fold: s.fold,
		hints: slices.Clone(s.hints), gone: s.gone}
}

// release forgets the hashes of pages below n, which no later row reads.
func (s *sequence) release(n int) {
	clear(s.hashes[:min(n*kvPage, len(s.hashes))])
	s.gone = max(s.gone, n)
}

// assume takes the committed state of another, keeping sampler and pages.
func (s *sequence) assume(from *sequence) {
	s.tokens = append(s.tokens[:0], from.tokens...)
	s.hashes = append(s.hashes[:0], from.hashes...)
	s.hints = append(s.hints[:0], from.hints...)
	s.fold, s.gone, s.broken, s.pending = from.fold, from.gone, false, s.pending[:0]
	s.kept.clear()
}

func (e *Engine) find(id engine.Sequence) (*sequence, error) {
	s := e.sequences[id]
	if s == nil {
		return nil, rpcerr.NotFound("sequence: %d does not exist", id)
	}
	return s, nil
}

// whole is find for calls that a broken sequence refuses.
func (e *Engine) whole(id engine.Sequence) (*sequence, error) {
	s, err := e.find(id)
	if err == nil && s.broken {
		err = rpcerr.FailedPrecondition("sequence: %d is broken by a cancelled step", id)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// NewSequence implements engine.Sequences.
func (e *Sequences) NewSequence(ctx context.Context) (engine.Sequence, error) {
	if err := e.enter(ctx); err != nil {
		return 0, err
	}
	defer e.leave()
	id, _, err := e.newSequence()
	return id, err
}

func (e *Engine) newSequence() (engine.Sequence, *sequence, error) {
	if len(e.sequences) >= e.options.MaxSequences {
		return 0, nil, rpcerr.ResourceExhausted("max_sequences: all %d sequences exist", e.options.MaxSequences)
	}
	// Handles are not reused, so that a stale one is always noticed.
	e.nextSequence++
	s := &sequence{sampler: engine.DefaultSampler()}
	e.sequences[e.nextSequence] = s
	e.handles.AddSequence(e.nextSequence)
	return e.nextSequence, s, nil
}

// FreeSequence implements engine.Sequences.
func (e *Sequences) FreeSequence(ctx context.Context, id engine.Sequence) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	s, err := e.find(id)
	if err != nil {
		return err
	}
	e.resize(s, 0)
	delete(e.sequences, id)
	e.handles.DropSequence(id)
	return nil
}

// SequenceLength implements engine.Sequences.
func (e *Sequences) SequenceLength(ctx context.Context, id engine.Sequence) (int, error) {
	if err := e.enter(ctx); err != nil {
		return 0, err
	}
	defer e.leave()
	s, err := e.whole(id)
	if err != nil {
		return 0, err
	}
	return s.length(), nil
}

// Truncate implements engine.Sequences.
func (e *Sequences) Truncate(ctx context.Context, id engine.Sequence, length int) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	s, err := e.whole(id)
	if err != nil {
		return err
	}
	if length < 0 || length > s.length() {
		return rpcerr.InvalidArgument("length", "must be in 0..%d, got %d", s.length(), length)
	}
	if e.info.Recurrent && length != 0 && length != s.length() {
		return rpcerr.FailedPrecondition("length: recurrent states cannot go back from %d to %d", s.length(), length)
	}
	if first := e.firstPage(length); length > 0 && first < s.gone {
		return rpcerr.FailedPrecondition("length: %d positions need page %d, which is released (attention_window)", length,
			first)
	}
	s.hashes = s.hashes[:length]
	s.gone = min(s.gone, pagesOf(length))
	s.kept.Truncate(length)
	if e.role == engine.RoleTarget {
		s.tokens = s.tokens[:length]
	} else {
		s.hints = s.hints[:min(length, len(s.hints))]
		s.refold()
	}
	s.pending = s.pending[:0]
	e.resize(s, pagesOf(length))
	return nil
}

// refold makes the fold a function of the kept hashes.
func (s *sequence) refold() {
	s.fold = 0
	for _, h := range s.hashes {
		s.fold = mix(s.fold ^ h)
	}
}

// SetSampler implements engine.Target.
func (e *Target) SetSampler(ctx context.Context, id engine.Sequence, sampler engine.Sampler) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	s, err := e.whole(id)
	if err != nil {
		return err
	}
	if err := checkSampler(&sampler, e.m.o.Vocab); err != nil {
		return err
	}
	sampler.BiasTokens = slices.Clone(sampler.BiasTokens)
	sampler.BiasValues = slices.Clone(sampler.BiasValues)
	s.sampler, s.set = sampler, true
	return nil
}

// NewSnapshot implements engine.Sequences.
func (e *Sequences) NewSnapshot(ctx context.Context, id engine.Sequence) (engine.Snapshot, error) {
	if err := e.enter(ctx); err != nil {
		return 0, err
	}
	defer e.leave()
	s, err := e.whole(id)
	if err != nil {
		return 0, err
	}
	if need, left := snapshotBytes(s), e.hostLeft(); need > left {
		return 0, rpcerr.MemoryCap.With("host_cap_bytes: a snapshot of %d bytes does not fit, %d are free", need, left)
	}
	e.nextSnapshot++
	p := s.clone()
	p.pages = slices.Clone(s.pages[:pagesOf(s.length())])
	for _, held := range p.pages {
		held.snapshots++
	}
	e.snapshots[e.nextSnapshot] = p
	e.handles.AddSnapshot(e.nextSnapshot)
	return e.nextSnapshot, nil
}

func snapshotBytes(s *sequence) uint64 {
	if s.writing != nil {
		return snapshotOverhead + s.writing.layout.StateBytes
	}
	return snapshotOverhead + stateBytes + 4*uint64(s.length())
}

// RestoreSnapshot implements engine.Sequences.
func (e *Sequences) RestoreSnapshot(ctx context.Context, p engine.Snapshot, id engine.Sequence) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	from, err := e.stored(p)
	if err != nil {
		return err
	}
	s, err := e.find(id)
	if err != nil {
		return err
	}
	missing := 0
	for _, held := range from.pages {
		if held.away {
			missing++
		}
	}
	if free := e.pool.free + released(s, 0); missing > free {
		return exhausted("snapshot", missing, free)
	}
	s.assume(from)
	e.hold(s, from.pages)
	return nil
}

// FreeSnapshot implements engine.Sequences.
func (e *Sequences) FreeSnapshot(ctx context.Context, p engine.Snapshot) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	s := e.snapshots[p]
	if s == nil {
		return rpcerr.NotFound("snapshot: %d does not exist", p)
	}
	for _, held := range s.pages {
		held.snapshots--
		e.drop(held)
	}
	delete(e.snapshots, p)
	e.handles.DropSnapshot(p)
	return nil
}

// Exported states: magic, identity of model and shard, fold, n, hashes, which are 0 on pages that no later row reads, n
// tokens, tokens, CRC-32C of everything before.
var (
	magic      = []byte("TNDFAKE1")
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// identity is what a state must share with the engine that takes it.
func (e *Engine) identity() uint64 { return e.digest(int(e.options.KVTypeK), int(e.options.KVTypeV)) }

// shard is identity without the types of keys and values.
func (e *Engine) shard() uint64 { return e.digest() }

func (e *Engine) digest(more ...int) uint64 {
	h := uint64(e.role)
	for _, c := range []byte(e.options.ModelPath) {
		h = mix(h ^ uint64(c))
	}
	if e.options.AttentionWindow != 0 {
		more = append(more, e.options.AttentionWindow)
	}
	for _, v := range append([]int{e.options.LayerFirst, e.options.LayerLast, e.m.o.Vocab, e.m.o.Hidden}, more...) {
		h = mix(h ^ uint64(v))
	}
	return h
}

// Export implements engine.Sequences.
func (e *Sequences) Export(ctx context.Context, id engine.Sequence) ([]byte, error) {
	if err := e.enter(ctx); err != nil {
		return nil, err
	}
	defer e.leave()
	s, err := e.whole(id)
	if err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	b := append([]byte(nil), magic...)
	b = le.AppendUint64(b, e.identity())
	b = le.AppendUint64(b, s.fold)
	b = le.AppendUint64(b, uint64(len(s.hashes)))
	first := e.firstPage(s.length()) * kvPage
	b = append(b, make([]byte, 8*first)...)
	for _, h := range s.hashes[first:] {
		b = le.AppendUint64(b, h)
	}
	b = le.AppendUint64(b, uint64(len(s.tokens)))
	for _, t := range s.tokens {
		b = le.AppendUint32(b, uint32(t))
	}
	return le.AppendUint32(b, crc32.Checksum(b, castagnoli)), nil
}

// Import implements engine.Sequences.
func (e *Sequences) Import(ctx context.Context, id engine.Sequence, state []byte) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	s, err := e.find(id)
	if err != nil {
		return err
	}
	le := binary.LittleEndian
	const fixed = 8 + 3*8 + 8 + 4
	if len(state) < fixed || !bytes.Equal(state[:8], magic) {
		return rpcerr.DamagedState.With("data: not an exported state")
	}
	body := state[:len(state)-4]
	if crc32.Checksum(body, castagnoli) != le.Uint32(state[len(body):]) {
		return rpcerr.DamagedState.With("data: the checksum of %d bytes is wrong", len(state))
	}
	if le.Uint64(body[8:]) != e.identity() {
		return rpcerr.ModelMismatch.With("data: the state belongs to another model, layer range or cache type")
	}
	from := &sequence{fold: le.Uint64(body[16:])}
	n, rest := le.Uint64(body[24:]), body[32:]
	if n > uint64(len(rest))/8 {
		return rpcerr.DamagedState.With("data: %d positions do not fit into the state", n)
	}
	for i := range n {
		from.hashes = append(from.hashes, le.Uint64(rest[8*i:]))
	}
	rest = rest[8*n:]
	if len(rest) < 8 || le.Uint64(rest) != uint64(len(rest)-8)/4 {
		return rpcerr.DamagedState.With("data: the number of tokens is wrong")
	}
	for rest = rest[8:]; len(rest) >= 4; rest = rest[4:] {
		from.tokens = append(from.tokens, int32(le.Uint32(rest)))
	}
	if from.length() > e.options.MaxContext {
		return rpcerr.ResourceExhausted("max_context: the state has %d positions, the engine holds %d", from.length(), e.options.MaxContext)
	}
	if free := e.pool.free + released(s, 0); pagesOf(from.length()) > free {
		return exhausted("data", pagesOf(from.length()), free)
	}
	from.release(e.firstPage(from.length()))
	s.assume(from)
	e.resize(s, 0)
	e.resize(s, pagesOf(s.length()))
	return nil
}
