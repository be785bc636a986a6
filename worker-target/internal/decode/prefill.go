package decode

import (
	"context"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"github.com/tandem-inference/tandem/worker-target/internal/decode/constrain"
	"github.com/tandem-inference/tandem/worker-target/internal/decode/output"
	"github.com/tandem-inference/tandem/worker-target/internal/piece"
	"go.opentelemetry.io/otel/attribute"
)

// prefill reads the part of the prompt that was not restored, piece by piece.
func (s *Slot) prefill(ctx context.Context) error {
	start := time.Now()
	s.trace.begin("prefill")
	prompt := s.req.Prompt
	var scores []*tandemv1.PositionLogprobs
	for at := s.seq.Length(); at < len(prompt); at = s.seq.Length() {
		if err := s.stream(ctx); err != nil {
			return err
		}
		if s.seq.Length() > at {
			at = s.seq.Length()
			s.reached(at)
		}
		end, kind := s.nextStep(at, len(prompt))
		s.trace.piece(at)
		began := s.watch.BeginKnown()
		n, err := s.runKnown(ctx, kind, prompt[at:s.reading.Stop(at, end)], func(i int, row *engine.Row) (bool, error) {
			switch p := at + i; {
			case p+1 == len(prompt) && s.req.Max > 0:
				return false, s.chooseNext(row, 0)
			case p+1 < len(prompt) && s.req.PromptLogprobs:
				row.Want |= engine.WantScore
				row.Score = prompt[p+1]
				s.out.WantTop(row)
			}
			return false, nil
		})
		s.trace.endStep(err, attribute.Int(telemetry.AttrRows, n))
		if err != nil {
			return err
		}
		verify, _ := s.seq.Result().Times()
		s.watch.Known(began, at, n, verify)
		if s.req.PromptLogprobs {
			for i := range min(n, len(prompt)-1-at) {
				scores = append(scores, s.seq.Result().Scored(i))
			}
		}
		s.reached(s.seq.Length())
	}
	s.reading.End()
	s.stats.Prefill = time.Since(start)
	s.stats.SavedTokens = s.reuse.Saved()
	s.trace.endPhase(nil, attribute.Int(telemetry.AttrTokens, s.stats.PrefillTokens),
		attribute.Int(telemetry.AttrCached, s.stats.CachedTokens))
	return s.out.Prefilled(output.Prefill{
		Tokens: len(prompt), Cached: s.stats.CachedTokens, Saved: s.stats.SavedTokens, Logprobs: scores,
	})
}

// reached stores the state of the prompt's first at tokens where that is wanted.
func (s *Slot) reached(at int) {
	s.reuse.Read(s.seq.ID(), at)
	if s.reading.Wanted(at) {
		s.reuse.Share(s.seq.ID(), at)
		s.reading.Stored(at)
	}
}

// decodeRows is how many rows of a prompt piece have the decode contract where the engine leaves it open.
const decodeRows = 64

// kind is the contract of a prompt piece of n tokens, in all its steps.
func (s *Slot) kind(n int) engine.GroupKind {
	most := s.info.PromptRows
	if most <= 0 {
		most = decodeRows
	}
	if n > most {
		return engine.KindPrompt
	}
	return engine.KindDecode
}

// nextStep is where a step of the prompt ends that begins at a position, at most at a limit, and its contract.
func (s *Slot) nextStep(at, limit int) (end int, kind engine.GroupKind) {
	first, end := s.cuts.Next(at, len(s.req.Prompt))
	return min(at+piece.Step(s.info.MaxBatchRows, s.prefillChunk), end, limit), s.kind(end - first)
}

// PromptTime is the expected time of reading a prompt from one position to another in steps of at most chunk rows, 0 =
// the engine's widest; 0 when no step was ever seen.
func PromptTime(model *auto.Model, info engine.Info, chunk, from, to int) (d time.Duration) {
	step := min(piece.Step(info.MaxBatchRows, chunk), piece.Grid)
	for at := from; at < to; at += step {
		d += model.Prompt(min(step, to-at), at, false)
	}
	return d
}

// replay runs tokens that another worker generated under the contract of decoding.
func (s *Slot) replay(ctx context.Context) error {
	start := time.Now()
	tokens := s.req.Committed
	if len(tokens) == 0 {
		return nil
	}
	s.trace.begin("replay")
	for done := 0; done < len(tokens); {
		n := min(s.info.MaxTreeRows, s.info.MaxBatchRows, len(tokens)-done)
		n, err := s.runKnown(ctx, engine.KindDecode, tokens[done:done+n], func(i int, row *engine.Row) (bool, error) {
			if err := s.constraint.Replay(tokens[done+i], done+i); err != nil {
				return false, err
			}
			err := s.chooseNext(row, done+i+1)
			return row.Want&engine.WantToken != 0, err // what follows may depend on the choice
		})
		if err != nil {
			return err
		}
		done += n
	}
	s.trace.endPhase(nil, attribute.Int(telemetry.AttrTokens, len(tokens)))
	s.stats.Prefill += time.Since(start)
	return nil
}

// runKnown commits a chain of known tokens and returns how many they were: prepare completes a token's row and may end
// the chain with it.
func (s *Slot) runKnown(
	ctx context.Context, kind engine.GroupKind, tokens []int32, prepare func(i int, row *engine.Row) (end bool, err error),
) (int, error) {
	s.constraint.Begin()
	n, err := s.addKnown(kind, tokens, prepare)
	if err != nil {
		return 0, err
	}
	s.text.Read(tokens[:n])
	if err := s.runStep(ctx, true); err != nil {
		return 0, err
	}
	if token, ok := s.seq.Result().Last(); ok {
		s.constraint.SetChosen(token)
	}
	s.takeKnown(n)
	s.stats.PrefillTokens += n
	return n, nil
}

// addKnown puts a step of known tokens together, see runKnown.
func (s *Slot) addKnown(
	kind engine.GroupKind, tokens []int32, prepare func(i int, row *engine.Row) (end bool, err error),
) (n int, err error) {
	s.seq.Begin(kind, s.features.Encoding(), 0)
	s.seq.Trace(s.trace.work())
	s.features.BeginKnown()
	for end := false; n < len(tokens) && !end; n++ {
		p := s.seq.Length() + n
		row := engine.Row{Token: tokens[n], Position: int32(p), Parent: int32(n - 1), Mask: -1}
		if end, err = prepare(n, &row); err != nil {
			return 0, err
		}
		row.Want |= s.features.WantKnown(p)
		s.seq.Add(row)
	}
	return n, nil
}

// takeKnown takes the results of a step of n known tokens.
func (s *Slot) takeKnown(n int) {
	s.features.Take(s.seq.Result().Features(), nil)
	s.seq.Advance(n)
}

// chooseNext makes the row before output token i choose it when it is not known yet, or when the constraint depends on
// the token that would have been chosen.
func (s *Slot) chooseNext(row *engine.Row, i int) error {
	if i < len(s.req.Committed) && !s.constraint.Sampling(s.req.Committed[i]) {
		return nil
	}
	return s.choose(row, constrain.Next)
}

// choose makes a row choose a token, as the constraint allows after a node of the round's tree.
func (s *Slot) choose(row *engine.Row, node int) error {
	open, err := s.constraint.Limit(row, node, s.out.Logprobs())
	if err == nil && open {
		s.out.Choose(row)
	}
	return err
}

// runStep runs the step that was built. A step that the engine refuses for want of memory is tried again once there is
// room: a refused step has changed nothing.
func (s *Slot) runStep(ctx context.Context, commit bool) error {
	s.seq.SetMasks(s.constraint.Masks())
	if s.member.Asked() {
		if err := s.yield(ctx); err != nil {
			return err
		}
	}
	err := s.seq.Run(ctx, commit)
	for refused(err) {
		if err := s.makeRoom(ctx, err); err != nil {
			return err
		}
		err = s.seq.Run(ctx, commit)
	}
	if err != nil {
		return err
	}
	return s.features.Check(s.seq.Result().Features())
}

// first emits the token that the last row of prefill or replay has chosen, and asks for the first proposal.
func (s *Slot) first(ctx context.Context) (tandemv1.FinishReason, error) {
	s.trace.begin("decode")
	s.begin()
	reason := s.accept(s.seq.Result().Rows() - 1)
	s.watch.First(len(s.answer)-len(s.out.Tokens()), s.out.Tokens())
	s.spec.ObserveText(s.seq.Length())
	if reason == unfinished {
		if err := s.ask(ctx); err != nil {
			return reason, err
		}
	}
	return reason, s.flush(ctx)
}
