package responses

import (
	"context"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/generate"
	"github.com/tandem-inference/tandem/gateway/internal/sse"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
)

// answer collects the output of a request. It is the sink of answers in one piece.
type answer struct {
	*request
	output
	choice generate.Choice
	// log takes the events of a response that will be kept; nil for others.
	log *eventLog
}

// into lets build append events to dst, and logs them.
func (a *answer) into(dst []byte, build func()) []byte {
	from := len(dst)
	a.buf = dst
	build()
	dst, a.buf = a.buf, nil
	if a.log != nil {
		a.log.add(dst[from:], a.seq)
	}
	return dst
}

// opening appends the events that every stream starts with.
func (a *answer) opening() {
	a.response("response.created", a.object)
	a.response("response.in_progress", a.object)
}

// Admitted implements generate.Sink.
func (a *answer) Admitted() error { return nil }

// Prompt implements generate.Sink; the dialect has no prompt log-probabilities.
func (a *answer) Prompt(int, []*tandemv1.PositionLogprobs) error { return nil }

// Delta implements generate.Sink.
func (a *answer) Delta(_ int, d generate.Delta) error {
	for i := range d.Events {
		a.add(&d.Events[i])
	}
	return nil
}

// Done implements generate.Sink.
func (a *answer) Done(_ int, c generate.Choice) error {
	a.choice = c
	return nil
}

// complete is the object of an answer that came to its end.
func (a *answer) complete(u *generate.Usage) *object {
	if a.choice.Finish == generate.FinishLength {
		obj := a.final(statusIncomplete, u)
		obj.IncompleteDetails = &incomplete{reasonMaxTokens}
		return obj
	}
	return a.final(statusCompleted, u)
}

// final closes the output and makes the last object; u may be nil.
func (a *answer) final(status string, u *generate.Usage) *object {
	a.end(status)
	obj := *a.object
	obj.Status, obj.Output, obj.OutputText = status, append([]any{}, a.items...), outputText(a.items)
	if status == statusCompleted {
		now := time.Now().Unix()
		obj.CompletedAt = &now
	}
	if u != nil {
		obj.Usage = newUsage(u)
	}
	if fd := turn.NewFinishDetails(&a.choice); fd != nil {
		obj.FinishDetails = fd
	}
	return &obj
}

// logged is the sink of answers in one piece that will be kept: their events are only logged.
type logged struct {
	*answer
	scratch []byte
}

func (l *logged) write(build func()) { l.scratch = l.into(l.scratch[:0], build) }

// Admitted implements generate.Sink.
func (l *logged) Admitted() error {
	l.write(l.opening)
	return nil
}

// Delta implements generate.Sink.
func (l *logged) Delta(index int, d generate.Delta) (err error) {
	l.write(func() { err = l.answer.Delta(index, d) })
	return err
}

// stream is the sink of answers as events. All of it runs under the writer's lock.
type stream struct {
	*answer
	w *sse.Writer
	// usage is the account so far; nil while there is none.
	usage func() *generate.Usage
	// ended takes the last object.
	ended func(*object)
	// closed is set with the terminal event.
	closed bool
	// posted is what other gateways know of it; nil = nothing. left: it is left to them.
	posted *posted
	left   bool
}

// write lets build append events to the output's buffer and sends them.
func (s *stream) write(build func()) error {
	return s.w.Send(func(dst []byte) []byte { return s.into(dst, build) })
}

// Begin implements turn.Stream.
func (s *stream) Begin() error {
	if s.posted != nil {
		s.posted.begin(context.Background()) // bounded by the link
	}
	return s.w.Begin(func(dst []byte) []byte {
		return s.into(dst, s.opening)
	})
}

// Ping implements turn.Stream: the response is still in progress. Events that another gateway may have to repeat do not
// depend on pauses.
func (s *stream) Ping(dst []byte) []byte {
	if s.posted != nil {
		return append(dst, ": wait\n\n"...)
	}
	return s.into(dst, func() { s.response("response.in_progress", s.object) })
}

// Admitted implements generate.Sink.
func (s *stream) Admitted() error { return s.Begin() }

// Delta implements generate.Sink.
func (s *stream) Delta(index int, d generate.Delta) error {
	var err error
	if sent := s.write(func() { err = s.answer.Delta(index, d) }); sent != nil {
		return sent
	}
	return err
}

// End implements turn.Stream.
func (s *stream) End(dst []byte, u *generate.Usage) []byte {
	return s.close(dst, func() (*object, string) {
		obj := s.complete(u)
		return obj, "response." + obj.Status
	})
}

// Fail implements turn.Stream.
func (s *stream) Fail(dst []byte, err error) []byte {
	if s.posted != nil && draining(err) {
		// The record of the request stays: another gateway goes on, and the client finds it there.
		s.closed, s.left = true, true
		return dst
	}
	return s.close(dst, func() (*object, string) { return s.failed(s.usage(), err) })
}

// close appends the terminal event of the object that final makes.
func (s *stream) close(dst []byte, final func() (obj *object, kind string)) []byte {
	var obj *object
	dst = s.into(dst, func() {
		var kind string
		obj, kind = final()
		s.response(kind, obj)
	})
	s.closed = true
	s.ended(obj)
	return dst
}

// usage is the account in the dialect's shape.
type usage struct {
	InputTokens   int           `json:"input_tokens"`
	InputDetails  inputDetails  `json:"input_tokens_details"`
	OutputTokens  int           `json:"output_tokens"`
	OutputDetails outputDetails `json:"output_tokens_details"`
	TotalTokens   int           `json:"total_tokens"`
	Timings       turn.Timings  `json:"timings"`
	AcceptRate    *float64      `json:"accept_rate"`
	Pflash        *turn.Pflash  `json:"pflash,omitempty"`
	turn.Contract
}

type inputDetails struct {
	Cached int `json:"cached_tokens"`
	Saved  int `json:"cache_write_tokens"`
}

type outputDetails struct {
	Reasoning int `json:"reasoning_tokens"`
}

func newUsage(u *generate.Usage) *usage {
	return &usage{
		InputTokens: u.PromptTokens, InputDetails: inputDetails{u.CachedTokens, u.SavedTokens},
		OutputTokens: u.CompletionTokens, OutputDetails: outputDetails{u.ReasoningTokens},
		TotalTokens: u.PromptTokens + u.CompletionTokens,
		Timings:     turn.NewTimings(u), AcceptRate: turn.AcceptRate(u), Pflash: turn.NewPflash(u),
		Contract: turn.NewContract(u),
	}
}
