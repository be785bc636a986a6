package disk

import (
	"context"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/telemetry"
)

// Draft is a state to be written.
type Draft struct {
	Space  string
	Tokens []int32
	Number uint64 // of the tokens in their isolation, services/prefixhash
	Layout engine.SnapshotLayout
	Rows   *Rows // nil = none
	// Read fills data with bytes of the snapshot and returns their CRC-32C, as engine.ReadSnapshot does.
	Read func(at engine.Part, data []byte) (crc uint32, err error)
}

var (
	// ErrNoRoom says that the budget has no room for a state.
	ErrNoRoom = errors.New("the budget has no room")
	// errLater says that nothing is written for a while, because a write has failed.
	errLater = errors.New("the last write failed")
	// errPresent says that the state is there.
	errPresent = errors.New("it is there")
)

// pause is how long nothing is written after a write that failed: a full disk stays full for a while.
const pause = time.Minute

// Has reports whether a state is there. One that is asked for is worth more from then on.
func (s *Store) Has(ctx context.Context, space string, tokens []int32) bool {
	if s.ready(ctx) != nil {
		return false
	}
	id := idOf(space, tokens)
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[id]
	if n == nil || n.state == 0 {
		return false
	}
	s.use(n)
	return true
}

// Write writes a state unless it is there. It returns an error of Read as it is; others are counted and logged here.
// One Write runs at a time.
func (s *Store) Write(ctx context.Context, d *Draft) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	w, err := s.begin(d)
	if errors.Is(err, errPresent) {
		return nil
	}
	if err == nil {
		err = w.run()
		s.end(w, err)
	}
	switch {
	case err == nil || w != nil && w.unread:
	case errors.Is(err, ErrNoRoom) || errors.Is(err, errLater):
		s.mu.Lock()
		s.stats.Refusals++
		s.mu.Unlock()
	default:
		s.mu.Lock()
		s.stats.Refusals++
		s.retry = time.Now().Add(pause)
		s.mu.Unlock()
		s.cfg.Log.Warn("a state of a prompt cannot be written", zap.String(telemetry.KeyPath, s.folder.path),
			zap.NamedError(telemetry.KeyErr, err))
	}
	return err
}

// writing is a state that is being written.
type writing struct {
	store      *Store
	draft      *Draft
	node       *node
	chain      []*node // pinned ancestors, the parent first
	kv, state  index
	kvBytes    int64 // of the files, 0 = not written: it is there
	stateBytes int64
	unread     bool // the snapshot could not be read
}

// begin finds the parent and makes room.
func (s *Store) begin(d *Draft) (*writing, error) {
	id := idOf(d.Space, d.Tokens)
	s.mu.Lock()
	if time.Now().Before(s.retry) {
		s.mu.Unlock()
		return nil, errLater
	}
	w := &writing{store: s, draft: d, node: s.nodes[id]}
	if w.node != nil && w.node.state > 0 {
		s.mu.Unlock()
		return nil, errPresent
	}
	if w.node != nil { // its pages are there, for descendants
		w.chain = s.chain(w.node)
	} else {
		w.chain = s.chain(s.find(d.Space, d.Tokens, 0, func(n int) bool { return n < len(d.Tokens) && n >= page }))
	}
	pin(w.chain)
	s.mu.Unlock()
	w.plan(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	// Before the files are there: what a state needs while it is written exceeds the budget at no time.
	if !s.shrink(uint64(w.kvBytes + w.stateBytes)) {
		s.unpin(w.chain)
		return nil, ErrNoRoom
	}
	s.bytes += uint64(w.kvBytes + w.stateBytes)
	return w, nil
}

// plan fills in what the files say about themselves.
func (w *writing) plan(id ID) {
	d, l := w.draft, &w.draft.Layout
	h := head{
		Length: uint32(len(d.Tokens)), ID: id, Space: digestOf(d.Space), Created: time.Now().Unix(),
		Identity: l.Identity, KVTypeK: l.KVTypeK, KVTypeV: l.KVTypeV,
		PageBytes: l.PageBytes, BlockBytes: l.BlockBytes, StateBytes: l.StateBytes, FirstPage: uint32(l.FirstPage),
	}
	w.state = index{head: h}
	w.state.Magic = magicState
	_, w.stateBytes = w.state.plan()
	if w.node != nil {
		return
	}
	w.kv = index{head: h, tokens: d.Tokens}
	w.kv.Magic = magicKV
	rowsFrom := 0
	if len(w.chain) > 0 {
		parent := w.chain[0]
		w.kv.Parent, w.kv.From = parent.id, uint32(parent.length/page*page)
		if d.Rows != nil && w.store.hasRows(parent, d.Rows) {
			rowsFrom = int(w.kv.From)
		}
	}
	w.kv.Pages = uint32(l.Pages - w.kv.first())
	if r := d.Rows; r != nil && r.Width <= chunkBytes && len(r.Kind) <= len(kind{}) {
		w.kv.RowFirst = uint32(max(r.First, rowsFrom))
		w.kv.Rows = w.kv.Length - w.kv.RowFirst
		w.kv.RowWidth, w.kv.RowKind = uint32(r.Width), kindOf(r.Kind)
	}
	_, w.kvBytes = w.kv.plan()
}

// hasRows reports whether a state's file has rows of the same kind, which those of a longer state follow.
func (s *Store) hasRows(n *node, r *Rows) bool {
	f, err := os.Open(s.kvPath(n))
	if err != nil {
		return false
	}
	defer f.Close()
	x, _, err := readIndex(f, magicKV)
	return err == nil && x.Rows > 0 && x.RowKind == kindOf(r.Kind) && int(x.RowWidth) == r.Width
}

// run writes the files, pages first.
func (w *writing) run() error {
	s, folder := w.store, w.store.folder.path
	temporary := filepath.Join(folder, temporaryPrefix+w.state.ID.String())
	n := w.made()
	if w.kvBytes > 0 {
		if err := writeFile(temporary, s.kvPath(n), &w.kv, w.fill); err != nil {
			return err
		}
	}
	if err := writeFile(temporary, s.statePath(n), &w.state, w.fill); err != nil {
		if w.kvBytes > 0 {
			_ = os.Remove(s.kvPath(n))
		}
		return err
	}
	return syncFolder(folder)
}

// made is the node of the files that are written.
func (w *writing) made() *node {
	return &node{
		id: w.state.ID, parent: w.kv.Parent, length: len(w.draft.Tokens), kv: uint64(w.kvBytes), number: w.draft.Number,
	}
}

func (w *writing) fill(c chunk, data []byte) (uint32, error) {
	if c.rows {
		first, rows := w.kv.RowFirst/page, w.draft.Rows
		i := int(first) - rows.First/page + len(w.kv.crcs)
		copy(data, rows.Pages[i])
		return crc32.Checksum(data, castagnoli), nil
	}
	crc, err := w.draft.Read(c.at, data)
	w.unread = err != nil
	return crc, err
}

// end adds what was written to the index.
func (s *Store) end(w *writing, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.unpin(w.chain)                                // once the index has what needs them
	lost := w.node != nil && s.nodes[w.node.id] != w.node // its pages were damaged
	for _, n := range w.chain {
		lost = lost || s.nodes[n.id] != n
	}
	if err != nil || lost {
		s.bytes -= uint64(w.kvBytes + w.stateBytes)
		if err == nil {
			n := w.made()
			if w.kvBytes > 0 {
				_ = os.Remove(s.kvPath(n))
			}
			_ = os.Remove(s.statePath(n))
		}
		return
	}
	n := w.node
	if n == nil {
		n = w.made()
		s.nodes[n.id] = n
		if parent := s.nodes[n.parent]; parent != nil {
			parent.children++
		}
	}
	n.state, n.number = uint64(w.stateBytes), w.draft.Number
	s.version++
	n.used = time.Now()
	s.lengths[n.length]++
	s.stats.Writes++
}
