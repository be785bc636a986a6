package enginefake

import (
	"context"
	"slices"
	"time"

	"github.com/tandem-inference/tandem/services/engineplugin"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

const allWants = engineplugin.WantToken | engineplugin.WantTop | engineplugin.WantLogits | engineplugin.WantFeatures | engineplugin.WantScore |
	engineplugin.WantKeep

// Step implements engineplugin.Engine.
func (e *Engine) Step(ctx context.Context, step *engineplugin.Step, result *engineplugin.StepResult) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	if e.options.Role != engineplugin.RoleTarget {
		return rpcerr.FailedPrecondition("role: only targets step")
	}
	start := time.Now()
	e.steps.Add(1)
	if err := e.strike(); err != nil {
		return err
	}
	for i := range step.Commits {
		if err := e.commit(&step.Commits[i]); err != nil {
			return err
		}
	}
	reset(result)
	if err := e.readKept(step, result); err != nil {
		return err
	}
	if len(step.Rows) == 0 {
		result.EngineNanos = int64(time.Since(start))
		return nil
	}
	if err := e.checkRows(step); err != nil {
		return err
	}
	for i := range step.Rows { // pending rows of the sequences in the step are dropped
		s := e.sequences[step.Rows[i].Sequence]
		s.pending = s.pending[:0]
	}
	if err := pause(ctx, e.m.o.StepDelay+time.Duration(len(step.Rows))*e.m.o.RowDelay); err != nil {
		if step.Prefill {
			for i := range step.Rows {
				e.sequences[step.Rows[i].Sequence].broken = true
			}
		}
		return err
	}
	paced := e.run(step, result, start)
	e.rows.Add(uint64(len(step.Rows)))
	// The pace is stated, not slept: other sequences need not wait for a slow one.
	result.EngineNanos = int64(max(time.Since(start), paced))
	return nil
}

// commit keeps a path of pending rows.
func (e *Engine) commit(c *engineplugin.Commit) error {
	s, err := e.whole(c.Sequence)
	if err != nil {
		return err
	}
	if len(c.Path) > 0 && len(s.pending) == 0 {
		return rpcerr.FailedPrecondition("path: sequence %d has no pending rows", c.Sequence)
	}
	parent := int32(-1)
	for i, row := range c.Path {
		p := slices.IndexFunc(s.pending, func(p pendingRow) bool { return p.row == row })
		if p < 0 {
			return rpcerr.InvalidArgument("path", "row %d at %d is not pending in sequence %d", row, i, c.Sequence)
		}
		if s.pending[p].parent != parent {
			return rpcerr.InvalidArgument("path", "row %d at %d is a child of %d, not of %d", row, i, s.pending[p].parent, parent)
		}
		parent = row
	}
	for _, row := range c.Path {
		p := slices.IndexFunc(s.pending, func(p pendingRow) bool { return p.row == row })
		if s.pending[p].kept {
			s.kept.commit(int32(s.length()))
		}
		s.append(s.pending[p].token, s.pending[p].hash)
	}
	s.pending = s.pending[:0]
	e.commits.Add(1)
	return nil
}

// checkRows holds a step to the contract, naming the field at fault.
func (e *Engine) checkRows(step *engineplugin.Step) error {
	bad := rpcerr.InvalidArgument
	n, vocab := len(step.Rows), e.m.o.Vocab
	if n > e.options.MaxBatchRows {
		return bad("n_rows", "must be at most %d, got %d", e.options.MaxBatchRows, n)
	}
	if want := step.NMasks * ((vocab + 31) / 32); step.NMasks < 0 || len(step.Masks) != want {
		return bad("masks", "%d masks need %d words, got %d", step.NMasks, want, len(step.Masks))
	}
	first, last := e.options.LayerFirst == 0, e.options.LayerLast == e.m.o.Layers
	if first && len(step.HiddenIn) != 0 {
		return bad("hidden_in", "an engine that starts at layer 0 takes tokens")
	}
	if !first && len(step.HiddenIn) != n*e.m.o.Hidden {
		return bad("hidden_in", "must have %d values, got %d", n*e.m.o.Hidden, len(step.HiddenIn))
	}
	if step.Features < engineplugin.FeatureNone || step.Features > engineplugin.FeatureFusedF32 {
		return bad("feature_encoding", "unknown encoding %d", step.Features)
	}
	w := &e.w
	clear(w.last)
	w.depths = slices.Grow(w.depths[:0], n)[:n]
	for i := range step.Rows {
		r := &step.Rows[i]
		s, err := e.whole(r.Sequence)
		if err != nil {
			return err
		}
		depth := int32(0)
		if r.Parent < -1 || int(r.Parent) >= i {
			return bad("rows.parent", "row %d: must be in -1..%d, got %d", i, i-1, r.Parent)
		}
		if r.Parent >= 0 {
			if step.Rows[r.Parent].Sequence != r.Sequence {
				return bad("rows.parent", "row %d: parent %d belongs to another sequence", i, r.Parent)
			}
			depth = w.depths[r.Parent] + 1
		}
		w.depths[i] = depth
		if at := int32(s.length()) + depth; r.Position != at {
			return bad("rows.position", "row %d: must be %d, got %d", i, at, r.Position)
		}
		if int(r.Position) >= e.options.MaxContext {
			return rpcerr.ResourceExhausted("max_context: row %d: position %d does not fit into %d", i, r.Position, e.options.MaxContext)
		}
		if first && (r.Token < 0 || int(r.Token) >= vocab) {
			return bad("rows.token", "row %d: must be in 0..%d, got %d", i, vocab-1, r.Token)
		}
		if err := e.checkWants(step, i, last); err != nil {
			return err
		}
		previous, seen := w.last[r.Sequence]
		if !seen {
			previous = -1
		}
		if step.Prefill && r.Parent != previous {
			return bad("rows.parent", "row %d: rows of a committing step form chains, parent must be %d, got %d", i, previous, r.Parent)
		}
		w.last[r.Sequence] = int32(i)
	}
	if err := e.checkKeeps(step); err != nil {
		return err
	}
	if !step.Prefill {
		for id := range w.last {
			rows := 0
			for i := range step.Rows {
				if step.Rows[i].Sequence == id {
					rows++
				}
			}
			if rows > e.options.MaxTreeRows {
				return bad("n_rows", "sequence %d has %d rows, max_tree_rows is %d", id, rows, e.options.MaxTreeRows)
			}
		}
	}
	return nil
}

func (e *Engine) checkWants(step *engineplugin.Step, i int, last bool) error {
	bad := rpcerr.InvalidArgument
	r, vocab := &step.Rows[i], e.m.o.Vocab
	switch {
	case r.Want&^allWants != 0:
		return bad("rows.want", "row %d: unknown bits %#x", i, r.Want&^allWants)
	case !last && r.Want&^(engineplugin.WantFeatures|engineplugin.WantKeep) != 0:
		return rpcerr.FailedPrecondition("rows.want: row %d: a shard that does not end at the last layer has no head", i)
	case r.Want&engineplugin.WantTop != 0 && (r.TopK < 1 || int(r.TopK) > e.options.MaxTopK):
		return bad("rows.top_k", "row %d: must be in 1..%d, got %d", i, e.options.MaxTopK, r.TopK)
	case r.Want&engineplugin.WantScore != 0 && (r.Score < 0 || int(r.Score) >= vocab):
		return bad("rows.score", "row %d: must be in 0..%d, got %d", i, vocab-1, r.Score)
	case r.Mask < -1 || int(r.Mask) >= step.NMasks:
		return bad("rows.mask", "row %d: must be in -1..%d, got %d", i, step.NMasks-1, r.Mask)
	}
	if r.Want&engineplugin.WantKeep != 0 && len(e.info.CaptureLayers) == 0 {
		return rpcerr.FailedPrecondition("rows.want: row %d: no layers are captured", i)
	}
	if r.Want&engineplugin.WantFeatures != 0 {
		return e.checkFeatures(step.Features)
	}
	return nil
}

func reset(r *engineplugin.StepResult) {
	r.Tokens, r.Logprobs, r.Scores = r.Tokens[:0], r.Logprobs[:0], r.Scores[:0]
	r.TopIDs, r.TopLogprobs = r.TopIDs[:0], r.TopLogprobs[:0]
	r.Logits, r.Features, r.HiddenOut = r.Logits[:0], r.Features[:0], r.HiddenOut[:0]
	r.TopStride = 0
}

// run computes checked rows and returns how long a model of texts wants them to take.
func (e *Engine) run(step *engineplugin.Step, result *engineplugin.StepResult, now time.Time) (paced time.Duration) {
	w, vocab, hidden := &e.w, e.m.o.Vocab, e.m.o.Hidden
	stride, want := 0, uint32(0)
	for i := range step.Rows {
		r := &step.Rows[i]
		want |= r.Want
		if r.Want&engineplugin.WantTop != 0 {
			stride = max(stride, int(r.TopK))
		}
	}
	result.TopStride = stride
	last := e.options.LayerLast == e.m.o.Layers
	w.hashes = w.hashes[:0]
	for i := range step.Rows {
		r := &step.Rows[i]
		s := e.sequences[r.Sequence]
		before := s.tip()
		if r.Parent >= 0 {
			before = w.hashes[r.Parent]
		}
		h := extend(before, r.Token)
		if len(step.HiddenIn) > 0 {
			h = hiddenToHash(step.HiddenIn[i*hidden:])
		}
		w.hashes = append(w.hashes, h)
		if !step.Prefill {
			s.pending = append(s.pending, pendingRow{int32(i), r.Parent, r.Token, h, r.Want&engineplugin.WantKeep != 0})
		}
		if !last {
			w.logits = slices.Grow(w.logits[:0], hidden)[:hidden]
			hashToHidden(h, w.logits)
			result.HiddenOut = append(result.HiddenOut, w.logits...)
		}
		if r.Want&(engineplugin.WantFeatures|engineplugin.WantKeep) != 0 {
			hint := e.hint(step, i)
			if r.Want&engineplugin.WantKeep != 0 {
				s.kept.put(r.Position, h, hint)
			}
			if r.Want&engineplugin.WantFeatures != 0 {
				result.Features = e.appendFeatures(result.Features, step.Features, h, hint)
			}
			if e.m.o.Histories != nil {
				e.m.o.Histories.put(h, e.history(step, i))
			}
		}
		if last {
			e.output(step, i, h, want, stride, vocab, result)
		}
	}
	if e.m.o.Text != nil {
		paced = e.pace(step, result, now)
	}
	if step.Prefill {
		for i := range step.Rows {
			s := e.sequences[step.Rows[i].Sequence]
			if step.Rows[i].Want&engineplugin.WantKeep != 0 {
				s.kept.commit(int32(s.length()))
			}
			s.append(step.Rows[i].Token, w.hashes[i])
		}
	}
	return paced
}

var fused = [1]int32{fusedLayer}

// hint is what the features of a row tell a draft besides the hash, nil without a model of texts.
func (e *Engine) hint(step *engineplugin.Step, i int) []byte {
	n := e.m.hintBytes()
	if n == 0 {
		return nil
	}
	w := &e.w
	w.hint = slices.Grow(w.hint[:0], n)[:n]
	clear(w.hint)
	e.m.o.Text.Hint(e.text(step, i), w.hint)
	return w.hint
}

// output fills the arrays that some row of the batch wants.
func (e *Engine) output(step *engineplugin.Step, i int, h uint64, want uint32, stride, vocab int, result *engineplugin.StepResult) {
	w, r := &e.w, &step.Rows[i]
	s := e.sequences[r.Sequence]
	token, logprob, score := int32(-1), float32(0), float32(0)
	needs := r.Want&^(engineplugin.WantFeatures|engineplugin.WantKeep) != 0
	switch {
	case needs && e.m.o.Text != nil:
		token, logprob, score = e.peaked(step, i, result)
	case needs:
		var history []int32
		if e.m.o.Next != nil || s.set {
			history = e.history(step, i)
		}
		w.logits = slices.Grow(w.logits[:0], vocab)[:vocab]
		e.m.logits(h, history, w.logits)
		norm := logSumExp(w.logits, 1)
		if r.Want&engineplugin.WantToken != 0 {
			var mask []uint32
			if r.Mask >= 0 {
				words := (vocab + 31) / 32
				mask = step.Masks[int(r.Mask)*words:][:words]
			}
			w.choice = append(w.choice[:0], w.logits...)
			if token = choose(&s.sampler, w.choice, mask, history, int(r.Position)+1, w); token >= 0 {
				logprob = float32(float64(w.logits[token]) - norm)
			}
		}
		if r.Want&engineplugin.WantScore != 0 {
			score = float32(float64(w.logits[r.Score]) - norm)
		}
		if r.Want&engineplugin.WantLogits != 0 {
			result.Logits = append(result.Logits, w.logits...)
		}
		if r.Want&engineplugin.WantTop != 0 {
			w.ids = slices.Grow(w.ids[:0], int(r.TopK))[:r.TopK]
			topK(w.logits, w.ids)
			for _, id := range w.ids {
				result.TopIDs = append(result.TopIDs, id)
				result.TopLogprobs = append(result.TopLogprobs, float32(float64(w.logits[id])-norm))
			}
		}
	}
	if want&engineplugin.WantToken != 0 {
		result.Tokens = append(result.Tokens, token)
		result.Logprobs = append(result.Logprobs, logprob)
	}
	if want&engineplugin.WantScore != 0 {
		result.Scores = append(result.Scores, score)
	}
	for len(result.TopIDs) < (i+1)*stride {
		result.TopIDs = append(result.TopIDs, -1)
		result.TopLogprobs = append(result.TopLogprobs, 0)
	}
}

// history is the text up to and including row i, valid until the next call.
func (e *Engine) history(step *engineplugin.Step, i int) []int32 {
	w := &e.w
	w.history = append(w.history[:0], e.sequences[step.Rows[i].Sequence].tokens...)
	mark := len(w.history)
	for at := int32(i); at >= 0; at = step.Rows[at].Parent {
		w.history = append(w.history, step.Rows[at].Token)
	}
	slices.Reverse(w.history[mark:])
	return w.history
}

// SetCapture implements engineplugin.Engine.
func (e *Engine) SetCapture(ctx context.Context, layers []int32) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	if e.options.Role != engineplugin.RoleTarget {
		return rpcerr.FailedPrecondition("role: only targets capture")
	}
	for i, l := range layers {
		if int(l) < e.options.LayerFirst || int(l) >= e.options.LayerLast || i > 0 && l <= layers[i-1] {
			return rpcerr.InvalidArgument("layers", "must be ascending in %d..%d, got %v", e.options.LayerFirst, e.options.LayerLast-1, layers)
		}
	}
	e.forgetKept(layers)
	e.setCapture(layers, 0)
	return nil
}

func (e *Engine) setCapture(layers []int32, fusedWidth int) {
	e.infoMu.Lock()
	defer e.infoMu.Unlock()
	e.info.CaptureLayers = slices.Clone(layers)
	e.info.FeatureRaw, e.info.FeatureFused = len(layers)*e.m.o.Hidden, fusedWidth
}

// LoadFuse implements engineplugin.Engine.
func (e *Engine) LoadFuse(ctx context.Context, path string) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	if e.options.Role != engineplugin.RoleTarget {
		return rpcerr.FailedPrecondition("role: only targets fuse")
	}
	if err := e.m.o.CheckFile("path", path); err != nil {
		return err
	}
	layers, err := e.m.o.FuseLayers(path)
	if err != nil {
		return err
	}
	e.forgetKept(layers)
	e.setCapture(layers, e.m.o.Hidden)
	return nil
}
