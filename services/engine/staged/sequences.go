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
	cause   error // of broken, if a call on its way failed
	flying  int   // calls of it that are on their way
	chain   bool  // all of them are steps that commit rows of this sequence alone
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
	s.length, s.broken, s.cause, s.pending, s.kept = length, false, nil, s.pending[:0], stepcheck.Span{}
}

// doom breaks a sequence.
func (s *sequence) doom(err error) {
	if !s.broken {
		s.broken, s.cause = true, err
	}
}

// find returns a sequence. The caller holds mu.
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
	if err := t.enter(ctx); err != nil {
		return 0, err
	}
	return t.make(ctx, nil, &sequence{}, func(e engine.Target, _ int) (engine.Sequence, error) {
		return e.NewSequence(ctx)
	})
}

// Fork makes a sequence in the state of another.
func (t *Target) Fork(ctx context.Context, id engine.Sequence) (engine.Sequence, error) {
	from, err := t.enterFor(ctx, id, t.whole)
	if err != nil {
		return 0, err
	}
	return t.make(ctx, from, &sequence{length: from.length}, func(e engine.Target, k int) (engine.Sequence, error) {
		return e.Fork(ctx, from.of[k])
	})
}

// make makes a sequence in every stage or in none, after enter; from is what it is a fork of, or nil.
func (t *Target) make(ctx context.Context, from, s *sequence,
	one func(e engine.Target, stage int) (engine.Sequence, error)) (engine.Sequence, error) {
	id := engine.Sequence(0)
	err := t.pass(from, func(e engine.Target, k int) error {
		made, err := one(e, k)
		if err == nil {
			s.of = append(s.of, made)
		}
		return err
	}, func(_ int, err error) error {
		if err == nil {
			t.nextSequence++
			id = t.nextSequence
			t.sequences[id] = s
			t.handles.AddSequence(id)
		}
		return err
	})
	if err == nil {
		return id, nil
	}
	for i, done := range s.of {
		if failed := t.stages[i].FreeSequence(context.WithoutCancel(ctx), done); failed != nil {
			return 0, t.giveUp("a sequence could not be freed", failed)
		}
	}
	return 0, err
}

// FreeSequence frees it in every stage.
func (t *Target) FreeSequence(ctx context.Context, id engine.Sequence) error {
	s, err := t.enterFor(ctx, id, t.find)
	if err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	return t.all("a sequence was not freed", s, func(e engine.Target, k int) error {
		return e.FreeSequence(ctx, s.of[k])
	}, func() {
		delete(t.sequences, id)
		t.handles.DropSequence(id)
	})
}

// SequenceLength returns the number of committed positions.
func (t *Target) SequenceLength(ctx context.Context, id engine.Sequence) (int, error) {
	s, err := t.enterFor(ctx, id, t.whole)
	if err != nil {
		return 0, err
	}
	defer t.leave()
	return s.length, nil
}

// Truncate cuts a sequence; one stage with recurrent layers is enough to refuse lengths between none and all.
func (t *Target) Truncate(ctx context.Context, id engine.Sequence, length int) error {
	s, err := t.enterFor(ctx, id, t.whole)
	if err != nil {
		return err
	}
	switch {
	case length < 0 || length > s.length:
		err = rpcerr.InvalidArgument("length", "must be in 0..%d, got %d", s.length, length)
	case t.info.Recurrent && length != 0 && length != s.length:
		err = rpcerr.FailedPrecondition("length: recurrent states cannot go back from %d to %d", s.length, length)
	}
	if err != nil {
		t.leave()
		return err
	}
	ctx = context.WithoutCancel(ctx)
	return t.all("a sequence was not cut", s, func(e engine.Target, k int) error {
		return e.Truncate(ctx, s.of[k], length)
	}, func() {
		s.length, s.pending = length, s.pending[:0]
		s.kept.Truncate(length)
	})
}

// SetSampler sets the sampler of a sequence: the last stage chooses tokens.
func (t *Target) SetSampler(ctx context.Context, id engine.Sequence, sampler engine.Sampler) error {
	s, err := t.enterFor(ctx, id, t.whole)
	if err != nil {
		return err
	}
	last := len(t.stages) - 1
	return t.pass(s, func(e engine.Target, k int) error {
		if k < last {
			return nil
		}
		return e.SetSampler(ctx, s.of[k], sampler)
	}, func(_ int, err error) error { return err })
}

// Exported states: magic, number of stages, and of each its length and bytes; CRC-32C of everything before.
var (
	magic      = []byte("TNDSTAG1")
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// Export returns the states of all stages.
func (t *Target) Export(ctx context.Context, id engine.Sequence) ([]byte, error) {
	s, err := t.enterFor(ctx, id, t.whole)
	if err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	b := le.AppendUint32(append([]byte(nil), magic...), uint32(len(t.stages)))
	err = t.pass(s, func(e engine.Target, k int) error {
		state, err := e.Export(ctx, s.of[k])
		b = append(le.AppendUint64(b, uint64(len(state))), state...)
		return err
	}, func(_ int, err error) error { return err })
	if err != nil {
		return nil, err
	}
	return le.AppendUint32(b, crc32.Checksum(b, castagnoli)), nil
}

// Import takes what Export returned. A state that is refused leaves the sequence as it was.
func (t *Target) Import(ctx context.Context, id engine.Sequence, state []byte) error {
	s, err := t.enterFor(ctx, id, t.find)
	if err != nil {
		return err
	}
	states, err := t.unpack(state)
	if err != nil {
		t.leave()
		return err
	}
	length, changed := 0, false
	return t.pass(s, func(e engine.Target, k int) (err error) {
		if err := e.Import(ctx, s.of[k], states[k]); err != nil {
			return err
		}
		changed = true // the first refuses what another refuses, or has changed nothing
		if k == len(t.stages)-1 {
			length, err = e.SequenceLength(context.WithoutCancel(ctx), s.of[k])
		}
		return err
	}, func(_ int, err error) error {
		switch {
		case err == nil:
			s.assume(length)
		case changed:
			s.doom(err)
		}
		return err
	})
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
