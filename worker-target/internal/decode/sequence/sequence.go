// Package sequence holds the engine's side of one request: its sequence, the step that is being put together, what the
// step returned, and the path whose commit is pending.
//
// A step first commits the path of the step before, so that a round costs one call. A step whose rows are certain to be
// kept commits them itself and leaves nothing pending.
package sequence

import (
	"context"

	"github.com/tandem-inference/tandem/services/engine"
)

// Sequence is the sequence of one request after another. Its memory is kept between them.
type Sequence struct {
	engine  engine.Target
	id      engine.Sequence
	vocab   int
	length  int
	path    []int32 // accepted rows of the last step, pending unless its group commits
	group   [1]engine.Group
	step    engine.Step
	built   bool // the step is put together and has not run
	result  Result
	reading [1]engine.Group // of a step without rows, or of known tokens
	known   []engine.Row
	read    engine.StepResult
}

// Start begins a request on sequence id, which holds length positions. vocab bounds the tokens that the engine may
// choose.
func (s *Sequence) Start(e engine.Target, id engine.Sequence, length, vocab int) {
	s.engine, s.id, s.vocab, s.length = e, id, vocab, length
	s.path, s.group[0], s.built = s.path[:0], engine.Group{}, false
}

// Move goes on with another sequence of the engine in the same state, in which nothing is pending.
func (s *Sequence) Move(id engine.Sequence) { s.id, s.group[0].Sequence = id, id }

// ID is the engine's handle.
func (s *Sequence) ID() engine.Sequence { return s.id }

// Length is the number of positions in the sequence once the pending path is committed.
func (s *Sequence) Length() int { return s.length }

// Advance adds n positions: those of accepted rows.
func (s *Sequence) Advance(n int) { s.length += n }

// Path returns the rows of the last step that were accepted, each the parent of the next.
func (s *Sequence) Path() []int32 { return s.path }

// SetPath sets the rows of the last step that are accepted. The next step commits them unless the last one did.
func (s *Sequence) SetPath(path []int32) { s.path = path }

// Begin starts a step that first commits what is pending. kept is the number of newest committed rows whose features
// it reads from the engine.
func (s *Sequence) Begin(kind engine.GroupKind, features engine.FeatureEncoding, kept int) {
	next := engine.Group{Sequence: s.id, Kind: kind, Kept: s.keptRange(kept)}
	if !s.group[0].Commit {
		next.Path = s.path
	}
	s.group[0] = next
	s.step = engine.Step{Groups: s.group[:], Rows: s.step.Rows[:0], Features: features}
	s.built = true
}

// Trace names the span that the step is part of.
func (s *Sequence) Trace(t engine.Trace) { s.group[0].Trace = t }

// Add adds a row to the step.
func (s *Sequence) Add(row engine.Row) { s.step.Rows = append(s.step.Rows, row) }

// SetMasks sets the n masks that the step's rows name.
func (s *Sequence) SetMasks(masks []uint32, n int) { s.step.Masks, s.step.NMasks = masks, n }

// Run runs the step. With commit its rows are a chain that is kept whole.
func (s *Sequence) Run(ctx context.Context, commit bool) error {
	s.group[0].Rows, s.group[0].Commit = len(s.step.Rows), commit
	err := s.result.run(ctx, s.engine, &s.step, s.vocab)
	s.built = err != nil
	return err
}

// Result returns what the last step returned. It is valid until the next one.
func (s *Sequence) Result() *Result { return &s.result }

// Commit commits what is pending by a step without rows.
func (s *Sequence) Commit(ctx context.Context) error {
	if s.group[0].Commit || len(s.path) == 0 {
		return nil
	}
	if err := s.commit(ctx, s.path); err != nil {
		return err
	}
	s.path = s.path[:0]
	return nil
}

func (s *Sequence) commit(ctx context.Context, path []int32) error {
	s.reading[0] = engine.Group{Sequence: s.id, Path: path}
	step := engine.Step{Groups: s.reading[:]}
	return s.engine.Step(ctx, &step, &s.read)
}

// Settle commits what is pending by a step without rows, so that the sequence's state is all in the engine. The step
// that is being built then no longer commits it.
func (s *Sequence) Settle(ctx context.Context) error {
	if !s.built {
		return s.Commit(ctx)
	}
	path := s.group[0].Path
	if len(path) == 0 {
		return nil
	}
	s.group[0].Path = nil
	return s.commit(ctx, path)
}

// DropKept makes the step that is put together read no features that the engine keeps, and returns of how many rows it
// would have.
func (s *Sequence) DropKept() int {
	if !s.built {
		return 0
	}
	n := s.group[0].Kept.Rows
	s.group[0].Kept = engine.KeptRange{}
	return int(n)
}

// Read commits known tokens from a position on, without any results. It does not change the step that is being built.
func (s *Sequence) Read(ctx context.Context, kind engine.GroupKind, tokens []int32, at int) error {
	s.known = s.known[:0]
	for i, token := range tokens {
		s.known = append(s.known, engine.Row{Token: token, Position: int32(at + i), Parent: int32(i - 1), Mask: -1})
	}
	s.reading[0] = engine.Group{Sequence: s.id, Rows: len(tokens), Kind: kind, Commit: true}
	step := engine.Step{Groups: s.reading[:], Rows: s.known}
	return s.engine.Step(ctx, &step, &s.read)
}

// ReadKept reads the features of the newest n rows, which the engine keeps, by a step without rows. Nothing may be
// pending: rows whose features are kept are committed by their own step.
func (s *Sequence) ReadKept(ctx context.Context, features engine.FeatureEncoding, n int) ([]byte, error) {
	s.reading[0] = engine.Group{Sequence: s.id, Kept: s.keptRange(n)}
	step := engine.Step{Groups: s.reading[:], Features: features}
	err := s.engine.Step(ctx, &step, &s.read)
	return s.read.Features, err
}

// keptRange is that of the newest n rows.
func (s *Sequence) keptRange(n int) engine.KeptRange {
	if n == 0 {
		return engine.KeptRange{}
	}
	return engine.KeptRange{Position: int32(s.length - n), Rows: int32(n)}
}
