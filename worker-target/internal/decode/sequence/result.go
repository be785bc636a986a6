package sequence

import (
	"context"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// Result is what a step returned, row by row.
type Result struct {
	rows []engine.Row // of the step
	raw  engine.StepResult
	wall time.Duration
}

// run runs a step and checks the engine's results where a breach of its contract would cause a crash or a wrong token.
func (r *Result) run(ctx context.Context, e engine.Target, step *engine.Step, vocab int) error {
	r.rows = step.Rows
	start := time.Now()
	if err := e.Step(ctx, step, &r.raw); err != nil {
		return err
	}
	r.wall = time.Since(start)
	return r.check(vocab)
}

func (r *Result) check(vocab int) error {
	want := uint32(0)
	for i := range r.rows {
		want |= r.rows[i].Want
		if r.rows[i].Want&engine.WantToken != 0 {
			if i >= len(r.raw.Tokens) || i >= len(r.raw.Logprobs) {
				return rpcerr.Internal("engine returned %d tokens for %d rows", len(r.raw.Tokens), len(r.rows))
			}
			if t := r.raw.Tokens[i]; t < 0 || int(t) >= vocab {
				return rpcerr.Internal("engine chose token %d of a vocabulary of %d", t, vocab)
			}
		}
	}
	if want&engine.WantScore != 0 && len(r.raw.Scores) < len(r.rows) {
		return rpcerr.Internal("engine returned %d scores for %d rows", len(r.raw.Scores), len(r.rows))
	}
	if want&engine.WantTop != 0 && len(r.raw.TopIDs) < len(r.rows)*r.raw.TopStride {
		return rpcerr.Internal("engine returned %d candidates for %d rows of %d", len(r.raw.TopIDs), len(r.rows),
			r.raw.TopStride)
	}
	return nil
}

// Rows is the number of rows of the step.
func (r *Result) Rows() int { return len(r.rows) }

// Tokens returns the token that each row chose; only rows that wanted one have it.
func (r *Result) Tokens() []int32 { return r.raw.Tokens }

// Last returns the choice of the last row; ok is false when it was not asked for one.
func (r *Result) Last() (token int32, ok bool) {
	last := len(r.rows) - 1
	if last < 0 || r.rows[last].Want&engine.WantToken == 0 {
		return 0, false
	}
	return r.raw.Tokens[last], true
}

// Replace puts token in the place of the one that row chose. Its log-probability is the row's score, where that was
// asked for.
func (r *Result) Replace(row int, token int32) {
	r.raw.Tokens[row] = token
	if r.rows[row].Want&engine.WantScore != 0 {
		r.raw.Logprobs[row] = r.raw.Scores[row]
	}
}

// Chosen returns the log-probabilities of the token that row chose and of its candidates.
func (r *Result) Chosen(row int) *tandemv1.PositionLogprobs {
	return &tandemv1.PositionLogprobs{Logprob: r.raw.Logprobs[row], Top: r.top(row)}
}

// Scored returns the log-probabilities of the token that row was to score and of its candidates.
func (r *Result) Scored(row int) *tandemv1.PositionLogprobs {
	return &tandemv1.PositionLogprobs{Logprob: r.raw.Scores[row], Top: r.top(row)}
}

// top lists the candidates of a row that asked for them.
func (r *Result) top(row int) []*tandemv1.TokenLogprob {
	if r.rows[row].Want&engine.WantTop == 0 {
		return nil
	}
	var list []*tandemv1.TokenLogprob
	at := row * r.raw.TopStride
	for k := range min(int(r.rows[row].TopK), r.raw.TopStride) {
		if id := r.raw.TopIDs[at+k]; id >= 0 {
			list = append(list, &tandemv1.TokenLogprob{Token: id, Logprob: r.raw.TopLogprobs[at+k]})
		}
	}
	return list
}

// Features returns the rows of features, those read from the engine first.
func (r *Result) Features() []byte { return r.raw.Features }

// Times returns the engine's time for the step and that of the whole call.
func (r *Result) Times() (verify, wall time.Duration) {
	verify = time.Duration(r.raw.EngineNanos)
	if verify <= 0 {
		verify = r.wall
	}
	return verify, r.wall
}

// Others is the number of rows of other requests' rounds that ran together with these of a round.
func (r *Result) Others() int { return max(0, r.raw.BatchRows-r.raw.PromptRows-len(r.rows)) }

// OtherRequests is the number of those requests.
func (r *Result) OtherRequests() int { return max(0, r.raw.BatchRounds-1) }

// Beside is the number of rows of prompts that ran together with these of a round.
func (r *Result) Beside() int { return r.raw.PromptRows }
