package reuse

import (
	"context"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/worker-target/internal/prefix"
)

// Goal is how many tokens of a prompt are worth reading ahead: up to the last state from which one that goes on in
// another way can start.
func (r *Reuse) Goal() int {
	if !r.On() || r.free {
		return len(r.prompt)
	}
	return r.cuts.Below(len(r.prompt))
}

// RestoreAhead is Restore for a prompt that is read ahead. It returns Goal when the state that is wanted is there: then
// the sequence is empty still.
func (r *Reuse) RestoreAhead(ctx context.Context, s engine.Sequence) (length int, err error) {
	goal := r.Goal()
	e := r.cache.FindAhead(r.req.Space, r.prompt[:goal], r.fits)
	if e == nil {
		return 0, nil
	}
	rows, length := e.Rows(), e.Length()
	if length == goal {
		r.cache.Release(e)
		return goal, nil
	}
	if r.ahead, err = r.cache.RestoreAhead(ctx, e, s); err != nil {
		return 0, err
	}
	r.rows, r.restored, r.passed = rows, length, length
	return length, nil
}

// ReadAhead saves the state of a sequence that holds the prompt's first length tokens, read ahead. What leads to Goal
// is kept until a later one is there, for the case that a request stops the reading.
func (r *Reuse) ReadAhead(s engine.Sequence, length int) {
	if length == r.Goal() {
		r.cache.Persist(r.save(s, r.prompt[:length], true), length-r.restored)
	} else if r.cuts.Below(length) == length && r.worth(false) {
		r.save(s, r.prompt[:length], false)
	}
}

// store makes an entry of a state.
func (r *Reuse) store(s engine.Sequence, tokens []int32, f prefix.Features) (e *prefix.Entry, made bool) {
	if r.req.Ahead.IsZero() {
		return r.cache.Save(r.req.Space, tokens, s, f)
	}
	return r.cache.SaveAhead(r.req.Space, tokens, s, f, prefix.Ahead{
		Asked: r.req.Ahead, Tokens: r.ahead + len(tokens) - r.restored,
	})
}
