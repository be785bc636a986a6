package output

import (
	"slices"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
)

// sink keeps what it is given.
type sink struct {
	rounds [][]int32
	scored int
	closed []tandemv1.CloseKind
}

func (s *sink) Prefilled(Prefill) error { return nil }

func (s *sink) Committed(tokens []int32, logprobs []*tandemv1.PositionLogprobs, closed tandemv1.CloseKind) error {
	s.rounds = append(s.rounds, slices.Clone(tokens))
	s.scored += len(logprobs)
	s.closed = append(s.closed, closed)
	return nil
}

// TestOutput: tokens leave round by round up to a stop token, which is not among them; a round without tokens is not
// handed over, and how reasoning closed is told with its round alone.
func TestOutput(t *testing.T) {
	var o Output
	o.Start(Request{Stop: []int32{2, 4}}, &sink{}) // an earlier request's stop tokens do not count
	for range 2 {                                  // nor does what it left
		var s sink
		o.Start(Request{Max: 9, Committed: []int32{1}, Stop: []int32{7}, Arrived: time.Now()}, &s)
		if emitted, first, decode := o.Figures(); emitted != 0 || first != 0 || decode != 0 {
			t.Errorf("before the first token: %d tokens, %v, %v", emitted, first, decode)
		}
		var ok []bool
		for _, round := range [][]int32{{2, 3}, {}, {4}, {5, 7}, {7}} {
			o.Begin()
			for _, token := range round {
				if token == 4 {
					o.Close(tandemv1.CloseKind_CLOSE_KIND_HARD)
				}
				ok = append(ok, o.Add(token, &tandemv1.PositionLogprobs{}))
			}
			if err := o.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		if want := []bool{true, true, true, true, false, false}; !slices.Equal(ok, want) {
			t.Errorf("added %v", ok)
		}
		if !slices.EqualFunc(s.rounds, [][]int32{{2, 3}, {4}, {5}}, slices.Equal) || s.scored != 4 {
			t.Errorf("rounds %v with %d log-probabilities", s.rounds, s.scored)
		}
		none, forced := tandemv1.CloseKind_CLOSE_KIND_UNSPECIFIED, tandemv1.CloseKind_CLOSE_KIND_HARD
		if want := []tandemv1.CloseKind{none, forced, none}; !slices.Equal(s.closed, want) {
			t.Errorf("closed %v", s.closed)
		}
		if emitted, _, _ := o.Figures(); emitted != 4 || o.Left() != 4 || o.Anchor() != 5 || o.StopToken() != 7 {
			t.Errorf("%d tokens, %d left, anchor %d, stopped by %d", emitted, o.Left(), o.Anchor(), o.StopToken())
		}
	}
}

// TestEnded: a request whose earlier worker generated all that was wanted, or a stop token, ends without a token.
func TestEnded(t *testing.T) {
	for name, c := range map[string]struct {
		max       int
		committed []int32
		want      tandemv1.FinishReason
		stopped   int32
	}{
		"fresh":        {max: 1, stopped: -1},
		"nothing":      {max: 0, want: tandemv1.FinishReason_FINISH_REASON_LENGTH, stopped: -1},
		"all":          {max: 2, committed: []int32{1, 7}, want: tandemv1.FinishReason_FINISH_REASON_LENGTH, stopped: -1},
		"stopped":      {max: 3, committed: []int32{1, 7}, want: tandemv1.FinishReason_FINISH_REASON_STOP, stopped: 7},
		"stop earlier": {max: 3, committed: []int32{7, 1}, stopped: -1},
	} {
		t.Run(name, func(t *testing.T) {
			var o Output
			o.Start(Request{Max: c.max, Committed: c.committed, Stop: []int32{7}}, &sink{})
			if got := o.Ended(); got != c.want || o.StopToken() != c.stopped {
				t.Errorf("%v by %d", got, o.StopToken())
			}
		})
	}
}

// TestCandidates: rows list as many candidates as the request wants and the engine can.
func TestCandidates(t *testing.T) {
	for _, c := range []struct {
		top, most int
		want      int32
		logprobs  bool
	}{{-1, 8, 0, false}, {0, 8, 0, true}, {3, 8, 3, true}, {20, 8, 8, true}} {
		var o Output
		o.Start(Request{TopLogprobs: c.top, MaxTopK: c.most}, &sink{})
		var row engine.Row
		o.Choose(&row)
		if row.TopK != c.want || (row.Want&engine.WantTop != 0) != (c.want > 0) || row.Want&engine.WantToken == 0 ||
			o.Logprobs() != c.logprobs {
			t.Errorf("%d of %d: %+v, log-probabilities %v", c.top, c.most, row, o.Logprobs())
		}
	}
}
