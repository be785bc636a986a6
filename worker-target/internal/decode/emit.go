package decode

import (
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engineplugin"
)

// begin starts the output of a round.
func (r *run) begin() {
	r.tokens = r.tokens[:0]
	r.closed = tandemv1.CloseKind_CLOSE_KIND_UNSPECIFIED
	r.logprobs = r.logprobs[:0]
	r.looked = r.looked[:0]
}

// emit takes the token that row chose into the output, unless it is a stop token. The result says whether the request ends
// with it; what the round accepted behind it is then dropped.
func (r *run) emit(row int) tandemv1.FinishReason {
	token := r.result.Tokens[row]
	if r.req.Guide != nil {
		token = r.resolve(row)
	}
	if r.stop[token] {
		r.stopToken = token
		return tandemv1.FinishReason_FINISH_REASON_STOP
	}
	r.tokens = append(r.tokens, token)
	if r.req.TopLogprobs >= 0 {
		r.logprobs = append(r.logprobs, &tandemv1.PositionLogprobs{Logprob: r.result.Logprobs[row], Top: r.top(row)})
	}
	r.anchor = token
	r.out++
	r.look(token)
	if r.req.Guide != nil && r.req.Guide.Ended(r.state) {
		return tandemv1.FinishReason_FINISH_REASON_STOP
	}
	if r.out >= r.req.Max || r.length >= r.info.MaxContext {
		return tandemv1.FinishReason_FINISH_REASON_LENGTH
	}
	return tandemv1.FinishReason_FINISH_REASON_UNSPECIFIED
}

// top lists the candidates of a row that asked for them.
func (r *run) top(row int) []*tandemv1.TokenLogprob {
	if r.step.Rows[row].Want&engineplugin.WantTop == 0 {
		return nil
	}
	var list []*tandemv1.TokenLogprob
	at := row * r.result.TopStride
	for k := range min(int(r.step.Rows[row].TopK), r.result.TopStride) {
		if id := r.result.TopIDs[at+k]; id >= 0 {
			list = append(list, &tandemv1.TokenLogprob{Token: id, Logprob: r.result.TopLogprobs[at+k]})
		}
	}
	return list
}

// flush hands the round's output to the caller.
func (r *run) flush() error {
	if len(r.tokens) == 0 {
		return nil
	}
	r.lastAt = time.Now()
	if r.firstAt.IsZero() {
		r.firstAt = r.lastAt
		r.stats.FirstToken = r.lastAt.Sub(r.req.Arrived)
	}
	r.stats.Emitted += len(r.tokens)
	return r.sink.Committed(r.tokens, r.logprobs, r.closed)
}
