// Package features fills a request's ring of features, from which its draft receives the target's results.
//
// Features of rounds that ask a draft come with the round's result. Those of plain steps are not needed before the next
// question, which may be far off. They stay in the engine, which fuses many rows together at a fraction of the cost of
// single rows. They are read in one piece when there are enough, or when a question is asked:
//
//	the round                      features of its rows          rows that the engine keeps
//	waits for a proposal           with the result               read by the same step
//	plain, the engine has room     stay in the engine            stay in the engine
//	plain, the engine is full      stay in the engine            read by the same step
//	asks for the next proposal     –                             read by a step without rows
//
// The ring always holds a contiguous range of positions, and a question is asked only when that range ends before the
// anchor.
package features

import (
	"context"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/worker-target/internal/decode/sequence"
	"github.com/tandem-inference/tandem/worker-target/internal/drafts"
	"github.com/tandem-inference/tandem/worker-target/internal/prefix"
)

// Reader sends the rows of the ring on.
type Reader interface {
	// Fed reports that the ring has new rows.
	Fed()
}

// Feed is the feed of one request after another. Its memory is kept between them. Without a reader it is off: nothing
// is asked of the engine.
type Feed struct {
	ring     *drafts.Ring
	capacity int // of ring, rows
	widest   int // rows that one step returns features of
	encoding engine.FeatureEncoding
	width    int // bytes per row
	reader   Reader

	// The step that is being put together.
	whole int  // feature rows that all go to the ring, in order: of known tokens, or read from the engine
	tree  int  // feature rows of the draft tree, after those; the ones on the accepted path go to the ring
	keep  bool // the step's rows leave their features in the engine
}

// New returns a feed whose ring holds so many rows.
func New(rows int) *Feed { return &Feed{ring: drafts.NewRing(rows), capacity: rows} }

// Reset turns the feed off, for a request whose steps return features of at most widest rows.
func (f *Feed) Reset(widest int) { f.reader, f.widest = nil, widest }

// Start fills the ring with the rows of features that were stored with the state of a sequence of length positions, nil
// if there are none, for those that follow; context positions are known by now. Of a long prompt only the newest rows
// could be sent again, so only these are captured.
func (f *Feed) Start(capture *drafts.Capture, length, context int, stored *prefix.Rows) *drafts.Ring {
	f.encoding, f.width = capture.Encoding, capture.Width
	first := max(length, context-f.capacity)
	if stored == nil || first > length {
		f.ring.Reset(f.width, first)
		return f.ring
	}
	f.ring.Reset(f.width, stored.First())
	stored.Pages(f.ring.AppendRows)
	return f.ring
}

// Connect turns the feed on, for the reader of the ring.
func (f *Feed) Connect(r Reader) { f.reader = r }

// On reports whether features are captured.
func (f *Feed) On() bool { return f.reader != nil }

// Encoding is the one that steps are to use.
func (f *Feed) Encoding() engine.FeatureEncoding {
	if f.reader == nil {
		return engine.FeatureNone
	}
	return f.encoding
}

// BeginKnown prepares a step of known tokens.
func (f *Feed) BeginKnown() { f.whole, f.tree, f.keep = 0, 0, false }

// WantKnown returns what is wanted of the row of a known token at a position.
func (f *Feed) WantKnown(position int) uint32 {
	if f.reader == nil {
		return 0
	}
	if _, next := f.ring.Span(); position < next {
		return 0
	}
	f.whole++
	return engine.WantFeatures
}

// BeginRound prepares the step of a round of so many rows and returns how many rows of features it must read from the
// engine. Where one step cannot return them beside those of its own rows, they are read here. asked reports whether the
// round has asked its draft.
func (f *Feed) BeginRound(ctx context.Context, seq *sequence.Sequence, rows int, asked bool) (kept int, err error) {
	f.BeginKnown()
	if f.reader == nil {
		return 0, nil
	}
	f.keep = !asked && rows == 1
	kept = f.missing(seq)
	if f.keep {
		if kept < min(engine.KeptRows, f.widest) {
			return 0, nil
		}
	} else {
		if kept+rows > f.widest {
			if err := f.CatchUp(ctx, seq); err != nil {
				return 0, err
			}
			kept = 0
		}
		f.tree = rows
	}
	f.whole = kept
	return kept, nil
}

// WantRound returns what is wanted of each row of a round.
func (f *Feed) WantRound() uint32 {
	switch {
	case f.reader == nil:
		return 0
	case f.keep:
		return engine.WantKeep
	}
	return engine.WantFeatures
}

// Check compares what the step returned with what it was asked for.
func (f *Feed) Check(data []byte) error { return f.check(data, f.whole+f.tree) }

func (f *Feed) check(data []byte, rows int) error {
	if rows > 0 && len(data) != rows*f.width {
		return rpcerr.Internal("engine returned %d bytes of features for %d rows of %d", len(data), rows, f.width)
	}
	return nil
}

// Take adds what the step returned to the ring: of a draft tree the rows on path, the accepted ones.
func (f *Feed) Take(data []byte, path []int32) {
	if f.whole+f.tree == 0 {
		return
	}
	f.ring.AppendRows(data, f.whole)
	if f.tree > 0 {
		f.ring.AppendPath(data[f.whole*f.width:], path)
	}
	f.reader.Fed()
}

// TakeRows adds rows of known tokens to the ring, of a step that later steps followed before it ended.
func (f *Feed) TakeRows(data []byte, rows int) {
	if f.reader == nil || rows == 0 {
		return
	}
	f.ring.AppendRows(data, rows)
	f.reader.Fed()
}

// CatchUp reads what the engine keeps, so that the ring ends before the anchor and a question can be asked.
func (f *Feed) CatchUp(ctx context.Context, seq *sequence.Sequence) error {
	n := f.missing(seq)
	if n == 0 {
		return nil
	}
	data, err := seq.ReadKept(ctx, f.encoding, n)
	if err != nil {
		return err
	}
	if err := f.check(data, n); err != nil {
		return err
	}
	f.ring.AppendRows(data, n)
	f.reader.Fed()
	return nil
}

// Settle reads the rows that the engine keeps, because a stored state does not contain them. The step that is being
// built then no longer reads them.
func (f *Feed) Settle(ctx context.Context, seq *sequence.Sequence) error {
	if f.missing(seq) > 0 { // none while a long prompt is read, whose first rows are not captured
		if err := f.CatchUp(ctx, seq); err != nil {
			return err
		}
	}
	f.whole -= seq.DropKept()
	return nil
}

// missing is the number of committed rows whose features the engine keeps for the ring.
func (f *Feed) missing(seq *sequence.Sequence) int {
	if f.reader == nil {
		return 0
	}
	_, next := f.ring.Span()
	return seq.Length() - next
}
