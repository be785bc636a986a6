// Package stepcheck holds a Step to the contract of engine.Target before anything changes. Engines written in Go use
// it: the fake, and a target whose layers are spread over several engines. Errors name the field at fault.
package stepcheck

import (
	"fmt"
	"slices"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// Sequence is what the checks ask of a sequence.
type Sequence interface {
	Length() int
	Broken() bool
	Pending() int                               // rows that wait for a commit
	PendingRow(i int) (parent int32, kept bool) // of them
	Kept() Span                                 // features that can be read
}

// Span are the positions [First, Next) of kept rows that are committed.
type Span struct{ First, Next int32 }

// Put makes room for the row of a position, whether or not it is committed then.
func (s *Span) Put(position int32) { s.First = max(s.First, position-engine.KeptRows+1) }

// Commit makes the row of a position readable.
func (s *Span) Commit(position int32) {
	if position != s.Next || s.First > position {
		s.First = position
	}
	s.Next = position + 1
}

// Truncate forgets what is not below length.
func (s *Span) Truncate(length int) { s.Next = min(s.Next, int32(length)) }

// limits are those of an engine.
type limits struct{ *engine.Info }

func (l limits) first() bool { return l.LayerFirst == 0 }
func (l limits) last() bool  { return l.LayerLast == l.Layers }

// fuses tells whether a step can give fused features: of all layers that a loaded fuse reads.
func (l limits) fuses() bool { return l.FeatureFused != 0 && l.FuseRaw == l.FeatureRaw }

// Group is a checked group of a step.
type Group[S Sequence] struct {
	*engine.Group
	Index int
	S     S
	Rows  []engine.Row
	First int // index of the first row in the step
}

// Wanting counts the rows that want one of some outputs.
func (g *Group[S]) Wanting(want uint32) (n int) {
	for i := range g.Rows {
		if g.Rows[i].Want&want != 0 {
			n++
		}
	}
	return n
}

// Checker checks steps, one at a time; its memory is used again.
type Checker[S Sequence] struct {
	groups []Group[S]
	seen   map[engine.Sequence]bool
	depths []int32
}

const allWants = engine.WantToken | engine.WantTop | engine.WantLogits | engine.WantFeatures | engine.WantScore |
	engine.WantKeep

// groupField names a field of a group.
func groupField(i int, name string) string { return fmt.Sprintf("groups[%d].%s", i, name) }

// rowField names a field of a row, counted within its group.
func rowField(group, row int, name string) string {
	return fmt.Sprintf("groups[%d].rows[%d].%s", group, row, name)
}

// Check returns the groups of a step that keeps the contract, valid until the next call. find returns false for a
// sequence that does not exist. Whether there is memory for the rows is for the engine to say.
func (c *Checker[S]) Check(info *engine.Info, step *engine.Step,
	find func(engine.Sequence) (S, bool)) ([]Group[S], error) {
	l, bad := limits{info}, rpcerr.InvalidArgument
	n, vocab := len(step.Rows), l.Vocab
	if len(step.Groups) == 0 {
		return nil, bad("groups", "is empty")
	}
	if n > l.MaxBatchRows {
		return nil, bad("n_rows", "must be at most %d (max_batch_rows), got %d", l.MaxBatchRows, n)
	}
	if want := step.NMasks * ((vocab + 31) / 32); step.NMasks < 0 || len(step.Masks) != want {
		return nil, bad("masks", "%d masks need %d words, got %d", step.NMasks, want, len(step.Masks))
	}
	first := l.first()
	if first && len(step.HiddenIn) != 0 {
		return nil, bad("hidden_in", "an engine that starts at layer 0 takes tokens")
	}
	width := l.Hidden * step.Hidden.Bytes()
	if width == 0 {
		return nil, bad("hidden_encoding", "unknown encoding %d", step.Hidden)
	}
	if !first && len(step.HiddenIn) != n*width {
		return nil, bad("hidden_in", "must have %d bytes, got %d", n*width, len(step.HiddenIn))
	}
	if step.Features < engine.FeatureNone || step.Features > engine.FeatureFusedF32 {
		return nil, bad("feature_encoding", "unknown encoding %d", step.Features)
	}
	if c.seen == nil {
		c.seen = map[engine.Sequence]bool{}
	}
	clear(c.seen)
	c.groups = c.groups[:0]
	at, features := 0, 0
	for i := range step.Groups {
		g := Group[S]{Group: &step.Groups[i], Index: i, First: at}
		if g.Group.Rows < 0 || g.Group.Rows > n-at {
			return nil, bad(groupField(i, "n_rows"), "must be in 0..%d, what is left of %d rows, got %d", n-at, n, g.Group.Rows)
		}
		g.Rows = step.Rows[at : at+g.Group.Rows]
		at += g.Group.Rows
		s, ok := find(g.Sequence)
		if !ok {
			return nil, rpcerr.NotFound("%s: %d does not exist", groupField(i, "sequence"), g.Sequence)
		}
		g.S = s
		if err := c.checkGroup(l, step, &g); err != nil {
			return nil, err
		}
		features += int(g.Kept.Rows) + g.Wanting(engine.WantFeatures)
		c.groups = append(c.groups, g)
	}
	if at != n {
		return nil, bad("n_rows", "is %d, the groups have %d", n, at)
	}
	if features > l.MaxBatchRows {
		return nil, bad("n_kept", "of the groups and their rows that want features are %d together, at most %d (max_batch_rows)", features, l.MaxBatchRows)
	}
	return c.groups, nil
}

func (c *Checker[S]) checkGroup(l limits, step *engine.Step, g *Group[S]) error {
	bad := rpcerr.InvalidArgument
	switch {
	case g.S.Broken():
		return rpcerr.FailedPrecondition("%s: %d is broken by a cancelled step", groupField(g.Index, "sequence"), g.Sequence)
	case c.seen[g.Sequence]:
		return bad(groupField(g.Index, "sequence"), "%d has a group already", g.Sequence)
	case g.Kind > engine.KindPrompt:
		return bad(groupField(g.Index, "kind"), "must be %d (decode) or %d (prompt), got %d", engine.KindDecode,
			engine.KindPrompt, g.Kind)
	case g.Kind == engine.KindPrompt && !g.Commit:
		return bad(groupField(g.Index, "kind"), "a prompt piece is committed by its step")
	case g.Commit && len(g.Rows) == 0:
		return bad(groupField(g.Index, "flags"), "there are no rows to commit")
	case !g.Commit && len(g.Rows) > l.MaxTreeRows:
		return bad(groupField(g.Index, "n_rows"), "uncommitted rows must be at most %d (max_tree_rows), got %d", l.MaxTreeRows, len(g.Rows))
	}
	c.seen[g.Sequence] = true
	if err := checkCommit(g); err != nil {
		return err
	}
	if err := checkKept(l, step, g); err != nil {
		return err
	}
	return c.checkRows(l, step, g)
}

// checkCommit checks what a group commits.
func checkCommit[S Sequence](g *Group[S]) error {
	if len(g.Path) > 0 && g.S.Pending() == 0 {
		return rpcerr.FailedPrecondition("%s: %d rows to commit, sequence %d has none pending",
			groupField(g.Index, "n_path"), len(g.Path), g.Sequence)
	}
	parent := int32(-1)
	for i, row := range g.Path {
		name := func() string { return fmt.Sprintf("groups[%d].path[%d]", g.Index, i) }
		if row < 0 || int(row) >= g.S.Pending() {
			return rpcerr.InvalidArgument(name(), "is %d, %d rows are pending", row, g.S.Pending())
		}
		if got, _ := g.S.PendingRow(int(row)); got != parent {
			return rpcerr.InvalidArgument(name(), "is %d, a child of %d and not of %d", row, got, parent)
		}
		parent = row
	}
	return nil
}

// checkKept checks the range of kept features, which is read after the group's path is committed.
func checkKept[S Sequence](l limits, step *engine.Step, g *Group[S]) error {
	if g.Kept.Rows < 0 {
		return rpcerr.InvalidArgument(groupField(g.Index, "n_kept"), "must be >= 0, got %d", g.Kept.Rows)
	}
	if g.Kept.Rows == 0 {
		return nil
	}
	if err := l.checkFeatures(step.Features); err != nil {
		return err
	}
	span := g.S.Kept()
	for i, row := range g.Path {
		if _, kept := g.S.PendingRow(int(row)); kept {
			span.Commit(int32(g.S.Length() + i))
		}
	}
	if g.Kept.Position < span.First || int64(g.Kept.Position)+int64(g.Kept.Rows) > int64(span.Next) {
		return rpcerr.FailedPrecondition("%s: features of %d rows from %d on are not kept, those of %d..%d are",
			groupField(g.Index, "kept_position"), g.Kept.Rows, g.Kept.Position, span.First, span.Next-1)
	}
	return nil
}

// checkRows checks the rows of a group, which run after its path is committed.
func (c *Checker[S]) checkRows(l limits, step *engine.Step, g *Group[S]) error {
	bad := rpcerr.InvalidArgument
	length := int32(g.S.Length() + len(g.Path))
	c.depths = slices.Grow(c.depths[:0], len(g.Rows))[:len(g.Rows)]
	for i := range g.Rows {
		r := &g.Rows[i]
		if r.Parent < -1 || int(r.Parent) >= i {
			return bad(rowField(g.Index, i, "parent"), "must be in -1..%d, got %d", i-1, r.Parent)
		}
		if g.Commit && int(r.Parent) != i-1 {
			return bad(rowField(g.Index, i, "parent"), "committed rows form a chain, must be %d, got %d", i-1, r.Parent)
		}
		c.depths[i] = 0
		if r.Parent >= 0 {
			c.depths[i] = c.depths[r.Parent] + 1
		}
		if at := length + c.depths[i]; r.Position != at {
			return bad(rowField(g.Index, i, "position"), "must be %d, got %d", at, r.Position)
		}
		if int(r.Position) >= l.MaxContext {
			return rpcerr.ResourceExhausted("%s: %d does not fit into %d (max_context)", rowField(g.Index, i, "position"),
				r.Position, l.MaxContext)
		}
		if vocab := l.Vocab; l.first() && (r.Token < 0 || int(r.Token) >= vocab) {
			return bad(rowField(g.Index, i, "token"), "must be in 0..%d, got %d", vocab-1, r.Token)
		}
		if err := l.checkWants(step, g.Index, &g.Rows[i], i); err != nil {
			return err
		}
	}
	return checkKeeps(g)
}

func (l limits) checkWants(step *engine.Step, group int, r *engine.Row, i int) error {
	bad := rpcerr.InvalidArgument
	vocab := l.Vocab
	last := l.last()
	switch {
	case r.Want&^allWants != 0:
		return bad(rowField(group, i, "want"), "unknown bits %#x", r.Want&^allWants)
	case !last && r.Want&^(engine.WantFeatures|engine.WantKeep) != 0:
		return rpcerr.FailedPrecondition("%s: a shard that does not end at the last layer has no head",
			rowField(group, i, "want"))
	case r.Want&engine.WantTop != 0 && (r.TopK < 1 || int(r.TopK) > l.MaxTopK):
		return bad(rowField(group, i, "top_k"), "must be in 1..%d, got %d", l.MaxTopK, r.TopK)
	case r.Want&engine.WantScore != 0 && (r.Score < 0 || int(r.Score) >= vocab):
		return bad(rowField(group, i, "score"), "must be in 0..%d, got %d", vocab-1, r.Score)
	case r.Mask < -1 || int(r.Mask) >= step.NMasks:
		return bad(rowField(group, i, "mask"), "must be in -1..%d, got %d", step.NMasks-1, r.Mask)
	}
	if r.Want&engine.WantKeep != 0 && len(l.CaptureLayers) == 0 {
		return rpcerr.FailedPrecondition("%s: no layers are captured", rowField(group, i, "want"))
	}
	if r.Want&engine.WantFeatures != 0 {
		return l.checkFeatures(step.Features)
	}
	return nil
}

// checkKeeps refuses a group of whose rows two would take the same place.
func checkKeeps[S Sequence](g *Group[S]) error {
	for i := range g.Rows {
		r := &g.Rows[i]
		if r.Want&engine.WantKeep == 0 {
			continue
		}
		for _, o := range g.Rows[:i] {
			if o.Want&engine.WantKeep != 0 && (o.Position-r.Position)%engine.KeptRows == 0 {
				return rpcerr.InvalidArgument(rowField(g.Index, i, "position"), "another row that is kept takes the place of %d",
					r.Position)
			}
		}
	}
	return nil
}

// checkFeatures refuses an encoding that the engine cannot give now.
func (l limits) checkFeatures(f engine.FeatureEncoding) error {
	switch {
	case f <= engine.FeatureNone || f > engine.FeatureFusedF32:
		return rpcerr.InvalidArgument("feature_encoding", "features are wanted, the encoding is %d", f)
	case len(l.CaptureLayers) == 0:
		return rpcerr.FailedPrecondition("feature_encoding: no layers are captured")
	case Fused(f) && !l.fuses():
		return rpcerr.FailedPrecondition("feature_encoding: fused features need a loaded fuse")
	}
	return nil
}

// Fused tells encodings of fused rows from those of raw ones.
func Fused(f engine.FeatureEncoding) bool {
	return f == engine.FeatureFusedBF16 || f == engine.FeatureFusedF32
}
