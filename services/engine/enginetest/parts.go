package enginetest

import (
	"encoding/binary"
	"hash/crc32"
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/tandem-inference/tandem/services/engine"
)

// Snapshots piece by piece.

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// piece of a snapshot.
type piece struct {
	at   engine.Part
	data []byte
	crc  uint32
}

// stored is a snapshot outside of its engine.
type stored struct {
	layout engine.SnapshotLayout
	pieces []piece
}

// store reads a snapshot from page first on, or from its own first, pages so many blocks at a time.
func (s *suite) store(e engine.Target, p engine.Snapshot, first, blocks int) stored {
	s.Helper()
	l, err := e.DescribeSnapshot(s.ctx, p)
	s.ok(err)
	all := stored{layout: l}
	take := func(page int, size, step uint64) {
		for at := uint64(0); at < size; at += step {
			n := piece{at: engine.Part{Page: page, Offset: at}, data: make([]byte, min(step, size-at))}
			n.crc, err = e.ReadSnapshot(s.ctx, p, n.at, n.data)
			s.ok(err)
			if want := crc32.Checksum(n.data, castagnoli); n.crc != want {
				s.Fatalf("%+v has checksum %x, the engine says %x", n.at, want, n.crc)
			}
			all.pieces = append(all.pieces, n)
		}
	}
	take(engine.PartState, l.StateBytes, 4097)
	for page := max(first, l.FirstPage); page < l.Pages; page++ {
		take(page, l.PageBytes, uint64(blocks)*l.BlockBytes)
	}
	return all
}

// load writes a snapshot.
func (s *suite) load(e engine.Target, from stored, base engine.Snapshot, shared int) engine.Snapshot {
	s.Helper()
	p, err := e.BeginSnapshot(s.ctx, from.layout, base, shared)
	s.ok(err)
	for _, n := range from.pieces {
		s.ok(e.WriteSnapshot(s.ctx, p, n.at, n.data, n.crc))
	}
	s.ok(e.FinishSnapshot(s.ctx, p))
	return p
}

// bytes of all pieces one after the other.
func (f stored) bytes() (all []byte) {
	for _, n := range f.pieces {
		all = append(all, n.data...)
	}
	return all
}

func (s *suite) parts() {
	e, twin := s.target(), s.target()
	for _, n := range []int{1, e.Info().KVPage, e.Info().KVPage + 7} {
		q, far := s.sequence(e), s.sequence(twin)
		text := s.tokens(e, n)
		s.feed(e, q, text, 0)
		before := s.probe(e, q)
		p, err := e.NewSnapshot(s.ctx, q)
		s.ok(err)
		kept := s.store(e, p, 0, 1)
		if l := kept.layout; l.Length != n || l.Pages != (n+e.Info().KVPage-1)/e.Info().KVPage ||
			l.KVTypeK != e.Info().KVTypeK || l.KVTypeV != e.Info().KVTypeV {
			s.Errorf("%d positions: %+v", n, l)
		}
		for i, t := range text {
			if got := int32(binary.LittleEndian.Uint32(kept.bytes()[4*i:])); got != t {
				s.Fatalf("token %d of the state is %d, want %d", i, got, t)
			}
		}
		other := s.load(twin, kept, 0, 0)
		s.ok(twin.RestoreSnapshot(s.ctx, other, far))
		s.same("written to another engine", before, s.probe(twin, far))
		s.ok(twin.FreeSequence(s.ctx, far))
		for range 2 { // from the pool, then from host memory
			if !slices.Equal(s.store(twin, other, 0, 2).bytes(), kept.bytes()) {
				s.Errorf("%d positions are not read as they were written", n)
			}
			s.ok(twin.DemoteSnapshot(s.ctx, other))
		}
		far = s.sequence(twin)
		s.ok(twin.RestoreSnapshot(s.ctx, other, far))
		s.same("moved and restored", before, s.probe(twin, far))
		s.ok(twin.FreeSequence(s.ctx, far))
		s.ok(twin.FreeSnapshot(s.ctx, other))
		s.ok(e.FreeSnapshot(s.ctx, p))
		s.ok(e.FreeSequence(s.ctx, q))
	}
	_, err := e.DescribeSnapshot(s.ctx, 4711)
	s.refused("layout of nothing", err, codes.NotFound, "snapshot")
	_, err = e.ReadSnapshot(s.ctx, 4711, engine.Part{}, make([]byte, 1))
	s.refused("bytes of nothing", err, codes.NotFound, "snapshot")
	s.refused("bytes for nothing", e.WriteSnapshot(s.ctx, 4711, engine.Part{}, make([]byte, 1), 0), codes.NotFound,
		"snapshot")
	s.refused("end of nothing", e.FinishSnapshot(s.ctx, 4711), codes.NotFound, "snapshot")
}

func (s *suite) partsOfBase() {
	e := s.target()
	page := e.Info().KVPage
	q := s.sequence(e)
	s.feed(e, q, s.tokens(e, page+3), 0)
	base, err := e.NewSnapshot(s.ctx, q)
	s.ok(err)
	s.feed(e, q, s.tokens(e, page), 0)
	before := s.probe(e, q)
	p, err := e.NewSnapshot(s.ctx, q)
	s.ok(err)
	kept := s.store(e, p, 1, 1)
	_, err = e.BeginSnapshot(s.ctx, kept.layout, base, 2)
	s.refused("more pages than are full", err, codes.InvalidArgument, "shared_pages")
	_, err = e.BeginSnapshot(s.ctx, kept.layout, 4711, 1)
	s.refused("pages of nothing", err, codes.NotFound, "snapshot")
	s.ok(e.FreeSnapshot(s.ctx, p))
	p = s.load(e, kept, base, 1)
	s.ok(e.FreeSnapshot(s.ctx, base))
	s.ok(e.FreeSequence(s.ctx, q))
	other := s.sequence(e)
	s.ok(e.RestoreSnapshot(s.ctx, p, other))
	s.same("beyond a base", before, s.probe(e, other))
}

// partsOfWindow: what no later row reads is no part of a state, and is not missing in an engine that it is written to,
// alone or beside a base.
func (s *suite) partsOfWindow() {
	const window = 128
	o := options(s.models.Target)
	o.AttentionWindow, o.MaxContext = window, 256
	e, twin := s.openTarget(o), s.openTarget(o)
	page := e.Info().KVPage
	q := s.sequence(e)
	s.feed(e, q, s.tokens(e, 90), 0)
	s.feed(e, q, s.tokens(e, 50), 0)
	short, err := e.NewSnapshot(s.ctx, q)
	s.ok(err)
	s.feed(e, q, s.tokens(e, 70), 0)
	long, err := e.NewSnapshot(s.ctx, q)
	s.ok(err)
	before := s.probe(e, q)

	base := s.load(twin, s.store(e, short, 0, 1), 0, 0)
	kept := s.store(e, long, 0, 1)
	l := kept.layout
	if want := engine.FirstPage(l.Length, window, page); l.FirstPage != want || want < 1 {
		s.Fatalf("%d positions: %+v, the first page is %d", l.Length, l, want)
	}
	_, err = e.ReadSnapshot(s.ctx, long, engine.Part{Page: l.FirstPage - 1}, make([]byte, l.BlockBytes))
	s.refused("a page that is released", err, codes.InvalidArgument, "part")
	for _, first := range []int{-1, 0, l.FirstPage + 1} {
		bad := l
		bad.FirstPage = first
		_, err := twin.BeginSnapshot(s.ctx, bad, 0, 0)
		s.refused("another first page", err, codes.InvalidArgument, "first_page")
	}
	for shared := range 3 { // the last is a page of the base
		p := s.load(twin, s.store(e, long, shared, 1), base, shared)
		if again := s.store(twin, p, 0, 2); again.layout != l || !slices.Equal(again.bytes(), kept.bytes()) {
			s.Errorf("with %d pages of a base it is not read as it was written", shared)
		}
		far := s.sequence(twin)
		s.ok(twin.RestoreSnapshot(s.ctx, p, far))
		s.same("written to another engine", before, s.probe(twin, far))
		s.ok(twin.FreeSequence(s.ctx, far))
		s.ok(twin.FreeSnapshot(s.ctx, p))
	}
}

func (s *suite) partsDamaged() {
	e := s.target()
	q := s.sequence(e)
	s.feed(e, q, s.tokens(e, 70), 0)
	before := s.probe(e, q)
	p, err := e.NewSnapshot(s.ctx, q)
	s.ok(err)
	kept := s.store(e, p, 0, 1)
	into, err := e.BeginSnapshot(s.ctx, kept.layout, 0, 0)
	s.ok(err)
	for i, n := range kept.pieces {
		bad := slices.Clone(n.data)
		bad[s.rng.IntN(len(bad))] ^= 1 << s.rng.IntN(8)
		s.refused("a flipped bit", e.WriteSnapshot(s.ctx, into, n.at, bad, n.crc), codes.DataLoss)
		s.refused("an early end", e.FinishSnapshot(s.ctx, into), codes.FailedPrecondition, "snapshot")
		if i+1 < len(kept.pieces) {
			next := kept.pieces[i+1]
			s.refused("a gap", e.WriteSnapshot(s.ctx, into, next.at, next.data, next.crc), codes.FailedPrecondition)
		}
		s.ok(e.WriteSnapshot(s.ctx, into, n.at, n.data, n.crc))
	}
	s.refused("restore of an unfinished one", e.RestoreSnapshot(s.ctx, into, q), codes.FailedPrecondition, "finished")
	s.refused("demotion of an unfinished one", e.DemoteSnapshot(s.ctx, into), codes.FailedPrecondition, "finished")
	_, err = e.DescribeSnapshot(s.ctx, into)
	s.refused("layout of an unfinished one", err, codes.FailedPrecondition, "finished")
	s.ok(e.FinishSnapshot(s.ctx, into))
	s.refused("a second end", e.FinishSnapshot(s.ctx, into), codes.FailedPrecondition, "finished")
	s.feed(e, q, s.tokens(e, 3), 0)
	s.ok(e.RestoreSnapshot(s.ctx, into, q))
	s.same("after refused bytes", before, s.probe(e, q))
	s.ok(e.FreeSnapshot(s.ctx, into))

	// Ranges that are none.
	l := kept.layout
	for _, v := range []struct {
		at engine.Part
		n  uint64
	}{
		{engine.Part{Page: -2}, 1}, {engine.Part{Page: l.Pages}, l.BlockBytes},
		{engine.Part{Page: 0, Offset: 1}, l.BlockBytes},
		{engine.Part{Page: 0, Offset: l.PageBytes}, l.BlockBytes}, {engine.Part{Page: 0}, l.BlockBytes - 1},
		{engine.Part{Page: engine.PartState, Offset: l.StateBytes}, 1}, {engine.Part{Page: engine.PartState}, 0},
	} {
		_, err := e.ReadSnapshot(s.ctx, p, v.at, make([]byte, v.n))
		s.refused("bytes outside of a part", err, codes.InvalidArgument)
	}
	// What does not fit is refused at the begin.
	for _, v := range []struct {
		change func(*engine.SnapshotLayout)
		code   codes.Code
	}{
		{func(l *engine.SnapshotLayout) { l.Identity++ }, codes.FailedPrecondition},
		{func(l *engine.SnapshotLayout) { l.StateBytes++ }, codes.InvalidArgument},
		{func(l *engine.SnapshotLayout) { l.PageBytes *= 2 }, codes.InvalidArgument},
		{func(l *engine.SnapshotLayout) { l.BlockBytes /= 2 }, codes.InvalidArgument},
		{func(l *engine.SnapshotLayout) { l.Pages-- }, codes.InvalidArgument},
		{func(l *engine.SnapshotLayout) { l.Length = maxContext + 1 }, codes.ResourceExhausted},
	} {
		bad := l
		v.change(&bad)
		_, err := e.BeginSnapshot(s.ctx, bad, 0, 0)
		s.refused("a layout that does not fit", err, v.code)
	}
	o := options(s.models.Target)
	if o.KVTypeK = s.models.OtherKV; o.KVTypeK != e.Info().KVTypeK {
		_, err := s.openTarget(o).BeginSnapshot(s.ctx, l, 0, 0)
		s.refused("another cache type", err, codes.FailedPrecondition, "kv_type")
	}
	// A token that the model does not have.
	binary.LittleEndian.PutUint32(kept.pieces[0].data, uint32(e.Info().Vocab))
	kept.pieces[0].crc = crc32.Checksum(kept.pieces[0].data, castagnoli)
	into, err = e.BeginSnapshot(s.ctx, l, 0, 0)
	s.ok(err)
	for _, n := range kept.pieces {
		s.ok(e.WriteSnapshot(s.ctx, into, n.at, n.data, n.crc))
	}
	s.refused("a foreign token", e.FinishSnapshot(s.ctx, into), codes.DataLoss, "token")
	s.ok(e.FreeSnapshot(s.ctx, into))
	h, err := e.Handles(s.ctx)
	s.ok(err)
	if !slices.Equal(h.Snapshots, []engine.Snapshot{p}) {
		s.Errorf("snapshots %v are left, want %v", h.Snapshots, p)
	}
}
