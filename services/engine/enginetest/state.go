package enginetest

import (
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/tandem-inference/tandem/services/engine"
)

// probe runs the same two rows and drops them: equal states give equal bits.
func (s *suite) probe(e engine.Target, q engine.Sequence) row {
	s.Helper()
	r := s.step(e, q, chain([]int32{1, 2}), everything)
	s.commit(e, q)
	return rowBits(r, 1, 2)
}

func (s *suite) snapshots() {
	e := s.target()
	q, other := s.sequence(e), s.sequence(e)
	s.feed(e, q, s.tokens(e, 15), 0)
	s.feed(e, other, s.tokens(e, 9), 0)
	p, err := e.NewSnapshot(s.ctx, q)
	s.ok(err)
	before := s.probe(e, q)
	s.step(e, q, chain([]int32{7, 8, 9}), 0)
	s.commit(e, q, 0, 1)
	s.ok(e.RestoreSnapshot(s.ctx, p, q))
	if n := s.length(e, q); n != 15 {
		s.Errorf("length %d after restore", n)
	}
	s.same("restored", before, s.probe(e, q))
	s.ok(e.RestoreSnapshot(s.ctx, p, other))
	s.same("restored elsewhere", before, s.probe(e, other))
	// Pending rows do not survive a restore.
	s.step(e, q, chain([]int32{7}), 0)
	s.ok(e.RestoreSnapshot(s.ctx, p, q))
	s.refused("pending rows after restore", e.Step(s.ctx, commit(q, 0), &engine.StepResult{}), codes.FailedPrecondition)
	s.ok(e.FreeSequence(s.ctx, q))
	s.ok(e.RestoreSnapshot(s.ctx, p, other)) // it outlives its sequence
	s.ok(e.FreeSnapshot(s.ctx, p))
	s.refused("freed snapshot", e.RestoreSnapshot(s.ctx, p, other), codes.NotFound, "snapshot")
	s.refused("freed twice", e.FreeSnapshot(s.ctx, p), codes.NotFound, "snapshot")
	_, err = e.NewSnapshot(s.ctx, q)
	s.refused("snapshot of a freed sequence", err, codes.NotFound, "sequence")
	s.refused("restore to nowhere", e.RestoreSnapshot(s.ctx, -1, -1), codes.NotFound)
	// An empty one is a state, too.
	empty := s.sequence(e)
	p, err = e.NewSnapshot(s.ctx, empty)
	s.ok(err)
	s.ok(e.RestoreSnapshot(s.ctx, p, other))
	if n := s.length(e, other); n != 0 {
		s.Errorf("length %d after restoring an empty state", n)
	}
	s.ok(e.FreeSnapshot(s.ctx, p))
}

func (s *suite) exportImport() {
	e := s.target()
	q, other := s.sequence(e), s.sequence(e)
	s.feed(e, q, s.tokens(e, 23), 0)
	s.feed(e, other, s.tokens(e, 4), 0)
	before := s.probe(e, q)
	state, err := e.Export(s.ctx, q)
	s.ok(err)
	again, err := e.Export(s.ctx, q)
	s.ok(err)
	if !slices.Equal(state, again) {
		s.Error("two exports of one state differ")
	}
	s.ok(e.Import(s.ctx, other, state))
	if n := s.length(e, other); n != 23 {
		s.Errorf("length %d after import", n)
	}
	s.same("imported", before, s.probe(e, other))
	// Into another engine of the same model.
	twin := s.target()
	far := s.sequence(twin)
	s.ok(twin.Import(s.ctx, far, state))
	s.same("imported by another engine", before, s.probe(twin, far))
	_, err = e.Export(s.ctx, 4711)
	s.refused("export of nothing", err, codes.NotFound, "sequence")
	s.refused("import to nowhere", e.Import(s.ctx, 4711, state), codes.NotFound, "sequence")
	// Another type of cache does not fit.
	o := options(s.models.Target)
	o.KVTypeK = s.models.OtherKV
	if o.KVTypeK != e.Info().KVTypeK {
		strange := s.openTarget(o)
		s.refused("another cache type", strange.Import(s.ctx, s.sequence(strange), state), codes.FailedPrecondition)
	}
	// Nor does it into a shorter engine.
	o = options(s.models.Target)
	o.MaxContext, o.MaxTreeRows, o.MaxBatchRows = 16, 16, 16
	short := s.openTarget(o)
	s.refused("too long a state", short.Import(s.ctx, s.sequence(short), state), codes.ResourceExhausted, "context")
	empty := s.sequence(e)
	state, err = e.Export(s.ctx, empty)
	s.ok(err)
	s.ok(e.Import(s.ctx, other, state))
	if n := s.length(e, other); n != 0 {
		s.Errorf("length %d after importing an empty state", n)
	}
}

func (s *suite) importDamaged() {
	e := s.target()
	q, into := s.sequence(e), s.sequence(e)
	s.feed(e, q, s.tokens(e, 6), 0)
	state, err := e.Export(s.ctx, q)
	s.ok(err)
	s.feed(e, into, s.tokens(e, 3), 0)
	good := s.probe(e, into)
	// Headers byte by byte, the rest sampled.
	at := []int{len(state) - 1, len(state) / 2}
	for i := range min(64, len(state)) {
		at = append(at, i)
	}
	for range 16 {
		at = append(at, s.rng.IntN(len(state)))
	}
	for _, i := range at {
		bad := slices.Clone(state)
		bad[i] ^= 1 << s.rng.IntN(8)
		s.refused("flipped bit", e.Import(s.ctx, into, bad), codes.DataLoss)
	}
	for _, n := range []int{0, 1, 7, 31, len(state) / 2, len(state) - 1} {
		s.refused("cut short", e.Import(s.ctx, into, state[:n]), codes.DataLoss)
	}
	s.refused("too long", e.Import(s.ctx, into, append(slices.Clone(state), 0)), codes.DataLoss)
	s.same("after refused imports", good, s.probe(e, into))
	s.ok(e.Import(s.ctx, into, state))
}
