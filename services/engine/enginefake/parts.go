package enginefake

import (
	"context"
	"encoding/binary"
	"hash/crc32"
	"slices"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// Parts of a snapshot. The state is the token ids and stateBytes made of the tip, a page the hashes of its positions,
// each at the begin of kvBytesPerToken bytes, in two blocks.
const (
	partPage  = kvPage * kvBytesPerToken
	partBlock = partPage / 2
	rowBytes  = 2 * partBlock / kvPage
)

// parts is a snapshot that is being written.
type parts struct {
	layout engine.SnapshotLayout
	state  []byte
	shared int // pages of the base
	first  int // page that is written
	pages  [][]byte
	next   engine.Part
}

func (e *Engine) layoutOf(length int) engine.SnapshotLayout {
	return engine.SnapshotLayout{
		Length: length, Pages: pagesOf(length), FirstPage: e.firstPage(length), Identity: e.shard(),
		KVTypeK: e.options.KVTypeK, KVTypeV: e.options.KVTypeV,
		StateBytes: uint64(4*length + stateBytes), PageBytes: partPage, BlockBytes: partBlock,
	}
}

// firstPage is the first page of so many positions that later rows read.
func (e *Engine) firstPage(length int) int {
	return engine.FirstPage(length, e.options.AttentionWindow, kvPage)
}

// state is the first part of a snapshot.
func (s *sequence) state() []byte {
	b := make([]byte, 0, 4*s.length()+stateBytes)
	for _, t := range s.tokens {
		b = binary.LittleEndian.AppendUint32(b, uint32(t))
	}
	for i := range uint64(stateBytes / 8) {
		b = binary.LittleEndian.AppendUint64(b, mix(s.tip()+i))
	}
	return b
}

// page is another part.
func (s *sequence) page(i int) []byte {
	b := make([]byte, partPage)
	for k, h := range s.hashes[i*kvPage : min((i+1)*kvPage, s.length())] {
		binary.LittleEndian.PutUint64(b[k*rowBytes:], h)
	}
	return b
}

// stored finds a snapshot that is finished.
func (e *Engine) stored(id engine.Snapshot) (*sequence, error) {
	s, err := e.anySnapshot(id)
	if err == nil && s.writing != nil {
		err = rpcerr.FailedPrecondition("snapshot: %d is not finished", id)
	}
	return s, err
}

func (e *Engine) anySnapshot(id engine.Snapshot) (*sequence, error) {
	if s := e.snapshots[id]; s != nil {
		return s, nil
	}
	return nil, rpcerr.NotFound("snapshot: %d does not exist", id)
}

// DescribeSnapshot implements engine.SnapshotParts, as do the methods below.
func (e *Target) DescribeSnapshot(ctx context.Context, id engine.Snapshot) (engine.SnapshotLayout, error) {
	if err := e.enter(ctx); err != nil {
		return engine.SnapshotLayout{}, err
	}
	defer e.leave()
	s, err := e.stored(id)
	if err != nil {
		return engine.SnapshotLayout{}, err
	}
	return e.layoutOf(s.length()), nil
}

// ReadSnapshot copies bytes out.
func (e *Target) ReadSnapshot(ctx context.Context, id engine.Snapshot, at engine.Part, data []byte) (uint32, error) {
	if err := e.enter(ctx); err != nil {
		return 0, err
	}
	defer e.leave()
	s, err := e.stored(id)
	if err != nil {
		return 0, err
	}
	l := e.layoutOf(s.length())
	if err := l.Check(at, len(data)); err != nil {
		return 0, err
	}
	all := s.state
	if at.Page >= 0 {
		all = func() []byte { return s.page(at.Page) }
	}
	copy(data, all()[at.Offset:])
	return crc32.Checksum(data, castagnoli), nil
}

// BeginSnapshot makes a snapshot to be written.
func (e *Target) BeginSnapshot(
	ctx context.Context, l engine.SnapshotLayout, base engine.Snapshot, shared int,
) (engine.Snapshot, error) {
	if err := e.enter(ctx); err != nil {
		return 0, err
	}
	defer e.leave()
	own := e.layoutOf(l.Length)
	switch {
	case l.Length < 0:
		return 0, rpcerr.InvalidArgument("length", "is %d", l.Length)
	case l.Identity != own.Identity:
		return 0, rpcerr.ModelMismatch.With("identity: the snapshot belongs to another model or layer range")
	case l.KVTypeK != own.KVTypeK || l.KVTypeV != own.KVTypeV:
		return 0, rpcerr.FailedPrecondition("kv_type: the snapshot has types %d and %d", l.KVTypeK, l.KVTypeV)
	case l.FirstPage != own.FirstPage:
		return 0, rpcerr.InvalidArgument("first_page", "is %d, of %d positions it is %d (attention_window)", l.FirstPage,
			l.Length, own.FirstPage)
	case l.Length > e.options.MaxContext:
		return 0, rpcerr.ResourceExhausted("max_context: %d positions, the engine holds %d", l.Length, e.options.MaxContext)
	case l != own:
		return 0, rpcerr.InvalidArgument("layout", "%+v does not fit %+v", l, own)
	}
	s := &sequence{writing: &parts{layout: l, shared: shared, first: max(shared, l.FirstPage),
		next: engine.Part{Page: engine.PartState}}}
	if shared != 0 {
		from, err := e.stored(base)
		if err != nil {
			return 0, err
		}
		if shared < 0 || shared > from.length()/kvPage || shared > l.Length/kvPage {
			return 0, rpcerr.InvalidArgument("shared_pages", "%d of %d and %d positions", shared, from.length(), l.Length)
		}
		if l.FirstPage < shared && l.FirstPage < from.gone {
			return 0, rpcerr.InvalidArgument("shared_pages", "%d: page %d of the base is released (attention_window)", shared,
				l.FirstPage)
		}
		s.pages = append(s.pages, from.pages[:shared]...)
		s.hashes = append(s.hashes, from.hashes[:shared*kvPage]...)
	}
	if need := l.Pages - shared; need > e.pool.free {
		return 0, exhausted("length", need, e.pool.free)
	}
	if need, left := snapshotOverhead+own.StateBytes, e.hostLeft(); need > left {
		return 0, rpcerr.MemoryCap.With("host_cap_bytes: a snapshot of %d bytes does not fit, %d are free", need, left)
	}
	for _, p := range s.pages {
		p.snapshots++
	}
	for len(s.pages) < l.Pages {
		s.pages = append(s.pages, &page{snapshots: 1})
		e.pool.free--
	}
	e.nextSnapshot++
	e.snapshots[e.nextSnapshot] = s
	e.handles.AddSnapshot(e.nextSnapshot)
	return e.nextSnapshot, nil
}

// unfinished finds a snapshot that is being written.
func (e *Engine) unfinished(id engine.Snapshot) (*sequence, error) {
	s, err := e.anySnapshot(id)
	if err == nil && s.writing == nil {
		err = rpcerr.FailedPrecondition("snapshot: %d is finished", id)
	}
	return s, err
}

// WriteSnapshot copies bytes in.
func (e *Target) WriteSnapshot(
	ctx context.Context, id engine.Snapshot, at engine.Part, data []byte, crc uint32,
) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	s, err := e.unfinished(id)
	if err != nil {
		return err
	}
	w := s.writing
	if err := w.layout.Check(at, len(data)); err != nil {
		return err
	}
	if at != w.next {
		return rpcerr.FailedPrecondition("part: %+v, the next is %+v", at, w.next)
	}
	if crc32.Checksum(data, castagnoli) != crc {
		return rpcerr.DamagedState.With("data: the checksum of %d bytes is wrong", len(data))
	}
	w.next.Offset += uint64(len(data))
	if at.Page == engine.PartState {
		w.state = append(w.state, data...)
		if w.next.Offset == w.layout.StateBytes {
			w.next = engine.Part{Page: w.first}
		}
		return nil
	}
	if at.Offset == 0 {
		w.pages = append(w.pages, nil)
	}
	last := &w.pages[len(w.pages)-1]
	*last = append(*last, data...)
	if len(*last) == partPage {
		w.next = engine.Part{Page: at.Page + 1}
	}
	return nil
}

// FinishSnapshot ends the writing.
func (e *Target) FinishSnapshot(ctx context.Context, id engine.Snapshot) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	s, err := e.unfinished(id)
	if err != nil {
		return err
	}
	w := s.writing
	if w.next.Page < w.layout.Pages {
		return rpcerr.FailedPrecondition("snapshot: %d is missing bytes from %+v on", id, w.next)
	}
	for i := range w.layout.Length {
		t := int32(binary.LittleEndian.Uint32(w.state[4*i:]))
		if t < -1 || int(t) >= e.m.o.Vocab {
			return rpcerr.DamagedState.With("state: token %d at position %d", t, i)
		}
		s.tokens = append(s.tokens, t)
	}
	s.hashes = slices.Grow(s.hashes, w.layout.Length)[:w.layout.Length]
	for at := w.first * kvPage; at < w.layout.Length; at++ {
		s.hashes[at] = binary.LittleEndian.Uint64(w.pages[at/kvPage-w.first][at%kvPage*rowBytes:])
	}
	s.release(w.layout.FirstPage)
	s.writing = nil
	return nil
}
