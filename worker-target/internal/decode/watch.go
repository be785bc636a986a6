package decode

import (
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/ddtree"
	"github.com/tandem-inference/tandem/worker-target/internal/decode/speculate"
	"github.com/tandem-inference/tandem/worker-target/internal/watch"
)

// origin says who proposed the round's tree, before it is fitted to the constraint.
func (s *Slot) origin() tandemv1.TokenOrigin {
	switch s.spec.Proposer() {
	case speculate.ProposerLookup:
		return tandemv1.TokenOrigin_TOKEN_ORIGIN_LOOKUP
	case speculate.ProposerDraft:
		return tandemv1.TokenOrigin_TOKEN_ORIGIN_DRAFT
	}
	return tandemv1.TokenOrigin_TOKEN_ORIGIN_CONSTRAINT
}

// watchRound describes a round whose step has run from a position on. It comes before the speculation learns from the
// round, which changes the tree.
func (s *Slot) watchRound(tree *ddtree.Tree, path []int32, position int) {
	if !s.watch.On() {
		return
	}
	result, tokens := s.seq.Result(), s.out.Tokens()
	verify, _ := result.Times()
	s.watch.Verified(&watch.Verified{
		Number: s.stats.Steps, Tree: tree, Path: path, Index: len(s.answer) - len(tokens), Tokens: tokens,
		Position: position, Others: result.Others() + result.Beside(),
		Waited: s.spec.Waited(), Draft: s.spec.DraftWork(), Engine: verify,
	})
}
