package guide

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
func (g *Guide) Masked(s State) (Key, bool) {
	if s.inside || s.phase == forcing || g.grammar == nil && g.banned == nil {
		return Key{}, false
	}
	return Key{s.content, g.opens(s)}, true
}

// Words is the size of a mask.
func (g *Guide) Words() int { return g.words }

// Fill writes the mask of a key. It is an error when no token is left.
func (g *Guide) Fill(k Key, dst []uint32) error {
	if g.grammar == nil {
		for i := range dst {
			dst[i] = ^g.banned[i]
		}
		if rest := g.vocab % 32; rest != 0 {
			dst[len(dst)-1] &= 1<<rest - 1
		}
	} else {
		if err := g.fillContent(k, dst); err != nil {
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

func (g *Guide) fillContent(k Key, dst []uint32) error {
	if k.content == nil { // only the open marker can go on
		clear(dst)
		return nil
	}
	m, err := g.grammar.Mask(k.content)
	if err != nil {
		return rpcerr.InvalidArgument("guide.grammar", "%v", err)
	}
	copy(dst, m.Bits)
	if g.grammar.Accepts(k.content) {
		for _, t := range g.stop {
			dst[t/32] |= 1 << (t % 32)
		}
	}
	if g.banned != nil {
		for i, w := range g.banned {
			dst[i] &^= w
		}
	}
	return nil
}

// Ended tells that the content is complete and nothing may follow, not even the end of the turn.
func (g *Guide) Ended(s State) bool {
	if g.grammar == nil || s.inside || s.phase != freely || s.content == nil ||
		!g.grammar.Accepts(s.content) || g.opens(s) >= 0 {
		return false
	}
	if len(g.stop) > 0 {
		return false
	}
	m, err := g.grammar.Mask(s.content)
	return err == nil && m.Count == 0
}

// Allows tells whether a token may follow a state, and gives the state after it if the row samples it.
func (g *Guide) Allows(s State, token int32) (State, bool) {
	got, after := g.Resolve(s, token)
	if got != token {
		return s, false
	}
	k, masked := g.Masked(s)
	switch {
	case !masked || token == k.open:
	case g.banned != nil && g.banned[token/32]>>(token%32)&1 != 0:
		return s, false
	case g.grammar != nil && after.content == nil:
		return s, false
	case g.grammar != nil && slices.Contains(g.stop, token) && !g.grammar.Accepts(s.content) &&
		g.grammar.Advance(s.content, token) == nil:
		return s, false
	}
	return after, true
}

// Continuation appends the tokens that are likely to follow because the grammar leaves no choice: the bytes are
// certain, how they are cut into tokens is a guess.
func (g *Guide) Continuation(s State, dst []int32, limit int) []int32 {
	if g.grammar == nil || s.inside || s.phase != freely || s.content == nil || g.text.Encode == nil {
		return dst
	}
	text := g.grammar.Forced(s.content, maxForced)
	if len(text) == 0 {
		if m, err := g.grammar.Mask(s.content); err == nil && m.Count == 1 && !g.grammar.Accepts(s.content) && limit > 0 {
			return append(dst, m.Only)
		}
		return dst
	}
	tokens := g.text.Encode(text)
	if len(text) < maxForced && len(tokens) > 1 && !g.closed(s, text) {
		// The last token may well go on into what follows.
		tokens = tokens[:len(tokens)-1]
	}
	return append(dst, tokens[:min(limit, len(tokens))]...)
}

// maxForced bytes of a continuation.
const maxForced = 256

// closed tells whether the text is complete after the bytes.
func (g *Guide) closed(s State, text []byte) bool {
	return g.grammar.Accepts(g.grammar.AdvanceBytes(s.content, text))
}
