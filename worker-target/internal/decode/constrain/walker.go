// Package constrain holds a request to its constraint: grammar, reasoning budget, banned tokens.
//
// A Walker follows the constraint along the output. In a round it first fits the draft tree: nodes that the constraint
// forbids are cut off, and tokens for which it leaves no choice are added. Then each row gets the mask of the state
// after its own path. After the step the walker follows the target's choices down the tree and may replace each of them
// by a forced token.
package constrain

import (
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/ddtree"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/worker-target/internal/constraint"
)

// Walker walks the constraint of one request after another. Its memory is kept between them. Without a constraint it
// allows everything.
type Walker struct {
	constraint *constraint.Constraint // nil = anything may be chosen
	state      constraint.State       // after the output
	guess      bool                   // text without a choice may be added to trees
	chosen     int32                  // by the last row of known tokens, -1 = it was not asked
	fitted     fitted
	masks      masks
}

// Start begins a request under c, nil for none. guess allows adding text for which the grammar leaves no choice to
// trees: it may be cut into other tokens than the target's.
func (w *Walker) Start(c *constraint.Constraint, guess bool) {
	*w = Walker{constraint: c, guess: guess, chosen: -1, fitted: w.fitted, masks: w.masks}
	if c != nil {
		w.state = c.Start()
	}
}

// Active reports whether there is a constraint.
func (w *Walker) Active() bool { return w.constraint != nil }

// Kind is how reasoning was closed; unspecified without a constraint on reasoning.
func (w *Walker) Kind() tandemv1.CloseKind {
	if w.constraint == nil {
		return tandemv1.CloseKind_CLOSE_KIND_UNSPECIFIED
	}
	return w.constraint.Kind(w.state)
}

// Ended reports whether the constraint allows nothing more.
func (w *Walker) Ended() bool { return w.constraint != nil && w.constraint.Ended(w.state) }

// Certain reports whether the next token is certain. Then there is nothing to propose.
func (w *Walker) Certain() bool {
	if w.constraint == nil {
		return false
	}
	_, _, ok := certain(w.constraint, w.state)
	return ok
}

// certain returns the token that must follow state, with the state after it.
func certain(c *constraint.Constraint, state constraint.State) (token int32, after constraint.State, ok bool) {
	if token, ok = c.Forced(state); ok {
		_, after = c.Resolve(state, token)
		return token, after, true
	}
	return c.Due(state)
}

// Sampling reports whether the state after a known token depends on the token that would have been sampled there.
func (w *Walker) Sampling(token int32) bool {
	return w.constraint != nil && w.constraint.Open(w.state, token)
}

// SetChosen notes what the row of the newest known token chose.
func (w *Walker) SetChosen(token int32) { w.chosen = token }

// Replay follows a token that an earlier worker generated, the i-th of its output.
func (w *Walker) Replay(token int32, i int) error {
	if w.constraint == nil {
		return nil
	}
	sampled := token
	if w.chosen >= 0 {
		sampled, w.chosen = w.chosen, -1
	}
	if got, after := w.constraint.Resolve(w.state, sampled); got == token && got != sampled {
		w.state = after
		return nil
	}
	after, ok := w.constraint.Allows(w.state, token)
	if !ok {
		return rpcerr.InvalidArgument("committed_tokens", "token %d at %d does not follow the constraint", token, i)
	}
	w.state = after
	return nil
}

// Fit fits the tree of a round of at most rows rows to the constraint. It reports whether nodes were cut off and
// whether nodes were added.
func (w *Walker) Fit(t *ddtree.Tree, rows int) (cut, added bool) {
	if w.constraint == nil {
		return false, false
	}
	cut = w.fitted.prune(w.constraint, w.state, t)
	return cut, w.fitted.extend(w.constraint, t, rows, w.guess)
}

// Begin starts the rows of a step.
func (w *Walker) Begin() { w.masks.reset() }

// Next, in the place of a node, is the end of the output.
const Next = -1

// Limit makes the row of a node of the fitted tree choose as the constraint allows. Open is false when nothing may
// follow the node. With score the row also scores a token that may replace the sampled one.
func (w *Walker) Limit(row *engine.Row, node int, score bool) (open bool, err error) {
	if w.constraint == nil {
		return true, nil
	}
	state := w.state
	if node >= 0 {
		state = w.fitted.state(int32(node))
	}
	if w.constraint.Ended(state) {
		return false, nil
	}
	if score {
		if forced, _, ok := certain(w.constraint, state); ok {
			row.Want |= engine.WantScore
			row.Score = forced
		}
	}
	row.Mask, err = w.masks.mask(w.constraint, state)
	return true, err
}

// Masks returns the masks of the step's rows and their number.
func (w *Walker) Masks() ([]uint32, int) { return w.masks.all() }

// Walk appends to path[:0] the nodes of the tree that the target chose, tokens[i] being the choice after node i.
func (w *Walker) Walk(t *ddtree.Tree, tokens, path []int32) []int32 {
	if w.constraint == nil {
		return t.Walk(tokens, path)
	}
	path = append(path[:0], 0)
	state, node := w.state, int32(0)
	for !w.constraint.Ended(state) {
		token, after := w.constraint.Resolve(state, tokens[node])
		child := t.Child(node, token)
		// The child's masks were made for the state that was expected after its token.
		if child < 0 || !w.fitted.state(child).Alike(after) {
			break
		}
		node, state = child, after
		path = append(path, node)
	}
	return path
}

// Resolve returns the token that follows the output when sampled is chosen, and moves past it. closes reports whether
// it closes reasoning.
func (w *Walker) Resolve(sampled int32) (token int32, closes bool) {
	if w.constraint == nil {
		return sampled, false
	}
	token, after := w.constraint.Resolve(w.state, sampled)
	closes = after.Closed(w.state)
	w.state = after
	return token, closes
}
