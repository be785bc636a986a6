package enginetest

import (
	"fmt"
	"math"
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/tandem-inference/tandem/services/engine"
)

func (s *suite) stepErrors() {
	e := s.target()
	q := s.sequence(e)
	s.feed(e, q, s.tokens(e, 4), 0)
	vocab := int32(e.Info().Vocab)
	type edit = func(*engine.Step)
	for _, c := range []struct {
		name  string
		edit  edit
		code  codes.Code
		words []string
	}{
		{"unknown sequence", func(p *engine.Step) { p.Groups[0].Sequence = 4711 }, codes.NotFound,
			[]string{"groups[0].sequence"}},
		{"token too large", func(p *engine.Step) { p.Rows[1].Token = vocab }, codes.InvalidArgument,
			[]string{"groups[0].rows[1].token"}},
		{"token negative", func(p *engine.Step) { p.Rows[1].Token = -1 }, codes.InvalidArgument, []string{"token"}},
		{"position too low", func(p *engine.Step) { p.Rows[0].Position = 3 }, codes.InvalidArgument,
			[]string{"groups[0].rows[0].position"}},
		{"position too high", func(p *engine.Step) { p.Rows[1].Position = 6 }, codes.InvalidArgument, []string{"position"}},
		{"parent itself", func(p *engine.Step) { p.Rows[1].Parent = 1 }, codes.InvalidArgument,
			[]string{"groups[0].rows[1].parent"}},
		{"parent later", func(p *engine.Step) { p.Rows[0].Parent = 1 }, codes.InvalidArgument, []string{"parent"}},
		{"parent -2", func(p *engine.Step) { p.Rows[0].Parent = -2 }, codes.InvalidArgument, []string{"parent"}},
		{"no groups", func(p *engine.Step) { p.Groups = nil }, codes.InvalidArgument, []string{"groups"}},
		{"rows of no group", func(p *engine.Step) { p.Groups[0].Rows = 1 }, codes.InvalidArgument, []string{"n_rows"}},
		{"more rows than there are", func(p *engine.Step) { p.Groups[0].Rows = 3 }, codes.InvalidArgument,
			[]string{"n_rows"}},
		{"negative rows", func(p *engine.Step) { p.Groups[0].Rows = -1 }, codes.InvalidArgument, []string{"n_rows"}},
		{"unknown kind", func(p *engine.Step) { p.Groups[0].Kind, p.Groups[0].Commit = 2, true }, codes.InvalidArgument,
			[]string{"groups[0].kind"}},
		{"prompt rows that stay pending", func(p *engine.Step) { p.Groups[0].Kind = engine.KindPrompt },
			codes.InvalidArgument, []string{"groups[0]"}},
		{"nothing to commit", func(p *engine.Step) {
			p.Groups[0].Rows, p.Groups[0].Commit, p.Rows = 0, true, nil
		}, codes.InvalidArgument, []string{"groups[0]"}},
		{"unknown want", func(p *engine.Step) { p.Rows[0].Want = 1 << 12 }, codes.InvalidArgument,
			[]string{"groups[0].rows[0].want"}},
		{"top-k 0", func(p *engine.Step) { p.Rows[0].Want, p.Rows[0].TopK = engine.WantTop, 0 }, codes.InvalidArgument,
			[]string{"groups[0].rows[0].top_k"}},
		{"top-k too large", func(p *engine.Step) { p.Rows[0].Want, p.Rows[0].TopK = engine.WantTop, topK+1 },
			codes.InvalidArgument, []string{"top_k"}},
		{"score outside", func(p *engine.Step) { p.Rows[0].Want, p.Rows[0].Score = engine.WantScore, vocab },
			codes.InvalidArgument, []string{"groups[0].rows[0].score"}},
		{"mask without masks", func(p *engine.Step) { p.Rows[0].Want, p.Rows[0].Mask = engine.WantToken, 0 },
			codes.InvalidArgument, []string{"groups[0].rows[0].mask"}},
		{"hidden rows at layer 0", func(p *engine.Step) { p.HiddenIn = make([]byte, 8*e.Info().Hidden) },
			codes.InvalidArgument, []string{"hidden_in"}},
		{"features without capture", func(p *engine.Step) {
			p.Rows[0].Want, p.Features = engine.WantFeatures, engine.FeatureRawBF16
		}, codes.FailedPrecondition, nil},
		{"branch in a committing group", func(p *engine.Step) {
			p.Groups[0].Commit, p.Rows[1].Parent,
				p.Rows[1].Position = true, -1, 4
		}, codes.InvalidArgument, []string{"groups[0].rows[1].parent"}},
	} {
		step := one(pending(q), rowsOf(4, chain([]int32{1, 2}), 0))
		c.edit(step)
		s.refused(c.name, e.Step(s.ctx, step, &engine.StepResult{}), c.code, c.words...)
		if n := s.length(e, q); n != 4 {
			s.Fatalf("%s: the refused step left %d positions", c.name, n)
		}
	}
	wide := func(n int) []engine.Row {
		tree := make([]node, n)
		for i := range tree {
			tree[i] = node{1, -1}
		}
		return rowsOf(4, tree, 0)
	}
	r := &engine.StepResult{}
	s.ok(e.Step(s.ctx, one(pending(q), wide(treeRows)), r))
	s.refused("too wide a tree", e.Step(s.ctx, one(pending(q), wide(treeRows+1)), r), codes.InvalidArgument,
		"groups[0].n_rows")
	for name, kind := range map[string]engine.GroupKind{"too long a prompt piece": engine.KindPrompt,
		"too many decode rows": engine.KindDecode} {
		long := one(engine.Group{Sequence: q, Kind: kind, Commit: true}, rowsOf(4, chain(s.tokens(e, batchRows+1)), 0))
		s.refused(name, e.Step(s.ctx, long, r), codes.InvalidArgument, "max_batch_rows")
	}
	for s.length(e, q)+batchRows <= maxContext {
		s.feed(e, q, s.tokens(e, batchRows), 0)
	}
	full := one(engine.Group{Sequence: q, Commit: true}, rowsOf(s.length(e, q), chain(s.tokens(e, batchRows)), 0))
	s.refused("context full", e.Step(s.ctx, full, r), codes.ResourceExhausted, "context")
}

// outputs checks that what rows want agrees with itself.
func (s *suite) outputs() {
	e := s.target()
	q := s.sequence(e)
	s.feed(e, q, s.tokens(e, promptTokens), 0)
	tree := s.randomTree(e, 7)
	rows := rowsOf(promptTokens, tree, everything)
	rows[2].Want, rows[3].TopK, rows[4].Want = 0, 3, engine.WantTop
	r := &engine.StepResult{}
	s.ok(e.Step(s.ctx, one(pending(q), rows), r))
	vocab := e.Info().Vocab
	if len(r.Tokens) != 7 || len(r.Logprobs) != 7 || len(r.Scores) != 7 || r.TopStride < topK ||
		len(r.TopIDs) != 7*r.TopStride || len(r.TopLogprobs) != 7*r.TopStride || len(r.Logits) != 5*vocab ||
		len(r.Features) != 0 {
		s.Fatalf("sizes: %d tokens, %d logprobs, %d scores, stride %d, %d top, %d logits", len(r.Tokens), len(r.Logprobs), len(r.Scores), r.TopStride, len(r.TopIDs), len(r.Logits))
	}
	if r.Tokens[2] != -1 || r.Tokens[4] != -1 {
		s.Error("rows that want no token have one")
	}
	at := 0
	for i := range rows {
		ids, lps := r.TopIDs[i*r.TopStride:][:r.TopStride], r.TopLogprobs[i*r.TopStride:][:r.TopStride]
		n := 0
		if rows[i].Want&engine.WantTop != 0 {
			n = int(rows[i].TopK)
		}
		for k := n; k < len(ids); k++ {
			if ids[k] != -1 {
				s.Errorf("row %d: entry %d beyond top_k %d is %d", i, k, n, ids[k])
			}
		}
		for k := 1; k < n; k++ {
			if lps[k] > lps[k-1] || lps[k] == lps[k-1] && ids[k] < ids[k-1] {
				s.Errorf("row %d: the likeliest are out of order: %v %v", i, ids[:n], lps[:n])
			}
		}
		if rows[i].Want&engine.WantLogits == 0 {
			continue
		}
		logits := r.Logits[at*vocab:][:vocab]
		at++
		norm := logSumExp(logits)
		near := func(what string, token int32, got float32) {
			if want := float64(logits[token]) - norm; math.Abs(want-float64(got)) > 1e-3 {
				s.Errorf("row %d: %s of token %d is %v, the logits say %v", i, what, token, got, want)
			}
		}
		best := argmax(logits)
		if r.Tokens[i] != best || ids[0] != best {
			s.Errorf("row %d: token %d, likeliest %d, argmax %d", i, r.Tokens[i], ids[0], best)
		}
		near("logprob", r.Tokens[i], r.Logprobs[i])
		near("score", rows[i].Score, r.Scores[i])
		for k := range n {
			near(fmt.Sprint("top ", k), ids[k], lps[k])
		}
	}
}

func logSumExp(logits []float32) float64 {
	top := float64(slices.Max(logits))
	sum := 0.0
	for _, l := range logits {
		sum += math.Exp(float64(l) - top)
	}
	return top + math.Log(sum)
}

func argmax(logits []float32) int32 {
	best := 0
	for i, l := range logits {
		if l > logits[best] {
			best = i
		}
	}
	return int32(best)
}

// batchInvariance: the bits of a row do not depend on the other rows.
func (s *suite) batchInvariance() {
	e := s.target()
	q := s.sequence(e)
	s.feed(e, q, s.tokens(e, promptTokens), 0)
	if l := e.Info().Layers; l > 1 {
		s.ok(e.SetCapture(s.ctx, []int32{0, int32(l - 1)}))
	} else {
		s.ok(e.SetCapture(s.ctx, []int32{0}))
	}
	const want = everything | engine.WantFeatures
	for _, size := range []int{2, 3, 7, 16, treeRows} {
		tree := s.randomTree(e, size)
		r := s.step(e, q, tree, want)
		for i := range tree {
			if size > 7 && i%5 != 0 {
				continue
			}
			// The row's own path, as a chain.
			var alone []node
			for k, at := range pathTo(tree, i) {
				alone = append(alone, node{tree[at].token, int32(k) - 1})
			}
			c := s.step(e, q, alone, want)
			s.same(fmt.Sprintf("row %d of %d against a chain of %d", i, size, len(alone)), rowBits(r, i, size),
				rowBits(c, len(alone)-1, len(alone)))
		}
	}
	// Committed row by row, on a copy of the state.
	p, err := e.NewSnapshot(s.ctx, q)
	s.ok(err)
	tokens := s.tokens(e, 5)
	whole := rowBits(s.step(e, q, chain(tokens), everything), 4, 5)
	s.commit(e, q)
	s.same("row by row", whole, rowBits(s.oneByOne(e, q, tokens), 0, 1))
	s.ok(e.RestoreSnapshot(s.ctx, p, q))
	s.ok(e.FreeSnapshot(s.ctx, p))
}

// treeCommit: speculation with junk around the right path gives what plain decoding gives.
func (s *suite) treeCommit() {
	e := s.target()
	plain, tree := s.sequence(e), s.sequence(e)
	prompt := s.tokens(e, promptTokens)
	first := s.feed(e, plain, prompt, engine.WantToken).Tokens[promptTokens-1]
	s.feed(e, tree, prompt, 0)
	const rounds = 6
	// Plain greedy decoding.
	var text []int32
	var bits []row
	token := first
	for len(text) < rounds*3 {
		r := s.step(e, plain, chain([]int32{token}), everything)
		s.commit(e, plain, 0)
		text, bits = append(text, token), append(bits, rowBits(r, 0, 1))
		token = r.Tokens[0]
	}
	// The same text three tokens a round, hidden in a tree of wrong ones.
	at := 0
	g := pending(tree)
	r := &engine.StepResult{}
	for range rounds {
		var nodes []node
		var path []int32
		parent := int32(-1)
		for k := range 3 {
			for range s.rng.IntN(4) { // junk before
				nodes = append(nodes, node{s.tokens(e, 1)[0], parent})
			}
			nodes = append(nodes, node{text[at+k], parent})
			parent = int32(len(nodes) - 1)
			path = append(path, parent)
			nodes = append(nodes, node{s.tokens(e, 1)[0], int32(s.rng.IntN(len(nodes)))})
		}
		s.ok(e.Step(s.ctx, one(g, rowsOf(promptTokens+at, nodes, everything)), r))
		for k, i := range path {
			s.same(fmt.Sprintf("token %d", at+k), bits[at+k], rowBits(r, int(i), len(nodes)))
		}
		g.Path = path
		at += 3
	}
	s.ok(e.Step(s.ctx, one(g, nil), r))
	if a, b := s.length(e, plain), s.length(e, tree); a != b {
		s.Errorf("lengths %d and %d", a, b)
	}
}

func (s *suite) manySequences() {
	e := s.target()
	const n = 3
	var qs []engine.Sequence
	var alone []row
	trees, prompts := make([][]node, n), make([][]int32, n)
	for i := range n {
		q := s.sequence(e)
		qs = append(qs, q)
		prompts[i] = s.tokens(e, 3+7*i)
		s.feed(e, q, prompts[i], 0)
		trees[i] = s.randomTree(e, 2+3*i)
		r := s.step(e, q, trees[i], everything)
		for k := range trees[i] {
			alone = append(alone, rowBits(r, k, len(trees[i])))
		}
	}
	step := &engine.Step{}
	for i, q := range qs {
		add(step, pending(q), rowsOf(s.length(e, q), trees[i], everything))
	}
	r := &engine.StepResult{}
	s.ok(e.Step(s.ctx, step, r))
	for i := range step.Rows {
		s.same(fmt.Sprintf("row %d of all sequences", i), alone[i], rowBits(r, i, len(step.Rows)))
	}
	// Paths are indices within the sequence's group, wherever that was in the step. Here the groups come in another
	// order.
	step = &engine.Step{}
	paths := make([][]int32, n)
	for i := n - 1; i >= 0; i-- {
		paths[i] = pathTo(trees[i], len(trees[i])-1)
		add(step, engine.Group{Sequence: qs[i], Path: paths[i]}, nil)
	}
	s.ok(e.Step(s.ctx, step, r))
	for i, q := range qs {
		if got, want := s.length(e, q), 3+7*i+len(paths[i]); got != want {
			s.Errorf("sequence %d has %d positions, want %d", i, got, want)
		}
		alone := s.sequence(e)
		s.feed(e, alone, prompts[i], 0)
		var path []int32
		for _, at := range paths[i] {
			path = append(path, trees[i][at].token)
		}
		s.feed(e, alone, path, 0)
		s.same(fmt.Sprintf("sequence %d after its path", i), s.probe(e, alone), s.probe(e, q))
		s.ok(e.FreeSequence(s.ctx, alone))
	}
}

func (s *suite) pendingRows() {
	e := s.target()
	q, other := s.sequence(e), s.sequence(e)
	s.feed(e, q, s.tokens(e, 5), 0)
	s.feed(e, other, s.tokens(e, 5), 0)
	r := &engine.StepResult{}
	try := func(path ...int32) error {
		return e.Step(s.ctx, commit(q, path...), r)
	}
	s.refused("nothing pending", try(0), codes.FailedPrecondition, "pending")
	s.ok(try()) // dropping nothing is fine
	tree := []node{{1, -1}, {2, 0}, {3, 0}, {4, -1}}
	s.step(e, q, tree, 0)
	s.refused("not a child of the tip", try(1), codes.InvalidArgument, "groups[0].path[0]")
	s.refused("not a child of the one before", try(0, 3), codes.InvalidArgument, "groups[0].path[1]")
	s.refused("unknown row", try(4), codes.InvalidArgument, "groups[0].path[0]")
	s.refused("negative row", try(-1), codes.InvalidArgument, "path")
	s.step(e, other, tree, 0) // another sequence's step leaves ours pending
	s.ok(try(0, 2))
	if n := s.length(e, q); n != 7 {
		s.Errorf("length %d after committing two rows", n)
	}
	s.refused("committed twice", try(3), codes.FailedPrecondition, "pending")
	s.step(e, q, tree, 0)
	s.step(e, q, chain([]int32{5}), 0) // drops the tree
	s.refused("a dropped row", try(0, 1), codes.InvalidArgument, "path")
	s.step(e, q, tree, 0)
	s.ok(try())
	s.refused("dropped by an empty path", try(0), codes.FailedPrecondition, "pending")
	if n := s.length(e, q); n != 7 {
		s.Errorf("length %d", n)
	}
	s.refused("unknown sequence", e.Step(s.ctx, commit(999, 0), r), codes.NotFound, "sequence")
}

// prefill: prompt pieces of any size agree with decoding up to rounding.
func (s *suite) prefill() {
	e := s.target()
	tokens := s.tokens(e, 40)
	a, b, c := s.sequence(e), s.sequence(e), s.sequence(e)
	want := engine.WantLogits | engine.WantToken
	whole := slices.Clone(s.piece(e, a, tokens, want).Logits)
	s.piece(e, b, tokens[:1], 0)
	s.piece(e, b, tokens[1:18], 0)
	parts := slices.Clone(s.piece(e, b, tokens[18:], want).Logits)
	steps := s.oneByOne(e, c, tokens).Logits
	for name, other := range map[string][]float32{"chunks": parts, "single rows": steps} {
		worst := 0.0
		for i := range whole {
			worst = max(worst, math.Abs(float64(whole[i]-other[i])))
		}
		scale := float64(slices.Max(whole) - slices.Min(whole))
		if !(worst <= 0.02*scale) {
			s.Errorf("%s: logits differ by %v on a scale of %v", name, worst, scale)
		}
		s.Logf("%s: largest difference %v of %v", name, worst, scale)
	}
	again := s.sequence(e)
	s.ok(e.FreeSequence(s.ctx, a))
	if d := s.piece(e, again, tokens, want).Logits; !slices.Equal(bitsOf(d), bitsOf(whole)) {
		s.Error("the same chunk twice gives other bits")
	}
}
