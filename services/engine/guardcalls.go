package engine

import "context"

// Calls of a Guard that only pass through its clock.

// timed runs a control call.
func (g *Guard) timed(f func() error) error {
	i := g.clock.begin(callControl, 1)
	err := f()
	g.clock.end(i, err)
	return err
}

// Step implements Engine.
func (g *Guard) Step(ctx context.Context, step *Step, result *StepResult) error {
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
	err := g.Engine.Step(ctx, step, result)
	g.clock.end(i, err)
	return err
}

// Propose implements Engine.
func (g *Guard) Propose(ctx context.Context, features []FeatureRows, requests []DraftRequest, result *DraftResult) error {
	rows, position := 0, 0
	for i := range features {
		rows += int(features[i].Rows)
	}
	for i := range requests {
		rows += int(requests[i].Block)
		position = max(position, int(requests[i].Position))
	}
	i := g.clock.begin(callPropose, units(rows, position))
	err := g.Engine.Propose(ctx, features, requests, result)
	g.clock.end(i, err)
	return err
}

// Score implements Engine.
func (g *Guard) Score(ctx context.Context, ids []int32, queryRows []int32, rotated bool) ([]float32, error) {
	i := g.clock.begin(callScore, units(len(ids), len(ids)))
	scores, err := g.Engine.Score(ctx, ids, queryRows, rotated)
	g.clock.end(i, err)
	return scores, err
}

// SequenceLength implements Engine.
func (g *Guard) SequenceLength(ctx context.Context, s Sequence) (n int, err error) {
	err = g.timed(func() error { n, err = g.Engine.SequenceLength(ctx, s); return err })
	return n, err
}

// Truncate implements Engine.
func (g *Guard) Truncate(ctx context.Context, s Sequence, length int) error {
	return g.timed(func() error { return g.Engine.Truncate(ctx, s, length) })
}

// SetSampler implements Engine.
func (g *Guard) SetSampler(ctx context.Context, s Sequence, sampler Sampler) error {
	return g.timed(func() error { return g.Engine.SetSampler(ctx, s, sampler) })
}

// RestoreSnapshot implements Engine.
func (g *Guard) RestoreSnapshot(ctx context.Context, p Snapshot, s Sequence) error {
	return g.timed(func() error { return g.Engine.RestoreSnapshot(ctx, p, s) })
}

// DemoteSnapshot implements Engine.
func (g *Guard) DemoteSnapshot(ctx context.Context, p Snapshot) error {
	return g.timed(func() error { return g.Engine.DemoteSnapshot(ctx, p) })
}

// Export implements Engine.
func (g *Guard) Export(ctx context.Context, s Sequence) (state []byte, err error) {
	err = g.timed(func() error { state, err = g.Engine.Export(ctx, s); return err })
	return state, err
}

// Import implements Engine.
func (g *Guard) Import(ctx context.Context, s Sequence, state []byte) error {
	return g.timed(func() error { return g.Engine.Import(ctx, s, state) })
}

// SetCapture implements Engine.
func (g *Guard) SetCapture(ctx context.Context, layers []int32) error {
	return g.timed(func() error { return g.Engine.SetCapture(ctx, layers) })
}

// LoadFuse implements Engine.
func (g *Guard) LoadFuse(ctx context.Context, path string) error {
	return g.timed(func() error { return g.Engine.LoadFuse(ctx, path) })
}
