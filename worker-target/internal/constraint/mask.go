package constraint

import (
	"slices"

	"github.com/tandem-inference/tandem/services/grammar"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// Key names a mask: rows with equal keys share one.
type Key struct {
	content *grammar.State
	open    int32
}

// Masked tells whether the row of a state is limited by a mask, and by which.
func (c *Constraint) Masked(s State) (Key, bool) {
	if s.inside || s.phase == forcing || c.grammar == nil && c.banned == nil {
		return Key{}, false
	}
	return Key{s.content, c.opens(s)}, true
}

// Words is the size of a mask.
func (c *Constraint) Words() int { return c.words }

// Fill writes the mask of a key. It is an error when no token is left.
func (c *Constraint) Fill(k Key, dst []uint32) error {
	if c.grammar == nil {
		for i := range dst {
			dst[i] = ^c.banned[i]
		}
		if rest := c.vocab % 32; rest != 0 {
			dst[len(dst)-1] &= 1<<rest - 1
		}
	} else {
		if err := c.fillContent(k, dst); err != nil {
			return err
		}
	}
	if k.open >= 0 {
		dst[k.open/32] |= 1 << (k.open % 32)
	}
	for _, w := range dst {
		if w != 0 {
			return nil
		}
	}
	return rpcerr.InvalidArgument("guide.grammar", "no token may follow here")
}

func (c *Constraint) fillContent(k Key, dst []uint32) error {
	if k.content == nil { // only the open marker can go on
		clear(dst)
		return nil
	}
	m, err := c.grammar.Mask(k.content)
	if err != nil {
		return rpcerr.InvalidArgument("guide.grammar", "%v", err)
	}
	copy(dst, m.Bits)
	if c.grammar.Accepts(k.content) {
		for _, t := range c.stop {
			dst[t/32] |= 1 << (t % 32)
		}
	}
	if c.banned != nil {
		for i, w := range c.banned {
			dst[i] &^= w
		}
	}
	return nil
}

// Ended tells that the content is complete and nothing may follow, not even the end of the turn.
func (c *Constraint) Ended(s State) bool {
	if c.grammar == nil || s.inside || s.phase != freely || s.content == nil ||
		!c.grammar.Accepts(s.content) || c.opens(s) >= 0 {
		return false
	}
	if len(c.stop) > 0 {
		return false
	}
	m, err := c.grammar.Mask(s.content)
	return err == nil && m.Count == 0
}

// Allows tells whether a token may follow a state, and gives the state after it if the row samples it.
func (c *Constraint) Allows(s State, token int32) (State, bool) {
	got, after := c.Resolve(s, token)
	if got != token {
		return s, false
	}
	k, masked := c.Masked(s)
	switch {
	case !masked || token == k.open:
	case c.banned != nil && c.banned[token/32]>>(token%32)&1 != 0:
		return s, false
	case c.grammar != nil && after.content == nil:
		return s, false
	case c.grammar != nil && slices.Contains(c.stop, token) && !c.grammar.Accepts(s.content) &&
		c.grammar.Advance(s.content, token) == nil:
		return s, false
	}
	return after, true
}

// Continuation appends the tokens that are likely to follow because the grammar leaves no choice: the bytes are
// certain, how they are cut into tokens is a guess.
func (c *Constraint) Continuation(s State, dst []int32, limit int) []int32 {
	if c.grammar == nil || s.inside || s.phase != freely || s.content == nil || c.text.Encode == nil {
		return dst
	}
	text := c.grammar.Forced(s.content, maxForced)
	if len(text) == 0 {
		if m, err := c.grammar.Mask(s.content); err == nil && m.Count == 1 && !c.grammar.Accepts(s.content) && limit > 0 {
			return append(dst, m.Only)
		}
		return dst
	}
	tokens := c.text.Encode(text)
	if len(text) < maxForced && len(tokens) > 1 && !c.closed(s, text) {
		// The last token may well go on into what follows.
		tokens = tokens[:len(tokens)-1]
	}
	return append(dst, tokens[:min(limit, len(tokens))]...)
}

// maxForced bytes of a continuation.
const maxForced = 256

// closed tells whether the text is complete after the bytes.
func (c *Constraint) closed(s State, text []byte) bool {
	return c.grammar.Accepts(c.grammar.AdvanceBytes(s.content, text))
}
