package batch

import (
	"context"

	"github.com/tandem-inference/tandem/services/engineplugin"
)

// Calls that look at or change a sequence first commit what it is owed.

// FreeSequence implements engineplugin.Engine.
func (e *Engine) FreeSequence(ctx context.Context, s engineplugin.Sequence) error {
	e.mu.Lock()
	delete(e.states, s)
	e.mu.Unlock()
	return e.Engine.FreeSequence(ctx, s)
}

// SequenceLength implements engineplugin.Engine.
func (e *Engine) SequenceLength(ctx context.Context, s engineplugin.Sequence) (int, error) {
	if err := e.flush(ctx, s); err != nil {
		return 0, err
	}
	return e.Engine.SequenceLength(ctx, s)
}

// Truncate implements engineplugin.Engine.
func (e *Engine) Truncate(ctx context.Context, s engineplugin.Sequence, length int) error {
	if err := e.flush(ctx, s); err != nil {
		return err
	}
	return e.Engine.Truncate(ctx, s, length)
}

// NewSnapshot implements engineplugin.Engine.
func (e *Engine) NewSnapshot(ctx context.Context, s engineplugin.Sequence) (engineplugin.Snapshot, error) {
	if err := e.flush(ctx, s); err != nil {
		return 0, err
	}
	return e.Engine.NewSnapshot(ctx, s)
}

// RestoreSnapshot implements engineplugin.Engine.
func (e *Engine) RestoreSnapshot(ctx context.Context, p engineplugin.Snapshot, s engineplugin.Sequence) error {
	if err := e.flush(ctx, s); err != nil {
		return err
	}
	return e.Engine.RestoreSnapshot(ctx, p, s)
}

// Export implements engineplugin.Engine.
func (e *Engine) Export(ctx context.Context, s engineplugin.Sequence) ([]byte, error) {
	if err := e.flush(ctx, s); err != nil {
		return nil, err
	}
	return e.Engine.Export(ctx, s)
}

// Import implements engineplugin.Engine.
func (e *Engine) Import(ctx context.Context, s engineplugin.Sequence, state []byte) error {
	if err := e.flush(ctx, s); err != nil {
		return err
	}
	return e.Engine.Import(ctx, s, state)
}

// flush commits what a sequence is owed, by a step without rows.
func (e *Engine) flush(ctx context.Context, q engineplugin.Sequence) error {
	s := e.state(q)
	if len(s.owed) == 0 {
		return nil
	}
	step := engineplugin.Step{Commits: []engineplugin.Commit{{Sequence: q}}}
	step.Commits[0].Path = append(step.Commits[0].Path, s.owed...)
	base := s.base
	for i := range step.Commits[0].Path {
		step.Commits[0].Path[i] -= base
	}
	s.owed = s.owed[:0]
	return e.Step(ctx, &step, &engineplugin.StepResult{})
}
