package staged

import (
	"context"
	"encoding/binary"
	"errors"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/stepcheck"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// work is a step on its way, and memory that is used again.
type work struct {
	checker  stepcheck.Checker[*sequence]
	checked  []stepcheck.Group[*sequence]
	features features
	chained  bool             // it follows steps of its sequence that are on their way
	kept     []stepcheck.Span // of each group, once its path is committed
	err      error            // the step failed, in stage at
	at       int
	refused  bool   // that stage says that it has not run
	number   uint64 // of its rows, where they go from stage to stage themselves

	groups []engine.Group
	rows   []engine.Row
	stages []engine.StepResult
	converted,
	raw []byte
}

// borrow returns memory for a step. The caller gives it back.
func (t *Target) borrow() *work {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.borrowed++
	if n := len(t.free); n > 0 {
		w := t.free[n-1]
		t.free = t.free[:n-1]
		return w
	}
	w := &work{stages: make([]engine.StepResult, len(t.stages))}
	for k, b := range t.borders {
		if b != nil {
			w.stages[k].HiddenOut = b.Take()
		}
	}
	return w
}

func (t *Target) giveBack(w *work) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w.err, w.at, w.refused = nil, 0, false
	t.free = append(t.free, w)
	if t.borrowed--; t.borrowed == 0 {
		t.moved.Broadcast()
	}
}

// wantHead is what only the last stage can give.
const wantHead = engine.WantToken | engine.WantTop | engine.WantLogits | engine.WantScore

// Step implements engine.Target: the stages run the groups one after the other, each on what the one before handed on.
func (t *Target) Step(ctx context.Context, step *engine.Step, result *engine.StepResult) error {
	if err := t.enter(ctx); err != nil {
		return err
	}
	w := t.borrow()
	defer t.giveBack(w)
	if err := t.admit(ctx, w, step); err != nil {
		t.leave()
		return err
	}
	w.features = t.featuresOf(step, w.checked)
	t.numbers++
	w.number = t.numbers
	nanos, err := t.run(ctx, w, 0, step, result)
	if err != nil && engine.Refused(err) {
		t.leave()
		return err
	}
	p := t.departStep(w, err)
	if step.Passed != nil {
		step.Passed()
	}
	if w.err != nil {
		t.clean(w, 0)
	}
	for k := 1; k < len(t.stages); k++ {
		t.next(&p)
		t.follow(w, k)
		if w.err != nil {
			t.clean(w, k)
			continue
		}
		n, err := t.run(ctx, w, k, step, result)
		if nanos += n; err != nil {
			t.failed(w, k, err)
			t.clean(w, k)
		}
	}
	if w.err == nil {
		w.err = t.broken(w.checked, t.collect(ctx, w, step, result))
	} else {
		for k := range w.at {
			t.clean(w, k)
		}
	}
	t.landStep(w, &p)
	if w.err != nil {
		return w.err
	}
	result.EngineNanos = nanos
	switch {
	case len(result.HiddenOut) == 0 || step.Hidden == t.rows:
	case step.Hidden == engine.HiddenBF16:
		result.HiddenOut = narrow(result.HiddenOut)
	default:
		w.converted = append(w.converted[:0], result.HiddenOut...)
		result.HiddenOut = widen(result.HiddenOut[:0], w.converted)
	}
	return nil
}

// admit waits until nothing that is on its way keeps the step from being checked, and checks it.
func (t *Target) admit(ctx context.Context, w *work, step *engine.Step) (err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w.chained = false
	for i := range step.Groups {
		id := step.Groups[i].Sequence
		if s := t.sequences[id]; s == nil || s.flying == 0 {
			continue
		} else if s.chain && chains(step) {
			w.chained = true
			continue
		}
		err := t.await(ctx, func() bool { s := t.sequences[id]; return s == nil || s.flying == 0 })
		if err != nil {
			return err
		}
	}
	w.checked, err = w.checker.Check(&t.info, step, func(id engine.Sequence) (*sequence, bool) {
		s, ok := t.sequences[id]
		return s, ok
	})
	return err
}

// chains reports whether a step may follow others of its sequence before they have ended: it commits rows of that
// sequence alone and depends on nothing but that those did. When one of them fails, so does it.
func chains(step *engine.Step) bool {
	g := &step.Groups[0]
	return len(step.Groups) == 1 && g.Commit && len(g.Path) == 0 && g.Kept.Rows == 0
}

// run runs the step in a stage.
func (t *Target) run(ctx context.Context, w *work, k int, step *engine.Step, result *engine.StepResult) (int64, error) {
	last := len(t.stages) - 1
	part := *step
	part.Passed = nil
	part.Hidden = t.rows
	if k == 0 && step.Hidden != t.rows && len(step.HiddenIn) > 0 {
		if step.Hidden == engine.HiddenBF16 {
			w.converted = widen(w.converted[:0], step.HiddenIn)
		} else {
			w.converted = narrow(append(w.converted[:0], step.HiddenIn...))
		}
		part.HiddenIn = w.converted
	}
	part.Groups, part.Rows = t.groupsOf(w, k), t.rowsOf(w, k, step.Rows)
	if part.Features = w.features.encoding; t.width(w.features, k) == 0 {
		part.Features = engine.FeatureNone
	}
	if k > 0 {
		part.HiddenIn = w.stages[k-1].HiddenOut
	}
	if k > 0 && t.direct[k-1] && len(step.Rows) > 0 {
		part.HiddenIn, part.RowsFrom = nil, w.number
	}
	if k < last && t.direct[k] && len(step.Rows) > 0 {
		part.RowsTo = w.number
	}
	if k < last {
		part.Masks, part.NMasks = nil, 0
	}
	out := &w.stages[k]
	if k == last {
		out = result
	}
	err := t.stages[k].Step(ctx, &part, out)
	return out.EngineNanos, err
}

// departStep notes what the step changes if the other stages run it, too, and departs. err is what the first stage
// failed with.
func (t *Target) departStep(w *work, err error) passage {
	t.mu.Lock()
	defer t.mu.Unlock()
	w.kept = w.kept[:0]
	for i := range w.checked {
		g := &w.checked[i]
		g.S.commit(g.Path)
		w.kept = append(w.kept, g.S.kept)
		if err == nil {
			g.S.add(g)
		}
		g.S.chain = len(w.checked) == 1 && g.Commit && (g.S.chain || g.S.flying == 0)
		g.S.flying++
	}
	t.fail(w, 0, err)
	return t.depart()
}

func (t *Target) landStep(w *work, p *passage) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range w.checked {
		w.checked[i].S.flying--
	}
	t.land(p)
}

// follow fails a step whose sequence was broken by one before it on its way.
func (t *Target) follow(w *work, k int) {
	if !w.chained || w.err != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := w.checked[0].S; s.broken {
		t.fail(w, k, s.cause)
	}
}

// widen appends float32 made of bfloat16.
func widen(out, bf16 []byte) []byte {
	for i := 0; i+1 < len(bf16); i += 2 {
		out = append(out, 0, 0, bf16[i], bf16[i+1])
	}
	return out
}

// narrow makes bfloat16 of float32 in place, rounded to nearest even.
func narrow(f32 []byte) []byte {
	le := binary.LittleEndian
	for i := 0; i+3 < len(f32); i += 4 {
		bits := le.Uint32(f32[i:])
		half := uint16((bits + 0x7fff + bits>>16&1) >> 16)
		if bits&0x7fffffff > 0x7f800000 {
			half = uint16(bits>>16) | 0x40 // NaN stays one
		}
		le.PutUint16(f32[i/2:], half)
	}
	return f32[:len(f32)/2]
}

// groupsOf are the groups as stage k sees them.
func (t *Target) groupsOf(w *work, k int) []engine.Group {
	w.groups = w.groups[:0]
	for i := range w.checked {
		g := *w.checked[i].Group
		g.Sequence = w.checked[i].S.of[k]
		if t.width(w.features, k) == 0 {
			g.Kept = engine.KeptRange{}
		}
		w.groups = append(w.groups, g)
	}
	return w.groups
}

// rowsOf are the rows as stage k sees them: of what they want, what it has.
func (t *Target) rowsOf(w *work, k int, rows []engine.Row) []engine.Row {
	w.rows = append(w.rows[:0], rows...)
	last := k == len(t.stages)-1
	for i := range w.rows {
		r := &w.rows[i]
		if !last {
			r.Want &^= wantHead
			r.Mask = -1
		}
		if t.width(w.features, k) == 0 {
			r.Want &^= engine.WantFeatures | engine.WantKeep
		}
	}
	return w.rows
}

// add notes the rows of a group, whose path is committed.
func (s *sequence) add(g *stepcheck.Group[*sequence]) {
	for r := range g.Rows {
		row := &g.Rows[r]
		kept := row.Want&engine.WantKeep != 0
		if kept {
			s.kept.Put(row.Position)
		}
		if !g.Commit {
			s.pending = append(s.pending, pendingRow{row.Parent, kept})
			continue
		}
		if kept {
			s.kept.Commit(int32(s.length))
		}
		s.length++
	}
}

// commit keeps a path and drops the other pending rows.
func (s *sequence) commit(path []int32) {
	for _, row := range path {
		if s.pending[row].kept {
			s.kept.Commit(int32(s.length))
		}
		s.length++
	}
	s.pending = s.pending[:0]
}

// failed is fail for a stage after the first.
func (t *Target) failed(w *work, k int, err error) {
	if w.refused = engine.Refused(err); w.refused {
		err = rpcerr.Internal("stage %d refuses what the first took: %v", k+1, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fail(w, k, err)
}

// fail notes that the step failed in stage k, which leaves the sequences as a step leaves them whose pass fails: the
// paths are committed, nothing is pending, and those of committing groups are broken. The caller holds mu.
func (t *Target) fail(w *work, k int, err error) {
	if err == nil {
		return
	}
	w.err, w.at = err, k
	for i := range w.checked {
		g := &w.checked[i]
		if g.Commit {
			g.S.doom(err)
			continue
		}
		g.S.pending, g.S.kept = g.S.pending[:0], w.kept[i]
	}
}

// clean leaves a stage as the failed step leaves the others: one that did not run the step commits the paths, and one
// that did drops the rows that are pending. The stage where a step was cancelled may have run it or not: it refuses to
// commit the paths again.
func (t *Target) clean(w *work, k int) {
	if errors.Is(w.err, rpcerr.EngineLost) || w.chained {
		return // the sequences are lost, or the step's only one is broken
	}
	step := engine.Step{}
	for i := range w.checked {
		g := &w.checked[i]
		clean := engine.Group{Sequence: g.S.of[k]}
		if k >= w.at {
			clean.Path = g.Path
		} else if g.Commit || len(g.Rows) == 0 {
			continue
		}
		step.Groups = append(step.Groups, clean)
	}
	if len(step.Groups) == 0 {
		return
	}
	err := t.stages[k].Step(context.Background(), &step, &engine.StepResult{})
	if err != nil && (k != w.at || w.refused || !engine.Refused(err)) {
		w.err = t.giveUp("a step failed in one of them", errors.Join(w.err, err))
	}
}
