package staged

import (
	"context"
	"encoding/binary"
	"errors"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/stepcheck"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// work is memory of calls that is used again.
type work struct {
	groups []engine.Group
	rows   []engine.Row
	stages []engine.StepResult
	raw    []byte
}

// wantHead is what only the last stage can give.
const wantHead = engine.WantToken | engine.WantTop | engine.WantLogits | engine.WantScore

// Step implements engine.Target: the stages run the groups one after the other, each on what the one before handed on.
func (t *Target) Step(ctx context.Context, step *engine.Step, result *engine.StepResult) error {
	if err := t.enter(ctx); err != nil {
		return err
	}
	defer t.leave()
	groups, err := t.checker.Check(&t.info, step, func(id engine.Sequence) (*sequence, bool) {
		s, ok := t.sequences[id]
		return s, ok
	})
	if err != nil {
		return err
	}
	w := &t.work
	for len(w.stages) < len(t.stages) {
		w.stages = append(w.stages, engine.StepResult{})
	}
	f := t.featuresOf(step, groups)
	last := len(t.stages) - 1
	nanos := int64(0)
	for k, e := range t.stages {
		part := *step
		part.Hidden = engine.HiddenF32 // from stage to stage
		if k == 0 && step.Hidden == engine.HiddenBF16 {
			part.HiddenIn = widen(step.HiddenIn)
		}
		part.Groups, part.Rows = t.groupsOf(k, groups, f), t.rowsOf(k, step.Rows, f)
		if part.Features = f.encoding; t.width(f, k) == 0 {
			part.Features = engine.FeatureNone
		}
		if k > 0 {
			part.HiddenIn = w.stages[k-1].HiddenOut
		}
		if k < last {
			part.Masks, part.NMasks = nil, 0
		}
		out := &w.stages[k]
		if k == last {
			out = result
		}
		if err := e.Step(ctx, &part, out); err != nil {
			return t.failed(k, groups, err)
		}
		nanos += out.EngineNanos
	}
	t.advance(groups)
	if err := t.collect(ctx, step, groups, f, result); err != nil {
		return err
	}
	result.EngineNanos = nanos
	if step.Hidden == engine.HiddenBF16 {
		result.HiddenOut = narrow(result.HiddenOut)
	}
	return nil
}

// widen makes float32 of bfloat16.
func widen(bf16 []byte) []byte {
	out := make([]byte, 0, 2*len(bf16))
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
func (t *Target) groupsOf(k int, groups []stepcheck.Group[*sequence], f features) []engine.Group {
	w := &t.work
	w.groups = w.groups[:0]
	for i := range groups {
		g := *groups[i].Group
		g.Sequence = groups[i].S.of[k]
		if t.width(f, k) == 0 {
			g.Kept = engine.KeptRange{}
		}
		w.groups = append(w.groups, g)
	}
	return w.groups
}

// rowsOf are the rows as stage k sees them: of what they want, what it has.
func (t *Target) rowsOf(k int, rows []engine.Row, f features) []engine.Row {
	w := &t.work
	w.rows = append(w.rows[:0], rows...)
	last := k == len(t.stages)-1
	for i := range w.rows {
		r := &w.rows[i]
		if !last {
			r.Want &^= wantHead
			r.Mask = -1
		}
		if t.width(f, k) == 0 {
			r.Want &^= engine.WantFeatures | engine.WantKeep
		}
	}
	return w.rows
}

// advance notes what a step changed that all stages ran.
func (t *Target) advance(groups []stepcheck.Group[*sequence]) {
	for i := range groups {
		g := &groups[i]
		g.S.commit(g.Path)
		for r := range g.Rows {
			row := &g.Rows[r]
			kept := row.Want&engine.WantKeep != 0
			if kept {
				g.S.kept.Put(row.Position)
			}
			if !g.Commit {
				g.S.pending = append(g.S.pending, pendingRow{row.Parent, kept})
				continue
			}
			if kept {
				g.S.kept.Commit(int32(g.S.length))
			}
			g.S.length++
		}
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

// refused tells errors that leave a stage as it was.
func refused(err error) bool {
	return errors.Is(err, rpcerr.AnyInvalidArgument) || errors.Is(err, rpcerr.AnyNotFound) ||
		errors.Is(err, rpcerr.AnyResourceExhausted) || errors.Is(err, rpcerr.AnyFailedPrecondition)
}

// failed leaves all stages as a step leaves an engine when its pass fails, which it did in stage k: the paths are
// committed, nothing is pending, and the sequences of committing groups are broken.
func (t *Target) failed(k int, groups []stepcheck.Group[*sequence], err error) error {
	unchanged := refused(err)
	if k == 0 && unchanged {
		return err
	}
	if errors.Is(err, rpcerr.EngineLost) {
		return err // so are the sequences
	}
	ctx := context.Background()
	for i, e := range t.stages {
		step := engine.Step{}
		for n := range groups {
			g := &groups[n]
			clean := engine.Group{Sequence: g.S.of[i]}
			switch {
			case i > k || i == k && unchanged:
				clean.Path = g.Path
			case i == k || g.Commit || len(g.Rows) == 0:
				continue
			}
			step.Groups = append(step.Groups, clean)
		}
		if len(step.Groups) == 0 {
			continue
		}
		if clean := e.Step(ctx, &step, &engine.StepResult{}); clean != nil {
			return t.giveUp("a step failed in one of them", errors.Join(err, clean))
		}
	}
	for n := range groups {
		g := &groups[n]
		g.S.commit(g.Path)
		g.S.broken = g.S.broken || g.Commit
	}
	if unchanged {
		return rpcerr.Internal("stage %d refuses what the first took: %v", k+1, err)
	}
	return err
}
