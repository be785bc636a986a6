package generate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/cluster"
	"github.com/tandem-inference/tandem/gateway/internal/emit"
	"github.com/tandem-inference/tandem/gateway/internal/live"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/gateway/internal/watchdog"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
)

// Attempts of one choice. A worker that refuses before it admits costs none: the choice only waits for a better place,
// within the failover timeout.
const (
	// maxFailures at one place of the text: the first try and five more. Workers may be lost one after the other for
	// reasons of their own, as when all are replaced while a long prompt is read. A request that itself brings workers
	// down must end before it has done so with many.
	maxFailures = 6
	// onePlace is the number of tokens within which failures are at one place: a request may bring a worker down some
	// steps after it has begun there.
	onePlace = 16
)

// stream is one choice on its way through one or more workers.
type stream struct {
	r       *run
	job     job
	emitter *emit.Emitter

	committed []int32 // every token the workers sent, for replay
	verify    verifier
	avoid     map[string]bool // workers that sent what cannot be
	raw       []emit.Entry
	admitted  bool          // by the present worker
	slot      *cluster.Slot // of the attempt that runs, nil between attempts
	finished  *tandemv1.Finished
	ended     string // finish reason found by the gateway
	prompted  bool   // prompt log-probabilities were handed over

	first, last       time.Time
	drafted, accepted int64
	lookDrafted       int64 // of drafted and accepted, by lookup
	lookAccepted      int64
	steps             int64
	messages          int64 // Committed messages: one per verify step
	retries           int
	worker            string // of the present or last attempt
	contract          string // id of the worker that computed the newest tokens
	contractChanges   int
	degraded          bool
	watching          bool
	watchdog          watchdog.Watchdog
	degenerate        bool
	prefill, restore  time.Duration
	cached, saved     int // tokens of the prompt, as the last worker said
	decode            time.Duration
}

// run returns the choice as far as it came, and an error when it did not end by itself.
func (s *stream) run(ctx context.Context, slot *cluster.Slot) (*Choice, error) {
	failures, place := 0, 0
	var lostAt time.Time
	for {
		s.admitted = false
		next, err := s.attempt(ctx, slot)
		if errors.Is(err, errMoved) {
			slot.Release()
			slot = next
			s.retries++
			continue
		}
		if next != nil {
			next.Release()
		}
		if err == nil || errors.Is(err, errDone) {
			slot.Release()
			return s.finish(), nil
		}
		if s.admitted {
			lostAt = time.Time{}
		}
		if len(s.committed) >= place+onePlace {
			failures = 0
		}
		if failures == 0 {
			place = len(s.committed)
		}
		var again bool
		if again, failures = s.judge(ctx, slot, err, failures); !again {
			return s.partial(), answer(err)
		}
		if lostAt.IsZero() {
			lostAt = time.Now()
		}
		if slot, err = s.takeover(ctx, lostAt, err); err != nil {
			return s.partial(), err
		}
		s.retries++
	}
}

// answer is what the request is told of an attempt that failed for good. A violation states it; all else comes from the
// worker or the sink.
func answer(err error) error {
	if v := violation(err); v != nil {
		return v.answer
	}
	return reqerr.OfWorker(err)
}

// judge gives the slot back and says whether another attempt makes sense.
func (s *stream) judge(ctx context.Context, slot *cluster.Slot, err error, failures int) (again bool, _ int) {
	var sinkErr *sinkError
	if ctx.Err() != nil || errors.As(err, &sinkErr) {
		slot.Release()
		return false, failures
	}
	if v := violation(err); v != nil {
		return s.bar(ctx, slot, v), failures
	}
	switch code := rpcerr.Code(err); {
	case code == codes.ResourceExhausted && !s.admitted:
		slot.Full()
		return true, failures
	case code == codes.InvalidArgument, code == codes.FailedPrecondition, code == codes.Unimplemented:
		slot.Release()
		return false, failures
	case code == codes.Unavailable && !s.admitted:
		slot.Failed()
		return true, failures
	default:
		slot.Failed()
		failures++
		return failures < maxFailures, failures
	}
}

// takeover waits for a slot that replaces a lost one. cause is reported when none comes in time.
func (s *stream) takeover(ctx context.Context, lostAt time.Time, cause error) (*cluster.Slot, error) {
	g := s.r.g
	level := zap.WarnLevel
	if rpcerr.Code(cause) == codes.ResourceExhausted {
		level = zap.DebugLevel // the slot of a request that just left is not back yet: a matter of milliseconds
	}
	g.log.Log(level, "generation moves to another worker", zap.String(telemetry.KeyRequestID, s.r.req.ID),
		zap.Int(telemetry.KeyTokens, len(s.committed)), zap.NamedError(telemetry.KeyErr, cause))
	if g.metrics != nil {
		g.metrics.Retry(ctx)
	}
	timeout := errors.New("no worker took over in time")
	if s.begun() && s.contract != "" && !g.cfg.FailoverAny {
		timeout = fmt.Errorf("no worker with the contract id %s took over in time (--failover-any lets others take over)",
			s.contract)
	}
	wait, cancel := s.patience(ctx, lostAt, cause, timeout)
	defer cancel()
	demand := cluster.Demand{Slots: 1, Tokens: len(s.job.prompt) + s.job.max, Priority: s.r.req.Priority, Takeover: true,
		AnyContract: g.cfg.FailoverAny, Avoid: s.avoid}
	if s.begun() {
		demand.Contract = &s.contract
	}
	ticket, err := g.targets.Submit(demand)
	if err != nil {
		return nil, err
	}
	defer ticket.Close()
	slot, err := ticket.Slot(wait)
	if err != nil && ctx.Err() == nil {
		if rpcerr.Code(cause) == codes.ResourceExhausted {
			return nil, reqerr.QueueTimeout().WithCause(cause)
		}
		if violation(cause) != nil {
			return nil, cause
		}
		return nil, reqerr.WorkerFailed(errors.Join(cause, context.Cause(wait)))
	}
	return slot, err
}

// patience bounds the wait for another slot. A worker that has none, because other gateways use it too, is waited for
// as long as requests wait in the queue.
func (s *stream) patience(ctx context.Context, lostAt time.Time, cause, timeout error) (
	context.Context, context.CancelFunc,
) {
	limit := s.r.g.cfg.FailoverTimeout
	if rpcerr.Code(cause) == codes.ResourceExhausted && !s.begun() {
		if s.r.g.cfg.QueueTimeout == 0 {
			return context.WithCancel(ctx)
		}
		limit = max(limit, s.r.g.cfg.QueueTimeout)
	}
	return context.WithDeadlineCause(ctx, lostAt.Add(limit), timeout)
}

// sinkError marks errors of the sink: the client is gone, the worker is fine.
type sinkError struct{ err error }

func (e *sinkError) Error() string { return e.err.Error() }
func (e *sinkError) Unwrap() error { return e.err }

// errLease is why an attempt ends on a worker that lost its lease and does not answer.
var errLease = rpcerr.Unavailable("the worker lost its lease and is silent")

// attempt runs the choice on one worker until it ends. errDone: the gateway ended it. errMoved: it goes on in next,
// which may be there as well when the choice ended in another way.
func (s *stream) attempt(ctx context.Context, slot *cluster.Slot) (next *cluster.Slot, err error) {
	if s.job.max > 0 && len(s.committed) >= s.job.max {
		// The worker was lost between its last token and its last message.
		s.ended = FinishLength
		return nil, errDone
	}
	ctx, cancel := context.WithCancelCause(metadata.AppendToOutgoingContext(ctx, "x-request-id", s.r.req.ID))
	e := newEar()
	moving := s.move(ctx, slot, e, func() { cancel(errMoved) })
	err = s.compute(ctx, slot, e, cancel)
	if broken(err) && context.Cause(ctx) == errMoved {
		err = errMoved
	}
	cancel(nil)
	return <-moving, err
}

// broken reports whether an attempt ended by neither the choice itself, its client nor a message that cannot be.
func broken(err error) bool {
	var sinkErr *sinkError
	return err != nil && !errors.Is(err, errDone) && !errors.As(err, &sinkErr) && violation(err) == nil
}

// compute has the worker of a slot compute the choice, from what there is on.
func (s *stream) compute(ctx context.Context, slot *cluster.Slot, e *ear, cancel context.CancelCauseFunc) error {
	s.slot, s.worker = slot, slot.Worker
	s.r.seen.At(slot.Worker)
	defer func() { s.slot = nil }()
	stop := slot.Watch(e.silence, func() { cancel(errLease) })
	defer stop()
	request := s.r.decodeRequest(s.job, s.committed)
	request.Peer = slot.Peer
	s.verify = newVerifier(request, s.r.req.Model.Vocab)
	call, err := tandemv1.NewTargetServiceClient(slot.Conn).Decode(ctx, request,
		grpc.MaxCallRecvMsgSize(s.verify.mostBytes()))
	if err != nil {
		return err
	}
	for {
		msg, err := call.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				if s.finished != nil {
					return nil
				}
				return rpcerr.Internal("worker %s ended the stream without a result", slot.Worker)
			}
			if context.Cause(ctx) == error(errLease) {
				return errLease
			}
			return tooLarge(err)
		}
		e.hear()
		if err := s.verify.message(msg); err != nil {
			return err
		}
		if err := s.message(msg); err != nil {
			return err
		}
	}
}

// message handles one event of the worker.
func (s *stream) message(msg *tandemv1.DecodeResponse) error {
	switch ev := msg.GetEvent().(type) {
	case *tandemv1.DecodeResponse_Admitted:
		s.admitted = true
		if err := s.admit(ev.Admitted); err != nil {
			return err
		}
		return wrapSink(s.r.admitted(s.contract))
	case *tandemv1.DecodeResponse_Prefilled:
		s.cached, s.saved = int(ev.Prefilled.GetCachedTokens()), int(ev.Prefilled.GetSavedTokens())
		s.slot.Read(s.cached)
		if s.r.req.PromptLogprobs && !s.prompted {
			s.prompted = true
			return wrapSink(s.r.sink.Prompt(s.job.index, ev.Prefilled.GetLogprobs()))
		}
	case *tandemv1.DecodeResponse_Committed:
		return s.tokens(ev.Committed)
	case *tandemv1.DecodeResponse_Finished:
		s.finished = ev.Finished
		s.timings(ev.Finished.GetTimings())
		if ev.Finished.GetReason() == tandemv1.FinishReason_FINISH_REASON_CANCELLED {
			s.finished = nil
			return rpcerr.Unavailable("the worker cancelled the generation")
		}
	}
	return nil
}

// begun reports whether something that depends on the worker's bits was handed over.
func (s *stream) begun() bool { return len(s.committed) > 0 || s.prompted }

// admit compares the worker's contract id with that of the worker before. The pool compares what workers registered; a
// worker that was started again at the same address with other settings shows only here.
func (s *stream) admit(a *tandemv1.Admitted) error {
	id := a.GetContract()
	if !s.begun() || id == s.contract {
		s.contract = id
		return nil
	}
	if !s.r.g.cfg.FailoverAny {
		s.admitted = false // nothing ran: this attempt is not a failure of the worker
		return rpcerr.Unavailable("worker %s has contract id %q, the generation began with %q",
			a.GetWorkerId(), id, s.contract)
	}
	s.r.g.log.Warn("generation goes on with another contract id: its text may differ from an undisturbed one",
		zap.String(telemetry.KeyRequestID, s.r.req.ID), zap.String(telemetry.KeyContract, id),
		zap.String("contract_before", s.contract))
	if s.r.g.metrics != nil {
		s.r.g.metrics.ContractChange(context.Background())
	}
	s.contract = id
	s.contractChanges++
	return nil
}

func wrapSink(err error) error {
	if err == nil {
		return nil
	}
	return &sinkError{err}
}

// tokens feeds the tokens of one step to the emitter and hands over what became visible.
func (s *stream) tokens(c *tandemv1.Committed) error {
	now := time.Now()
	if s.first.IsZero() {
		s.first = now
		s.r.seen.Phase(live.PhaseDecode)
	} else if s.r.g.metrics != nil {
		s.r.g.metrics.TokenGap(now.Sub(s.last))
	}
	s.last = now
	s.messages++
	s.r.seen.Tokens(len(c.GetTokens()))
	s.raw = s.raw[:0]
	watch := s.r.g.cfg.Watchdog
	s.watching = s.watching || watch == watchdog.Always ||
		watch == watchdog.AfterClose && c.GetCloseKind() == tandemv1.CloseKind_CLOSE_KIND_HARD
	more := true
	for i, id := range c.GetTokens() {
		s.committed = append(s.committed, id)
		if s.ended != "" || s.r.isStop(id) {
			// The worker ends by itself and sends its account.
			s.ended = FinishStop
			break
		}
		entry := emit.Entry{Candidate: emit.Candidate{ID: id}}
		if i < len(c.GetLogprobs()) {
			setLogprobs(&entry, c.GetLogprobs()[i])
		}
		more = s.emitter.Push(entry)
		if s.watching && s.watchdog.Push(id) {
			s.degenerate, more = true, false
		}
		if s.r.req.RawTokens {
			s.raw = append(s.raw, entry)
		}
		if !more {
			s.ended = FinishStop
			break
		}
		if s.r.req.TokenByToken {
			if err := s.hand(); err != nil {
				return err
			}
		}
	}
	if err := s.hand(); err != nil {
		return err
	}
	if !more {
		return errDone
	}
	return nil
}

// hand gives the sink what the emitter has.
func (s *stream) hand() error {
	d := Delta{Events: s.emitter.Take(), Raw: s.raw}
	if len(d.Events) == 0 && len(d.Raw) == 0 {
		return nil
	}
	delta := func() error { return s.r.sink.Delta(s.job.index, d) }
	if s.slot == nil {
		return wrapSink(delta())
	}
	return wrapSink(s.slot.Hand(delta))
}

// setLogprobs fills e; candidates are sorted by probability, then by id.
func setLogprobs(e *emit.Entry, p *tandemv1.PositionLogprobs) {
	e.Logprob = floor(p.GetLogprob())
	if len(p.GetTop()) == 0 {
		return
	}
	e.Top = make([]emit.Candidate, len(p.GetTop()))
	for i, t := range p.GetTop() {
		e.Top[i] = emit.Candidate{ID: t.GetToken(), Logprob: floor(t.GetLogprob())}
	}
	slices.SortStableFunc(e.Top, func(a, b emit.Candidate) int {
		if c := cmp.Compare(b.Logprob, a.Logprob); c != 0 {
			return c
		}
		return cmp.Compare(a.ID, b.ID)
	})
}

// floor replaces minus infinity, which JSON cannot carry.
func floor(x float32) float64 {
	if v := float64(x); !math.IsNaN(v) && v > -9999 {
		return v
	}
	return -9999
}

// timings adds the account of one worker; after a takeover several are summed.
func (s *stream) timings(t *tandemv1.Timings) {
	ms := func(x float64) time.Duration { return time.Duration(x * float64(time.Millisecond)) }
	s.drafted += t.GetDraftedTokens()
	s.accepted += t.GetAcceptedTokens()
	s.lookDrafted += t.GetLookupDraftedTokens()
	s.lookAccepted += t.GetLookupAcceptedTokens()
	s.steps += t.GetVerifySteps()
	s.prefill += ms(t.GetPrefillMs())
	s.restore += ms(t.GetRestoreMs())
	s.decode += ms(t.GetDecodeMs())
	s.degraded = s.degraded || t.GetSpeculationDegraded()
}

// finish closes the emitter and describes the end.
func (s *stream) finish() *Choice {
	cut := s.ended == FinishLength || s.ended == "" && s.finished.GetReason() == tandemv1.FinishReason_FINISH_REASON_LENGTH
	c := s.conclude(cut)
	switch {
	case c.StopString != "":
		c.Finish = FinishStop
	case cut:
		c.Finish = FinishLength
	case len(c.ToolCalls) > 0:
		c.Finish = FinishToolCalls
	default:
		c.Finish = FinishStop
	}
	return c
}

// partial describes a choice that failed.
func (s *stream) partial() *Choice { return s.conclude(true) }

// conclude describes what there is and hands over the rest of the text. cut: a call that is not complete has no end.
func (s *stream) conclude(cut bool) *Choice {
	s.emitter.Finish(cut)
	s.raw = s.raw[:0]
	// The client may be gone; there is nothing left to stop.
	_ = s.hand()
	if s.decode == 0 || s.retries > 0 || s.finished == nil {
		// No single worker saw all of it.
		s.decode = s.last.Sub(s.first)
	}
	if s.finished == nil {
		// A worker that was cancelled or lost sent no account; its messages tell the steps.
		s.steps = max(s.steps, s.messages)
	}
	c := &Choice{Tokens: s.emitter.Counts(), Clamped: s.job.clamped, Tools: s.r.req.Tools != nil,
		ToolCalls:      s.emitter.Calls(),
		ToolParseError: s.emitter.ToolParseError()}
	c.Degenerate = s.degenerate
	c.StopString, _ = s.emitter.StopString()
	if s.emitter.Thought() {
		c.CloseKind = s.closeKind()
	}
	return c
}

// closeKind asks the worker, which knows what it forced; without its word a close was the model's own.
func (s *stream) closeKind() string {
	switch s.finished.GetCloseKind() {
	case tandemv1.CloseKind_CLOSE_KIND_NATURAL:
		return CloseNatural
	case tandemv1.CloseKind_CLOSE_KIND_SOFT:
		return CloseSoft
	case tandemv1.CloseKind_CLOSE_KIND_HARD:
		return CloseHard
	}
	if s.emitter.Closed() {
		return CloseNatural
	}
	return CloseNone
}
