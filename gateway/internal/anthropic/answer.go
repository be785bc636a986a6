package anthropic

import (
	"github.com/tandem-inference/tandem/gateway/internal/apierror"
	"github.com/tandem-inference/tandem/gateway/internal/generate"
	"github.com/tandem-inference/tandem/gateway/internal/sse"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
)

// message is the answer as clients see it.
type message struct {
	ID            string              `json:"id"`
	Type          string              `json:"type"`
	Role          string              `json:"role"`
	Model         string              `json:"model"`
	Content       []any               `json:"content"`
	StopReason    *string             `json:"stop_reason"`
	StopSequence  *string             `json:"stop_sequence"`
	Usage         any                 `json:"usage"`
	FinishDetails *turn.FinishDetails `json:"finish_details,omitempty"`
}

// tokens are the counts of usage.
type tokens struct {
	Input         int           `json:"input_tokens"`
	CacheCreation int           `json:"cache_creation_input_tokens"`
	CacheRead     int           `json:"cache_read_input_tokens"`
	Output        int           `json:"output_tokens"`
	Details       outputDetails `json:"output_tokens_details"`
}

// usage is the account in the dialect's shape.
type usage struct {
	tokens
	Timings    turn.Timings `json:"timings"`
	AcceptRate *float64     `json:"accept_rate"`
	Pflash     *turn.Pflash `json:"pflash,omitempty"`
	turn.Contract
}

type outputDetails struct {
	Thinking int `json:"thinking_tokens"`
}

// newUsage splits the prompt into what was read from a cache, what was newly written to one, and the rest; with total
// the rest is the whole prompt, for clients that ignore caches.
func newUsage(u *generate.Usage, total bool) *usage {
	t := tokens{Input: u.PromptTokens, CacheCreation: u.SavedTokens, CacheRead: u.CachedTokens, Output: u.CompletionTokens,
		Details: outputDetails{u.ReasoningTokens}}
	if !total {
		t.Input -= t.CacheCreation + t.CacheRead
	}
	return &usage{tokens: t, Timings: turn.NewTimings(u), AcceptRate: turn.AcceptRate(u), Pflash: turn.NewPflash(u),
		Contract: turn.NewContract(u)}
}

// answer collects the output of a request. It is the sink of answers in one piece.
type answer struct {
	output
	message
	choice generate.Choice
	total  bool // of usage, see newUsage
}

// Admitted implements generate.Sink.
func (a *answer) Admitted() error { return nil }

// Prompt implements generate.Sink; the dialect has no log-probabilities.
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

// complete closes the output and the message.
func (a *answer) complete(u *generate.Usage) *message {
	a.end()
	reason := stopReason(&a.choice)
	m := a.message
	m.Content, m.StopReason, m.Usage, m.FinishDetails = a.blocks, &reason, newUsage(u, a.total),
		turn.NewFinishDetails(&a.choice)
	if a.choice.StopString != "" {
		m.StopSequence = &a.choice.StopString
	}
	return &m
}

func stopReason(c *generate.Choice) string {
	switch {
	case c.Finish == generate.FinishLength:
		return "max_tokens"
	case c.Finish == generate.FinishToolCalls:
		return "tool_use"
	case c.StopString != "":
		return "stop_sequence"
	}
	return "end_turn"
}

// stream is the sink of answers as events. All of it runs under the writer's lock.
type stream struct {
	*answer
	w         *sse.Writer
	requestID string
	// prompt is the length of the prompt, for the first event.
	prompt int
}

// into lets build append events to dst.
func (s *stream) into(dst []byte, build func()) []byte {
	s.buf = dst
	build()
	dst, s.buf = s.buf, nil
	return dst
}

// Begin implements turn.Stream. What a cache gave is not known yet; the last event corrects the counts.
func (s *stream) Begin() error {
	return s.w.Begin(func(dst []byte) []byte {
		return s.into(dst, func() {
			m := s.message
			m.Content, m.Usage = []any{}, tokens{Input: s.prompt}
			s.start("message_start")
			s.buf = appendJSON(append(s.buf, `,"message":`...), m)
			s.stop()
			s.buf = s.ping(s.buf)
		})
	})
}

func (*stream) ping(dst []byte) []byte {
	return append(dst, "event: ping\ndata: {\"type\":\"ping\"}\n\n"...)
}

// Ping implements turn.Stream.
func (s *stream) Ping(dst []byte) []byte { return s.ping(dst) }

// Admitted implements generate.Sink.
func (s *stream) Admitted() error { return s.Begin() }

// Delta implements generate.Sink.
func (s *stream) Delta(index int, d generate.Delta) error {
	var err error
	sent := s.w.Send(func(dst []byte) []byte {
		return s.into(dst, func() { err = s.answer.Delta(index, d) })
	})
	if sent != nil {
		return sent
	}
	return err
}

// ending is the data of message_delta.
type ending struct {
	StopReason   *string `json:"stop_reason"`
	StopSequence *string `json:"stop_sequence"`
}

// End implements turn.Stream.
func (s *stream) End(dst []byte, u *generate.Usage) []byte {
	return s.into(dst, func() {
		m := s.complete(u)
		s.start("message_delta")
		s.buf = appendJSON(append(s.buf, `,"delta":`...), ending{m.StopReason, m.StopSequence})
		s.buf = appendJSON(append(s.buf, `,"usage":`...), m.Usage)
		if m.FinishDetails != nil {
			s.buf = appendJSON(append(s.buf, `,"finish_details":`...), m.FinishDetails)
		}
		s.stop()
		s.start("message_stop")
		s.stop()
	})
}

// Fail implements turn.Stream.
func (s *stream) Fail(dst []byte, err error) []byte {
	dst = append(dst, "event: error\ndata: "...)
	dst = append(dst, apierror.From(err).Anthropic(s.requestID)...)
	return append(dst, "\n\n"...)
}
