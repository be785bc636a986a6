package decode

import (
	"context"

	"github.com/tandem-inference/tandem/services/engineplugin"
)

// Features of rounds that ask a draft come with the round's result. Those of plain steps are not needed before the next
// question, which may be far off: they stay in the engine, which fuses many rows for a fraction of what it takes to fuse each
// alone, and come in one piece when enough are there or a question is asked.

// captures reports whether the row of a position belongs into the ring.
func (r *run) captures(position int) bool {
	if r.link == nil {
		return false
	}
	_, next := r.ring.Span()
	return position >= next
}

func (r *run) features() engineplugin.FeatureEncoding {
	if r.link == nil {
		return engineplugin.FeatureNone
	}
	return r.capture.Encoding
}

// keeps reports whether the round's features stay in the engine.
func (r *run) keeps() bool { return r.link != nil && !r.asked && r.tree.Len() == 1 }

// kept is the number of committed rows whose features the engine keeps for the ring.
func (r *run) kept() int {
	if r.link == nil {
		return 0
	}
	_, next := r.ring.Span()
	return r.length - next
}

// wantKept makes the prepared step read what the engine keeps, n rows, when there is no room for one more or the round's own
// features come at once.
func (r *run) wantKept() (n int) {
	if n = r.kept(); n == 0 || r.keeps() && n < min(engineplugin.KeptRows, r.info.MaxBatchRows) {
		return 0
	}
	r.group[0].Kept = r.keptRange(n)
	return n
}

// keptRange is that of the newest n rows.
func (r *run) keptRange(n int) engineplugin.KeptRange {
	return engineplugin.KeptRange{Position: int32(r.length - n), Rows: int32(n)}
}

// makeRoom reads what the engine keeps where one step cannot read it beside the features of the round's own rows.
func (r *run) makeRoom(ctx context.Context) error {
	if r.keeps() || r.kept()+r.tree.Len() <= r.info.MaxBatchRows {
		return nil
	}
	return r.fetch(ctx)
}

// fetch brings the ring up to the anchor, so that a question can be asked.
func (r *run) fetch(ctx context.Context) error {
	n := r.kept()
	if n == 0 {
		return nil
	}
	// Plain steps commit their row, so nothing is pending that this one would drop.
	r.reading[0] = engineplugin.Group{Sequence: r.seq, Kept: r.keptRange(n)}
	step := engineplugin.Step{Groups: r.reading[:], Features: r.features()}
	if err := r.engine.Step(ctx, &step, &r.fetched); err != nil {
		return err
	}
	if err := r.checkFeatures(&r.fetched, n); err != nil {
		return err
	}
	r.ring.AppendRows(r.fetched.Features, n)
	r.link.Fed()
	return nil
}
