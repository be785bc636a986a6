package enginetest

import (
	"math/rand/v2"
	"testing"

	"github.com/tandem-inference/tandem/services/engine"
)

// Same runs random conversations on targets of several openers, which promise the same bits: everything that a step
// gives must be equal, in prompts, trees and chains, with a sampler, features and states that are stored and restored.
func Same(t *testing.T, models Models, openers ...engine.Opener) {
	s := &suite{T: t, ctx: t.Context(), models: models, rng: rand.New(rand.NewPCG(7, 7))}
	es := make([]engine.Target, len(openers))
	qs := make([]engine.Sequence, len(openers))
	snapshots := make([]engine.Snapshot, len(openers))
	results := make([]engine.StepResult, len(openers))
	for i, o := range openers {
		s.opener = o
		es[i] = s.target()
		qs[i] = s.sequence(es[i])
	}
	encoding := engine.FeatureRawF32
	want := everything | engine.WantFeatures
	all := func(call func(i int) error) {
		s.Helper()
		for i := range es {
			s.ok(call(i))
		}
	}
	if models.Draft != "" {
		all(func(i int) error { return es[i].LoadFuse(s.ctx, models.Draft) })
		encoding = engine.FeatureFusedF32
	} else {
		all(func(i int) error { return es[i].SetCapture(s.ctx, []int32{0, int32(es[i].Info().Layers - 1)}) })
	}
	sampler := engine.DefaultSampler()
	sampler.Temperature, sampler.Seed, sampler.RepetitionPenalty = 0.9, 11, 1.1
	all(func(i int) error { return es[i].SetSampler(s.ctx, qs[i], sampler) })
	length := 0
	step := func(what string, tree []node, g engine.Group) {
		s.Helper()
		all(func(i int) error {
			g.Sequence = qs[i]
			st := one(g, rowsOf(length+len(g.Path), tree, want))
			st.Features = encoding
			return es[i].Step(s.ctx, st, &results[i])
		})
		for k := range tree {
			first := rowBits(&results[0], k, len(tree))
			for i := range results[1:] {
				s.same(what, first, rowBits(&results[1+i], k, len(tree)))
			}
		}
		length += len(g.Path)
		if g.Commit {
			length += len(tree)
		}
	}
	var path []int32
	for round := range 8 {
		piece := engine.Group{Commit: true, Path: path}
		if es[0].Info().PromptRows != 0 && round%2 == 0 {
			piece.Kind = engine.KindPrompt
		}
		step("piece", chain(s.tokens(es[0], 1+s.rng.IntN(20))), piece)
		switch round {
		case 2:
			all(func(i int) (err error) { snapshots[i], err = es[i].NewSnapshot(s.ctx, qs[i]); return err })
		case 5:
			all(func(i int) error { return es[i].RestoreSnapshot(s.ctx, snapshots[i], qs[i]) })
			length = s.length(es[0], qs[0])
			for i := range es {
				if n := s.length(es[i], qs[i]); n != length {
					s.Fatalf("restored %d and %d positions", length, n)
				}
			}
		}
		tree := s.randomTree(es[0], 1+s.rng.IntN(treeRows/2))
		step("tree", tree, engine.Group{})
		path = pathTo(tree, s.rng.IntN(len(tree)))
	}
}
