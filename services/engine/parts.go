package engine

import (
	"context"

	"github.com/tandem-inference/tandem/services/rpcerr"
)

// SnapshotLayout is tnd_snapshot_layout: what a snapshot consists of, for keeping it outside of the engine.
type SnapshotLayout struct {
	Length           int    // positions
	Pages            int    // that hold them; the last may be partly used
	FirstPage        int    // no later row reads those before it (OpenOptions.AttentionWindow): they are no parts
	Identity         uint64 // of the model and its layer range: parts of another one do not fit
	KVTypeK, KVTypeV int32  // nor do those of other types
	StateBytes       uint64 // token ids, little-endian int32, then recurrent states
	PageBytes        uint64
	BlockBytes       uint64 // of a page in one layer: pages are read and written in whole ones
}

// FirstPage returns the first page, of so many positions, that a row after length positions reads with a window; 0 =
// it reads all.
func FirstPage(length, window, page int) int {
	if window == 0 || length < window {
		return 0
	}
	return (length + 1 - window) / page
}

// PartState is the Part.Page of the state.
const PartState = -1

// Part is where bytes of a snapshot lie.
type Part struct {
	Page   int // PartState: in the state
	Offset uint64
}

// Check says whether n bytes lie within a part, in pages in whole blocks.
func (l *SnapshotLayout) Check(at Part, n int) error {
	size, block := l.StateBytes, uint64(1)
	switch {
	case at.Page != PartState && (at.Page < l.FirstPage || at.Page >= l.Pages):
		return rpcerr.InvalidArgument("part", "%d is none of pages %d to %d", at.Page, l.FirstPage, l.Pages-1)
	case at.Page >= 0:
		size, block = l.PageBytes, l.BlockBytes
	}
	if n == 0 || at.Offset > size || uint64(n) > size-at.Offset || at.Offset%block != 0 || uint64(n)%block != 0 {
		return rpcerr.InvalidArgument("bytes", "%d at %d of %d in blocks of %d", n, at.Offset, size, block)
	}
	return nil
}

// SnapshotParts are the calls that read and write a snapshot piece by piece, so that one of any length is stored and
// read back without a copy of it in memory. Targets have them.
type SnapshotParts interface {
	DescribeSnapshot(ctx context.Context, p Snapshot) (SnapshotLayout, error)
	// ReadSnapshot fills data with bytes of the snapshot, of a page whole blocks, and returns their CRC-32C. Rows of the
	// last page beyond the length are zero.
	ReadSnapshot(ctx context.Context, p Snapshot, at Part, data []byte) (crc uint32, err error)
	// BeginSnapshot begins a snapshot that is written piece by piece: first its state, then its pages from shared or
	// layout.FirstPage on, whichever comes later. The first shared pages are those of base, full and of the same tokens;
	// with 0 base is not looked at. Until it is finished only WriteSnapshot, FinishSnapshot and FreeSnapshot work on it.
	// FAILED_PRECONDITION: a layout of another model or of other types.
	BeginSnapshot(ctx context.Context, layout SnapshotLayout, base Snapshot, shared int) (Snapshot, error)
	// WriteSnapshot writes the next bytes. DATA_LOSS: they do not have this CRC-32C, and nothing was written.
	WriteSnapshot(ctx context.Context, p Snapshot, at Part, data []byte, crc uint32) error
	// FinishSnapshot makes it a snapshot like any other. FAILED_PRECONDITION: bytes are missing; DATA_LOSS: a token id is
	// none of the model's.
	FinishSnapshot(ctx context.Context, p Snapshot) error
}
