package staged

import (
	"context"
	"encoding/binary"
	"hash/crc32"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/stepcheck"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// sequence is what the stages' sequences have in common.
type sequence struct {
	of      []engine.Sequence // by stage
	length  int
	broken  bool
	pending []pendingRow
	kept    stepcheck.Span
}

type pendingRow struct {
	parent int32
	kept   bool
}

// Length implements stepcheck.Sequence, as do the methods below.
func (s *sequence) Length() int { return s.length }

// Broken tells whether a step that failed broke it.
func (s *sequence) Broken() bool { return s.broken }

// Pending counts the rows that wait for a commit.
func (s *sequence) Pending() int { return len(s.pending) }

// PendingRow describes one of them.
func (s *sequence) PendingRow(i int) (parent int32, kept bool) {
	return s.pending[i].parent, s.pending[i].kept
}

// Kept are the features that can be read.
func (s *sequence) Kept() stepcheck.Span { return s.kept }

// assume is for another state.
func (s *sequence) assume(length int) {
	s.length, s.broken, s.pending, s.kept = length, false, s.pending[:0], stepcheck.Span{}
}

func (t *Target) find(id engine.Sequence) (*sequence, error) {
	s := t.sequences[id]
	if s == nil {
		return nil, rpcerr.NotFound("sequence: %d does not exist", id)
	}
	return s, nil
}

// whole is find for calls that a broken sequence refuses.
func (t *Target) whole(id engine.Sequence) (*sequence, error) {
	s, err := t.find(id)
	if err == nil && s.broken {
		err = rpcerr.FailedPrecondition("sequence: %d is broken by a cancelled step", id)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// NewSequence implements engine.Sequences, as do the methods below.
func (t *Target) NewSequence(ctx context.Context) (engine.Sequence, error) {
	return t.make(ctx, 0, func(e engine.Target, _ int) (engine.Sequence, error) { return e.NewSequence(ctx) })
}

// Fork makes a sequence in the state of another.
func (t *Target) Fork(ctx context.Context, id engine.Sequence) (engine.Sequence, error) {
	return t.make(ctx, id, nil)
}

// make makes a sequence in every stage or in none: new ones, or with an id forks of that one.
func (t *Target) make(ctx context.Context, id engine.Sequence,
	new func(e engine.Target, stage int) (engine.Sequence, error)) (engine.Sequence, error) {
	if err := t.enter(ctx); err != nil {
		return 0, err
	}
	defer t.leave()
	s := &sequence{}
	if new == nil {
		from, err := t.whole(id)
		if err != nil {
			return 0, err
		}
		s.length = from.length
		new = func(e engine.Target, stage int) (engine.Sequence, error) { return e.Fork(ctx, from.of[stage]) }
	}
	for k, e := range t.stages {
		made, err := new(e, k)
		if err != nil {
			for i, done := range s.of {
				if failed := t.stages[i].FreeSequence(context.WithoutCancel(ctx), done); failed != nil {
					return 0, t.giveUp("a sequence could not be freed", failed)
				}
			}
			return 0, err
		}
		s.of = append(s.of, made)
	}
	t.nextSequence++
	t.sequences[t.nextSequence] = s
	t.handles.AddSequence(t.nextSequence)
	return t.nextSequence, nil
}

// all runs a call that no stage may refuse when the first took it.
func (t *Target) all(what string, call func(e engine.Target, stage int) error) error {
	for k, e := range t.stages {
		if err := call(e, k); err != nil {
			if k == 0 {
				return err
			}
			return t.giveUp(what, err)
		}
	}
	return nil
}

// FreeSequence frees it in every stage.
func (t *Target) FreeSequence(ctx context.Context, id engine.Sequence) error {
	if err := t.enter(ctx); err != nil {
		return err
	}
	defer t.leave()
	s, err := t.find(id)
	if err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	if err := t.all("a sequence was not freed", func(e engine.Target, k int) error {
		return e.FreeSequence(ctx, s.of[k])
	}); err != nil {
		return err
	}
	delete(t.sequences, id)
	t.handles.DropSequence(id)
	return nil
}

// SequenceLength returns the number of committed positions.
func (t *Target) SequenceLength(ctx context.Context, id engine.Sequence) (int, error) {
	if err := t.enter(ctx); err != nil {
		return 0, err
	}
	defer t.leave()
	s, err := t.whole(id)
	if err != nil {
		return 0, err
	}
	return s.length, nil
}

// Truncate cuts a sequence; one stage with recurrent layers is enough to refuse lengths between none and all.
func (t *Target) Truncate(ctx context.Context, id engine.Sequence, length int) error {
	if err := t.enter(ctx); err != nil {
		return err
	}
	defer t.leave()
	s, err := t.whole(id)
	switch {
	case err != nil:
		return err
	case length < 0 || length > s.length:
		return rpcerr.InvalidArgument("length", "must be in 0..%d, got %d", s.length, length)
	case t.info.Recurrent && length != 0 && length != s.length:
		return rpcerr.FailedPrecondition("length: recurrent states cannot go back from %d to %d", s.length, length)
	}
	ctx = context.WithoutCancel(ctx)
	if err := t.all("a sequence was not cut", func(e engine.Target, k int) error {
		return e.Truncate(ctx, s.of[k], length)
	}); err != nil {
		return err
	}
	s.length, s.pending = length, s.pending[:0]
	s.kept.Truncate(length)
	return nil
}

// SetSampler sets the sampler of a sequence: the last stage chooses tokens.
func (t *Target) SetSampler(ctx context.Context, id engine.Sequence, sampler engine.Sampler) error {
	if err := t.enter(ctx); err != nil {
		return err
	}
	defer t.leave()
	s, err := t.whole(id)
	if err != nil {
		return err
	}
	last := len(t.stages) - 1
	return t.stages[last].SetSampler(ctx, s.of[last], sampler)
}

// Exported states: magic, number of stages, and of each its length and bytes; CRC-32C of everything before.
var (
	magic      = []byte("TNDSTAG1")
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// Export returns the states of all stages.
func (t *Target) Export(ctx context.Context, id engine.Sequence) ([]byte, error) {
	if err := t.enter(ctx); err != nil {
		return nil, err
	}
	defer t.leave()
	s, err := t.whole(id)
	if err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	b := le.AppendUint32(append([]byte(nil), magic...), uint32(len(t.stages)))
	for k, e := range t.stages {
		state, err := e.Export(ctx, s.of[k])
		if err != nil {
			return nil, err
		}
		b = append(le.AppendUint64(b, uint64(len(state))), state...)
	}
	return le.AppendUint32(b, crc32.Checksum(b, castagnoli)), nil
}

// Import takes what Export returned. A state that is refused leaves the sequence as it was.
func (t *Target) Import(ctx context.Context, id engine.Sequence, state []byte) error {
	if err := t.enter(ctx); err != nil {
		return err
	}
	defer t.leave()
	s, err := t.find(id)
	if err != nil {
		return err
	}
	states, err := t.unpack(state)
	if err != nil {
		return err
	}
	for k, e := range t.stages {
		if err := e.Import(ctx, s.of[k], states[k]); err != nil {
			s.broken = s.broken || k > 0 // the first refuses what another refuses, or has changed nothing
			return err
		}
	}
	length, err := t.stages[0].SequenceLength(context.WithoutCancel(ctx), s.of[0])
	if err != nil {
		s.broken = true
		return err
	}
	s.assume(length)
	return nil
}

func (t *Target) unpack(state []byte) ([][]byte, error) {
	le := binary.LittleEndian
	if len(state) < len(magic)+8 || string(state[:len(magic)]) != string(magic) {
		return nil, rpcerr.DamagedState.With("data: not an exported state")
	}
	body := state[:len(state)-4]
	if crc32.Checksum(body, castagnoli) != le.Uint32(state[len(body):]) {
		return nil, rpcerr.DamagedState.With("data: the checksum of %d bytes is wrong", len(state))
	}
	n, rest := le.Uint32(body[len(magic):]), body[len(magic)+4:]
	if int(n) != len(t.stages) {
		return nil, rpcerr.ModelMismatch.With("data: the state is of %d stages, these are %d", n, len(t.stages))
	}
	out := make([][]byte, n)
	for i := range out {
		if len(rest) < 8 || le.Uint64(rest) > uint64(len(rest)-8) {
			return nil, rpcerr.DamagedState.With("data: the state of stage %d does not fit", i+1)
		}
		size := le.Uint64(rest)
		out[i], rest = rest[8:8+size], rest[8+size:]
	}
	if len(rest) != 0 {
		return nil, rpcerr.DamagedState.With("data: %d bytes too many", len(rest))
	}
	return out, nil
}
