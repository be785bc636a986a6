package constraint

import (
	"slices"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/grammar"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// freeTokens that may follow a forced hint before the close marker is forced.
const freeTokens = 64

// Constraint of one request. It is immutable; the grammar inside may be shared.
type Constraint struct {
	text    *Text
	grammar *grammar.Grammar // nil = free text
	banned  []uint32         // nil = none
	words   int
	vocab   int

	reasons  bool
	open     marker
	close    marker
	inside   bool
	budget   int
	reserve  int
	sequence []int32 // forced to close
	max      int
	stop     []int32

	callOpen, callClose int32 // -1 = calls are not told from other text
}

// marker is a sequence of tokens with the lengths to fall back to when it does not go on (Knuth, Morris and Pratt).
type marker struct {
	tokens []int32
	back   []int
}

func newMarker(tokens []int32) marker {
	m := marker{tokens: tokens, back: make([]int, len(tokens))}
	k := 0
	for i := 1; i < len(tokens); i++ {
		for k > 0 && tokens[i] != tokens[k] {
			k = m.back[k-1]
		}
		if tokens[i] == tokens[k] {
			k++
		}
		m.back[i] = k
	}
	return m
}

// next is how much of the marker ends with token, when at tokens of it ended before.
func (m *marker) next(at int, token int32) int {
	for at > 0 && (at == len(m.tokens) || m.tokens[at] != token) {
		at = m.back[at-1]
	}
	if at < len(m.tokens) && m.tokens[at] == token {
		at++
	}
	return at
}

// Options of a constraint besides the message.
type Options struct {
	Vocab int     // width of the logits
	Max   int     // output tokens, those of an earlier worker included
	Stop  []int32 // end the turn
}

// New checks a message and makes its constraint; nil when it limits nothing. Errors are INVALID_ARGUMENT.
func (f *Factory) New(m *tandemv1.Guide, o Options) (*Constraint, error) {
	if m == nil {
		return nil, nil
	}
	c := &Constraint{words: (o.Vocab + 31) / 32, vocab: o.Vocab, max: o.Max, stop: o.Stop, callOpen: -1, callClose: -1}
	check := func(field string, tokens []int32) error {
		for i, t := range tokens {
			if t < 0 || int(t) >= o.Vocab {
				return rpcerr.InvalidArgument("guide."+field, "token %d at %d is outside the vocabulary of %d", t, i, o.Vocab)
			}
		}
		return nil
	}
	if err := check("banned_tokens", m.BannedTokens); err != nil {
		return nil, err
	}
	if r := m.Reasoning; r != nil {
		for field, tokens := range map[string][]int32{"open": r.Open, "close": r.Close, "close_sequence": r.CloseSequence} {
			if err := check("reasoning."+field, tokens); err != nil {
				return nil, err
			}
		}
		switch {
		case len(r.Close) == 0:
			return nil, rpcerr.InvalidArgument("guide.reasoning.close", "is empty")
		case r.Budget < 0 || r.Reserve < 0:
			return nil, rpcerr.InvalidArgument("guide.reasoning", "budget and reserve must be >= 0, got %d and %d",
				r.Budget, r.Reserve)
		case r.Reserve > 0 && len(r.CloseSequence) == 0:
			return nil, rpcerr.InvalidArgument("guide.reasoning.close_sequence", "is empty although closing may be forced")
		}
		c.reasons, c.inside = true, r.Inside
		c.open, c.close = newMarker(r.Open), newMarker(r.Close)
		c.budget, c.reserve, c.sequence = int(r.Budget), int(r.Reserve), r.CloseSequence
		for field, token := range map[string]*int32{"call_open": r.CallOpen, "call_close": r.CallClose} {
			if token == nil {
				continue
			}
			if err := check("reasoning."+field, []int32{*token}); err != nil {
				return nil, err
			}
		}
		if (r.CallOpen == nil) != (r.CallClose == nil) {
			return nil, rpcerr.InvalidArgument("guide.reasoning", "call_open and call_close must both be set or both be absent")
		}
		if r.CallOpen != nil {
			c.callOpen, c.callClose = *r.CallOpen, *r.CallClose
		}
	}
	if len(m.BannedTokens) > 0 {
		c.banned = make([]uint32, c.words)
		for _, t := range m.BannedTokens {
			c.banned[t/32] |= 1 << (t % 32)
		}
	}
	var err error
	if c.text, c.grammar, err = f.compiled(m.Grammar, o.Vocab); err != nil {
		return nil, err
	}
	if !c.reasons && c.banned == nil && c.grammar == nil {
		return nil, nil
	}
	return c, nil
}

// phase of closing.
type phase uint8

const (
	freely    phase = iota // nothing was forced, or it is over
	forcing                // the close sequence
	hinted                 // it did not hold the marker: tokens are free for a while
	finishing              // the marker alone
	calling                // the marker alone, in place of a call that the grammar has to hold
)

// progress of a call in reasoning.
type progress uint8

const (
	noCall    progress = iota
	inCall             // the mark that opens a call was written
	calledNow          // the one that closes it too, and nothing visible since
)

// State of a path: what was generated decides what may follow. It is a value and comparable.
type State struct {
	generated int32
	thought   int32 // generated while reasoning
	opening   int32 // tokens of the open marker that the path ends with
	closing   int32 // of the close marker
	at        int32 // next token of what is forced
	free      int32 // left after a hint
	phase     phase
	call      progress // while inside
	inside    bool
	visible   bool
	used      bool // closing was forced once
	kind      tandemv1.CloseKind
	content   *grammar.State
	held      *grammar.State // content before the open marker began
}

// Start is the state before the first output token.
func (c *Constraint) Start() State {
	s := State{inside: c.inside}
	if c.grammar != nil {
		s.content = c.grammar.Start()
	}
	return s
}

// Kind tells how reasoning was closed so far.
func (c *Constraint) Kind(s State) tandemv1.CloseKind {
	if c.reasons && s.kind == tandemv1.CloseKind_CLOSE_KIND_UNSPECIFIED {
		return tandemv1.CloseKind_CLOSE_KIND_NONE
	}
	return s.kind
}

// Alike tells whether the same may follow two states: they differ at most in how reasoning was closed.
func (s State) Alike(t State) bool {
	t.kind = s.kind
	return s == t
}

// Forced gives the token that follows whatever is sampled.
func (c *Constraint) Forced(s State) (token int32, ok bool) {
	switch s.phase {
	case forcing:
		return c.sequence[s.at], true
	case finishing, calling:
		return c.close.tokens[s.at], true
	}
	return -1, false
}

// due tells whether reasoning has to end with the next token.
func (c *Constraint) due(s State) bool {
	if !s.inside || c.reserve == 0 {
		return false
	}
	switch s.phase {
	case hinted:
		return s.free == 0
	case freely:
		return !s.used && (c.budget > 0 && int(s.thought) >= c.budget || c.max-int(s.generated) <= c.reserve)
	}
	return false
}

// load begins to force what the phase asks for.
func (c *Constraint) load(s State) State {
	s.at, s.used = 0, true
	if s.phase == hinted {
		s.phase = finishing
	} else {
		s.phase = forcing
	}
	return s
}

// Due gives the token that closing would begin with, when it has to begin now.
func (c *Constraint) Due(s State) (token int32, after State, ok bool) {
	if !c.due(s) {
		return -1, s, false
	}
	s = c.load(s)
	token, _ = c.Forced(s)
	return token, c.advance(s, token), true
}

// Open tells whether the sample decides between the token itself and forced closing: only then does a replay need to
// know it.
func (c *Constraint) Open(s State, token int32) bool {
	if s.inside && c.holdsCalls() && (s.phase == freely || s.phase == hinted) && token == c.close.tokens[0] {
		return true
	}
	if !s.inside || c.reserve == 0 || s.phase != freely && s.phase != hinted {
		return false
	}
	head, _ := c.Forced(c.load(s))
	return token == head
}

// Resolve gives the token that follows when the row of s sampled a token, and the state after it.
func (c *Constraint) Resolve(s State, sampled int32) (int32, State) {
	if token, ok := c.Forced(s); ok {
		return token, c.advance(s, token)
	}
	if s.inside {
		own := sampled == c.close.tokens[s.closing]
		ends := c.reserve > 0 && !s.visible && s.call != calledNow && (!s.used || s.phase == hinted) &&
			slices.Contains(c.stop, sampled)
		due := c.due(s)
		switch {
		case sampled == c.callOpen && c.holdsCalls() && !due:
			s.phase, s.at = calling, 0
			sampled, _ = c.Forced(s)
		case due && !own || ends:
			s = c.load(s)
			sampled, _ = c.Forced(s)
		}
	}
	return sampled, c.advance(s, sampled)
}

// holdsCalls tells whether calls are held to a grammar, which begins only after the reasoning.
func (c *Constraint) holdsCalls() bool { return c.grammar != nil && c.callOpen >= 0 }

// follow tells how far a call is when a token of reasoning follows.
func (c *Constraint) follow(p progress, token int32) progress {
	switch {
	case c.callOpen < 0 || slices.Contains(c.stop, token):
		return p
	case token == c.callOpen:
		return inCall
	case p == inCall && token == c.callClose:
		return calledNow
	case p == calledNow && c.text.visible(token):
		return noCall
	}
	return p
}

// advance appends a token.
func (c *Constraint) advance(s State, token int32) State {
	s.generated++
	forced := s.phase == forcing || s.phase == finishing || s.phase == calling
	if forced {
		s.at++
	}
	if !s.inside {
		if !forced {
			return c.write(s, token)
		}
		if int(s.at) == len(c.sequence) {
			s.phase, s.at = freely, 0
		}
		return s
	}
	s.thought++
	s.call = c.follow(s.call, token)
	s.closing = int32(c.close.next(int(s.closing), token))
	if int(s.closing) == len(c.close.tokens) {
		switch s.phase {
		case freely, calling:
			s.kind = tandemv1.CloseKind_CLOSE_KIND_NATURAL
		case hinted:
			s.kind = tandemv1.CloseKind_CLOSE_KIND_SOFT
		default:
			s.kind = tandemv1.CloseKind_CLOSE_KIND_HARD
		}
		s.inside, s.closing, s.free, s.call = false, 0, 0, noCall
		// What the sequence has after its marker is forced too.
		if s.phase != forcing || int(s.at) == len(c.sequence) {
			s.phase, s.at = freely, 0
		}
		return s
	}
	switch {
	case s.phase == forcing && int(s.at) == len(c.sequence):
		s.phase, s.at, s.free = hinted, 0, freeTokens
	case s.phase == hinted && s.free > 0:
		s.free--
	}
	return s
}

// write appends a token of content.
func (c *Constraint) write(s State, token int32) State {
	if slices.Contains(c.stop, token) {
		return s
	}
	if c.mayOpen(s) {
		was := s.opening
		if s.opening = int32(c.open.next(int(was), token)); s.opening == 1 {
			s.held = s.content
		}
		if int(s.opening) == len(c.open.tokens) {
			s.inside, s.thought, s.opening = true, s.opening, 0
			s.content, s.held = s.held, nil
			return s
		}
		if was > 0 && s.opening <= was {
			s.opening, s.visible = 0, true // what looked like the marker was text
		}
	}
	s.visible = s.visible || s.opening == 0 && c.text.visible(token)
	if c.grammar != nil {
		s.content = c.grammar.Advance(s.content, token)
	}
	if s.visible {
		s.held = nil
	}
	return s
}

// mayOpen tells whether the open marker means something: nothing is visible yet, and no reasoning was closed before.
// Otherwise a model that a grammar holds would escape from it into reasoning, again and again.
func (c *Constraint) mayOpen(s State) bool {
	return !s.visible && s.kind == tandemv1.CloseKind_CLOSE_KIND_UNSPECIFIED && len(c.open.tokens) > 0
}

// opens gives the token that would begin or continue the open marker, -1 where it means nothing.
func (c *Constraint) opens(s State) int32 {
	if !c.mayOpen(s) {
		return -1
	}
	return c.open.tokens[s.opening]
}

// Closed tells whether reasoning ended between before and s.
func (s State) Closed(before State) bool { return before.inside && !s.inside }
