package disk

import (
	"context"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// Engine is what a state is written to, as engine.SnapshotParts says.
type Engine interface {
	BeginSnapshot(ctx context.Context, layout engine.SnapshotLayout, base engine.Snapshot, shared int) (
		engine.Snapshot, error)
	WriteSnapshot(ctx context.Context, p engine.Snapshot, at engine.Part, data []byte, crc uint32) error
	FinishSnapshot(ctx context.Context, p engine.Snapshot) error
	FreeSnapshot(ctx context.Context, p engine.Snapshot) error
}

// Rows are rows of features of positions from First on, in pages of 64, the last one perhaps shorter.
type Rows struct {
	Kind  string // says what they are, in at most 32 bytes; longer ones are not kept
	Width int    // bytes per row
	First int    // a multiple of 64
	Pages [][]byte
}

// ErrDamaged says that a state could not be read back: it is deleted.
var ErrDamaged = errors.New("the stored state is damaged")

// State is one in the store that is about to be read. Close ends it.
type State struct {
	store  *Store
	space  string
	chain  []*node // it and its ancestors
	tokens []int32
}

// Find returns the longest state that tokens begin with, that is longer than least and fits; nil if there is none.
func (s *Store) Find(ctx context.Context, space string, tokens []int32, least int, fits func(length int) bool) *State {
	if s.ready(ctx) != nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Lookups++
	n := s.find(space, tokens, least, fits)
	if n == nil {
		return nil
	}
	chain := s.chain(n)
	pin(chain)
	return &State{store: s, space: space, chain: chain, tokens: tokens[:n.length]}
}

// ID is the name of the state.
func (t *State) ID() ID { return t.chain[0].id }

// Length is the number of its tokens.
func (t *State) Length() int { return t.chain[0].length }

// Close ends the use of the state.
func (t *State) Close() {
	t.store.mu.Lock()
	defer t.store.mu.Unlock()
	t.store.unpin(t.chain)
}

// Load makes a snapshot of the state in an engine. It shares the whole pages of a snapshot `base` of its first
// baseLength tokens, 0 = there is none. The rows end at the state's length, nil if there are none. ErrDamaged: it is
// deleted. Other errors say nothing about the state.
func (t *State) Load(ctx context.Context, e Engine, base engine.Snapshot, baseLength int) (
	p engine.Snapshot, rows *Rows, err error,
) {
	n, s := t.chain[0], t.store
	l := loader{ctx: ctx, state: t, engine: e, shared: min(baseLength, n.length) / page}
	defer l.close()
	p, err = l.load(base)
	if err != nil {
		if l.began {
			_ = e.FreeSnapshot(context.WithoutCancel(ctx), p) // the guard tries again
		}
		var bad *damage
		if l.file != nil && (errors.As(err, &bad) || isForeign(err) || errors.Is(err, os.ErrNotExist)) {
			s.spoil(l.file, l.inKV, err)
			return 0, nil, errors.Join(ErrDamaged, err)
		}
		return 0, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Hits++
	s.stats.Tokens += uint64(n.length)
	s.use(n)
	if len(l.rows.Pages) > 0 {
		l.rows.Kind = l.kind.String()
		rows = &l.rows
	}
	return p, rows, nil
}

// isForeign reports whether an engine refuses what a file holds: its bytes, or sizes that are not its own.
func isForeign(err error) bool {
	code := rpcerr.Code(err)
	return code == codes.DataLoss || code == codes.InvalidArgument
}

// loader reads one state.
type loader struct {
	ctx    context.Context
	state  *State
	engine Engine
	shared int  // pages of the base
	from   int  // first page that is read
	kind   kind // of rows

	file   *node // whose file is being read
	inKV   bool  // its .kv file, else its .state
	began  bool
	opened []*os.File
	rows   Rows
	buffer []byte
}

func (l *loader) close() {
	for _, f := range l.opened {
		_ = f.Close()
	}
}

func (l *loader) open(n *node, path string, magic [8]byte) (*os.File, *index, []chunk, error) {
	l.file, l.inKV = n, magic == magicKV
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, nil, err
	}
	l.opened = append(l.opened, f)
	x, all, err := readIndex(f, magic)
	if err != nil {
		return nil, nil, nil, err
	}
	if x.ID != n.id || int(x.Length) != n.length || x.Space != digestOf(l.state.space) {
		return nil, nil, nil, damaged("it is not the state that its name says")
	}
	return f, x, all, nil
}

// segment is an open .kv file.
type segment struct {
	node *node
	file *os.File
	*index
	chunks []chunk
}

func (l *loader) load(base engine.Snapshot) (engine.Snapshot, error) {
	s, newest := l.state.store, l.state.chain[0]
	stateFile, head, stateChunks, err := l.open(newest, s.statePath(newest), magicState)
	if err != nil {
		return 0, err
	}
	// All segments are opened, and their ids compared, before the engine is asked for anything.
	var segments []segment
	for i, n := range l.state.chain {
		f, x, all, err := l.open(n, s.kvPath(n), magicKV)
		if err != nil {
			return 0, err
		}
		if !slices.Equal(x.tokens, l.state.tokens[:n.length]) {
			return 0, damaged("it holds another prompt")
		}
		if i == 0 && x.FirstPage != head.FirstPage || x.FirstPage > head.FirstPage {
			return 0, damaged("its first page is %d, that of the state %d", x.FirstPage, head.FirstPage)
		}
		last := i+1 == len(l.state.chain)
		if x.Parent != n.parent || last != (x.Parent == ID{}) || last && x.From != 0 ||
			!last && int(x.From) > l.state.chain[i+1].length || !x.fits(&head.head) {
			return 0, damaged("it does not fit those that it depends on")
		}
		segments = append(segments, segment{n, f, x, all})
	}
	l.file, l.inKV = newest, false
	l.from = max(l.shared, int(head.FirstPage))
	p, err := l.engine.BeginSnapshot(l.ctx, head.layout(), base, l.shared)
	if err != nil {
		return 0, err
	}
	l.began = true
	at := int64(head.IndexBytes)
	for i, c := range stateChunks {
		if err := l.copy(p, stateFile, at, c, head.crcs[i]); err != nil {
			return p, err
		}
		at += int64(c.bytes)
	}
	// The oldest segment comes first; each is read up to where the next one begins.
	for i := len(segments) - 1; i >= 0; i-- {
		end := pagesOf(newest.length)
		if i > 0 {
			end = int(segments[i-1].From) / page
		}
		if err := l.pages(p, &segments[i], end); err != nil {
			return p, err
		}
	}
	for i := range segments {
		if more, err := l.features(&segments[i]); err != nil {
			return p, err
		} else if !more {
			break
		}
	}
	l.file, l.inKV = newest, false
	return p, l.engine.FinishSnapshot(l.ctx, p)
}

// fits reports whether two files are of one engine.
func (h *head) fits(other *head) bool {
	return h.Identity == other.Identity && h.KVTypeK == other.KVTypeK && h.KVTypeV == other.KVTypeV &&
		h.PageBytes == other.PageBytes && h.BlockBytes == other.BlockBytes
}

// copy brings a chunk at a place in a file into the snapshot.
func (l *loader) copy(p engine.Snapshot, f *os.File, at int64, c chunk, crc uint32) error {
	if cap(l.buffer) < c.bytes {
		l.buffer = make([]byte, c.bytes)
	}
	data := l.buffer[:c.bytes]
	if err := readFull(io.NewSectionReader(f, at, int64(c.bytes)), data); err != nil {
		return err
	}
	return l.engine.WriteSnapshot(l.ctx, p, c.at, data, crc)
}

// pages writes those pages of a segment below end that the state has and the base does not.
func (l *loader) pages(p engine.Snapshot, s *segment, end int) error {
	l.file, l.inKV = s.node, true
	at := int64(s.IndexBytes)
	for i, c := range s.chunks {
		if !c.rows && c.at.Page >= l.from && c.at.Page < end {
			if err := l.copy(p, s.file, at, c, s.crcs[i]); err != nil {
				return err
			}
		}
		at += int64(c.bytes)
	}
	return nil
}

// features puts the rows of a segment before those that are there, and reports whether those of an older one may
// follow. A segment's rows end at its length.
func (l *loader) features(s *segment) (more bool, err error) {
	next := l.rows.First // where those that are there begin
	first := len(l.rows.Pages) == 0
	if first {
		l.kind = s.RowKind
	}
	if s.Rows == 0 || s.RowKind != l.kind || !first && (int(s.RowWidth) != l.rows.Width || int(s.Length) < next) {
		return false, nil
	}
	l.file, l.inKV = s.node, true
	at := int64(s.IndexBytes)
	var pages [][]byte
	for i, c := range s.chunks {
		if !c.rows || !first && int(s.RowFirst)+i*page >= next {
			break
		}
		data := make([]byte, c.bytes)
		if err := readFull(io.NewSectionReader(s.file, at, int64(c.bytes)), data); err != nil {
			return false, err
		}
		if crc32.Checksum(data, castagnoli) != s.crcs[i] {
			return false, damaged("the checksum of rows of features is wrong")
		}
		pages = append(pages, data)
		at += int64(c.bytes)
	}
	if len(pages) == 0 {
		return false, nil
	}
	l.rows.Pages = append(pages, l.rows.Pages...)
	l.rows.First, l.rows.Width = int(s.RowFirst), int(s.RowWidth)
	return true, nil
}
