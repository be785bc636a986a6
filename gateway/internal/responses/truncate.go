package responses

import (
	"errors"
	"sort"

	"github.com/tandem-inference/tandem/gateway/internal/chat"
	"github.com/tandem-inference/tandem/gateway/internal/model"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
)

// truncateAuto asks to drop the oldest turns of a conversation that is too long.
const truncateAuto = "auto"

// defaultReserve is the room for output that truncation leaves when the request names none.
const defaultReserve = 1024

// prepare makes the request ready to run, with truncation if it is wanted and needed.
func (s *Service) prepare(m *model.Model, q *request) (*turn.Prepared, error) {
	limit := s.turn.MaxContext()
	if q.object.Truncation != truncateAuto || limit == 0 {
		return s.turn.Prepare(m, q.Request)
	}
	reserve := defaultReserve
	if q.MaxTokensGiven {
		reserve = q.MaxTokens
	}
	reserve = min(reserve, limit/4)
	p, err := s.turn.Prepare(m, q.Request)
	if err != nil || p.PromptTokens+reserve <= limit || p.Run.Prompts[0].Compress != nil {
		// Too long is not an error of Prepare; a prompt that will be compressed keeps its turns.
		return p, err
	}
	whole := q.Messages
	starts := turnStarts(whole)
	if len(starts) < 2 {
		return p, nil
	}
	// The fewest dropped turns with which the rest fits; the last turn always stays.
	var failed error
	n := 1 + sort.Search(len(starts)-2, func(i int) bool {
		q.Messages = dropTurns(whole, starts, i+1)
		r, err := s.turn.Render(m, q.Request)
		if err != nil {
			failed = errors.Join(failed, err)
			return true
		}
		return len(r.Tokens)+reserve <= limit
	})
	if failed != nil {
		return nil, reqerr.From(failed)
	}
	q.Messages = dropTurns(whole, starts, n)
	return s.turn.Prepare(m, q.Request)
}

// turnStarts lists where turns begin: at every message of the user.
func turnStarts(msgs []chat.Message) []int {
	var out []int
	for i, m := range msgs {
		if m.Role == chat.RoleUser {
			out = append(out, i)
		}
	}
	return out
}

// dropTurns leaves out the first n turns. What stands before them, the system's text, stays.
func dropTurns(msgs []chat.Message, starts []int, n int) []chat.Message {
	out := append([]chat.Message{}, msgs[:starts[0]]...)
	return append(out, msgs[starts[n]:]...)
}
