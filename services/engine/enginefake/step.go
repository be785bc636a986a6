package enginefake

import (
	"context"
	"slices"
	"time"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/stepcheck"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// group is a checked group of a step.
type group struct {
	*engine.Group
	index int
	s     *sequence
	rows  []engine.Row
	first int // index of the first row in the step
}

// Step implements engine.Target.
func (e *Target) Step(ctx context.Context, step *engine.Step, result *engine.StepResult) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	start := time.Now()
	paced, err := e.step(ctx, step, result, start)
	if err != nil {
		return err
	}
	if err := e.await(ctx, step, start.Add(paced)); err != nil {
		return err
	}
	result.EngineNanos = int64(time.Since(start))
	return nil
}

// step runs a step in its turn, which it ends, and returns how long the step is to take altogether.
func (e *Engine) step(ctx context.Context, step *engine.Step, result *engine.StepResult,
	now time.Time) (paced time.Duration, err error) {
	defer e.leave()
	e.steps.Add(1)
	if err := e.strike(); err != nil {
		return 0, err
	}
	if err := e.check(step); err != nil {
		return 0, err
	}
	reset(result)
	groups := e.w.groups
	e.takePages(e.commit)
	for i := range groups {
		e.readKept(step, &groups[i], result)
	}
	if len(step.Rows) == 0 {
		return 0, nil
	}
	if err := wait(ctx, e.m.o.StepDelay+time.Duration(len(step.Rows))*e.m.o.RowDelay); err != nil {
		e.fail(step)
		return 0, err
	}
	paced = e.run(step, result, now)
	e.rows.Add(uint64(len(step.Rows)))
	return paced, nil
}

// await waits until a step is due, not in its turn: a slow sequence does not hold up the others.
func (e *Engine) await(ctx context.Context, step *engine.Step, due time.Time) error {
	left := time.Until(due)
	if left <= 0 {
		return nil
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-e.done:
		return e.Err()
	case <-ctx.Done():
	}
	if err := e.enter(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	defer e.leave()
	e.fail(step)
	return rpcerr.From(ctx.Err())
}

// fail leaves sequences as a cancelled forward pass does. The caller holds the turn.
func (e *Engine) fail(step *engine.Step) {
	for i := range step.Groups {
		if s := e.sequences[step.Groups[i].Sequence]; s != nil {
			s.broken = s.broken || step.Groups[i].Commit
			s.pending = s.pending[:0]
		}
	}
}

// commit keeps a group's path and drops the other pending rows.
func (e *Engine) commit(g *group) {
	s := g.s
	for _, row := range g.Path {
		p := &s.pending[row]
		if p.kept {
			s.kept.Commit(int32(s.length()))
		}
		s.append(p.token, p.hash)
	}
	s.pending = s.pending[:0]
	if len(g.Path) > 0 {
		e.commits.Add(1)
	}
}

func reset(r *engine.StepResult) {
	r.Tokens, r.Logprobs, r.Scores = r.Tokens[:0], r.Logprobs[:0], r.Scores[:0]
	r.TopIDs, r.TopLogprobs = r.TopIDs[:0], r.TopLogprobs[:0]
	r.Logits, r.Features, r.HiddenOut = r.Logits[:0], r.Features[:0], r.HiddenOut[:0]
	r.TopStride = 0
}

// run computes checked rows and returns how long a model of texts says that they take.
func (e *Engine) run(step *engine.Step, result *engine.StepResult, now time.Time) (paced time.Duration) {
	w := &e.w
	stride, want := 0, uint32(0)
	for i := range step.Rows {
		r := &step.Rows[i]
		want |= r.Want
		if r.Want&engine.WantTop != 0 {
			stride = max(stride, int(r.TopK))
		}
	}
	result.TopStride = stride
	w.hashes = w.hashes[:0]
	for i := range w.groups {
		g := &w.groups[i]
		for k := range g.rows {
			e.row(step, g, k, want, result)
		}
		if e.m.o.Text != nil {
			paced = max(paced, e.pace(g, result, now))
		}
		if !g.Commit {
			continue
		}
		for k := range g.rows {
			if g.rows[k].Want&engine.WantKeep != 0 {
				g.s.kept.Commit(int32(g.s.length()))
			}
			g.s.append(g.rows[k].Token, w.hashes[g.first+k])
		}
	}
	return paced
}

// row computes row k of a group; want is what any row of the step wants.
func (e *Engine) row(step *engine.Step, g *group, k int, want uint32, result *engine.StepResult) {
	w, hidden := &e.w, e.m.o.Hidden
	r, s := &g.rows[k], g.s
	before := s.tip()
	if r.Parent >= 0 {
		before = w.hashes[g.first+int(r.Parent)]
	}
	starts := g.Kind == engine.KindPrompt && k%promptRows == 0
	h := e.m.extend(before, r.Token, r.Position, starts)
	if len(step.HiddenIn) > 0 {
		h = e.m.under(hashOfFeatures(step.HiddenIn[(g.first+k)*hidden*step.Hidden.Bytes():],
			step.Hidden == engine.HiddenF32), r.Position, starts)
	}
	if window := e.options.AttentionWindow; window > 0 && int(r.Position) >= window {
		h = mix(h^uint64(window))&^shade | h&shade // other values than of a row that reads everything
	}
	w.hashes = append(w.hashes, h)
	if !g.Commit {
		s.pending = append(s.pending, pendingRow{r.Parent, r.Token, h, r.Want&engine.WantKeep != 0})
	}
	last := e.options.LayerLast == e.m.o.Layers
	if !last {
		result.HiddenOut = appendHidden(result.HiddenOut, h, hidden, step.Hidden)
	}
	if r.Want&(engine.WantFeatures|engine.WantKeep) != 0 {
		text, hint := e.m.text(h), e.hint(g, k)
		if r.Want&engine.WantKeep != 0 {
			s.kept.put(r.Position, text, hint)
		}
		if r.Want&engine.WantFeatures != 0 {
			result.Features = e.appendFeatures(result.Features, step.Features, text, hint)
		}
		if e.m.o.Histories != nil {
			e.m.o.Histories.put(text, e.history(g, k))
		}
	}
	if last {
		e.output(step, g, k, h, want, result)
	}
}

var fused = [1]int32{fusedLayer}

// hint is what the features of row k of a group tell a draft besides the hash, nil without a model of texts.
func (e *Engine) hint(g *group, k int) []byte {
	n := e.m.hintBytes()
	if n == 0 {
		return nil
	}
	w := &e.w
	w.hint = slices.Grow(w.hint[:0], n)[:n]
	clear(w.hint)
	e.m.o.Text.Hint(e.text(g, k), w.hint)
	return w.hint
}

// output fills the arrays that some row of the step wants.
func (e *Engine) output(step *engine.Step, g *group, k int, h uint64, want uint32, result *engine.StepResult) {
	w, r, s, vocab := &e.w, &g.rows[k], g.s, e.m.o.Vocab
	token, logprob, score := int32(-1), float32(0), float32(0)
	needs := r.Want&^(engine.WantFeatures|engine.WantKeep) != 0
	switch {
	case needs && e.m.o.Text != nil:
		token, logprob, score = e.peaked(step, g, k, result)
	case needs:
		var history []int32
		if e.m.o.Next != nil || s.set {
			history = e.history(g, k)
		}
		w.logits = slices.Grow(w.logits[:0], vocab)[:vocab]
		e.m.logits(h, history, w.logits)
		norm := logSumExp(w.logits, 1)
		if r.Want&engine.WantToken != 0 {
			w.choice = append(w.choice[:0], w.logits...)
			if token = choose(&s.sampler, w.choice, e.mask(step, r), history, int(r.Position)+1, w); token >= 0 {
				logprob = float32(float64(w.logits[token]) - norm)
			}
		}
		if r.Want&engine.WantScore != 0 {
			score = float32(float64(w.logits[r.Score]) - norm)
		}
		if r.Want&engine.WantLogits != 0 {
			result.Logits = append(result.Logits, w.logits...)
		}
		if r.Want&engine.WantTop != 0 {
			w.ids = slices.Grow(w.ids[:0], int(r.TopK))[:r.TopK]
			topK(w.logits, w.ids)
			for _, id := range w.ids {
				result.TopIDs = append(result.TopIDs, id)
				result.TopLogprobs = append(result.TopLogprobs, float32(float64(w.logits[id])-norm))
			}
		}
	}
	if want&engine.WantToken != 0 {
		result.Tokens = append(result.Tokens, token)
		result.Logprobs = append(result.Logprobs, logprob)
	}
	if want&engine.WantScore != 0 {
		result.Scores = append(result.Scores, score)
	}
	for len(result.TopIDs) < (g.first+k+1)*result.TopStride {
		result.TopIDs = append(result.TopIDs, -1)
		result.TopLogprobs = append(result.TopLogprobs, 0)
	}
}

// mask returns the tokens that a row may choose; nil = all.
func (e *Engine) mask(step *engine.Step, r *engine.Row) []uint32 {
	if r.Mask < 0 {
		return nil
	}
	words := (e.m.o.Vocab + 31) / 32
	return step.Masks[int(r.Mask)*words:][:words]
}

// history is the text up to and including row k of a group, valid until the next call.
func (e *Engine) history(g *group, k int) []int32 {
	w := &e.w
	w.history = append(w.history[:0], g.s.tokens...)
	mark := len(w.history)
	for at := int32(k); at >= 0; at = g.rows[at].Parent {
		w.history = append(w.history, g.rows[at].Token)
	}
	slices.Reverse(w.history[mark:])
	return w.history
}

// SetCapture implements engine.Target.
func (e *Target) SetCapture(ctx context.Context, layers []int32) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	for i, l := range layers {
		if int(l) < e.options.LayerFirst || int(l) >= e.options.LayerLast || i > 0 && l <= layers[i-1] {
			return rpcerr.InvalidArgument("layers", "must be ascending in %d..%d, got %v", e.options.LayerFirst,
				e.options.LayerLast-1, layers)
		}
	}
	e.forgetKept(layers)
	e.setCapture(layers, 0, 0)
	return nil
}

// setCapture captures layers; fused is how many layers a loaded fuse reads.
func (e *Engine) setCapture(layers []int32, fusedWidth, fused int) {
	e.infoMu.Lock()
	defer e.infoMu.Unlock()
	e.info.CaptureLayers = slices.Clone(layers)
	e.info.FeatureRaw, e.info.FeatureFused, e.info.FuseRaw = len(layers)*e.m.o.Hidden, fusedWidth, fused*e.m.o.Hidden
}

// LoadFuse implements engine.Target.
func (e *Target) LoadFuse(ctx context.Context, path string) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	if err := e.m.o.CheckFile("path", path); err != nil {
		return err
	}
	layers, err := e.m.o.FuseLayers(path)
	if err != nil {
		return err
	}
	own := slices.Clone(layers) // of a shard those in its range
	own = slices.DeleteFunc(own, func(l int32) bool {
		return int(l) < e.options.LayerFirst || int(l) >= e.options.LayerLast
	})
	e.forgetKept(own)
	e.setCapture(own, e.m.o.Hidden, len(layers))
	return nil
}

// Fuse implements engine.Target.
func (e *Target) Fuse(ctx context.Context, raw engine.RawFeatures, encoding engine.FeatureEncoding) ([]byte, error) {
	if err := e.enter(ctx); err != nil {
		return nil, err
	}
	defer e.leave()
	bad := rpcerr.InvalidArgument
	width := e.info.FuseRaw * valueBytes(raw.Encoding)
	switch {
	case raw.Rows < 1 || int(raw.Rows) > e.options.MaxBatchRows:
		return nil, bad("n", "must be in 1..%d (max_batch_rows), got %d", e.options.MaxBatchRows, raw.Rows)
	case raw.Kind != engine.KindDecode && raw.Kind != engine.KindPrompt:
		return nil, bad("kind", "unknown kind %d", raw.Kind)
	case raw.Encoding != engine.FeatureRawBF16 && raw.Encoding != engine.FeatureRawF32:
		return nil, bad("raw_encoding", "must be of raw features, got %d", raw.Encoding)
	case !stepcheck.Fused(encoding):
		return nil, bad("fused_encoding", "must be of fused features, got %d", encoding)
	case width == 0:
		return nil, rpcerr.FailedPrecondition("fused features need a loaded fuse")
	case len(raw.Data) != int(raw.Rows)*width:
		return nil, bad("raw", "%d rows need %d bytes, got %d", raw.Rows, int(raw.Rows)*width, len(raw.Data))
	}
	var out []byte
	for row := raw.Data; len(row) > 0; row = row[width:] {
		var hint []byte
		if n := e.m.hintBytes(); n > 0 {
			hint = hintOfFeatures(row, n, isF32(raw.Encoding))
		}
		out = e.appendFeatures(out, encoding, hashOfFeatures(row, isF32(raw.Encoding)), hint)
	}
	return out, nil
}
