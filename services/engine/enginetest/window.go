package enginetest

import (
	"slices"

	"google.golang.org/grpc/codes"
)

// attentionWindow: rows within the window have the bits of an engine without one, rows behind it others, and neither
// the contract nor states are the same.
func (s *suite) attentionWindow() {
	const window = 128
	o := options(s.models.Target)
	o.AttentionWindow = window
	narrow, all := s.openTarget(o), s.target()
	if n := narrow.Info().Numerics; n == all.Info().Numerics {
		s.Errorf("numerics %q with and without a window", n)
	}
	text := s.tokens(all, window+40)
	for _, n := range []int{window - 2, len(text)} { // a probe is two more rows
		a, b := s.sequence(narrow), s.sequence(all)
		for piece := range slices.Chunk(text[:n], batchRows) {
			s.feed(narrow, a, piece, 0)
			s.feed(all, b, piece, 0)
		}
		want := n < window || s.models.Scripted
		if same := slices.Equal(s.probe(narrow, a).logits, s.probe(all, b).logits); same != want {
			s.Errorf("after %d positions the same as without a window of %d: %t", n, window, same)
		}
		s.ok(narrow.FreeSequence(s.ctx, a))
		s.ok(all.FreeSequence(s.ctx, b))
	}
	q := s.sequence(narrow)
	s.feed(narrow, q, text[:9], 0)
	state, err := narrow.Export(s.ctx, q)
	s.ok(err)
	s.refused("a state of another window", all.Import(s.ctx, s.sequence(all), state), codes.FailedPrecondition)

	for _, bad := range []int{-1, 1, window - 1, 1<<24 + 1} {
		o.AttentionWindow = bad
		_, err := s.opener.OpenTarget(s.ctx, o, nil)
		s.refused("a window that cannot be", err, codes.InvalidArgument, "attention_window")
	}
	if s.models.Score != "" {
		o := options(s.models.Score)
		o.AttentionWindow = window
		_, err := s.opener.OpenScorer(s.ctx, o, nil)
		s.refused("a scorer's window", err, codes.InvalidArgument, "attention_window")
	}
}
