package enginefake

import (
	"math"
	"slices"
	"time"

	"github.com/tandem-inference/tandem/services/engine"
)

// TextModel decides by the text itself what a fake answers, in place of the hash of it. Its methods are functions of
// their arguments alone, so that rows are batch invariant, and are called by one goroutine at a time.
type TextModel interface {
	// Peaks appends the likeliest next tokens after t, likeliest first, with raw logits above 0. The raw logit of every
	// other token is 0.
	Peaks(t Text, dst []Peak) []Peak
	// Choose returns the token that a sampler takes after t, -1 when mask allows none. A nil mask allows all.
	Choose(t Text, peaks []Peak, s *engine.Sampler, mask []uint32) int32
	// Hint fills what a draft learns from a feature row about the text after t.
	Hint(t Text, hint []byte)
	// Guess appends the draft's likeliest tokens behind anchor, at most n, from the hint of the row before it.
	Guess(hint []byte, anchor int32, n int, dst []int32) []int32
	// Pace is the time that one token of t's output takes and the time of everything before the first one; 0 = none.
	Pace(t Text) (token, first time.Duration)
}

// Text is a sequence up to and including a row.
type Text struct {
	// Tokens are prompt, output and tree path, Tokens[:Prompt] the prompt as far as it is there. Valid during the call.
	Tokens []int32
	Prompt int
	// Key identifies the prompt: equal prompts have equal keys.
	Key uint64
}

// Output is what follows the prompt.
func (t Text) Output() []int32 { return t.Tokens[min(t.Prompt, len(t.Tokens)):] }

// Peak is a token with its raw logit.
type Peak struct {
	Token int32
	Logit float32
}

// text describes row k of a group, of which rows 0..k have their hashes.
func (e *Engine) text(g *group, k int) Text {
	s := g.s
	t := Text{Tokens: e.history(g, k), Prompt: int(s.sampler.PromptTokens), Key: rootHash}
	switch last := t.Prompt - 1; {
	case last < 0 || last >= len(t.Tokens):
	case last < len(s.hashes):
		t.Key = s.hashes[last]
	default:
		at := int32(k)
		for range len(t.Tokens) - 1 - last {
			at = g.rows[at].Parent
		}
		t.Key = e.w.hashes[g.first+int(at)]
	}
	return t
}

// peaked computes a row's outputs from the peaks of its text.
func (e *Engine) peaked(step *engine.Step, g *group, k int,
	result *engine.StepResult) (token int32, logprob, score float32) {
	w, r, vocab := &e.w, &g.rows[k], e.m.o.Vocab
	t := e.text(g, k)
	w.peaks = e.m.o.Text.Peaks(t, w.peaks[:0])
	// All other tokens have the logit 0 and so the weight 1.
	sum := float64(vocab - len(w.peaks))
	for _, p := range w.peaks {
		sum += math.Exp(float64(p.Logit))
	}
	norm := math.Log(sum)
	of := func(token int32) float32 {
		for _, p := range w.peaks {
			if p.Token == token {
				return float32(float64(p.Logit) - norm)
			}
		}
		return float32(-norm)
	}
	token = -1
	if r.Want&engine.WantToken != 0 {
		if token = e.m.o.Text.Choose(t, w.peaks, &g.s.sampler, e.mask(step, r)); token >= 0 {
			logprob = of(token)
		}
	}
	if r.Want&engine.WantScore != 0 {
		score = of(r.Score)
	}
	if r.Want&engine.WantLogits != 0 {
		at := len(result.Logits)
		result.Logits = slices.Grow(result.Logits, vocab)[:at+vocab]
		clear(result.Logits[at:])
		for _, p := range w.peaks {
			result.Logits[at+int(p.Token)] = p.Logit
		}
	}
	if r.Want&engine.WantTop != 0 {
		next := int32(0)
		for k := range int(r.TopK) {
			id := next
			if k < len(w.peaks) {
				id = w.peaks[k].Token
			} else {
				for slices.ContainsFunc(w.peaks, func(p Peak) bool { return p.Token == id }) {
					id++
				}
				next = id + 1
			}
			result.TopIDs = append(result.TopIDs, id)
			result.TopLogprobs = append(result.TopLogprobs, of(id))
		}
	}
	return token, logprob, score
}

// catchUp is how far behind its time table an output may be and still make up for it.
const catchUp = time.Second

// tick is the grid of paced tokens: as in an engine that runs many sequences in one step, those of different sequences
// come together.
const tick = 10 * time.Millisecond

func ceil(d, unit time.Duration) time.Duration { return (d + unit - 1) / unit * unit }

// pace is how long the step takes for a group, whose sequence keeps a time table of its own. A sequence without a
// sampler has none: it is of no request.
func (e *Engine) pace(g *group, result *engine.StepResult, now time.Time) time.Duration {
	s, longest := g.s, time.Duration(0)
	for k := range g.rows {
		r := &g.rows[k]
		if !s.set || r.Want&engine.WantToken == 0 || !g.Commit && r.Parent >= 0 {
			continue
		}
		t := e.text(g, k)
		token, first := e.m.o.Text.Pace(t)
		if token <= 0 && first <= 0 {
			continue
		}
		if len(t.Output()) == 0 {
			s.due = now.Add(first)
		} else {
			// A caller that was late may catch up, one that was away or took over goes on from here.
			if s.due.Before(now.Add(-catchUp)) {
				s.due = now.Add(-token)
			}
			s.due = s.due.Add(token * time.Duration(e.taken(g, result, k)))
		}
		longest = max(longest, ceil(s.due.Sub(e.opened), tick)-now.Sub(e.opened))
	}
	return longest
}

// taken counts the tokens that a walk from row k of a group through the rows that the sampler chose yields.
func (e *Engine) taken(g *group, result *engine.StepResult, k int) int {
	n := 1
	for i := k + 1; i < len(g.rows); i++ {
		if r := &g.rows[i]; int(r.Parent) == k && r.Token == result.Tokens[g.first+k] && r.Want&engine.WantToken != 0 {
			k = i
			n++
		}
	}
	return n
}

// Hints travel in the values of a feature row behind the eight that hold the hash.

// maxHint bounds the bytes of a hint, of which drafts keep one for every position.
const maxHint = 96

// hintBytes is the room for a hint in a row.
func (m *model) hintBytes() int {
	if m.o.Text == nil {
		return 0
	}
	return min(m.o.Hidden-hashValues, maxHint)
}

// hintOfFeatures reads a hint back.
func hintOfFeatures(row []byte, n int, f32 bool) []byte {
	hint := make([]byte, n)
	for i := range hint {
		hint[i] = byteOfFeature(row, hashValues+i, f32)
	}
	return hint
}

// guess writes the candidates of a request from the hint of the sequence's last row: the model's guess first, then the
// ids above it, all equally unlikely.
func (e *Engine) guess(r *engine.DraftRequest, ids []int32, logprobs []float32) {
	const (
		sure   = -0.05 // log-probability of the guess
		unsure = 0.04  // probability that all other candidates share
	)
	s, w := e.sequences[r.Sequence], &e.w
	w.ids = w.ids[:0]
	if s.length() == int(r.Position) && len(s.hints) > 0 {
		w.ids = e.m.o.Text.Guess(s.hints[len(s.hints)-1], r.Token, int(r.Block)-1, w.ids)
	}
	for p := range int(r.Block) - 1 {
		at := p * e.options.MaxTopK
		first := int32(mix(uint64(r.Token)^uint64(p)) % uint64(e.m.o.Vocab)) // a draft without a hint guesses
		if p < len(w.ids) {
			first = w.ids[p]
		}
		ids[at], logprobs[at] = first, sure
		others := first + 1
		if int(others)+int(r.TopK) > e.m.o.Vocab {
			others = 0
		}
		for k := 1; k < int(r.TopK); k++ {
			ids[at+k], logprobs[at+k] = others+int32(k-1), float32(math.Log(unsure/float64(e.m.o.Vocab)))
		}
	}
}
