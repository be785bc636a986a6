package constrain

import (
	"slices"

	"github.com/tandem-inference/tandem/services/ddtree"
	"github.com/tandem-inference/tandem/worker-target/internal/constraint"
)

const (
	// maxAdded bounds the nodes of text for which a grammar leaves no choice. They cost rows and are nearly
	// always accepted.
	maxAdded = 24
	// likely is the cumulative log-probability of a path from which it is worth going on.
	likely = -1.5
)

// fitted is a draft tree's fit to the constraint: the state after each node.
type fitted struct {
	states []constraint.State
	keep   []bool
	tokens []int32
}

// state returns the one after a node.
func (f *fitted) state(node int32) constraint.State { return f.states[node] }

// prune cuts off what the constraint forbids after root, the state after the output. It reports whether there was any.
func (f *fitted) prune(c *constraint.Constraint, root constraint.State, t *ddtree.Tree) (cut bool) {
	f.states = append(f.states[:0], root)
	f.keep = append(f.keep[:0], true)
	for i := 1; i < t.Len(); i++ {
		parent := t.Parents[i]
		state, ok := root, false
		if f.keep[parent] {
			state, ok = c.Allows(f.states[parent], t.Tokens[i])
		}
		f.states, f.keep = append(f.states, state), append(f.keep, ok)
		cut = cut || !ok
	}
	if !cut {
		return false
	}
	t.Keep(f.keep)
	n := 0
	for i, ok := range f.keep {
		if ok {
			f.states[n] = f.states[i]
			n++
		}
	}
	f.states = f.states[:n]
	return true
}

// extend adds what is certain below every likely node, up to rows rows, and reports whether anything was added.
func (f *fitted) extend(c *constraint.Constraint, t *ddtree.Tree, rows int, guess bool) (added bool) {
	before := t.Len()
	rows = min(rows, ddtree.MaxNodes+1)
	guesses := min(rows, before+maxAdded)
	for i := int32(0); int(i) < t.Len() && t.Len() < rows; i++ {
		if t.Logprobs[i] < likely {
			continue
		}
		leaf := f.force(c, t, i, rows)
		// Only where nothing was proposed: the continuation is a guess of how the text is cut into tokens.
		if guess && t.Len() < guesses && !slices.Contains(t.Parents, leaf) {
			f.guess(c, t, leaf, guesses)
		}
	}
	return t.Len() > before
}

// force adds the tokens that must follow node, up to rows rows, and returns the last of them.
func (f *fitted) force(c *constraint.Constraint, t *ddtree.Tree, node int32, rows int) (leaf int32) {
	for t.Len() < rows && int(t.Depths[node]) < ddtree.MaxDepth {
		token, after, ok := certain(c, f.states[node])
		if !ok {
			break
		}
		child := t.Add(token, node, t.Logprobs[node])
		if int(child) == len(f.states) {
			f.states = append(f.states, after)
		} else {
			f.states[child] = after
		}
		node = child
	}
	return node
}

// guess adds the text for which the grammar leaves no choice below node, up to rows rows.
func (f *fitted) guess(c *constraint.Constraint, t *ddtree.Tree, node int32, rows int) {
	f.tokens = c.Continuation(f.states[node], f.tokens[:0], rows-t.Len())
	for _, token := range f.tokens {
		after, ok := c.Allows(f.states[node], token)
		if !ok || int(t.Depths[node]) >= ddtree.MaxDepth {
			return
		}
		node = t.Add(token, node, t.Logprobs[node])
		f.states = append(f.states, after)
	}
}
