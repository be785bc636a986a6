package prefix

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// Ahead marks a state that was read ahead, for a prompt that may come, and not for a request.
type Ahead struct {
	// Asked is the time of the request to read ahead: no entry that was used since is evicted for the state.
	Asked time.Time
	// Tokens were read for the state, and for those that it continues and no request has used.
	Tokens int
}

// AheadStats counts states that were read ahead.
type AheadStats struct {
	Hits   uint64 // requests that began with one, each once
	Used   uint64 // tokens that were read for those
	Wasted uint64 // tokens that were read for states which were evicted unused
}

// sparesNone is for requests, which take precedence over all stored entries.
func sparesNone(*Entry) bool { return false }

// spares reports whether an entry stays although there is no room for the state.
func (a *Ahead) spares(e *Entry) bool { return a != nil && e.used.After(a.Asked) }

func (a *Ahead) tokens() int {
	if a == nil {
		return 0
	}
	return a.Tokens
}

// reward counts the hit of an entry that was read ahead. The caller holds mu.
func (c *Cache) reward(e *Entry) {
	if e.ahead > 0 {
		c.stats.Ahead.Hits++
		c.stats.Ahead.Used += uint64(e.ahead)
		e.ahead = 0
	}
}

// waste counts the tokens that were read ahead for an entry that is removed. The caller holds mu.
func (c *Cache) waste(e *Entry) {
	c.stats.Ahead.Wasted += uint64(e.ahead)
	e.ahead = 0
}

// FindAhead is Find for a prompt that is read ahead, in memory alone.
func (c *Cache) FindAhead(space string, tokens []int32, fits func(length int) bool) *Entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.find(space, tokens, fits)
}

// Release unpins an entry that FindAhead returned and that will not be restored.
func (c *Cache) Release(e *Entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unpin(e)
}

// RestoreAhead is Restore for a prompt that is read ahead: no hit, and nothing moves to make room for it. It returns
// how many tokens were read ahead for the entry, which count for the state that continues it from then on.
func (c *Cache) RestoreAhead(ctx context.Context, e *Entry, s engine.Sequence) (tokens int, err error) {
	err = e.engine.RestoreSnapshot(ctx, e.snapshot, s)
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.unpin(e)
	if err == nil {
		e.used, e.demoted = time.Now(), false
		tokens, e.ahead = e.ahead, 0
		return tokens, nil
	}
	if ctx.Err() == nil && rpcerr.Code(err) != codes.ResourceExhausted && c.keeps(e) {
		c.stats.Failures++
		c.discard(e)
	}
	return 0, err
}

// SaveAhead is Save for a state that was read ahead.
func (c *Cache) SaveAhead(
	space string, tokens []int32, s engine.Sequence, f Features, ahead Ahead,
) (e *Entry, made bool) {
	return c.save(space, tokens, s, f, &ahead)
}
