package enginetest

import (
	"context"
	"encoding/binary"
	"math"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

func (s *suite) featuresOf(e engine.Target, q engine.Sequence, tree []node, enc engine.FeatureEncoding) []byte {
	s.Helper()
	r := &engine.StepResult{}
	step := one(pending(q), rowsOf(s.length(e, q), tree, engine.WantFeatures))
	step.Features = enc
	s.ok(e.Step(s.ctx, step, r))
	return r.Features
}

// narrow rounds floats to bf16, to nearest even.
func narrow(f32 []byte) []byte {
	out := make([]byte, 0, len(f32)/2)
	for i := 0; i+4 <= len(f32); i += 4 {
		b := binary.LittleEndian.Uint32(f32[i:])
		out = binary.LittleEndian.AppendUint16(out, uint16((b+0x7fff+b>>16&1)>>16))
	}
	return out
}

func (s *suite) features() {
	e := s.target()
	i := e.Info()
	q := s.sequence(e)
	s.feed(e, q, s.tokens(e, 9), 0)
	for name, layers := range map[string][]int32{
		"descending": {1, 0}, "twice": {0, 0}, "negative": {-1}, "beyond": {int32(i.Layers)},
	} {
		s.refused(name, e.SetCapture(s.ctx, layers), codes.InvalidArgument, "layer")
	}
	layers := []int32{0}
	if i.Layers > 1 {
		layers = append(layers, int32(i.Layers-1))
	}
	s.ok(e.SetCapture(s.ctx, layers))
	if got := e.Info(); !slices.Equal(got.CaptureLayers, layers) || got.FeatureRaw != len(layers)*i.Hidden {
		s.Errorf("captures %v, %d values a row", got.CaptureLayers, got.FeatureRaw)
	}
	tree := s.randomTree(e, 6)
	wide := s.featuresOf(e, q, tree, engine.FeatureRawF32)
	half := s.featuresOf(e, q, tree, engine.FeatureRawBF16)
	if len(wide) != 6*len(layers)*i.Hidden*4 || !slices.Equal(narrow(wide), half) {
		s.Errorf("%d bytes of f32, %d of bf16, or values that are not rounded to nearest even", len(wide), len(half))
	}
	// One layer alone is a part of both.
	s.ok(e.SetCapture(s.ctx, layers[:1]))
	single := s.featuresOf(e, q, tree, engine.FeatureRawF32)
	w := i.Hidden * 4
	for k := range tree {
		if !slices.Equal(single[k*w:][:w], wide[k*w*len(layers):][:w]) {
			s.Errorf("row %d of the first layer changes with the set of layers", k)
		}
	}
	r := &engine.StepResult{}
	step := one(pending(q), rowsOf(9, tree, engine.WantFeatures))
	s.refused("no encoding", e.Step(s.ctx, step, r), codes.InvalidArgument, "feature")
	step.Features = engine.FeatureFusedBF16
	s.refused("fused without fuse", e.Step(s.ctx, step, r), codes.FailedPrecondition)
	s.refused("missing fuse file", e.LoadFuse(s.ctx, s.models.Missing), codes.NotFound)
	s.ok(e.SetCapture(s.ctx, nil))
	step.Features = engine.FeatureRawBF16
	s.refused("capture switched off", e.Step(s.ctx, step, r), codes.FailedPrecondition)
}

func (s *suite) fusedFeatures() {
	if s.models.Draft == "" {
		s.Skip("no draft")
	}
	e := s.target()
	s.ok(e.LoadFuse(s.ctx, s.models.Draft))
	i, d := e.Info(), s.draftEngine().Info()
	if i.FeatureFused != d.FeatureFused || !slices.Equal(i.CaptureLayers, d.CaptureLayers) {
		s.Fatalf("target captures %v, %d values; draft wants %v, %d", i.CaptureLayers, i.FeatureFused, d.CaptureLayers,
			d.FeatureFused)
	}
	q := s.sequence(e)
	s.feed(e, q, s.tokens(e, 9), 0)
	tree := s.randomTree(e, 5)
	wide := s.featuresOf(e, q, tree, engine.FeatureFusedF32)
	half := s.featuresOf(e, q, tree, engine.FeatureFusedBF16)
	if len(wide) != 5*i.FeatureFused*4 || !slices.Equal(narrow(wide), half) {
		s.Errorf("%d bytes of f32, %d of bf16", len(wide), len(half))
	}
	for k := range tree {
		var alone []node
		for n, at := range pathTo(tree, k) {
			alone = append(alone, node{tree[at].token, int32(n) - 1})
		}
		got := s.featuresOf(e, q, alone, engine.FeatureFusedBF16)
		w := i.FeatureFused * 2
		if !slices.Equal(got[len(got)-w:], half[k*w:][:w]) {
			s.Errorf("fused row %d depends on the batch", k)
		}
	}
}

// fuse: raw features that were computed elsewhere, here by the same engine, are fused to the bits of the step's own, in
// both contracts.
func (s *suite) fuse() {
	if s.models.Draft == "" {
		s.Skip("no draft")
	}
	e := s.target()
	decode := engine.RawFeatures{Rows: 1, Encoding: engine.FeatureRawF32, Data: make([]byte, 64)}
	_, err := e.Fuse(s.ctx, decode, engine.FeatureFusedF32)
	s.refused("without a fuse", err, codes.FailedPrecondition, "fuse")
	s.ok(e.LoadFuse(s.ctx, s.models.Draft))
	i := e.Info()
	if i.FuseRaw != i.FeatureRaw {
		s.Fatalf("fuse takes %d values a row, a step gives %d", i.FuseRaw, i.FeatureRaw)
	}
	const rows = 70
	tokens := s.tokens(e, rows)
	for _, kind := range []engine.GroupKind{engine.KindDecode, engine.KindPrompt} {
		features := func(enc engine.FeatureEncoding) []byte {
			q := s.sequence(e)
			defer func() { s.ok(e.FreeSequence(s.ctx, q)) }()
			r := &engine.StepResult{}
			step := one(engine.Group{Sequence: q, Kind: kind, Commit: true}, rowsOf(0, chain(tokens), engine.WantFeatures))
			step.Features = enc
			s.ok(e.Step(s.ctx, step, r))
			return r.Features
		}
		raw := engine.RawFeatures{Rows: rows, Kind: kind, Encoding: engine.FeatureRawF32,
			Data: features(engine.FeatureRawF32)}
		for _, enc := range []engine.FeatureEncoding{engine.FeatureFusedF32, engine.FeatureFusedBF16} {
			got, err := e.Fuse(s.ctx, raw, enc)
			s.ok(err)
			if !slices.Equal(got, features(enc)) {
				s.Errorf("kind %d, encoding %d: fused features differ from the step's", kind, enc)
			}
		}
		decode = raw
	}
	for _, c := range []struct {
		name string
		edit func(*engine.RawFeatures)
		enc  engine.FeatureEncoding
		word string
	}{
		{"no rows", func(f *engine.RawFeatures) { f.Rows = 0 }, engine.FeatureFusedF32, "n"},
		{"too many rows", func(f *engine.RawFeatures) {
			f.Rows = batchRows + 1
			f.Data = make([]byte, (batchRows+1)*4*i.FuseRaw)
		}, engine.FeatureFusedF32, "max_batch_rows"},
		{"kind", func(f *engine.RawFeatures) { f.Kind = 7 }, engine.FeatureFusedF32, "kind"},
		{"fused for raw", func(f *engine.RawFeatures) {
			f.Encoding = engine.FeatureFusedBF16
			f.Data = f.Data[:len(f.Data)/2]
		}, engine.FeatureFusedF32, "raw_encoding"},
		{"raw for fused", func(*engine.RawFeatures) {}, engine.FeatureRawF32, "fused_encoding"},
		{"short data", func(f *engine.RawFeatures) { f.Data = f.Data[1:] }, engine.FeatureFusedF32, "raw"},
	} {
		f := decode
		c.edit(&f)
		_, err := e.Fuse(s.ctx, f, c.enc)
		s.refused(c.name, err, codes.InvalidArgument, c.word)
	}
}

// shards: two engines of half the layers equal one, bit by bit.
func (s *suite) shards() {
	whole := s.target()
	i := whole.Info()
	if i.Layers < 2 {
		s.Skip("one layer cannot be divided")
	}
	cut := i.Layers / 2
	front, back := options(s.models.Target), options(s.models.Target)
	front.LayerLast, back.LayerFirst = cut, cut
	a, b := s.openTarget(front), s.openTarget(back)
	tokens := s.tokens(whole, 8)
	qw, qa, qb := s.sequence(whole), s.sequence(a), s.sequence(b)
	var ra, rb engine.StepResult
	through := func(tree []node, commit bool) *engine.StepResult {
		s.Helper()
		s.ok(a.Step(s.ctx, one(engine.Group{Sequence: qa, Commit: commit}, rowsOf(s.length(a, qa), tree, 0)), &ra))
		if len(ra.HiddenOut) != len(tree)*i.Hidden*4 {
			s.Fatalf("%d hidden bytes of %d rows", len(ra.HiddenOut), len(tree))
		}
		step := one(engine.Group{Sequence: qb, Commit: commit}, rowsOf(s.length(b, qb), tree, everything))
		step.HiddenIn = ra.HiddenOut
		s.ok(b.Step(s.ctx, step, &rb))
		return &rb
	}
	s.feed(whole, qw, tokens, 0)
	through(chain(tokens), true)
	tree := s.randomTree(whole, 9)
	rw := s.step(whole, qw, tree, everything)
	r := through(tree, false)
	for k := range tree {
		s.same("sharded row", rowBits(rw, k, len(tree)), rowBits(r, k, len(tree)))
	}
	path := pathTo(tree, 8)
	for _, c := range []struct {
		e engine.Target
		q engine.Sequence
	}{{whole, qw}, {a, qa}, {b, qb}} {
		s.commit(c.e, c.q, path...)
	}
	rw = s.step(whole, qw, chain([]int32{1, 2}), everything)
	r = through(chain([]int32{1, 2}), false)
	s.same("sharded row after commit", rowBits(rw, 1, 2), rowBits(r, 1, 2))
	err := a.Step(s.ctx, one(pending(qa), rowsOf(s.length(a, qa), chain([]int32{1}), engine.WantToken)), &ra)
	s.refused("token from a shard without head", err, codes.FailedPrecondition, "want")
	err = b.Step(s.ctx, one(pending(qb), rowsOf(s.length(b, qb), chain([]int32{1}), 0)), &rb)
	s.refused("no hidden rows", err, codes.InvalidArgument, "hidden_in")
	// As bfloat16 the front hands on what it has in float32, rounded to nearest even, and the back takes it.
	front1 := one(pending(qa), rowsOf(s.length(a, qa), tree, 0))
	s.ok(a.Step(s.ctx, front1, &ra))
	wide := slices.Clone(ra.HiddenOut)
	front1.Hidden = engine.HiddenBF16
	s.ok(a.Step(s.ctx, front1, &ra))
	if !slices.Equal(ra.HiddenOut, narrow(wide)) {
		s.Errorf("%d bytes of bfloat16 hidden rows are not %d of float32, rounded", len(ra.HiddenOut), len(wide))
	}
	half := one(pending(qb), rowsOf(s.length(b, qb), tree, everything))
	half.HiddenIn, half.Hidden = ra.HiddenOut, engine.HiddenBF16
	s.ok(b.Step(s.ctx, half, &rb))
	want := rowBits(&rb, len(tree)-1, len(tree))
	half.HiddenIn, half.Hidden = widen(ra.HiddenOut), engine.HiddenF32
	s.ok(b.Step(s.ctx, half, &rb))
	s.same("bfloat16 hidden rows", want, rowBits(&rb, len(tree)-1, len(tree)))
	half.Hidden = 7
	s.refused("hidden encoding", b.Step(s.ctx, half, &rb), codes.InvalidArgument, "hidden_encoding", "hidden")
	half.Hidden = engine.HiddenBF16
	s.refused("bytes of another encoding", b.Step(s.ctx, half, &rb), codes.InvalidArgument, "hidden_in")
}

// widen makes float32 of bf16.
func widen(bf16 []byte) []byte {
	out := make([]byte, 0, 2*len(bf16))
	for i := 0; i+2 <= len(bf16); i += 2 {
		out = append(out, 0, 0, bf16[i], bf16[i+1])
	}
	return out
}

// randomFeatures makes fused bf16 rows of numbers around zero, as after a norm.
func (s *suite) randomFeatures(width, rows int) []byte {
	out := make([]byte, 0, 2*width*rows)
	for range width * rows {
		out = binary.LittleEndian.AppendUint16(out, uint16(math.Float32bits(float32(s.rng.NormFloat64()))>>16))
	}
	return out
}

func (s *suite) draft() {
	e := s.draftEngine()
	i := e.Info()
	const rows = 17
	data := s.randomFeatures(i.FeatureFused, rows)
	rowBytes := 2 * i.FeatureFused
	a, b := s.sequence(e), s.sequence(e)
	part := func(q engine.Sequence, from, to int) engine.FeatureRows {
		return engine.FeatureRows{Sequence: q, Position: int32(from), Rows: int32(to - from),
			Encoding: engine.FeatureFusedBF16, Data: data[from*rowBytes : to*rowBytes]}
	}
	ask := func(q engine.Sequence) engine.DraftRequest {
		return engine.DraftRequest{Sequence: q, Token: 3, Position: rows, Block: int32(i.BlockSize), TopK: 4, Temperature: 1}
	}
	var whole, parts, both engine.DraftResult
	s.ok(e.Propose(s.ctx, []engine.FeatureRows{part(a, 0, rows)}, []engine.DraftRequest{ask(a)}, &whole))
	if n := s.length(e, a); n != rows {
		s.Errorf("length %d after %d rows", n, rows)
	}
	if whole.Stride != topK || whole.Positions != i.BlockSize-1 || len(whole.IDs) != whole.Positions*topK ||
		len(whole.Logprobs) != len(whole.IDs) {
		s.Fatalf("stride %d, %d positions, %d ids, %d logprobs", whole.Stride, whole.Positions, len(whole.IDs),
			len(whole.Logprobs))
	}
	if whole.AppendNanos <= 0 || whole.AppendNanos > whole.EngineNanos {
		s.Errorf("appending took %d ns of %d", whole.AppendNanos, whole.EngineNanos)
	}
	for p := range whole.Positions {
		ids, lps := whole.IDs[p*topK:][:topK], whole.Logprobs[p*topK:][:topK]
		sum := 0.0
		for k, id := range ids {
			switch {
			case k >= 4:
				if id != -1 {
					s.Errorf("position %d: entry %d beyond top_k is %d", p, k, id)
				}
				continue
			case id < 0 || int(id) >= i.Vocab || !(lps[k] <= 1e-4):
				s.Errorf("position %d: candidate %d with %v", p, id, lps[k])
			case k > 0 && (lps[k] > lps[k-1] || lps[k] == lps[k-1] && id < ids[k-1]):
				s.Errorf("position %d: out of order: %v %v", p, ids, lps)
			}
			sum += math.Exp(float64(lps[k]))
		}
		if sum > 1.001 {
			s.Errorf("position %d: probabilities sum to %v", p, sum)
		}
	}
	// In pieces, proposing in between.
	s.ok(e.Propose(s.ctx, []engine.FeatureRows{part(b, 0, 1), part(b, 1, 6)}, nil, &parts))
	between := ask(b)
	between.Position = 6
	s.ok(e.Propose(s.ctx, nil, []engine.DraftRequest{between}, &parts))
	s.ok(e.Propose(s.ctx, []engine.FeatureRows{part(b, 6, rows)}, []engine.DraftRequest{ask(b)}, &parts))
	sameDraft(s, "appended in pieces", &whole, &parts)
	// Two requests at once, and a narrower one.
	s.ok(e.Propose(s.ctx, nil, []engine.DraftRequest{ask(a), ask(b)}, &both))
	n := len(whole.IDs)
	for k := range 2 {
		sameDraft(s, "one of two requests", &whole, &engine.DraftResult{IDs: both.IDs[k*n:][:n],
			Logprobs: both.Logprobs[k*n:][:n]})
	}
	if i.BlockSize > 2 {
		small := ask(a)
		small.Block = 2
		s.ok(e.Propose(s.ctx, nil, []engine.DraftRequest{small}, &parts))
		if parts.Positions != i.BlockSize-1 || slices.ContainsFunc(parts.IDs[topK:], func(id int32) bool {
			return id != -1
		}) {
			s.Errorf("a block of 2 gives %v", parts.IDs)
		}
	}
	// A draft may do without snapshots: its features can be sent again.
	c := s.sequence(e)
	if p, err := e.NewSnapshot(s.ctx, a); err != nil {
		s.refused("snapshot", err, codes.FailedPrecondition, "draft")
		s.ok(e.Propose(s.ctx, []engine.FeatureRows{part(c, 0, rows)}, nil, &parts))
	} else {
		s.ok(e.RestoreSnapshot(s.ctx, p, c))
		s.ok(e.Propose(s.ctx, nil, []engine.DraftRequest{ask(c)}, &parts))
		sameDraft(s, "restored", &whole, &parts)
		s.ok(e.FreeSnapshot(s.ctx, p))
	}
	// A fork proposes the same, and goes on by itself.
	s.ok(e.FreeSequence(s.ctx, b))
	f, err := e.Fork(s.ctx, a)
	s.ok(err)
	s.ok(e.Propose(s.ctx, nil, []engine.DraftRequest{ask(f)}, &parts))
	sameDraft(s, "forked", &whole, &parts)
	if err := e.Truncate(s.ctx, f, 6); err == nil {
		s.ok(e.Propose(s.ctx, []engine.FeatureRows{part(f, 6, 7)}, nil, &parts))
		s.ok(e.Propose(s.ctx, nil, []engine.DraftRequest{ask(a)}, &parts))
		sameDraft(s, "beside a fork", &whole, &parts)
	}
	s.ok(e.FreeSequence(s.ctx, f))
	// Going back and appending again.
	if err := e.Truncate(s.ctx, c, 6); err == nil {
		s.ok(e.Propose(s.ctx, []engine.FeatureRows{part(c, 6, rows)}, []engine.DraftRequest{ask(c)}, &parts))
		sameDraft(s, "truncated and appended again", &whole, &parts)
	} else {
		s.refused("truncate", err, codes.FailedPrecondition)
	}
}

// draftAppends: pieces of several sequences in one call give the bits of single calls, and one that is refused leaves
// all sequences as they were.
func (s *suite) draftAppends() {
	e := s.draftEngine()
	i := e.Info()
	const rows = 90
	rowBytes := 2 * i.FeatureFused
	data := [2][]byte{s.randomFeatures(i.FeatureFused, rows), s.randomFeatures(i.FeatureFused, rows)}
	part := func(q engine.Sequence, of, from, to int) engine.FeatureRows {
		return engine.FeatureRows{Sequence: q, Position: int32(from), Rows: int32(to - from),
			Encoding: engine.FeatureFusedBF16,
			Data:     data[of][from*rowBytes : to*rowBytes]}
	}
	var r engine.DraftResult
	var joint, alone [2]engine.Sequence
	for k := range joint {
		joint[k], alone[k] = s.sequence(e), s.sequence(e)
	}
	// Lengths on both sides of the border to the contract of prompts; two pieces of one sequence.
	pieces := func(q [2]engine.Sequence) []engine.FeatureRows {
		return []engine.FeatureRows{part(q[0], 0, 0, 20), part(q[1], 1, 0, 70), part(q[0], 0, 20, 25), part(q[1], 1, 70, 70)}
	}
	wrong := append(pieces(joint), part(joint[1], 1, 71, 72))
	s.refused("a gap behind good pieces", e.Propose(s.ctx, wrong, nil, &r), codes.FailedPrecondition, "position")
	for _, q := range joint {
		if n := s.length(e, q); n != 0 {
			s.Fatalf("a refused append left %d rows", n)
		}
	}
	s.ok(e.Propose(s.ctx, pieces(joint), nil, &r))
	for _, f := range pieces(alone) {
		s.ok(e.Propose(s.ctx, []engine.FeatureRows{f}, nil, &r))
	}
	for k, n := range []int32{25, 70} {
		if s.length(e, joint[k]) != int(n) {
			s.Fatalf("sequence %d has %d rows, want %d", k, s.length(e, joint[k]), n)
		}
		var a, b engine.DraftResult
		for _, c := range []struct {
			q engine.Sequence
			r *engine.DraftResult
		}{{joint[k], &a}, {alone[k], &b}} {
			s.ok(e.Propose(s.ctx, nil, []engine.DraftRequest{{Sequence: c.q, Token: 3, Position: n, Block: int32(i.BlockSize),
				TopK: 4, Temperature: 1}}, c.r))
		}
		sameDraft(s, "appended together", &a, &b)
	}
}

func sameDraft(s *suite, what string, a, b *engine.DraftResult) {
	s.Helper()
	if !slices.Equal(a.IDs, b.IDs) || !slices.Equal(bitsOf(a.Logprobs), bitsOf(b.Logprobs)) {
		s.Errorf("%s: proposals differ", what)
	}
}

func (s *suite) draftErrors() {
	e := s.draftEngine()
	i := e.Info()
	q := s.sequence(e)
	good := engine.FeatureRows{Sequence: q, Rows: 2, Encoding: engine.FeatureFusedBF16,
		Data: s.randomFeatures(i.FeatureFused, 2)}
	var r engine.DraftResult
	s.ok(e.Propose(s.ctx, []engine.FeatureRows{good}, nil, &r))
	for _, c := range []struct {
		name string
		edit func(*engine.FeatureRows)
		code codes.Code
		word string
	}{
		{"rows it has", func(f *engine.FeatureRows) { f.Position = 0 }, codes.FailedPrecondition, "position"},
		{"a gap", func(f *engine.FeatureRows) { f.Position = 3 }, codes.FailedPrecondition, "position"},
		{"unknown sequence", func(f *engine.FeatureRows) { f.Sequence = 4711 }, codes.NotFound, "sequence"},
		{"encoding", func(f *engine.FeatureRows) { f.Encoding = 9 }, codes.InvalidArgument, "encoding"},
		{"short data", func(f *engine.FeatureRows) { f.Data = f.Data[1:] }, codes.InvalidArgument, "features"},
		{"negative rows", func(f *engine.FeatureRows) { f.Rows = -1 }, codes.InvalidArgument, "n"},
	} {
		f := good
		f.Position = 2
		c.edit(&f)
		s.refused(c.name, e.Propose(s.ctx, []engine.FeatureRows{f}, nil, &r), c.code, c.word)
		if n := s.length(e, q); n != 2 {
			s.Fatalf("%s: left %d rows", c.name, n)
		}
	}
	for _, c := range []struct {
		name string
		edit func(*engine.DraftRequest)
		code codes.Code
		word string
	}{
		{"block 1", func(d *engine.DraftRequest) { d.Block = 1 }, codes.InvalidArgument, "block"},
		{"block too large", func(d *engine.DraftRequest) { d.Block = int32(i.BlockSize + 1) }, codes.InvalidArgument,
			"block"},
		{"top-k 0", func(d *engine.DraftRequest) { d.TopK = 0 }, codes.InvalidArgument, "top_k"},
		{"top-k too large", func(d *engine.DraftRequest) { d.TopK = topK + 1 }, codes.InvalidArgument, "top_k"},
		{"token", func(d *engine.DraftRequest) { d.Token = int32(i.Vocab) }, codes.InvalidArgument, "token"},
		{"temperature 0", func(d *engine.DraftRequest) { d.Temperature = 0 }, codes.InvalidArgument, "temperature"},
		{"position in the past", func(d *engine.DraftRequest) { d.Position = 1 }, codes.InvalidArgument, "position"},
		{"unknown sequence", func(d *engine.DraftRequest) { d.Sequence = 4711 }, codes.NotFound, "sequence"},
	} {
		d := engine.DraftRequest{Sequence: q, Token: 1, Position: 2, Block: 2, TopK: 1, Temperature: 1}
		c.edit(&d)
		s.refused(c.name, e.Propose(s.ctx, nil, []engine.DraftRequest{d}, &r), c.code, c.word)
	}
}

// scoreOne scores one prompt.
func scoreOne(ctx context.Context, e engine.Scorer, ids, rows []int32, rotated bool) ([]float32, error) {
	all, err := e.Score(ctx, []engine.Prompt{{IDs: ids, QueryRows: rows}}, rotated, nil)
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// scorePrompts: prompts in one call have the scores of calls of their own, one that is refused keeps the others from
// being scored, and progress rises to all rows and layers.
func (s *suite) scorePrompts() {
	e := s.scorer()
	prompts := []engine.Prompt{
		{IDs: s.tokens(e, 60), QueryRows: []int32{40, 47}}, {IDs: s.tokens(e, 7), QueryRows: []int32{6}},
		{IDs: s.tokens(e, maxContext), QueryRows: []int32{maxContext - 1}},
	}
	last, total := uint64(0), uint64(0)
	all, err := e.Score(s.ctx, prompts, false, func(done, of uint64) {
		if done <= last || done > of || total != 0 && of != total {
			s.Errorf("progress went from %d of %d to %d of %d", last, total, done, of)
		}
		last, total = done, of
	})
	s.ok(err)
	if len(all) != len(prompts) {
		s.Fatalf("scores of %d prompts, want %d", len(all), len(prompts))
	}
	if last == 0 || total != uint64((60+7+maxContext)*e.Info().Layers) {
		s.Errorf("progress ended at %d of %d", last, total)
	}
	for k, p := range prompts {
		alone, err := scoreOne(s.ctx, e, p.IDs, p.QueryRows, false)
		s.ok(err)
		if !slices.Equal(bitsOf(all[k]), bitsOf(alone)) {
			s.Errorf("prompt %d has other scores than alone", k)
		}
	}
	wrong := append(slices.Clone(prompts), engine.Prompt{IDs: prompts[0].IDs})
	_, err = e.Score(s.ctx, wrong, false, func(done, of uint64) {
		s.Errorf("%d of %d of refused prompts are scored", done, of)
	})
	s.refused("no query rows", err, codes.InvalidArgument, "prompts[3]")
	_, err = e.Score(s.ctx, nil, false, nil)
	s.refused("no prompts", err, codes.InvalidArgument, "prompts")
}

func (s *suite) score() {
	e := s.scorer()
	ids := s.tokens(e, 60)
	rows := []int32{40, 47, 48}
	plain, err := scoreOne(s.ctx, e, ids, rows, false)
	s.ok(err)
	if len(plain) != len(ids) {
		s.Fatalf("%d scores for %d tokens", len(plain), len(ids))
	}
	for i, v := range plain {
		if !(v >= 0 && v <= 1) || i > 48 && v != 0 {
			s.Errorf("score %v at %d", v, i)
		}
	}
	again, err := scoreOne(s.ctx, e, ids, rows, false)
	s.ok(err)
	if !slices.Equal(bitsOf(plain), bitsOf(again)) {
		s.Error("the same prompt scores differently")
	}
	rotated, err := scoreOne(s.ctx, e, ids, rows, true)
	s.ok(err)
	if slices.Equal(plain, rotated) {
		s.Error("rotation changes nothing")
	}
	// What follows the last query row does not matter.
	cut, err := scoreOne(s.ctx, e, ids[:49], rows, false)
	s.ok(err)
	for i := range cut {
		if math.Abs(float64(cut[i]-plain[i])) > 1e-4 {
			s.Errorf("score at %d is %v with and %v without what follows", i, plain[i], cut[i])
		}
	}
}

func (s *suite) scoreErrors() {
	e := s.scorer()
	ids := s.tokens(e, 10)
	for _, c := range []struct {
		name string
		ids  []int32
		rows []int32
		code codes.Code
		word string
	}{
		{"no ids", nil, []int32{0}, codes.InvalidArgument, "ids"},
		{"no rows", ids, nil, codes.InvalidArgument, "query"},
		{"descending rows", ids, []int32{3, 2}, codes.InvalidArgument, "query_rows"},
		{"row beyond", ids, []int32{10}, codes.InvalidArgument, "query_rows"},
		{"row negative", ids, []int32{-1}, codes.InvalidArgument, "query_rows"},
		{"token outside", []int32{int32(e.Info().Vocab)}, []int32{0}, codes.InvalidArgument, "ids"},
		{"too long", s.tokens(e, maxContext+1), []int32{0}, codes.ResourceExhausted, "context"},
	} {
		_, err := scoreOne(s.ctx, e, c.ids, c.rows, false)
		s.refused(c.name, err, c.code, c.word)
	}
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	_, err := scoreOne(ctx, e, ids, []int32{9}, false)
	s.refused("cancelled before", err, codes.Canceled)
	// Cancelled at some moment: the call ends, with or without a result, and the engine goes on.
	for i := range 5 {
		ctx, cancel := context.WithTimeout(s.ctx, time.Duration(i)*300*time.Microsecond)
		if _, err := scoreOne(ctx, e, s.tokens(e, maxContext), []int32{maxContext - 1}, false); err != nil {
			s.refused("cancelled while running", err, codes.DeadlineExceeded)
		}
		cancel()
	}
	_, err = scoreOne(s.ctx, e, ids, []int32{9}, false)
	s.ok(err)
}

func (s *suite) cancel() {
	e := s.target()
	q := s.sequence(e)
	s.feed(e, q, s.tokens(e, 5), 0)
	before := s.probe(e, q)
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	step := one(pending(q), rowsOf(5, chain([]int32{1, 2, 3}), engine.WantToken))
	s.refused("step with an ended context", e.Step(ctx, step, &engine.StepResult{}), codes.Canceled)
	_, err := e.NewSequence(ctx)
	s.refused("sequence with an ended context", err, codes.Canceled)
	// Steps that do not commit may be cancelled at any moment without harm, and the cancel is theirs alone.
	for i := range 64 {
		ctx, cancel := context.WithTimeout(s.ctx, time.Duration(i%8)*200*time.Microsecond)
		if err := e.Step(ctx, step, &engine.StepResult{}); err != nil {
			s.refused("cancelled while running", err, codes.DeadlineExceeded)
		}
		cancel()
		s.ok(e.Step(s.ctx, step, &engine.StepResult{}))
	}
	s.same("after cancelled steps", before, s.probe(e, q))
}

// cancelPrefill: the cancel of a step either comes too late or breaks the sequences that it was to commit rows of, for
// all but free, restore and import. The others are whole.
func (s *suite) cancelPrefill() {
	e := s.target()
	q, other := s.sequence(e), s.sequence(e)
	s.feed(e, q, s.tokens(e, 5), 0)
	s.feed(e, other, s.tokens(e, 7), 0)
	beside := s.probe(e, other)
	p, err := e.NewSnapshot(s.ctx, q)
	s.ok(err)
	before := s.probe(e, q)
	for i := range 8 {
		ctx, cancel := context.WithTimeout(s.ctx, time.Duration(i+1)*400*time.Microsecond)
		step := one(engine.Group{Sequence: q, Kind: engine.KindPrompt, Commit: true},
			rowsOf(5, chain(s.tokens(e, batchRows-3)), 0))
		add(step, pending(other), rowsOf(7, chain([]int32{1, 2, 3}), 0))
		err := e.Step(ctx, step, &engine.StepResult{})
		cancel()
		if err != nil {
			s.refused("cancelled prefill", err, codes.DeadlineExceeded)
			err = e.Step(s.ctx, one(pending(q), rowsOf(5, chain([]int32{1}), 0)), &engine.StepResult{})
			if err != nil { // it may have been cancelled before it began, then nothing is broken
				s.refused("step on a broken sequence", err, codes.FailedPrecondition, "sequence")
				_, err = e.NewSnapshot(s.ctx, q)
				s.refused("snapshot of a broken sequence", err, codes.FailedPrecondition)
				if _, err := e.Export(s.ctx, q); rpcerr.Code(err) != codes.FailedPrecondition {
					s.Errorf("export of a broken sequence: %v", err)
				}
			}
		}
		s.ok(e.RestoreSnapshot(s.ctx, p, q))
		s.same("restored after a cancelled prefill", before, s.probe(e, q))
		s.same("beside a cancelled prefill", beside, s.probe(e, other))
	}
	s.ok(e.FreeSnapshot(s.ctx, p))
}
