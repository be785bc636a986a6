package generate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/tandem-inference/tandem/gateway/internal/cluster"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.uber.org/zap"
)

const (
	// mostStep bounds the tokens of one message: a step verifies at most 128 rows.
	mostStep = 1024
	// messageBase, positionBytes and candidateBytes bound a message in bytes: what every message may have, and what a
	// position and a candidate of it may add.
	messageBase, positionBytes, candidateBytes = 64 << 10, 32, 24
	// mostName bounds ids in bytes.
	mostName = 256
	// rounding is how far above 0 a log-probability may be.
	rounding = 1e-3
	// mostMS and mostCount bound what a worker may report of its work: 31 years, and more tokens than that time makes.
	mostMS, mostCount = 1e12, 1 << 40
)

// verifier holds what a target sends against what it was asked. A worker is another program, perhaps on another
// machine, of another version or damaged: nothing of its messages is used before it is checked.
type verifier struct {
	request             *tandemv1.DecodeRequest
	vocab               int
	left                int // tokens that may still come
	admitted, prefilled bool
	finished            bool
}

// newVerifier checks the answers to request of a model with vocab tokens, 0 = unknown.
func newVerifier(request *tandemv1.DecodeRequest, vocab int) verifier {
	return verifier{request: request, vocab: vocab, left: int(request.MaxTokens) - len(request.CommittedTokens)}
}

// mostBytes is the largest message that the worker may send.
func (v *verifier) mostBytes() int {
	positions := min(max(v.left, 0), mostStep)
	if v.request.PromptLogprobs {
		positions = max(positions, len(v.request.PromptTokens))
	}
	return messageBase + positions*(positionBytes+candidateBytes*int(max(0, v.request.TopLogprobs)))
}

// violationError reports an answer of a worker that cannot be.
type violationError struct {
	answer *rpcerr.Error // what the client is told
	field  string
}

func (e *violationError) Error() string { return e.answer.Error() }
func (e *violationError) Unwrap() error { return e.answer }

func invalid(field, format string, args ...any) error {
	return &violationError{answer: reqerr.WorkerInvalid(field, fmt.Sprintf(format, args...)), field: field}
}

// violation returns err as the report of an answer that cannot be, nil when it is something else.
func violation(err error) *violationError {
	var e *violationError
	errors.As(err, &e)
	return e
}

// tooLarge makes a violation of the error with which gRPC refuses a message above mostBytes; its code alone could as
// well be that of a worker without a free slot.
func tooLarge(err error) error {
	if strings.Contains(err.Error(), "received message larger than max") {
		return invalid("message", "is larger than its request allows (%v)", err)
	}
	return err
}

// bar keeps the worker of slot out of this request and says whether another one could go on with it.
func (s *stream) bar(ctx context.Context, slot *cluster.Slot, v *violationError) (again bool) {
	g := s.r.g
	if s.avoid == nil {
		s.avoid = map[string]bool{}
	}
	s.avoid[slot.Worker] = true
	slot.Failed()
	g.log.Warn("a worker's answer cannot be", zap.String(telemetry.KeyRequestID, s.r.req.ID),
		zap.String(telemetry.KeyWorker, slot.Worker),
		zap.NamedError(telemetry.KeyErr, v))
	if g.metrics != nil {
		g.metrics.Violation(ctx, "target", v.field)
	}
	return g.targets.Others(s.avoid)
}

// message checks the next message of the stream; its error is a violation.
func (v *verifier) message(m *tandemv1.DecodeResponse) error {
	if v.finished {
		return invalid("event", "came after the end")
	}
	if e, ok := m.GetEvent().(*tandemv1.DecodeResponse_Admitted); ok {
		switch {
		case v.admitted:
			return invalid("admitted", "came twice")
		case len(e.Admitted.GetWorkerId()) > mostName:
			return invalid("admitted.worker_id", "has %d bytes, at most %d are allowed", len(e.Admitted.GetWorkerId()), mostName)
		case len(e.Admitted.GetContract()) > mostName:
			return invalid("admitted.contract", "has %d bytes, at most %d are allowed", len(e.Admitted.GetContract()), mostName)
		}
		v.admitted = true
		return nil
	}
	if !v.admitted {
		return invalid("admitted", "did not come first")
	}
	switch e := m.GetEvent().(type) {
	case *tandemv1.DecodeResponse_Prefilled:
		return v.prefill(e.Prefilled)
	case *tandemv1.DecodeResponse_Committed:
		return v.committed(e.Committed)
	case *tandemv1.DecodeResponse_Finished:
		v.finished = true
		return v.end(e.Finished)
	}
	return invalid("event", "is none that this version has")
}

func (v *verifier) prefill(m *tandemv1.Prefilled) error {
	if v.prefilled {
		return invalid("prefilled", "came twice")
	}
	v.prefilled = true
	if n := int(m.GetTokens()); n < 0 || n > len(v.request.PromptTokens)+len(v.request.CommittedTokens) {
		return invalid("prefilled.tokens", "is %d of a prompt of %d", n, len(v.request.PromptTokens))
	}
	cached, saved, most := int(m.GetCachedTokens()), int(m.GetSavedTokens()), len(v.request.PromptTokens)
	if v.request.GetCache().GetOff() {
		most = 0
	}
	switch {
	case cached < 0 || cached > max(0, most-1):
		return invalid("prefilled.cached_tokens", "is %d of a prompt of %d", cached, len(v.request.PromptTokens))
	case saved < 0 || saved > most-cached:
		return invalid("prefilled.saved_tokens", "is %d after %d of a prompt of %d", saved, cached,
			len(v.request.PromptTokens))
	}
	want := 0
	if v.request.PromptLogprobs {
		want = len(v.request.PromptTokens) - 1
	}
	if len(m.GetLogprobs()) != want {
		return invalid("prefilled.logprobs", "has %d entries, %d were asked for", len(m.GetLogprobs()), want)
	}
	return v.positions("prefilled.logprobs", m.GetLogprobs())
}

func (v *verifier) committed(m *tandemv1.Committed) error {
	n := len(m.GetTokens())
	switch {
	case n == 0:
		return invalid("committed.tokens", "is empty")
	case n > min(v.left, mostStep):
		return invalid("committed.tokens", "has %d tokens, at most %d may come", n, min(v.left, mostStep))
	}
	v.left -= n
	for i, id := range m.GetTokens() {
		if !v.token(id) {
			return invalid("committed.tokens", "token %d at %d is outside the vocabulary of %d", id, i, v.vocab)
		}
	}
	want := 0
	if v.request.TopLogprobs >= 0 {
		want = n
	}
	if len(m.GetLogprobs()) != want {
		return invalid("committed.logprobs", "has %d entries for %d tokens, %d were asked for", len(m.GetLogprobs()), n, want)
	}
	if err := v.positions("committed.logprobs", m.GetLogprobs()); err != nil {
		return err
	}
	return known("committed.close_kind", tandemv1.CloseKind_name, int32(m.GetCloseKind()))
}

func (v *verifier) positions(field string, list []*tandemv1.PositionLogprobs) error {
	for i, p := range list {
		if len(p.GetTop()) > int(max(0, v.request.TopLogprobs)) {
			return invalid(field, "entry %d has %d candidates, %d were asked for", i, len(p.GetTop()),
				max(0, v.request.TopLogprobs))
		}
		if !logprob(p.GetLogprob()) {
			return invalid(field, "entry %d is %v, which is no log-probability", i, p.GetLogprob())
		}
		for _, t := range p.GetTop() {
			switch {
			case !v.token(t.GetToken()):
				return invalid(field, "entry %d has candidate %d, which is outside the vocabulary of %d", i, t.GetToken(), v.vocab)
			case !logprob(t.GetLogprob()):
				return invalid(field, "entry %d has a candidate of %v, which is no log-probability", i, t.GetLogprob())
			}
		}
	}
	return nil
}

func (v *verifier) end(m *tandemv1.Finished) error {
	switch m.GetReason() {
	case tandemv1.FinishReason_FINISH_REASON_STOP, tandemv1.FinishReason_FINISH_REASON_LENGTH,
		tandemv1.FinishReason_FINISH_REASON_CANCELLED:
	default:
		return invalid("finished.reason", "%d is none that a worker may give", m.GetReason())
	}
	if m.StopToken != nil && !slices.Contains(v.request.StopTokens, m.GetStopToken()) {
		return invalid("finished.stop_token", "%d ends no turn of this request", m.GetStopToken())
	}
	if err := known("finished.close_kind", tandemv1.CloseKind_name, int32(m.GetCloseKind())); err != nil {
		return err
	}
	t := m.GetTimings()
	for _, ms := range []float64{t.GetQueueMs(), t.GetCompressMs(), t.GetRestoreMs(), t.GetPrefillMs(), t.GetTtftMs(),
		t.GetDecodeMs(), t.GetTotalMs(),
		t.GetDraftWaitMs(), t.GetVerifyMs()} {
		if !(ms >= 0 && ms <= mostMS) {
			return invalid("finished.timings", "%v ms is no duration", ms)
		}
	}
	for _, n := range []int64{t.GetVerifySteps(), t.GetDraftedTokens(), t.GetAcceptedTokens(), t.GetLookupDraftedTokens(),
		t.GetLookupAcceptedTokens()} {
		if n < 0 || n > mostCount {
			return invalid("finished.timings", "%d is no count", n)
		}
	}
	if t.GetAcceptedTokens() > t.GetDraftedTokens() || t.GetLookupAcceptedTokens() > t.GetLookupDraftedTokens() {
		return invalid("finished.timings", "%d of %d drafted tokens were accepted, %d of %d by lookup",
			t.GetAcceptedTokens(), t.GetDraftedTokens(),
			t.GetLookupAcceptedTokens(), t.GetLookupDraftedTokens())
	}
	return nil
}

func (v *verifier) token(id int32) bool { return id >= 0 && (v.vocab == 0 || int(id) < v.vocab) }

// logprob reports whether x can be the logarithm of a probability; minus infinity is that of 0.
func logprob(x float32) bool { return !math.IsNaN(float64(x)) && x <= rounding }

func known(field string, names map[int32]string, value int32) error {
	if _, ok := names[value]; !ok {
		return invalid(field, "%d is no known value", value)
	}
	return nil
}
