package decode

import (
	"context"
	"time"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// streamer is an engine in stages that accepts steps of known tokens before the previous ones have ended.
type streamer interface {
	Submit(ctx context.Context, step *engine.Step, result *engine.StepResult) func() (rows int, err error)
}

const (
	// piecesBehind is how many steps of a prompt are handed over beyond one for each stage, so that the first stage always
	// has its next one.
	piecesBehind = 1
	// newestEvery is the number of pieces between two states that are kept only until the next one. To store one, the
	// stages run empty; raising it keeps them busier and loses more of a prompt whose client gives up.
	newestEvery = 8
)

// streamed is a step of the prompt that was handed over.
type streamed struct {
	group  [1]engine.Group
	step   engine.Step
	result engine.StepResult
	tokens []int32
	wait   func() (rows int, err error)
	span   trace.Span // nil = it is not traced
	began  time.Time  // zero = nobody watches it
}

// stream reads the prompt by steps that follow each other through an engine in stages, up to a position where the
// caller must act: at a border whose state is to be stored, where others wait for a state, and before the last step,
// which chooses a token. When the engine has no room it returns without an error, with no step on its way: the step
// that was refused is the caller's next one, and the memory that a request waits for is never its own.
func (s *Slot) stream(ctx context.Context) error {
	e, ok := s.engine.(streamer)
	if !ok || s.info.Depth <= 1 || s.req.PromptLogprobs {
		return nil
	}
	var failed error
	at, pieces, out := s.seq.Length(), 0, 0
	finish := func() {
		done := s.line[0]
		s.line = append(s.line[1:], done)
		out--
		n, err := done.wait()
		if done.span != nil {
			done.span.SetAttributes(attribute.Int(telemetry.AttrRows, n))
			telemetry.EndSpan(done.span, err)
			done.span = nil
		}
		s.took(done, n)
		if err == nil {
			s.watch.Known(done.began, int(done.step.Rows[0].Position), n, 0)
		}
		if failed == nil {
			failed = err
		}
	}
	for stop := false; failed == nil && !stop; {
		end, kind := s.nextStep(at, len(s.req.Prompt))
		if end == len(s.req.Prompt) || s.member.Asked() || s.reading.Stop(at, end) != end {
			break
		}
		if out == len(s.line) {
			s.line = append(s.line, &streamed{})
		}
		next := s.line[out]
		s.hand(next, kind, at, end)
		next.wait = e.Submit(ctx, &next.step, &next.result)
		at, out, pieces = end, out+1, pieces+1
		stop = s.reuse.Keeps(at) || pieces == newestEvery && s.reuse.On()
		if out > s.info.Depth+piecesBehind {
			finish()
		}
	}
	for out > 0 {
		finish()
	}
	if refused(failed) {
		return nil
	}
	return failed
}

// hand puts together the step of the prompt's tokens from at to end.
func (s *Slot) hand(next *streamed, kind engine.GroupKind, at, end int) {
	next.tokens = s.req.Prompt[at:end]
	next.span, next.began = s.trace.streamed(at), s.watch.BeginKnown()
	next.group[0] = engine.Group{Sequence: s.handle, Rows: end - at, Kind: kind, Commit: true, Trace: traceOf(next.span)}
	next.step = engine.Step{Groups: next.group[:], Rows: next.step.Rows[:0], Features: s.features.Encoding()}
	for i, token := range next.tokens {
		next.step.Rows = append(next.step.Rows, engine.Row{
			Token: token, Position: int32(at + i), Parent: int32(i - 1), Mask: -1, Want: s.features.WantKnown(at + i),
		})
	}
}

// took takes the results of the first n rows of a step.
func (s *Slot) took(done *streamed, n int) {
	wanted := 0
	for i := range done.step.Rows[:n] {
		if done.step.Rows[i].Want&engine.WantFeatures != 0 {
			wanted++
		}
	}
	s.features.TakeRows(done.result.Features, wanted)
	s.text.Read(done.tokens[:n])
	s.seq.Advance(n)
	s.stats.PrefillTokens += n
}
