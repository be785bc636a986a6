// Package text holds the text of one request, prompt and output, for prompt lookup: it proposes the tokens that
// followed where the newest tokens stood before.
//
// Every new token is compared with prompt lookup's prediction, even if that was not used. So its acceptance is learnt
// without trials.
package text

import (
	"github.com/tandem-inference/tandem/services/ddtree"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"github.com/tandem-inference/tandem/worker-target/internal/lookup"
)

// expectedRight is the log-probability of a token that prompt lookup proposes: three of four right. A larger one lets a
// constraint extend the chain at a greater depth.
const expectedRight = -0.3

// Text is the text of one request after another. Its memory is kept between them. While it is off every method does
// nothing and finds nothing.
type Text struct {
	on          bool
	index       lookup.Index
	found       []int32
	predictions []auto.Prediction // of the round's tokens
}

// Start begins the text of a request with room for so many tokens; longer ones let the index grow.
func (t *Text) Start(tokens int) {
	t.on = true
	t.index.Reset(tokens)
}

// Stop turns prompt lookup off until the next Start.
func (t *Text) Stop() { t.on = false }

// On reports whether the text is kept.
func (t *Text) On() bool { return t.on }

// Read appends tokens that were there before this worker decodes.
func (t *Text) Read(tokens []int32) {
	if t.on {
		t.index.Extend(tokens)
	}
}

// Begin starts the tokens of a round.
func (t *Text) Begin() { t.predictions = t.predictions[:0] }

// Add compares a new token with the one that prompt lookup predicts, and appends it.
func (t *Text) Add(token int32) {
	if !t.on {
		return
	}
	next, ok := t.index.Next()
	t.predictions = append(t.predictions, auto.Prediction{Matched: t.index.Matched(), Right: ok && next == token})
	t.index.Append(token)
}

// Predictions returns what prompt lookup would have predicted of each of the round's tokens.
func (t *Text) Predictions() []auto.Prediction { return t.predictions }

// Matched is the length of the match that a proposal would continue, 0 = there is none.
func (t *Text) Matched() int {
	if !t.on {
		return 0
	}
	return t.index.Matched()
}

// Propose adds the tokens that followed the match, at most limit, to tree, which has a root alone.
func (t *Text) Propose(tree *ddtree.Tree, limit int) {
	t.found = t.index.Propose(t.found[:0], min(limit, ddtree.MaxNodes, ddtree.MaxDepth))
	Append(tree, 0, t.found)
}

// After predicts at most limit tokens to follow path, tokens that continue the text. It returns them with the length of
// the match that they continue. They are valid until the next call.
func (t *Text) After(path []int32, limit int) (tokens []int32, matched int) {
	t.found = append(t.found[:0], path...)
	t.found, matched = t.index.Behind(t.found, t.found, limit)
	return t.found[len(path):], matched
}

// Append adds tokens that prompt lookup predicts to tree as a chain below leaf.
func Append(tree *ddtree.Tree, leaf int32, tokens []int32) {
	logprob := tree.Logprobs[leaf]
	for _, token := range tokens {
		logprob += expectedRight
		leaf = tree.Add(token, leaf, logprob)
	}
}
