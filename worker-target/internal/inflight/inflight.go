// Package inflight lets prompts that begin alike and arrive together be read once: the choices of one request, or
// requests with the same system text.
//
// A request enters a Table before its prompt is read. If an earlier one of the same namespace is still to read a prefix
// that both share, at least Least tokens more than is stored already, the later one waits (Wait). The reader stops at
// the end of that prefix, where its prompt may be cut without another bit, and stores its state; then the waiting
// request restores it. If the reader ends before that, for example because its client left, the next waiting request
// reads on.
//
// Requests wait for earlier ones only, so that waits have no cycle.
package inflight

import (
	"context"
	"slices"
	"sync"

	"github.com/tandem-inference/tandem/services/prefixhash"
	"github.com/tandem-inference/tandem/worker-target/internal/piece"
)

// Least tokens that waiting for another reader must save. Fewer are read sooner than waited for.
const Least = 64

// Prompt is one that is to be read.
type Prompt struct {
	Space  string // states are shared within one
	Tokens []int32
	Cuts   piece.Cuts
	// PromptRows is the most rows of a piece that has the bits of decoding; 0 = all have.
	PromptRows int
	// Priority: nobody waits for a prompt of a lower one, which is read later.
	Priority int
}

// Table holds the prompts that are being read. It is safe for concurrent use. A nil Table shares nothing.
type Table struct {
	mu     sync.Mutex // guards the fields below and those of readings
	spaces map[string][]*Reading
}

// New returns an empty table.
func New() *Table { return &Table{spaces: map[string][]*Reading{}} }

// Reading is a prompt that is being read. A nil Reading shares nothing.
type Reading struct {
	table  *Table
	prompt Prompt
	next   int // positions that are read once the step in work is done
	wants  []*want
	ended  bool
}

// want is a position of a reading whose state others wait for.
type want struct {
	position int
	over     chan struct{} // closed when the state is stored, or the reader ends
	ended    bool          // the reader ended before
}

// Begin enters a prompt, after those that are there.
func (t *Table) Begin(p Prompt) *Reading {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	r := &Reading{table: t, prompt: p}
	t.spaces[p.Space] = append(t.spaces[p.Space], r)
	return r
}

// End takes the prompt out: it is read, or given up.
func (r *Reading) End() {
	if r == nil {
		return
	}
	t := r.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.ended {
		return
	}
	r.ended = true
	for _, w := range r.wants {
		w.ended = true
	}
	r.release(len(r.prompt.Tokens))
	left := slices.DeleteFunc(t.spaces[r.prompt.Space], func(o *Reading) bool { return o == r })
	if t.spaces[r.prompt.Space] = left; len(left) == 0 {
		delete(t.spaces, r.prompt.Space)
	}
}

// release ends the waits for positions up to one. The caller holds mu.
func (r *Reading) release(position int) {
	r.wants = slices.DeleteFunc(r.wants, func(w *want) bool {
		if w.position > position {
			return false
		}
		close(w.over)
		return true
	})
}

// Wait waits until an earlier reader has stored the longest state that it shares with this prompt, of which stored
// tells the tokens that are stored already. It returns the length of that state, 0 when there is none to wait for
// (any more). It may be gone by then, or there was no room for it: the prompt is read then.
func (r *Reading) Wait(ctx context.Context, stored func() int) (int, error) {
	if r == nil {
		return 0, nil
	}
	for {
		w := r.want(stored())
		if w == nil {
			return 0, nil
		}
		select {
		case <-w.over:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		if !w.ended {
			return w.position, nil
		}
	}
}

// want registers the best position to wait for, at least Least above what is stored; nil if there is none.
func (r *Reading) want(stored int) *want {
	t := r.table
	t.mu.Lock()
	defer t.mu.Unlock()
	var best *Reading
	longest := stored + Least - 1
	for _, o := range t.spaces[r.prompt.Space] {
		if o == r {
			break
		}
		if o.prompt.Priority < r.prompt.Priority {
			continue
		}
		if n := o.prompt.shared(&r.prompt); n > longest && n >= o.next {
			best, longest = o, n
		}
	}
	if best == nil {
		return nil
	}
	for _, w := range best.wants {
		if w.position == longest {
			return w
		}
	}
	w := &want{position: longest, over: make(chan struct{})}
	best.wants = append(best.wants, w)
	return w
}

// shared is the length of the longest state of p that o begins with, one token of o at least left to read: at a
// border of both or, where the piece after it is the same in both, at a cut of that piece.
func (p *Prompt) shared(o *Prompt) int {
	common := prefixhash.Common(p.Tokens, o.Tokens)
	limit := min(common, len(o.Tokens)-1)
	if p.PromptRows == 0 {
		return limit
	}
	border := p.Cuts.Below(limit)
	if o.Cuts.Below(border) != border {
		return 0
	}
	if border == limit {
		return border
	}
	_, end := p.Cuts.Next(border, len(p.Tokens))
	if _, other := o.Cuts.Next(border, len(o.Tokens)); other != end || end > common {
		return border
	}
	if end-border > p.PromptRows {
		limit -= (limit - border) % piece.Unit
	}
	return limit
}

// Started notes that the state of the first n tokens was restored: there is nothing to store up to there.
func (r *Reading) Started(n int) {
	if r == nil {
		return
	}
	r.table.mu.Lock()
	defer r.table.mu.Unlock()
	r.next = n
	r.release(n)
}

// Stop returns where a step that begins at a position and would read up to end is to end: there, or before it where
// others wait for the state.
func (r *Reading) Stop(at, end int) int {
	if r == nil {
		return end
	}
	r.table.mu.Lock()
	defer r.table.mu.Unlock()
	for _, w := range r.wants {
		if w.position > at {
			end = min(end, w.position)
		}
	}
	r.next = end
	return end
}

// Wanted reports whether others wait for the state at a position.
func (r *Reading) Wanted(position int) bool {
	if r == nil {
		return false
	}
	r.table.mu.Lock()
	defer r.table.mu.Unlock()
	return slices.ContainsFunc(r.wants, func(w *want) bool { return w.position == position })
}

// Stored notes that the state at a position is stored, or cannot be: nobody waits for it any more.
func (r *Reading) Stored(position int) {
	r.table.mu.Lock()
	defer r.table.mu.Unlock()
	r.next = position + 1 // who comes now finds it stored, or reads it
	r.release(position)
}
