package enginefake

import (
	"slices"

	"github.com/tandem-inference/tandem/services/engineplugin"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// keptRow is what features of a row are made from.
type keptRow struct {
	hash uint64
	hint []byte
}

// kept are a sequence's rows that wait to be read, position p in place p mod KeptRows. Those of [first, next) are committed.
type kept struct {
	rows        [engineplugin.KeptRows]keptRow
	first, next int32
}

// put takes the place of a position, whether or not its row is committed then.
func (k *kept) put(position int32, hash uint64, hint []byte) {
	row := &k.rows[position%engineplugin.KeptRows]
	row.hash, row.hint = hash, append(row.hint[:0], hint...)
	k.first = max(k.first, position-engineplugin.KeptRows+1)
}

// commit makes the row of a position readable.
func (k *kept) commit(position int32) {
	if position != k.next || k.first > position {
		k.first = position
	}
	k.next = position + 1
}

// truncate forgets what is not below length.
func (k *kept) truncate(length int) { k.next = min(k.next, int32(length)) }

func (k *kept) clear() { k.first, k.next = 0, 0 }

// checkKeeps refuses a step of whose rows two would take the same place.
func (e *Engine) checkKeeps(step *engineplugin.Step) error {
	for i := range step.Rows {
		r := &step.Rows[i]
		if r.Want&engineplugin.WantKeep == 0 {
			continue
		}
		for _, o := range step.Rows[:i] {
			if o.Sequence == r.Sequence && o.Want&engineplugin.WantKeep != 0 && (o.Position-r.Position)%engineplugin.KeptRows == 0 {
				return rpcerr.InvalidArgument("rows.position", "row %d: another row that is kept takes the place of %d", i, r.Position)
			}
		}
	}
	return nil
}

// readKept appends kept features to the result.
func (e *Engine) readKept(step *engineplugin.Step, result *engineplugin.StepResult) error {
	for _, k := range step.Kept {
		s, err := e.whole(k.Sequence)
		switch {
		case err != nil:
			return err
		case k.Rows < 1 || int(k.Rows) > e.options.MaxBatchRows:
			return rpcerr.InvalidArgument("n", "must be in 1..%d, got %d", e.options.MaxBatchRows, k.Rows)
		}
		if err := e.checkFeatures(step.Features); err != nil {
			return err
		}
		if k.Position < s.kept.first || int64(k.Position)+int64(k.Rows) > int64(s.kept.next) {
			return rpcerr.FailedPrecondition("position: features of %d rows from %d on are not kept, those of %d..%d are",
				k.Rows, k.Position, s.kept.first, s.kept.next-1)
		}
		for p := k.Position; p < k.Position+k.Rows; p++ {
			row := &s.kept.rows[p%engineplugin.KeptRows]
			result.Features = e.appendFeatures(result.Features, step.Features, row.hash, row.hint)
		}
	}
	return nil
}

// checkFeatures refuses an encoding that the engine cannot give now.
func (e *Engine) checkFeatures(f engineplugin.FeatureEncoding) error {
	switch {
	case f <= engineplugin.FeatureNone || f > engineplugin.FeatureFusedF32:
		return rpcerr.InvalidArgument("feature_encoding", "features are wanted, the encoding is %d", f)
	case len(e.info.CaptureLayers) == 0:
		return rpcerr.FailedPrecondition("feature_encoding: no layers are captured")
	case isFused(f) && e.info.FeatureFused == 0:
		return rpcerr.FailedPrecondition("feature_encoding: fused features need a loaded fuse")
	}
	return nil
}

// appendFeatures appends the features of one row.
func (e *Engine) appendFeatures(dst []byte, f engineplugin.FeatureEncoding, hash uint64, hint []byte) []byte {
	layers := e.info.CaptureLayers
	if isFused(f) {
		layers = fused[:]
	}
	return appendFeatures(dst, hash, hint, layers, e.m.o.Hidden, isF32(f))
}

// forgetKept is for other layers: what was captured of the old ones is of no use.
func (e *Engine) forgetKept(layers []int32) {
	if slices.Equal(layers, e.info.CaptureLayers) {
		return
	}
	for _, s := range e.sequences {
		s.kept.clear()
		for i := range s.pending {
			s.pending[i].kept = false
		}
	}
}
