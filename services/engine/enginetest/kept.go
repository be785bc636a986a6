package enginetest

import (
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/tandem-inference/tandem/services/engine"
)

// keeper reads kept features of one encoding.
type keeper struct {
	*suite
	e     engine.Target
	enc   engine.FeatureEncoding
	width int // bytes of a row
}

func (k *keeper) read(q engine.Sequence, position, rows int) ([]byte, error) {
	r := &engine.StepResult{}
	step := one(engine.Group{Sequence: q, Kept: engine.KeptRange{Position: int32(position), Rows: int32(rows)}}, nil)
	step.Features = k.enc
	err := k.e.Step(k.ctx, step, r)
	return r.Features, err
}

func (k *keeper) refuses(what string, q engine.Sequence, position, rows int) {
	k.Helper()
	_, err := k.read(q, position, rows)
	k.refused(what, err, codes.FailedPrecondition, "kept")
}

// holds compares kept features with rows [from, from + rows) of what the rows gave at once.
func (k *keeper) holds(what string, q engine.Sequence, position, rows int, now []byte, from int) {
	k.Helper()
	got, err := k.read(q, position, rows)
	k.ok(err)
	if !slices.Equal(got, now[from*k.width:(from+rows)*k.width]) {
		k.Errorf("%s: features of %d rows from %d on differ from those at once", what, rows, position)
	}
}

// plain commits tokens one by one.
func (k *keeper) plain(q engine.Sequence, want uint32, tokens ...int32) {
	k.Helper()
	for _, t := range tokens {
		rows := rowsOf(k.length(k.e, q), chain([]int32{t}), want)
		k.ok(k.e.Step(k.ctx, one(engine.Group{Sequence: q, Commit: true}, rows), &engine.StepResult{}))
	}
}

// keptFeatures: features that are read later are those at once, for every number of rows, and only those of committed
// rows.
func (s *suite) keptFeatures() {
	for _, enc := range []engine.FeatureEncoding{engine.FeatureRawF32, engine.FeatureFusedBF16} {
		e := s.target()
		k := &keeper{suite: s, e: e, enc: enc}
		switch enc {
		case engine.FeatureFusedBF16:
			if s.models.Draft == "" {
				continue
			}
			s.ok(e.LoadFuse(s.ctx, s.models.Draft))
			k.width = 2 * e.Info().FeatureFused
		default:
			s.ok(e.SetCapture(s.ctx, []int32{0, int32(e.Info().Layers - 1)}[:min(2, e.Info().Layers)]))
			k.width = 4 * e.Info().FeatureRaw
		}
		k.run()
	}
}

func (k *keeper) run() {
	const (
		keep  = engine.WantKeep
		start = 5
		size  = engine.KeptRows
		last  = start + size - 1 // of the reference
	)
	e := k.e
	q, other := k.sequence(e), k.sequence(e)
	prompt, tokens := k.tokens(e, start), k.tokens(e, size)
	k.feed(e, q, prompt, 0)
	k.feed(e, other, k.tokens(e, 3), 0)
	p, err := e.NewSnapshot(k.ctx, q)
	k.ok(err)
	now := slices.Clone(k.featuresOf(e, q, chain(tokens), k.enc))
	k.commit(e, q)
	k.refuses("nothing kept", q, start, 1)
	k.refuses("a prompt that was not kept", q, 0, 1)

	// Committed one by one, with another sequence in between.
	for i, t := range tokens {
		k.plain(q, keep|engine.WantToken, t)
		k.plain(other, keep, t)
		if i == 2 {
			k.holds("one row", q, start+2, 1, now, 2)
		}
	}
	for n := 1; n <= size; n++ {
		k.holds("one by one", q, start+size-n, n, now, size-n)
	}
	k.refuses("a row too many", q, start-1, size)
	k.refuses("a row not committed yet", q, start+1, size)

	// Two sequences at once, both with rows that want theirs: the kept ones of all groups first, in order.
	third, err := k.read(other, 3, 1)
	k.ok(err)
	third = slices.Clone(third)
	rowsOfOther := slices.Clone(k.featuresOf(e, other, chain(prompt[2:3]), k.enc))
	var r engine.StepResult
	step := &engine.Step{Features: k.enc}
	add(step, engine.Group{Sequence: other, Kept: engine.KeptRange{Position: 3, Rows: 1}},
		rowsOf(k.length(e, other), chain(prompt[2:3]), engine.WantFeatures))
	add(step, engine.Group{Sequence: q, Kept: engine.KeptRange{Position: last - 1, Rows: 2}},
		rowsOf(k.length(e, q), chain(prompt[:2]), engine.WantFeatures))
	k.ok(e.Step(k.ctx, step, &r))
	if len(r.Features) != 6*k.width || !slices.Equal(r.Features[:k.width], third) ||
		!slices.Equal(r.Features[k.width:3*k.width], now[(size-2)*k.width:]) {
		k.Errorf("%d bytes of features, or not those of kept rows first", len(r.Features))
	}
	if alone := k.featuresOf(e, q, chain(prompt[:2]), k.enc); !slices.Equal(r.Features[3*k.width:4*k.width],
		rowsOfOther) || !slices.Equal(r.Features[4*k.width:], alone) {
		k.Error("features of rows differ beside kept ones")
	}

	k.pendingKeeps(q, p, tokens, now, start)
	k.keptPlaces(q, p, tokens, now, start)
	k.keptErrors(q, other)
	k.ok(e.FreeSnapshot(k.ctx, p))
	k.manyKept(q, other)
}

// manyKept: the features that a step returns, of kept rows and of its own, are at most max_batch_rows.
func (k *keeper) manyKept(q, other engine.Sequence) {
	e := k.e
	s := k.suite
	s.ok(e.SetCapture(s.ctx, []int32{0}))
	step := &engine.Step{Features: engine.FeatureRawF32}
	for _, q := range []engine.Sequence{q, other, s.sequence(e), s.sequence(e)} {
		rows := rowsOf(s.length(e, q), chain(s.tokens(e, engine.KeptRows)), engine.WantKeep)
		s.ok(e.Step(s.ctx, one(engine.Group{Sequence: q, Commit: true}, rows), &engine.StepResult{}))
		add(step, reading(q, int(rows[0].Position), len(rows)), nil)
	}
	r := &engine.StepResult{}
	s.refused("too many kept features", e.Step(s.ctx, step, r), codes.InvalidArgument, "max_batch_rows")
	step.Groups = step.Groups[:batchRows/engine.KeptRows]
	length := s.length(e, q)
	beside := func(want uint32) *engine.Step {
		step := &engine.Step{Features: step.Features, Groups: slices.Clone(step.Groups)}
		step.Groups[0].Rows, step.Rows = 1, rowsOf(length, chain([]int32{1}), want)
		return step
	}
	s.refused("a feature beside as many kept ones as a step returns", e.Step(s.ctx, beside(engine.WantFeatures), r),
		codes.InvalidArgument, "max_batch_rows")
	s.ok(e.Step(s.ctx, beside(engine.WantToken), r))
	if want := batchRows * 4 * e.Info().FeatureRaw; len(r.Features) != want || len(r.Tokens) != 1 {
		s.Errorf("%d bytes of features and %d tokens, want %d and 1", len(r.Features), len(r.Tokens), want)
	}
	s.ok(e.Step(s.ctx, step, r))
	if want := batchRows * 4 * e.Info().FeatureRaw; len(r.Features) != want {
		s.Errorf("%d bytes of features, want %d", len(r.Features), want)
	}
}

// pendingKeeps: rows of a tree are kept once their path is committed, by the same step at the earliest.
func (k *keeper) pendingKeeps(q engine.Sequence, p engine.Snapshot, tokens []int32, now []byte, start int) {
	e := k.e
	k.ok(e.RestoreSnapshot(k.ctx, p, q))
	k.refuses("kept before the restore", q, start, 1)
	tree := []node{{tokens[0], -1}, {tokens[1] ^ 1, 0}, {tokens[1], 0}, {tokens[2], 2}, {tokens[3], 3}}
	rows := rowsOf(start, tree, engine.WantKeep)
	rows[1].Want = 0
	k.ok(e.Step(k.ctx, one(pending(q), rows), &engine.StepResult{}))
	k.refuses("pending", q, start, 1)
	var r engine.StepResult
	step := commit(q, 0, 2, 3) // still pending: what is refused changes nothing
	step.Groups[0].Kept, step.Features = engine.KeptRange{Position: int32(start), Rows: 3}, k.enc
	k.ok(e.Step(k.ctx, step, &r))
	if !slices.Equal(r.Features, now[:3*k.width]) {
		k.Error("a path's features differ from those at once")
	}
	k.refuses("not part of the path", q, start+3, 1)
	k.plain(q, 0, tokens[3])
	k.plain(q, engine.WantKeep, tokens[4])
	k.holds("behind a gap", q, start+4, 1, now, 4)
	k.refuses("a gap", q, start+3, 2)
}

// keptPlaces: the newest rows are kept, and a dropped row takes a place as well.
func (k *keeper) keptPlaces(q engine.Sequence, p engine.Snapshot, tokens []int32, now []byte, start int) {
	e, size := k.e, engine.KeptRows
	k.ok(e.RestoreSnapshot(k.ctx, p, q))
	k.plain(q, engine.WantKeep, tokens...)
	k.step(e, q, chain([]int32{1, 2, 3}), engine.WantKeep)
	k.commit(e, q)
	k.refuses("overwritten by dropped rows", q, start+2, 1)
	k.holds("not overwritten", q, start+3, size-3, now, 3)
	k.plain(q, engine.WantKeep, 1, 2, 3, 4)
	k.refuses("overwritten", q, start+3, 1)
	k.holds("the newest", q, start+4, size-4, now, 4)
	// A state that comes from elsewhere has none.
	state, err := e.Export(k.ctx, q)
	k.ok(err)
	k.ok(e.Import(k.ctx, q, state))
	k.refuses("kept before the import", q, start+4, 1)
}

func (k *keeper) keptErrors(q, other engine.Sequence) {
	e := k.e
	k.plain(q, engine.WantKeep, 1)
	at := k.length(e, q) - 1
	for _, c := range []struct {
		name string
		kept engine.Group
		enc  engine.FeatureEncoding
		code codes.Code
		word string
	}{
		{"unknown sequence", reading(4711, at, 1), k.enc, codes.NotFound, "groups[0].sequence"},
		{"negative rows", reading(q, at, -1), k.enc, codes.InvalidArgument, "groups[0].n_kept"},
		{"more than are kept", reading(q, at, batchRows+1), k.enc, codes.FailedPrecondition, "groups[0].kept_position"},
		{"negative position", reading(q, -1, 1), k.enc, codes.FailedPrecondition, "groups[0].kept_position"},
		{"no encoding", reading(q, at, 1), engine.FeatureNone, codes.InvalidArgument, "feature"},
	} {
		step := one(c.kept, nil)
		step.Features = c.enc
		k.refused(c.name, e.Step(k.ctx, step, &engine.StepResult{}), c.code, c.word)
	}
	// No rows at all are no range, wherever it begins.
	k.ok(e.Step(k.ctx, one(reading(q, -1, 0), nil), &engine.StepResult{}))
	siblings := rowsOf(at+1, []node{{1, -1}, {2, -1}}, engine.WantKeep)
	err := e.Step(k.ctx, one(pending(q), siblings), &engine.StepResult{})
	k.refused("two rows at one position", err, codes.InvalidArgument, "groups[0].rows[1].position")
	// The same positions of two sequences do not meet.
	both := one(engine.Group{Sequence: q, Commit: true}, rowsOf(at+1, chain([]int32{1}), engine.WantKeep))
	add(both, engine.Group{Sequence: other, Commit: true}, rowsOf(k.length(e, other), chain([]int32{2}), engine.WantKeep))
	k.ok(e.Step(k.ctx, both, &engine.StepResult{}))
	_, err = k.read(q, at, 2)
	k.ok(err)
	// Other layers.
	k.ok(e.SetCapture(k.ctx, []int32{0}))
	k.enc = engine.FeatureRawF32
	k.refuses("captured from other layers", q, at, 1)
	k.ok(e.SetCapture(k.ctx, nil))
	row := rowsOf(at+2, chain([]int32{1}), engine.WantKeep)
	k.refused("capture switched off", e.Step(k.ctx, one(pending(q), row), &engine.StepResult{}), codes.FailedPrecondition)
}

// reading is a group that reads kept features and does nothing else.
func reading(q engine.Sequence, position, rows int) engine.Group {
	return engine.Group{Sequence: q, Kept: engine.KeptRange{Position: int32(position), Rows: int32(rows)}}
}
