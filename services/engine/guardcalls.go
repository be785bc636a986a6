package engine

import "context"

// GuardedTarget is a Target that loses no handle of another one.
type GuardedTarget struct {
	guardedSequences
	target Target
}

// GuardTarget guards an engine until Close.
func GuardTarget(e Target, cfg GuardConfig) *GuardedTarget {
	g := &GuardedTarget{target: e}
	g.init(e, cfg)
	return g
}

// GuardedDraft is a Draft that loses no handle of another one.
type GuardedDraft struct {
	guardedSequences
	draft Draft
}

// GuardDraft guards an engine until Close.
func GuardDraft(e Draft, cfg GuardConfig) *GuardedDraft {
	g := &GuardedDraft{draft: e}
	g.init(e, cfg)
	return g
}

// GuardedScorer is a Scorer that is given up when its calls do not come back.
type GuardedScorer struct {
	*Guard
	scorer Scorer
}

// GuardScorer guards an engine until Close.
func GuardScorer(e Scorer, cfg GuardConfig) *GuardedScorer {
	g := &GuardedScorer{Guard: newGuard(e, cfg), scorer: e}
	g.start(nil)
	return g
}

// Calls that only pass through the clock.

// timed runs a control call.
func (g *Guard) timed(f func() error) error {
	i := g.clock.begin(callControl, 1)
	err := f()
	g.clock.end(i, err)
	return err
}

// Step implements Target.
func (g *GuardedTarget) Step(ctx context.Context, step *Step, result *StepResult) error {
	kind, position := callStep, 0
	for i := range step.Groups {
		if step.Groups[i].Kind == KindPrompt {
			kind = callPrefill
		}
	}
	for i := range step.Rows {
		position = max(position, int(step.Rows[i].Position))
	}
	i := g.clock.begin(kind, units(len(step.Rows), position))
	err := g.target.Step(ctx, step, result)
	g.clock.end(i, err)
	return err
}

// Propose implements Draft.
func (g *GuardedDraft) Propose(ctx context.Context, features []FeatureRows, requests []DraftRequest,
	result *DraftResult) error {
	rows, position := 0, 0
	for i := range features {
		rows += int(features[i].Rows)
	}
	for i := range requests {
		rows += int(requests[i].Block)
		position = max(position, int(requests[i].Position))
	}
	i := g.clock.begin(callPropose, units(rows, position))
	err := g.draft.Propose(ctx, features, requests, result)
	g.clock.end(i, err)
	return err
}

// Score implements Scorer.
func (g *GuardedScorer) Score(ctx context.Context, prompts []Prompt, rotated bool,
	progress Progress) ([][]float32, error) {
	work := 0.0
	for i := range prompts {
		work += units(len(prompts[i].IDs), len(prompts[i].IDs))
	}
	i := g.clock.begin(callScore, max(work, 1))
	scores, err := g.scorer.Score(ctx, prompts, rotated, progress)
	g.clock.end(i, err)
	return scores, err
}

// SequenceLength implements Sequences.
func (g *guardedSequences) SequenceLength(ctx context.Context, s Sequence) (n int, err error) {
	err = g.timed(func() error { n, err = g.inner.SequenceLength(ctx, s); return err })
	return n, err
}

// Truncate implements Sequences.
func (g *guardedSequences) Truncate(ctx context.Context, s Sequence, length int) error {
	return g.timed(func() error { return g.inner.Truncate(ctx, s, length) })
}

// SetSampler implements Target.
func (g *GuardedTarget) SetSampler(ctx context.Context, s Sequence, sampler Sampler) error {
	return g.timed(func() error { return g.target.SetSampler(ctx, s, sampler) })
}

// RestoreSnapshot implements Sequences.
func (g *guardedSequences) RestoreSnapshot(ctx context.Context, p Snapshot, s Sequence) error {
	return g.timed(func() error { return g.inner.RestoreSnapshot(ctx, p, s) })
}

// DemoteSnapshot implements Sequences.
func (g *guardedSequences) DemoteSnapshot(ctx context.Context, p Snapshot) error {
	return g.timed(func() error { return g.inner.DemoteSnapshot(ctx, p) })
}

// Export implements Sequences.
func (g *guardedSequences) Export(ctx context.Context, s Sequence) (state []byte, err error) {
	err = g.timed(func() error { state, err = g.inner.Export(ctx, s); return err })
	return state, err
}

// Import implements Sequences.
func (g *guardedSequences) Import(ctx context.Context, s Sequence, state []byte) error {
	return g.timed(func() error { return g.inner.Import(ctx, s, state) })
}

// SetCapture implements Target.
func (g *GuardedTarget) SetCapture(ctx context.Context, layers []int32) error {
	return g.timed(func() error { return g.target.SetCapture(ctx, layers) })
}

// LoadFuse implements Target.
func (g *GuardedTarget) LoadFuse(ctx context.Context, path string) error {
	return g.timed(func() error { return g.target.LoadFuse(ctx, path) })
}

// Fuse implements Target.
func (g *GuardedTarget) Fuse(ctx context.Context, raw RawFeatures, encoding FeatureEncoding) (fused []byte, err error) {
	err = g.timed(func() error { fused, err = g.target.Fuse(ctx, raw, encoding); return err })
	return fused, err
}
