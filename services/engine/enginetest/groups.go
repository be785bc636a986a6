package enginetest

import (
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/tandem-inference/tandem/services/engine"
)

// piece commits tokens as a prompt piece and returns the result of the last one.
func (s *suite) piece(e engine.Target, q engine.Sequence, tokens []int32, want uint32) *engine.StepResult {
	s.Helper()
	r := &engine.StepResult{}
	rows := rowsOf(s.length(e, q), chain(tokens), 0)
	rows[len(rows)-1].Want = want
	s.ok(e.Step(s.ctx, one(engine.Group{Sequence: q, Kind: engine.KindPrompt, Commit: true}, rows), r))
	return r
}

// atomicErrors: a step that is refused for its last group leaves all sequences as they were, with what they have
// pending and kept.
func (s *suite) atomicErrors() {
	e := s.target()
	s.ok(e.SetCapture(s.ctx, []int32{0}))
	a, b, idle, reference := s.sequence(e), s.sequence(e), s.sequence(e), s.sequence(e)
	prompt, tree := s.tokens(e, 6), s.randomTree(e, 5)
	for _, q := range []engine.Sequence{a, b, reference} {
		rows := rowsOf(0, chain(prompt), engine.WantKeep)
		s.ok(e.Step(s.ctx, one(engine.Group{Sequence: q, Commit: true}, rows), &engine.StepResult{}))
		s.step(e, q, tree, engine.WantToken)
	}
	path := pathTo(tree, 4)
	after := len(prompt) + len(path)
	vocab := int32(e.Info().Vocab)
	type edit = func(g *engine.Group, rows []engine.Row)
	for _, c := range []struct {
		name string
		edit edit
		code codes.Code
		word string
	}{
		{"unknown sequence", func(g *engine.Group, _ []engine.Row) { g.Sequence = 4711 }, codes.NotFound,
			"groups[1].sequence"},
		{"a sequence twice", func(g *engine.Group, _ []engine.Row) { g.Sequence = a }, codes.InvalidArgument,
			"groups[1].sequence"},
		{"nothing pending", func(g *engine.Group, rows []engine.Row) {
			g.Sequence = idle
			for i := range rows {
				rows[i].Position = int32(len(path) + i)
			}
		}, codes.FailedPrecondition, "groups[1].n_path"},
		{"no such pending row", func(g *engine.Group, _ []engine.Row) { g.Path = []int32{path[0], 5} },
			codes.InvalidArgument, "groups[1].path[1]"},
		{"features that are not kept", func(g *engine.Group, _ []engine.Row) {
			g.Kept = engine.KeptRange{Position: int32(len(prompt)) - 1, Rows: 2}
		}, codes.FailedPrecondition, "groups[1].kept_position"},
		{"kind", func(g *engine.Group, _ []engine.Row) { g.Kind = 7 }, codes.InvalidArgument, "groups[1].kind"},
		{"parent", func(_ *engine.Group, rows []engine.Row) { rows[2].Parent = 2 }, codes.InvalidArgument,
			"groups[1].rows[2].parent"},
		{"parent in the group before", func(_ *engine.Group, rows []engine.Row) { rows[0].Parent = 0 },
			codes.InvalidArgument, "groups[1].rows[0].parent"},
		{"position without the path", func(_ *engine.Group, rows []engine.Row) { rows[0].Position = int32(len(prompt)) },
			codes.InvalidArgument, "groups[1].rows[0].position"},
		{"token", func(_ *engine.Group, rows []engine.Row) { rows[2].Token = vocab }, codes.InvalidArgument,
			"groups[1].rows[2].token"},
		{"want", func(_ *engine.Group, rows []engine.Row) { rows[1].Want = 1 << 20 }, codes.InvalidArgument,
			"groups[1].rows[1].want"},
		{"mask", func(_ *engine.Group, rows []engine.Row) { rows[1].Mask = 0 }, codes.InvalidArgument,
			"groups[1].rows[1].mask"},
	} {
		step := &engine.Step{Features: engine.FeatureRawBF16}
		add(step, engine.Group{Sequence: a, Path: path, Kept: engine.KeptRange{Position: 1, Rows: 2}, Commit: true},
			rowsOf(after, chain([]int32{1, 2}), engine.WantToken|engine.WantKeep))
		add(step, engine.Group{Sequence: b, Path: path}, rowsOf(after, chain([]int32{1, 2, 3}), engine.WantToken))
		c.edit(&step.Groups[1], step.Rows[2:])
		s.refused(c.name, e.Step(s.ctx, step, &engine.StepResult{}), c.code, c.word)
		for _, q := range []engine.Sequence{a, b} {
			if n := s.length(e, q); n != len(prompt) {
				s.Fatalf("%s: the refused step left %d positions, %d were there", c.name, n, len(prompt))
			}
		}
	}
	// The context is full behind the path only.
	s.feed(e, idle, s.tokens(e, batchRows), 0)
	s.feed(e, idle, s.tokens(e, maxContext-batchRows-1), 0)
	step := &engine.Step{}
	add(step, engine.Group{Sequence: a, Path: path}, nil)
	add(step, engine.Group{Sequence: idle}, rowsOf(maxContext-1, chain([]int32{1, 2}), 0))
	s.refused("context full", e.Step(s.ctx, step, &engine.StepResult{}), codes.ResourceExhausted, "groups[1].rows[1]")
	if n := s.length(e, idle); n != maxContext-1 {
		s.Errorf("the refused step left %d positions of %d", n, maxContext-1)
	}

	kept := func(q engine.Sequence, path ...int32) string {
		s.Helper()
		r := &engine.StepResult{}
		step := commit(q, path...)
		step.Groups[0].Kept, step.Features = engine.KeptRange{Position: 0, Rows: int32(len(prompt))}, engine.FeatureRawBF16
		s.ok(e.Step(s.ctx, step, r))
		return string(r.Features)
	}
	want := kept(reference, path...)
	bits := s.probe(e, reference)
	for _, q := range []engine.Sequence{a, b} {
		if kept(q, path...) != want {
			s.Error("features that were kept differ after refused steps")
		}
		s.same("after refused steps", bits, s.probe(e, q))
	}
}

// kinds: the bits of a row follow from the kind that its group states, whatever the number of its rows.
func (s *suite) kinds() {
	const (
		whole = 90
		cut   = 64 // steps of a prompt piece may be cut at multiples of it
		few   = 5
	)
	e := s.target()
	tokens := s.tokens(e, whole)
	prompt := s.tokens(e, 7)
	q := s.sequence(e)
	s.feed(e, q, prompt, 0)
	p, err := e.NewSnapshot(s.ctx, q)
	s.ok(err)
	// run commits rows in steps of these sizes and returns the bits of all rows and of what follows.
	run := func(kind engine.GroupKind, sizes ...int) (rows []row, next row) {
		s.Helper()
		s.ok(e.RestoreSnapshot(s.ctx, p, q))
		at := 0
		for _, n := range sizes {
			r := &engine.StepResult{}
			g := engine.Group{Sequence: q, Kind: kind, Commit: true}
			s.ok(e.Step(s.ctx, one(g, rowsOf(len(prompt)+at, chain(tokens[at:at+n]), everything)), r))
			for i := range n {
				rows = append(rows, rowBits(r, i, n))
			}
			at += n
		}
		return rows, s.probe(e, q)
	}
	compare := func(what string, a, b []row) {
		s.Helper()
		for i := range min(len(a), len(b)) {
			s.same(fmt.Sprintf("%s: row %d", what, i), a[i], b[i])
		}
	}
	piece, behind := run(engine.KindPrompt, whole)
	parts, after := run(engine.KindPrompt, cut, whole-cut)
	compare("a prompt piece in two steps", piece, parts)
	s.same("after a prompt piece in two steps", behind, after)
	short, shortAfter := run(engine.KindPrompt, few)
	compare("a prompt piece of few rows", piece, short)

	wide, behindWide := run(engine.KindDecode, whole)
	var ones [whole]int
	for i := range ones {
		ones[i] = 1
	}
	singles, afterSingles := run(engine.KindDecode, ones[:]...)
	compare("many decode rows", wide, singles)
	s.same("after many decode rows", behindWide, afterSingles)

	if e.Info().PromptRows == 0 {
		compare("both kinds", piece, wide)
		s.same("after both kinds", behind, behindWide)
		_, decoded := run(engine.KindDecode, few)
		s.same("after few rows of both kinds", shortAfter, decoded)
	}
	s.ok(e.FreeSnapshot(s.ctx, p))
}

// part is what a sequence does in a mix.
type part struct {
	q      engine.Sequence
	token  []int32 // committed before, its features are kept
	before []node  // pending
	path   []int32
	kind   engine.GroupKind
	commit bool
	tree   []node
	kept   bool // the group reads what is kept

	// Before the token, and what the group gives alone.
	state  engine.Snapshot
	rows   []row
	read   string
	next   row
	length int
}

// mixes: a row has the bits of its group alone, a sequence the state, whatever groups are beside it. Joint steps are
// wider than trees.
func (s *suite) mixes() {
	e := s.target()
	s.ok(e.SetCapture(s.ctx, []int32{0}))
	parts := make([]part, maxSequences)
	for i := range parts {
		parts[i].q = s.sequence(e)
	}
	widest := 0
	for range 8 {
		left := batchRows
		for i := range parts {
			p := &parts[i]
			s.ok(e.Truncate(s.ctx, p.q, 0))
			s.feed(e, p.q, s.tokens(e, 4+s.rng.IntN(30)), 0)
			p.token = s.tokens(e, 1)
			var err error
			p.state, err = e.NewSnapshot(s.ctx, p.q)
			s.ok(err)
			s.drawPart(e, p, left-(maxSequences-1-i)*8)
			left -= len(p.tree)
		}
		widest = max(widest, batchRows-left)
		for i := range parts {
			p := &parts[i]
			rows, read := s.runParts(e, parts[i:i+1])
			p.rows, p.read = rows[0], read[0]
			p.length, p.next = s.length(e, p.q), s.probe(e, p.q)
			s.ok(e.RestoreSnapshot(s.ctx, p.state, p.q))
		}
		rows, read := s.runParts(e, parts)
		for i := range parts {
			p := &parts[i]
			for k := range p.rows {
				s.same(fmt.Sprintf("group %d (%d rows, kind %d, commit %v) in a mix: row %d", i, len(p.tree), p.kind, p.commit, k),
					p.rows[k], rows[i][k])
			}
			if p.read != read[i] {
				s.Errorf("group %d: kept features differ in a mix", i)
			}
			if n := s.length(e, p.q); n != p.length {
				s.Errorf("group %d: %d positions after a mix, %d alone", i, n, p.length)
			}
			s.same(fmt.Sprintf("after group %d in a mix", i), p.next, s.probe(e, p.q))
			s.ok(e.FreeSnapshot(s.ctx, p.state))
		}
	}
	if widest <= treeRows {
		s.Errorf("no joint step was wider than a tree: %d rows", widest)
	}
}

// drawPart draws what a sequence does; most is its share of the step's rows.
func (s *suite) drawPart(e engine.Target, p *part, most int) {
	p.before, p.path, p.tree = nil, nil, nil
	p.kind, p.commit = engine.KindDecode, false
	if s.rng.IntN(2) == 0 {
		p.before = s.randomTree(e, 1+s.rng.IntN(8))
		if s.rng.IntN(4) != 0 { // else dropped
			p.path = pathTo(p.before, s.rng.IntN(len(p.before)))
		}
	}
	p.kept = s.rng.IntN(2) == 0
	switch s.rng.IntN(6) {
	case 0: // a prompt piece
		p.kind, p.commit = engine.KindPrompt, true
		p.tree = chain(s.tokens(e, 1+s.rng.IntN(min(most, 70))))
	case 1: // a plain token
		p.commit = true
		p.tree = chain(s.tokens(e, 1))
	case 2: // replay
		p.commit = true
		p.tree = chain(s.tokens(e, 1+s.rng.IntN(most)))
	case 3: // nothing but the path
	default:
		p.tree = s.randomTree(e, 1+s.rng.IntN(min(most, treeRows)))
	}
}

// runParts runs the pending rows of parts, then their groups, in one step each, and returns bits of rows and kept
// features by part.
func (s *suite) runParts(e engine.Target, parts []part) (rows [][]row, read []string) {
	s.Helper()
	r := &engine.StepResult{}
	before, step := &engine.Step{}, &engine.Step{Features: engine.FeatureRawF32}
	for i := range parts {
		p := &parts[i]
		s.feed(e, p.q, p.token, engine.WantKeep)
		length := s.length(e, p.q)
		g := engine.Group{Sequence: p.q, Kind: p.kind, Commit: p.commit, Path: p.path}
		if p.kept {
			g.Kept = engine.KeptRange{Position: int32(length) - 1, Rows: 1}
		}
		if len(p.before) > 0 {
			add(before, pending(p.q), rowsOf(length, p.before, 0))
		}
		add(step, g, rowsOf(length+len(p.path), p.tree, everything|engine.WantFeatures))
	}
	if len(before.Groups) > 0 {
		s.ok(e.Step(s.ctx, before, r))
	}
	s.ok(e.Step(s.ctx, step, r))
	width := 4 * e.Info().FeatureRaw
	features := r.Features
	for i := range parts {
		n := 0
		if parts[i].kept {
			n = width
		}
		read, features = append(read, string(features[:n])), features[n:]
	}
	r.Features = slices.Clone(features)
	at := 0
	for i := range parts {
		var of []row
		for range parts[i].tree {
			of = append(of, rowBits(r, at, len(step.Rows)))
			at++
		}
		rows = append(rows, of)
	}
	return rows, read
}
