package decode

import (
	"context"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/ddtree"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/worker-target/internal/decode/speculate"
)

// round runs one round: wait for the proposal, verify, walk, ask for the next, emit.
func (s *Slot) round(ctx context.Context) (tandemv1.FinishReason, error) {
	before := s.seq.Length()
	s.watch.Begin(s.roundBegan)
	tree, added := s.wait(ctx)
	rows := tree.Len()
	s.watch.Step()
	if err := s.verify(ctx, tree); err != nil {
		s.trace.endStep(err)
		return unfinished, err
	}
	path, reason := s.walk(tree)
	result := s.seq.Result()
	verify, wall := result.Times()
	s.stats.Verify += wall
	s.stats.Steps++
	if rows == 1 {
		s.stats.Plain++
	}
	s.measure(ctx, wall, s.spec.Waited(), len(s.out.Tokens()))
	s.endRound(rows, len(path)-1, len(s.out.Tokens()))
	s.watchRound(tree, path, before)
	s.spec.Observe(&speculate.Verified{
		Before: before, After: s.seq.Length(), Path: path, Tokens: s.out.Tokens(), Added: added,
		Others: result.Others(), OtherRequests: result.OtherRequests(), Beside: result.Beside(), Verify: verify, Wall: wall,
	})
	var err error
	if reason == unfinished || s.reuse.Answers() {
		s.features.Take(result.Features(), s.seq.Path())
	}
	if reason == unfinished {
		err = s.ask(ctx)
	}
	// The round's tokens are handed over even if the question failed.
	if lost := s.flush(ctx); err == nil {
		err = lost
	}
	s.watch.Flushed()
	return reason, err
}

// wait returns the tree of the round, fitted to the constraint. added reports that the constraint added nodes.
func (s *Slot) wait(ctx context.Context) (tree *ddtree.Tree, added bool) {
	at := s.at()
	tree = s.spec.Wait(ctx, at)
	s.attach(ctx, at.Length)
	if s.watch.On() {
		s.watch.Proposal(tree, s.origin(), s.spec.Extended())
	}
	cut, added := s.constraint.Fit(tree, min(s.info.MaxTreeRows, s.info.MaxBatchRows, at.Free, at.Left))
	if cut || added {
		if s.watch.On() {
			s.watch.Fitted(tree)
		}
		s.spec.Changed(at)
	}
	return tree, added
}

// verify runs the rows of the tree.
func (s *Slot) verify(ctx context.Context, tree *ddtree.Tree) error {
	kept, err := s.features.BeginRound(ctx, &s.seq, tree.Len(), s.spec.Asked())
	if err != nil {
		return err
	}
	s.seq.Begin(engine.KindDecode, s.features.Encoding(), kept)
	s.seq.Trace(s.trace.work())
	s.constraint.Begin()
	for i := range tree.Len() {
		row := engine.Row{
			Token: tree.Tokens[i], Position: int32(s.seq.Length()) + tree.Depths[i], Parent: tree.Parents[i], Mask: -1,
			Want: s.features.WantRound(),
		}
		if err := s.choose(&row, i); err != nil {
			return err
		}
		s.seq.Add(row)
	}
	// The anchor alone is kept whatever the step chooses: committing it at once saves the engine the replay of its state.
	return s.runStep(ctx, tree.Len() == 1)
}

// walk accepts the tokens that the target chose down the tree and returns their rows. The reason says whether the
// request ends with one of them; what follows it is dropped.
func (s *Slot) walk(tree *ddtree.Tree) (path []int32, reason tandemv1.FinishReason) {
	path = s.constraint.Walk(tree, s.seq.Result().Tokens(), s.seq.Path())
	s.begin()
	accepted := 0
	for reason == unfinished && accepted < len(path) {
		s.seq.Advance(1)
		reason = s.accept(int(path[accepted]))
		accepted++
	}
	s.seq.SetPath(path[:accepted])
	return path, reason
}

// begin starts the output of a round.
func (s *Slot) begin() {
	s.out.Begin()
	s.text.Begin()
}

// accept adds the token that a row of the last step chose to output and text.
func (s *Slot) accept(row int) tandemv1.FinishReason {
	result := s.seq.Result()
	sampled := result.Tokens()[row]
	token, closes := s.constraint.Resolve(sampled)
	if token != sampled {
		result.Replace(row, token)
	}
	if closes {
		s.out.Close(s.constraint.Kind())
	}
	var logprobs *tandemv1.PositionLogprobs
	if s.out.Logprobs() {
		logprobs = result.Chosen(row)
	}
	if !s.out.Add(token, logprobs) {
		return tandemv1.FinishReason_FINISH_REASON_STOP
	}
	s.text.Add(token)
	s.answer = append(s.answer, token)
	switch {
	case s.constraint.Ended():
		return tandemv1.FinishReason_FINISH_REASON_STOP
	case s.out.Left() <= 0 || s.seq.Length() >= s.info.MaxContext:
		return tandemv1.FinishReason_FINISH_REASON_LENGTH
	}
	return unfinished
}

// ask plans the next round, which starts from the anchor, and asks the draft when the plan needs it.
func (s *Slot) ask(ctx context.Context) error {
	s.trace.round()
	s.roundBegan = time.Now()
	at := s.at()
	if !s.spec.Plan(at, s.constraint.Certain()) {
		return nil
	}
	if err := s.features.CatchUp(ctx, &s.seq); err != nil {
		return err
	}
	s.spec.Ask(at, s.trace.work().Span)
	return nil
}
