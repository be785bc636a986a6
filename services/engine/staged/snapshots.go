package staged

import (
	"context"
	"errors"
	"hash/crc32"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// snapshot is a stored state of every stage.
type snapshot struct {
	of      []engine.Snapshot // by stage
	length  int
	writing *writing // nil = finished
}

// writing is a snapshot that is not finished.
type writing struct {
	layout engine.SnapshotLayout
	shared int         // pages of the base, which are not written
	next   engine.Part // where the next bytes go
}

// stored returns a snapshot. The caller holds mu.
func (t *Target) stored(id engine.Snapshot) (*snapshot, error) {
	p := t.snapshots[id]
	if p == nil {
		return nil, rpcerr.NotFound("snapshot: %d does not exist", id)
	}
	return p, nil
}

// finished is stored for calls that a snapshot refuses while it is written.
func (t *Target) finished(id engine.Snapshot) (*snapshot, error) {
	p, err := t.stored(id)
	if err == nil && p.writing != nil {
		err = rpcerr.FailedPrecondition("snapshot: %d is not finished", id)
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

// enterWith is enter for a call of a snapshot, which find looks up.
func (t *Target) enterWith(ctx context.Context, id engine.Snapshot,
	find func(engine.Snapshot) (*snapshot, error)) (*snapshot, error) {
	if err := t.enter(ctx); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p, err := find(id)
	if err != nil {
		t.leave()
		return nil, err
	}
	return p, nil
}

// enterRead is enterWith for a call that reads a finished snapshot, whose layout is known then.
func (t *Target) enterRead(ctx context.Context, id engine.Snapshot) (*snapshot, error) {
	p, err := t.enterWith(ctx, id, t.finished)
	if err != nil {
		return nil, err
	}
	if err := t.learn(ctx); err != nil {
		t.leave()
		return nil, err
	}
	return p, nil
}

// keep makes a snapshot in every stage or in none, after enter; s is the sequence that it is of, nil = none.
func (t *Target) keep(ctx context.Context, s *sequence, p *snapshot,
	one func(e engine.Target, stage int) (engine.Snapshot, error)) (engine.Snapshot, error) {
	id := engine.Snapshot(0)
	err := t.pass(s, func(e engine.Target, k int) error {
		made, err := one(e, k)
		if err == nil {
			p.of = append(p.of, made)
		}
		return err
	}, func(_ int, err error) error {
		if err == nil {
			t.nextSnapshot++
			id = t.nextSnapshot
			t.snapshots[id] = p
			t.handles.AddSnapshot(id)
		}
		return err
	})
	if err == nil {
		return id, nil
	}
	for i, done := range p.of {
		if failed := t.stages[i].FreeSnapshot(context.WithoutCancel(ctx), done); failed != nil {
			return 0, t.giveUp("a snapshot could not be freed", failed)
		}
	}
	return 0, err
}

// NewSnapshot implements engine.Sequences, as do the methods below.
func (t *Target) NewSnapshot(ctx context.Context, id engine.Sequence) (engine.Snapshot, error) {
	s, err := t.enterFor(ctx, id, t.whole)
	if err != nil {
		return 0, err
	}
	return t.keep(ctx, s, &snapshot{length: s.length}, func(e engine.Target, k int) (engine.Snapshot, error) {
		return e.NewSnapshot(ctx, s.of[k])
	})
}

// RestoreSnapshot puts a sequence into a stored state.
func (t *Target) RestoreSnapshot(ctx context.Context, id engine.Snapshot, q engine.Sequence) error {
	s, err := t.enterFor(ctx, q, func(q engine.Sequence) (*sequence, error) {
		if _, err := t.finished(id); err != nil {
			return nil, err
		}
		return t.find(q)
	})
	if err != nil {
		return err
	}
	t.mu.Lock()
	p := t.snapshots[id]
	t.mu.Unlock()
	return t.pass(s, func(e engine.Target, k int) error {
		return e.RestoreSnapshot(ctx, p.of[k], s.of[k])
	}, func(stage int, err error) error {
		switch {
		case err == nil:
			s.assume(p.length)
		case stage > 0:
			// This stage has no room for pages, or its call was cancelled, after the ones before it took the state.
			s.doom(err)
		}
		return err
	})
}

// DemoteSnapshot moves pages to host memory.
func (t *Target) DemoteSnapshot(ctx context.Context, id engine.Snapshot) error {
	p, err := t.enterWith(ctx, id, t.finished)
	if err != nil {
		return err
	}
	return t.pass(nil, func(e engine.Target, k int) error {
		return e.DemoteSnapshot(ctx, p.of[k])
	}, func(_ int, err error) error {
		return err // earlier stages have moved their pages already; restoring brings them back
	})
}

// FreeSnapshot frees it in every stage.
func (t *Target) FreeSnapshot(ctx context.Context, id engine.Snapshot) error {
	p, err := t.enterWith(ctx, id, t.stored)
	if err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	t.mu.Lock()
	delete(t.snapshots, id) // whoever frees it again meanwhile does not find it
	t.mu.Unlock()
	return t.pass(nil, func(e engine.Target, k int) error {
		return e.FreeSnapshot(ctx, p.of[k])
	}, func(stage int, err error) error {
		switch {
		case err == nil:
			t.handles.DropSnapshot(id)
			return nil
		case stage == 0:
			t.snapshots[id] = p
			return err
		}
		return t.giveUp("a snapshot was not freed", err)
	})
}

// learn finds out what snapshots of the stages consist of. The caller has the first stage's turn, or is the only one
// yet.
func (t *Target) learn(ctx context.Context) error {
	if t.layouts != nil {
		return nil
	}
	if err := t.alone(ctx); err != nil {
		return err
	}
	var layouts []engine.SnapshotLayout
	for k, e := range t.stages {
		l, err := emptyLayout(ctx, e)
		if err != nil {
			return err
		}
		if layouts = append(layouts, l); l.BlockBytes != layouts[0].BlockBytes {
			return rpcerr.FailedPrecondition("device: stage %d stores a page of a layer in %d bytes, stage 1 in %d", k+1,
				l.BlockBytes, layouts[0].BlockBytes)
		}
	}
	t.layouts = layouts
	return nil
}

func emptyLayout(ctx context.Context, e engine.Target) (l engine.SnapshotLayout, err error) {
	s, err := e.NewSequence(ctx)
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, e.FreeSequence(context.WithoutCancel(ctx), s)) }()
	p, err := e.NewSnapshot(ctx, s)
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, e.FreeSnapshot(context.WithoutCancel(ctx), p)) }()
	return e.DescribeSnapshot(ctx, p)
}

// identity of a state of all stages.
func (t *Target) identity() uint64 {
	h := t.layouts[0].Identity
	for _, l := range t.layouts[1:] {
		h = (h ^ h>>29) * 0xbf58476d1ce4e5b9
		h = (h^h>>32)*0x94d049bb133111eb + l.Identity
	}
	return h
}

// sizes of a snapshot's state or of its pages in each stage.
func (t *Target) sizes(length, page int) []uint64 {
	out := make([]uint64, len(t.layouts))
	for k, l := range t.layouts {
		if out[k] = l.PageBytes; page == engine.PartState {
			out[k] = l.StateBytes + uint64(length)*4 // token ids
		}
	}
	return out
}

// layout of a snapshot of so many positions.
func (t *Target) layout(length int) engine.SnapshotLayout {
	l := t.layouts[0]
	l.Length, l.Pages = length, (length+t.info.KVPage-1)/t.info.KVPage
	l.FirstPage = engine.FirstPage(length, t.window, t.info.KVPage)
	l.Identity = t.identity()
	l.StateBytes, l.PageBytes = 0, 0
	for _, n := range t.sizes(length, engine.PartState) {
		l.StateBytes += n
	}
	for _, n := range t.sizes(length, 0) {
		l.PageBytes += n
	}
	return l
}

// DescribeSnapshot implements engine.SnapshotParts, as do the methods below. The state is that of the stages one after
// the other, and so is each page.
func (t *Target) DescribeSnapshot(ctx context.Context, id engine.Snapshot) (engine.SnapshotLayout, error) {
	p, err := t.enterRead(ctx, id)
	if err != nil {
		return engine.SnapshotLayout{}, err
	}
	defer t.leave()
	return t.layout(p.length), nil
}

// segment is the part of a range of bytes that lies in one stage.
type segment struct {
	stage int
	at    engine.Part
	data  []byte
}

// segments divides bytes by stages; false when they do not lie within the state or page.
func (t *Target) segments(length int, at engine.Part, data []byte) ([]segment, bool) {
	var out []segment
	offset := at.Offset
	for k, size := range t.sizes(length, at.Page) {
		if offset >= size {
			offset -= size
			continue
		}
		n := min(size-offset, uint64(len(data)))
		out = append(out, segment{k, engine.Part{Page: at.Page, Offset: offset}, data[:n]})
		if data = data[n:]; len(data) == 0 {
			return out, true
		}
		offset = 0
	}
	return out, false
}

// ReadSnapshot reads bytes of one stage or of several.
func (t *Target) ReadSnapshot(ctx context.Context, id engine.Snapshot, at engine.Part, data []byte) (uint32, error) {
	p, err := t.enterRead(ctx, id)
	if err != nil {
		return 0, err
	}
	l := t.layout(p.length)
	if err := l.Check(at, len(data)); err != nil {
		t.leave()
		return 0, err
	}
	segments, _ := t.segments(p.length, at, data)
	crc := uint32(0)
	err = t.pass(nil, func(e engine.Target, k int) (err error) {
		for _, s := range segments {
			if s.stage != k {
				continue
			}
			if crc, err = e.ReadSnapshot(ctx, p.of[k], s.at, s.data); err != nil {
				return err
			}
			if len(segments) > 1 && crc32.Checksum(s.data, castagnoli) != crc {
				return rpcerr.DamagedState.With("stage %d: %d bytes of a snapshot changed on their way", k+1, len(s.data))
			}
		}
		return nil
	}, func(_ int, err error) error { return err })
	if err != nil {
		return 0, err
	}
	if len(segments) > 1 {
		crc = crc32.Checksum(data, castagnoli)
	}
	return crc, nil
}

// BeginSnapshot begins one in every stage.
func (t *Target) BeginSnapshot(ctx context.Context, layout engine.SnapshotLayout, base engine.Snapshot,
	shared int) (engine.Snapshot, error) {
	if err := t.enter(ctx); err != nil {
		return 0, err
	}
	from := &snapshot{of: make([]engine.Snapshot, len(t.stages))}
	err := t.learn(ctx)
	if err == nil && shared != 0 && base != 0 {
		t.mu.Lock()
		from, err = t.finished(base)
		t.mu.Unlock()
	}
	if err != nil {
		t.leave()
		return 0, err
	}
	want := t.layout(layout.Length)
	p := &snapshot{length: layout.Length, writing: &writing{layout, shared, engine.Part{Page: engine.PartState}}}
	return t.keep(ctx, nil, p, func(e engine.Target, k int) (engine.Snapshot, error) {
		l := layout
		l.Identity, l.PageBytes = t.layouts[k].Identity, t.layouts[k].PageBytes
		l.StateBytes = t.sizes(layout.Length, engine.PartState)[k]
		if k == 0 { // the first stage refuses a layout that differs from ours
			l.Identity ^= layout.Identity ^ want.Identity
			l.PageBytes += layout.PageBytes - want.PageBytes
			l.StateBytes += layout.StateBytes - want.StateBytes
		}
		b := from.of[k]
		if base != 0 && shared == 0 {
			b = 0
		}
		return e.BeginSnapshot(ctx, l, b, shared)
	})
}

// WriteSnapshot writes the next bytes, of one stage or of several.
func (t *Target) WriteSnapshot(ctx context.Context, id engine.Snapshot, at engine.Part, data []byte, crc uint32) error {
	p, err := t.enterWith(ctx, id, t.unfinished)
	if err != nil {
		return err
	}
	segments, err := t.written(p, at, data, crc)
	if err != nil {
		t.leave()
		return err
	}
	return t.pass(nil, func(e engine.Target, k int) error {
		for _, s := range segments {
			if s.stage != k {
				continue
			}
			part := crc
			if len(segments) > 1 {
				part = crc32.Checksum(s.data, castagnoli)
			}
			if err := e.WriteSnapshot(ctx, p.of[k], s.at, s.data, part); err != nil {
				return err
			}
		}
		return nil
	}, func(stage int, err error) error {
		switch {
		case err == nil:
			p.writing.wrote(at, len(data))
		case stage > segments[0].stage:
			err = t.giveUp("bytes of a snapshot were written in one stage only", err)
		}
		return err
	})
}

// unfinished is stored for calls that write a snapshot.
func (t *Target) unfinished(id engine.Snapshot) (*snapshot, error) {
	p, err := t.stored(id)
	if err == nil && p.writing == nil {
		err = rpcerr.FailedPrecondition("snapshot: %d is finished", id)
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

// written divides the next bytes of a snapshot by stages.
func (t *Target) written(p *snapshot, at engine.Part, data []byte, crc uint32) ([]segment, error) {
	t.mu.Lock()
	w := p.writing
	if w == nil {
		t.mu.Unlock()
		return nil, rpcerr.FailedPrecondition("snapshot: it is finished")
	}
	layout, next := w.layout, w.next
	t.mu.Unlock()
	if err := layout.Check(at, len(data)); err != nil {
		return nil, err
	}
	if at != next {
		return nil, rpcerr.FailedPrecondition("part: page %d from %d on, the next is page %d from %d on", at.Page, at.Offset,
			next.Page, next.Offset)
	}
	segments, _ := t.segments(layout.Length, at, data)
	if len(segments) > 1 && crc32.Checksum(data, castagnoli) != crc {
		return nil, rpcerr.DamagedState.With("data: %d bytes have another checksum", len(data))
	}
	return segments, nil
}

// wrote notes that n bytes were written.
func (w *writing) wrote(at engine.Part, n int) {
	w.next = engine.Part{Page: at.Page, Offset: at.Offset + uint64(n)}
	size := w.layout.PageBytes
	if at.Page == engine.PartState {
		size = w.layout.StateBytes
	}
	switch {
	case w.next.Offset < size:
	case at.Page == engine.PartState:
		w.next = engine.Part{Page: max(w.shared, w.layout.FirstPage)}
	default:
		w.next = engine.Part{Page: at.Page + 1}
	}
}

// FinishSnapshot finishes it in every stage.
func (t *Target) FinishSnapshot(ctx context.Context, id engine.Snapshot) error {
	p, err := t.enterWith(ctx, id, func(id engine.Snapshot) (*snapshot, error) {
		p, err := t.stored(id)
		if err != nil {
			return nil, err
		}
		if w := p.writing; w != nil && w.next.Page < w.layout.Pages {
			return nil, rpcerr.FailedPrecondition("snapshot: %d is missing bytes from page %d, %d on", id, w.next.Page,
				w.next.Offset)
		}
		return p, nil
	})
	if err != nil {
		return err
	}
	return t.all("a snapshot was finished in one stage only", nil, func(e engine.Target, k int) error {
		return e.FinishSnapshot(ctx, p.of[k])
	}, func() { p.writing = nil })
}
