// Package output collects what a request generates and hands it to the caller, round by round: tokens, their
// log-probabilities, and the times of the first and the last.
package output

import (
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
)

// Sink receives a request's output. What it is given is valid until it returns.
type Sink interface {
	Prefilled(p Prefill) error
	// Committed receives the tokens of a round; closed is how reasoning was closed when one of them closes it.
	Committed(tokens []int32, logprobs []*tandemv1.PositionLogprobs, closed tandemv1.CloseKind) error
}

// Prefill is how a prompt was read.
type Prefill struct {
	Tokens int // of the prompt
	Cached int // of them, restored and not read
	Saved  int // after those, up to the longest state that was stored
	// Logprobs of the prompt's tokens from the second on, if the request wants them.
	Logprobs []*tandemv1.PositionLogprobs
}

// Request is what the output of a request depends on.
type Request struct {
	Max       int     // tokens, those of an earlier worker included
	Committed []int32 // tokens of an earlier worker
	Stop      []int32 // tokens that end the answer and are not part of it
	// TopLogprobs is the number of candidates a token: -1 = no log-probabilities, 0 = of chosen tokens only.
	TopLogprobs int
	MaxTopK     int // the most candidates that the engine returns
	Arrived     time.Time
}

// Output is the output of one request after another. Its memory is kept between them.
type Output struct {
	sink    Sink
	req     Request
	stop    map[int32]bool
	count   int   // tokens generated, those of an earlier worker included
	anchor  int32 // the newest of them
	stopped int32 // the stop token that ended the answer, -1 = none
	round   round
	emitted int
	first   time.Time
	last    time.Time
}

// Start begins the output of a request.
func (o *Output) Start(r Request, sink Sink) {
	if o.stop == nil {
		o.stop = map[int32]bool{}
	}
	clear(o.stop)
	for _, t := range r.Stop {
		o.stop[t] = true
	}
	o.sink, o.req, o.count, o.stopped = sink, r, len(r.Committed), -1
	o.emitted, o.first, o.last = 0, time.Time{}, time.Time{}
}

// Ended reports whether nothing more is to be generated, and why, after the tokens of an earlier worker.
func (o *Output) Ended() tandemv1.FinishReason {
	switch n := len(o.req.Committed); {
	case o.Left() <= 0:
		return tandemv1.FinishReason_FINISH_REASON_LENGTH
	case n > 0 && o.stop[o.req.Committed[n-1]]:
		o.stopped = o.req.Committed[n-1]
		return tandemv1.FinishReason_FINISH_REASON_STOP
	}
	return tandemv1.FinishReason_FINISH_REASON_UNSPECIFIED
}

// Left is the number of tokens still wanted.
func (o *Output) Left() int { return o.req.Max - o.count }

// Anchor is the newest token. It is not in the sequence yet.
func (o *Output) Anchor() int32 { return o.anchor }

// StopToken is the token that ended the answer, -1 = none did.
func (o *Output) StopToken() int32 { return o.stopped }

// Choose makes a row choose the next token.
func (o *Output) Choose(row *engine.Row) {
	row.Want |= engine.WantToken
	o.WantTop(row)
}

// WantTop makes a row list its candidates, if the request wants any.
func (o *Output) WantTop(row *engine.Row) {
	if k := min(o.req.TopLogprobs, o.req.MaxTopK); k > 0 {
		row.Want |= engine.WantTop
		row.TopK = int32(k)
	}
}

// Logprobs reports whether tokens come with log-probabilities.
func (o *Output) Logprobs() bool { return o.req.TopLogprobs >= 0 }

// Prefilled hands over that the prompt was read.
func (o *Output) Prefilled(p Prefill) error { return o.sink.Prefilled(p) }

// Begin starts the output of a round.
func (o *Output) Begin() { o.round.begin() }

// Close notes how the round's tokens close reasoning.
func (o *Output) Close(kind tandemv1.CloseKind) { o.round.close(kind) }

// Add adds a token of the round, with its log-probabilities if the request wants any. A stop token is not added: then
// ok is false, and the answer ends.
func (o *Output) Add(token int32, logprobs *tandemv1.PositionLogprobs) (ok bool) {
	if o.stop[token] {
		o.stopped = token
		return false
	}
	o.round.add(token, logprobs)
	o.anchor = token
	o.count++
	return true
}

// Tokens returns those of the round.
func (o *Output) Tokens() []int32 { return o.round.tokens() }

// Flush hands the round's output to the caller.
func (o *Output) Flush() error {
	n := len(o.round.tokens())
	if n == 0 {
		return nil
	}
	o.last = time.Now()
	if o.first.IsZero() {
		o.first = o.last
	}
	o.emitted += n
	return o.round.flush(o.sink)
}

// Figures returns the number of tokens handed over, the time from the request's arrival to the first of them, and from
// there to the last; times are 0 while there is none.
func (o *Output) Figures() (emitted int, first, decode time.Duration) {
	if o.first.IsZero() {
		return 0, 0, 0
	}
	return o.emitted, o.first.Sub(o.req.Arrived), o.last.Sub(o.first)
}

// round is the output of a round.
type round struct {
	list     []int32
	logprobs []*tandemv1.PositionLogprobs
	closed   tandemv1.CloseKind
}

func (r *round) begin() {
	r.list, r.logprobs, r.closed = r.list[:0], r.logprobs[:0], tandemv1.CloseKind_CLOSE_KIND_UNSPECIFIED
}

func (r *round) close(kind tandemv1.CloseKind) { r.closed = kind }

func (r *round) add(token int32, logprobs *tandemv1.PositionLogprobs) {
	r.list = append(r.list, token)
	if logprobs != nil {
		r.logprobs = append(r.logprobs, logprobs)
	}
}

func (r *round) tokens() []int32 { return r.list }

func (r *round) flush(sink Sink) error { return sink.Committed(r.list, r.logprobs, r.closed) }
