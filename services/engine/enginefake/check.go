package enginefake

import (
	"fmt"
	"slices"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

const allWants = engine.WantToken | engine.WantTop | engine.WantLogits | engine.WantFeatures | engine.WantScore |
	engine.WantKeep

// Checks of a step, all of them before anything changes. Errors name the field at fault.

// groupField names a field of a group.
func groupField(i int, name string) string { return fmt.Sprintf("groups[%d].%s", i, name) }

// rowField names a field of a row, counted within its group.
func rowField(g *group, row int, name string) string {
	return fmt.Sprintf("groups[%d].rows[%d].%s", g.index, row, name)
}

// check holds a step to the contract and fills e.w.groups.
func (e *Engine) check(step *engine.Step) error {
	bad := rpcerr.InvalidArgument
	n, vocab := len(step.Rows), e.m.o.Vocab
	if len(step.Groups) == 0 {
		return bad("groups", "is empty")
	}
	if n > e.options.MaxBatchRows {
		return bad("n_rows", "must be at most %d (max_batch_rows), got %d", e.options.MaxBatchRows, n)
	}
	if want := step.NMasks * ((vocab + 31) / 32); step.NMasks < 0 || len(step.Masks) != want {
		return bad("masks", "%d masks need %d words, got %d", step.NMasks, want, len(step.Masks))
	}
	first := e.options.LayerFirst == 0
	if first && len(step.HiddenIn) != 0 {
		return bad("hidden_in", "an engine that starts at layer 0 takes tokens")
	}
	width := e.m.o.Hidden * step.Hidden.Bytes()
	if width == 0 {
		return bad("hidden_encoding", "unknown encoding %d", step.Hidden)
	}
	if !first && len(step.HiddenIn) != n*width {
		return bad("hidden_in", "must have %d bytes, got %d", n*width, len(step.HiddenIn))
	}
	if step.Features < engine.FeatureNone || step.Features > engine.FeatureFusedF32 {
		return bad("feature_encoding", "unknown encoding %d", step.Features)
	}
	w := &e.w
	clear(w.seen)
	w.groups = w.groups[:0]
	at, features := 0, 0
	for i := range step.Groups {
		g := group{Group: &step.Groups[i], index: i, first: at}
		if g.Rows < 0 || g.Rows > n-at {
			return bad(groupField(i, "n_rows"), "must be in 0..%d, what is left of %d rows, got %d", n-at, n, g.Rows)
		}
		g.rows = step.Rows[at : at+g.Rows]
		at += g.Rows
		if err := e.checkGroup(step, &g); err != nil {
			return err
		}
		features += int(g.Kept.Rows) + wanting(g.rows, engine.WantFeatures)
		w.groups = append(w.groups, g)
	}
	if at != n {
		return bad("n_rows", "is %d, the groups have %d", n, at)
	}
	if features > e.options.MaxBatchRows {
		return bad("n_kept", "of the groups and their rows that want features are %d together, at most %d (max_batch_rows)", features, e.options.MaxBatchRows)
	}
	return e.checkPages()
}

func wanting(rows []engine.Row, want uint32) (n int) {
	for i := range rows {
		if rows[i].Want&want != 0 {
			n++
		}
	}
	return n
}

func (e *Engine) checkGroup(step *engine.Step, g *group) error {
	bad := rpcerr.InvalidArgument
	s := e.sequences[g.Sequence]
	switch {
	case s == nil:
		return rpcerr.NotFound("%s: %d does not exist", groupField(g.index, "sequence"), g.Sequence)
	case s.broken:
		return rpcerr.FailedPrecondition("%s: %d is broken by a cancelled step", groupField(g.index, "sequence"), g.Sequence)
	case e.w.seen[g.Sequence]:
		return bad(groupField(g.index, "sequence"), "%d has a group already", g.Sequence)
	case g.Kind > engine.KindPrompt:
		return bad(groupField(g.index, "kind"), "must be %d (decode) or %d (prompt), got %d", engine.KindDecode,
			engine.KindPrompt, g.Kind)
	case g.Kind == engine.KindPrompt && !g.Commit:
		return bad(groupField(g.index, "kind"), "a prompt piece is committed by its step")
	case g.Commit && g.Rows == 0:
		return bad(groupField(g.index, "flags"), "there are no rows to commit")
	case !g.Commit && g.Rows > e.options.MaxTreeRows:
		return bad(groupField(g.index, "n_rows"), "uncommitted rows must be at most %d (max_tree_rows), got %d", e.options.MaxTreeRows, g.Rows)
	}
	e.w.seen[g.Sequence] = true
	g.s = s
	if err := checkCommit(g); err != nil {
		return err
	}
	if err := e.checkKept(step, g); err != nil {
		return err
	}
	return e.checkRows(step, g)
}

// checkCommit checks what a group commits.
func checkCommit(g *group) error {
	if len(g.Path) > 0 && len(g.s.pending) == 0 {
		return rpcerr.FailedPrecondition("%s: %d rows to commit, sequence %d has none pending",
			groupField(g.index, "n_path"), len(g.Path), g.Sequence)
	}
	parent := int32(-1)
	for i, row := range g.Path {
		name := func() string { return fmt.Sprintf("groups[%d].path[%d]", g.index, i) }
		if row < 0 || int(row) >= len(g.s.pending) {
			return rpcerr.InvalidArgument(name(), "is %d, %d rows are pending", row, len(g.s.pending))
		}
		if got := g.s.pending[row].parent; got != parent {
			return rpcerr.InvalidArgument(name(), "is %d, a child of %d and not of %d", row, got, parent)
		}
		parent = row
	}
	return nil
}

// checkKept checks the range of kept features, which is read after the group's path is committed.
func (e *Engine) checkKept(step *engine.Step, g *group) error {
	if g.Kept.Rows < 0 {
		return rpcerr.InvalidArgument(groupField(g.index, "n_kept"), "must be >= 0, got %d", g.Kept.Rows)
	}
	if g.Kept.Rows == 0 {
		return nil
	}
	if err := e.checkFeatures(step.Features); err != nil {
		return err
	}
	span := g.s.kept.span
	for i, row := range g.Path {
		if g.s.pending[row].kept {
			span.commit(int32(g.s.length() + i))
		}
	}
	if g.Kept.Position < span.first || int64(g.Kept.Position)+int64(g.Kept.Rows) > int64(span.next) {
		return rpcerr.FailedPrecondition("%s: features of %d rows from %d on are not kept, those of %d..%d are",
			groupField(g.index, "kept_position"), g.Kept.Rows, g.Kept.Position, span.first, span.next-1)
	}
	return nil
}

// checkRows checks the rows of a group, which run after its path is committed.
func (e *Engine) checkRows(step *engine.Step, g *group) error {
	bad := rpcerr.InvalidArgument
	length := int32(g.s.length() + len(g.Path))
	w := &e.w
	w.depths = slices.Grow(w.depths[:0], len(g.rows))[:len(g.rows)]
	for i := range g.rows {
		r := &g.rows[i]
		if r.Parent < -1 || int(r.Parent) >= i {
			return bad(rowField(g, i, "parent"), "must be in -1..%d, got %d", i-1, r.Parent)
		}
		if g.Commit && int(r.Parent) != i-1 {
			return bad(rowField(g, i, "parent"), "committed rows form a chain, must be %d, got %d", i-1, r.Parent)
		}
		w.depths[i] = 0
		if r.Parent >= 0 {
			w.depths[i] = w.depths[r.Parent] + 1
		}
		if at := length + w.depths[i]; r.Position != at {
			return bad(rowField(g, i, "position"), "must be %d, got %d", at, r.Position)
		}
		if int(r.Position) >= e.options.MaxContext {
			return rpcerr.ResourceExhausted("%s: %d does not fit into %d (max_context)", rowField(g, i, "position"), r.Position,
				e.options.MaxContext)
		}
		if vocab := e.m.o.Vocab; e.options.LayerFirst == 0 && (r.Token < 0 || int(r.Token) >= vocab) {
			return bad(rowField(g, i, "token"), "must be in 0..%d, got %d", vocab-1, r.Token)
		}
		if err := e.checkWants(step, g, i); err != nil {
			return err
		}
	}
	return checkKeeps(g)
}

func (e *Engine) checkWants(step *engine.Step, g *group, i int) error {
	bad := rpcerr.InvalidArgument
	r, vocab := &g.rows[i], e.m.o.Vocab
	last := e.options.LayerLast == e.m.o.Layers
	switch {
	case r.Want&^allWants != 0:
		return bad(rowField(g, i, "want"), "unknown bits %#x", r.Want&^allWants)
	case !last && r.Want&^(engine.WantFeatures|engine.WantKeep) != 0:
		return rpcerr.FailedPrecondition("%s: a shard that does not end at the last layer has no head", rowField(g, i, "want"))
	case r.Want&engine.WantTop != 0 && (r.TopK < 1 || int(r.TopK) > e.options.MaxTopK):
		return bad(rowField(g, i, "top_k"), "must be in 1..%d, got %d", e.options.MaxTopK, r.TopK)
	case r.Want&engine.WantScore != 0 && (r.Score < 0 || int(r.Score) >= vocab):
		return bad(rowField(g, i, "score"), "must be in 0..%d, got %d", vocab-1, r.Score)
	case r.Mask < -1 || int(r.Mask) >= step.NMasks:
		return bad(rowField(g, i, "mask"), "must be in -1..%d, got %d", step.NMasks-1, r.Mask)
	}
	if r.Want&engine.WantKeep != 0 && len(e.info.CaptureLayers) == 0 {
		return rpcerr.FailedPrecondition("%s: no layers are captured", rowField(g, i, "want"))
	}
	if r.Want&engine.WantFeatures != 0 {
		return e.checkFeatures(step.Features)
	}
	return nil
}

// checkKeeps refuses a group of whose rows two would take the same place.
func checkKeeps(g *group) error {
	for i := range g.rows {
		r := &g.rows[i]
		if r.Want&engine.WantKeep == 0 {
			continue
		}
		for _, o := range g.rows[:i] {
			if o.Want&engine.WantKeep != 0 && (o.Position-r.Position)%engine.KeptRows == 0 {
				return rpcerr.InvalidArgument(rowField(g, i, "position"), "another row that is kept takes the place of %d",
					r.Position)
			}
		}
	}
	return nil
}

// checkFeatures refuses an encoding that the engine cannot give now.
func (e *Engine) checkFeatures(f engine.FeatureEncoding) error {
	switch {
	case f <= engine.FeatureNone || f > engine.FeatureFusedF32:
		return rpcerr.InvalidArgument("feature_encoding", "features are wanted, the encoding is %d", f)
	case len(e.info.CaptureLayers) == 0:
		return rpcerr.FailedPrecondition("feature_encoding: no layers are captured")
	case isFused(f) && e.info.FeatureFused == 0:
		return rpcerr.FailedPrecondition("feature_encoding: fused features need a loaded fuse")
	}
	return nil
}
