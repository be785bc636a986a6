package enginefake

import (
	"slices"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/stepcheck"
)

// keptRow is what features of a row are made from.
type keptRow struct {
	hash uint64
	hint []byte
}

// kept are a sequence's rows that wait to be read, position p in place p mod KeptRows.
type kept struct {
	rows [engine.KeptRows]keptRow
	stepcheck.Span
}

// put takes the place of a position, whether or not its row is committed then.
func (k *kept) put(position int32, hash uint64, hint []byte) {
	row := &k.rows[position%engine.KeptRows]
	row.hash, row.hint = hash, append(row.hint[:0], hint...)
	k.Put(position)
}

func (k *kept) clear() { k.Span = stepcheck.Span{} }

// readKept appends the kept features of a checked group to the result.
func (e *Engine) readKept(step *engine.Step, g *group, result *engine.StepResult) {
	for p := g.Kept.Position; p < g.Kept.Position+g.Kept.Rows; p++ {
		row := &g.s.kept.rows[p%engine.KeptRows]
		result.Features = e.appendFeatures(result.Features, step.Features, row.hash, row.hint)
	}
}

// appendFeatures appends the features of one row.
func (e *Engine) appendFeatures(dst []byte, f engine.FeatureEncoding, hash uint64, hint []byte) []byte {
	layers := e.info.CaptureLayers
	if stepcheck.Fused(f) {
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
