package disk

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"github.com/tandem-inference/tandem/services/engine"
)

// chunkBytes is about the most that is read or written at once, in the engine's messages too.
const chunkBytes = 1 << 20

// maxIndexBytes bounds what a file says about itself: 16 M tokens.
const maxIndexBytes = 64 << 20

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	magicKV    = [8]byte{'T', 'N', 'D', 'K', 'V', '0', '0', version}
	magicState = [8]byte{'T', 'N', 'D', 'S', 'T', '0', '0', version}
)

// damage is the error of a file that is not what it should be.
type damage struct{ text string }

func (d *damage) Error() string { return d.text }

func damaged(format string, args ...any) error { return &damage{fmt.Sprintf(format, args...)} }

// head is the begin of a file, little-endian, before token ids and checksums.
type head struct {
	Magic      [8]byte
	IndexBytes uint32 // up to the first chunk
	Length     uint32 // tokens of the state
	ID         ID
	Parent     ID // .kv: of the state whose pages come before; zero without
	Space      [32]byte
	Created    int64 // Unix seconds
	Identity   uint64
	KVTypeK    int32
	KVTypeV    int32
	PageBytes  uint64
	BlockBytes uint64
	StateBytes uint64
	FirstPage  uint32 // of the state: no file has those before it for it
	From       uint32 // .kv: first position that the parent does not have whole, a multiple of a page
	Pages      uint32 // .kv: how many it has, from FirstPage or that of From on
	RowFirst   uint32 // .kv: position of the first row of features
	Rows       uint32
	RowWidth   uint32
	RowKind    kind
	Chunks     uint32
}

var headBytes = binary.Size(head{})

// index is a file without its chunks.
type index struct {
	head
	tokens []int32 // .kv
	crcs   []uint32
}

// layout is that of the snapshot.
func (h *head) layout() engine.SnapshotLayout {
	return engine.SnapshotLayout{
		Length: int(h.Length), Pages: pagesOf(int(h.Length)), FirstPage: int(h.FirstPage), Identity: h.Identity,
		KVTypeK: h.KVTypeK, KVTypeV: h.KVTypeV, StateBytes: h.StateBytes, PageBytes: h.PageBytes, BlockBytes: h.BlockBytes,
	}
}

// first is the first page of a .kv file.
func (h *head) first() int { return max(int(h.From)/page, int(h.FirstPage)) }

// page is the number of positions of a page of keys and values, and of features.
const page = 64

func pagesOf(positions int) int { return (positions + page - 1) / page }

// chunk is one of a file: bytes of the state or of a page of it, or of feature rows.
type chunk struct {
	at    engine.Part
	rows  bool
	bytes int
}

// chunks lists those of a file in order: rows, then pages; or the state.
func (h *head) chunks() (all []chunk) {
	if h.Magic == magicState {
		return split(all, engine.PartState, h.StateBytes, chunkBytes)
	}
	for left := int(h.Rows); left > 0; left -= page {
		all = append(all, chunk{rows: true, bytes: min(left, page) * int(h.RowWidth)})
	}
	l := h.layout()
	l.Pages = h.first() + int(h.Pages)
	return splitPages(all, &l, int(h.From)/page)
}

// splitPages adds the chunks of pages from one on, those before the first left out.
func splitPages(all []chunk, l *engine.SnapshotLayout, from int) []chunk {
	if l.PageBytes == 0 {
		return all
	}
	step := max(chunkBytes/l.BlockBytes, 1) * l.BlockBytes
	for i := max(from, l.FirstPage); i < l.Pages; i++ {
		all = split(all, i, l.PageBytes, step)
	}
	return all
}

// Range is bytes of a snapshot that are read or written at once.
type Range struct {
	At    engine.Part
	Bytes int
}

// Ranges lists those of a snapshot in the order in which it is written: its state, then its pages from shared on.
func Ranges(l engine.SnapshotLayout, shared int) []Range {
	all := splitPages(split(nil, engine.PartState, l.StateBytes, chunkBytes), &l, shared)
	ranges := make([]Range, len(all))
	for i, c := range all {
		ranges[i] = Range{At: c.at, Bytes: c.bytes}
	}
	return ranges
}

func split(all []chunk, part int, size, step uint64) []chunk {
	for at := uint64(0); at < size; at += step {
		all = append(all, chunk{at: engine.Part{Page: part, Offset: at}, bytes: int(min(step, size-at))})
	}
	return all
}

// plan sets the counts of an index that follow from the others, and returns its chunks and the size of the file.
func (x *index) plan() (all []chunk, size int64) {
	all = x.chunks()
	x.Chunks = uint32(len(all))
	x.IndexBytes = uint32(headBytes + 4*len(x.tokens) + 4*len(all) + 4)
	size = int64(x.IndexBytes)
	for _, c := range all {
		size += int64(c.bytes)
	}
	return all, size
}

// encode returns the begin of the file.
func (x *index) encode() []byte {
	var b bytes.Buffer
	b.Grow(int(x.IndexBytes))
	for _, v := range []any{&x.head, x.tokens, x.crcs} {
		_ = binary.Write(&b, binary.LittleEndian, v) // a Buffer takes everything, and all types have a size
	}
	return binary.LittleEndian.AppendUint32(b.Bytes(), crc32.Checksum(b.Bytes(), castagnoli))
}

// readIndex reads and checks the begin of a file of a kind.
func readIndex(f *os.File, magic [8]byte) (*index, []chunk, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	raw := make([]byte, headBytes)
	if err := readFull(f, raw); err != nil {
		return nil, nil, err
	}
	x := &index{}
	if _, err := binary.Decode(raw, binary.LittleEndian, &x.head); err != nil {
		return nil, nil, err
	}
	// Nothing but the magic is used before the checksum confirms it; sizes are bounded by the file's.
	most := min(info.Size(), maxIndexBytes)
	if x.Magic != magic || int64(x.IndexBytes) > most || int(x.IndexBytes) < headBytes+4 {
		return nil, nil, damaged("this is no file of states, or a damaged one")
	}
	raw = append(raw, make([]byte, int(x.IndexBytes)-headBytes)...)
	if err := readFull(f, raw[headBytes:]); err != nil {
		return nil, nil, err
	}
	body := raw[:len(raw)-4]
	if crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(raw[len(body):]) {
		return nil, nil, damaged("the checksum of its first %d bytes is wrong", len(raw))
	}
	if err := x.decode(body[headBytes:], info.Size()); err != nil {
		return nil, nil, err
	}
	return x, x.chunks(), nil
}

// decode takes tokens and checksums from what follows the head, and compares all sizes with that of the file. A file
// with a right checksum has them, unless another program wrote it.
func (x *index) decode(rest []byte, size int64) error {
	const most = 1 << 40
	if x.BlockBytes == 0 && x.PageBytes != 0 || x.PageBytes > most || x.BlockBytes > x.PageBytes ||
		x.StateBytes > most || x.Length > maxIndexBytes/4 || x.From%page != 0 || x.From > x.Length ||
		int(x.FirstPage) >= pagesOf(int(x.Length)) ||
		x.Magic == magicKV && int(x.Pages) != pagesOf(int(x.Length))-x.first() ||
		x.RowFirst%page != 0 || uint64(x.Rows) > uint64(x.Length) || x.RowWidth > chunkBytes {
		return damaged("its sizes do not fit")
	}
	if int64(x.Pages)*int64(x.PageBytes)+int64(x.Rows)*int64(x.RowWidth) > size {
		return damaged("it is shorter than its pages")
	}
	if x.Magic == magicKV {
		x.tokens = make([]int32, x.Length)
	}
	want := index{head: x.head, tokens: x.tokens}
	if _, total := want.plan(); want.Chunks != x.Chunks || want.IndexBytes != x.IndexBytes || total != size {
		return damaged("it has %d bytes, its parts %d", size, total)
	}
	x.crcs = make([]uint32, x.Chunks)
	r := bytes.NewReader(rest)
	for _, v := range []any{x.tokens, x.crcs} {
		if err := binary.Read(r, binary.LittleEndian, v); err != nil {
			return damaged("it is cut short")
		}
	}
	return nil
}

// readFull reads the next bytes of a file; one that ends before is damaged.
func readFull(f io.Reader, data []byte) error {
	_, err := io.ReadFull(f, data)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return damaged("it is cut short")
	}
	return err
}

// writeFile writes a file under a temporary name, syncs it and gives it its name. fill fills the data of a chunk and
// returns its checksum.
func writeFile(temporary, name string, x *index, fill func(c chunk, data []byte) (crc uint32, err error)) (err error) {
	all, _ := x.plan()
	f, err := os.OpenFile(temporary, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if closed := f.Close(); err == nil {
			err = closed
		}
		if err == nil {
			err = os.Rename(temporary, name)
		}
		if err != nil {
			_ = os.Remove(temporary)
		}
	}()
	if _, err := f.Seek(int64(x.IndexBytes), io.SeekStart); err != nil {
		return err
	}
	buffer := make([]byte, largest(all))
	for _, c := range all {
		crc, err := fill(c, buffer[:c.bytes])
		if err != nil {
			return err
		}
		x.crcs = append(x.crcs, crc)
		if _, err := f.Write(buffer[:c.bytes]); err != nil {
			return err
		}
	}
	if _, err := f.WriteAt(x.encode(), 0); err != nil {
		return err
	}
	return f.Sync()
}

func largest(all []chunk) (bytes int) {
	for _, c := range all {
		bytes = max(bytes, c.bytes)
	}
	return bytes
}

// syncFolder makes renames last.
func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
