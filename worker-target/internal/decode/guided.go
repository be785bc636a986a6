package decode

import (
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/ddtree"
	"github.com/tandem-inference/tandem/services/engineplugin"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/worker-target/internal/guide"
)

// guided is what a lane keeps for requests with a guide.
type guided struct {
	states []guide.State // by node of the tree
	keys   []guide.Key   // of the step's masks
	keep   []bool
	tokens []int32
}

const (
	// maxAdded nodes for text that a grammar leaves no choice about. They cost rows and are nearly always accepted.
	maxAdded = 24
	// likely is the cumulative log-probability of a path from which it is worth going on.
	likely = -1.5
)

// fit prepares the tree of a round for the guide: what the guide forbids is cut off, what it makes certain is added. added
// reports whether nodes were. A sounding whose plan that upsets is ended.
func (r *run) fit() (added bool) {
	t := &r.tree
	waiting := t.Len() == 1 // for the answer to a sounding, if there is one
	r.states = append(r.states[:0], r.state)
	r.keep = append(r.keep[:0], true)
	cut := false
	for i := 1; i < t.Len(); i++ {
		parent := t.Parents[i]
		state, ok := r.state, false
		if r.keep[parent] {
			state, ok = r.req.Guide.Allows(r.states[parent], t.Tokens[i])
		}
		r.states, r.keep = append(r.states, state), append(r.keep, ok)
		cut = cut || !ok
	}
	if cut {
		t.Keep(r.keep)
		n := 0
		for i, ok := range r.keep {
			if ok {
				r.states[n] = r.states[i]
				n++
			}
		}
		r.states = r.states[:n]
	}
	before := t.Len()
	rows := min(r.info.MaxTreeRows, r.info.MaxBatchRows, r.info.MaxContext-r.length, r.req.Max-r.out, ddtree.MaxNodes+1)
	for i := int32(0); int(i) < t.Len() && t.Len() < rows; i++ {
		if t.Logprobs[i] >= likely {
			r.extend(i, rows, min(rows, before+maxAdded))
		}
	}
	added = t.Len() > before
	if r.sound.on && (cut || added) {
		if waiting {
			r.link.Forget()
		}
		r.endSounding(nil, 0)
	}
	return added
}

// certain tells whether what follows next is forced: then there is nothing to propose.
func (r *run) certain() bool {
	if _, ok := r.req.Guide.Forced(r.state); ok {
		return true
	}
	_, _, ok := r.req.Guide.Due(r.state)
	return ok
}

// extend hangs what is certain to follow under a node: what is forced, as far as rows go, and then what the grammar leaves no
// choice about, up to some. The latter only where nothing was proposed, for it is a guess how the text is cut into tokens.
func (r *run) extend(node int32, rows, some int) {
	t, g := &r.tree, r.req.Guide
	for t.Len() < rows && int(t.Depths[node]) < ddtree.MaxDepth {
		state := r.states[node]
		token, ok := g.Forced(state)
		var after guide.State
		if ok {
			_, after = g.Resolve(state, token)
		} else if token, after, ok = g.Due(state); !ok {
			break
		}
		child := t.Add(token, node, t.Logprobs[node])
		if int(child) == len(r.states) {
			r.states = append(r.states, after)
		} else {
			r.states[child] = after
		}
		node = child
	}
	if r.req.Mode == tandemv1.SpeculationMode_SPECULATION_MODE_OFF || t.Len() >= some || r.parent(node) {
		return
	}
	r.guided.tokens = g.Continuation(r.states[node], r.guided.tokens[:0], some-t.Len())
	for _, token := range r.guided.tokens {
		after, ok := g.Allows(r.states[node], token)
		if !ok || int(t.Depths[node]) >= ddtree.MaxDepth {
			return
		}
		node = t.Add(token, node, t.Logprobs[node])
		r.states = append(r.states, after)
	}
}

// parent tells whether a node has children.
func (r *run) parent(node int32) bool {
	for _, p := range r.tree.Parents {
		if p == node {
			return true
		}
	}
	return false
}

// limit makes a row choose as the guide allows in a state.
func (r *run) limit(row *engineplugin.Row, state guide.State) error {
	g := r.req.Guide
	if g.Ended(state) {
		return nil
	}
	r.choose(row)
	forced, ok := g.Forced(state)
	if !ok {
		forced, _, ok = g.Due(state)
	}
	if ok && r.req.TopLogprobs >= 0 {
		// The token may not be the sampled one: its log-probability is asked for by name.
		row.Want |= engineplugin.WantScore
		row.Score = forced
	}
	key, masked := g.Masked(state)
	if !masked {
		return nil
	}
	for i, k := range r.keys {
		if k == key {
			row.Mask = int32(i)
			return nil
		}
	}
	n := len(r.keys)
	words := g.Words()
	if cap(r.masks) < (n+1)*words {
		grown := make([]uint32, n*words, (2*n+8)*words)
		copy(grown, r.masks)
		r.masks = grown
	}
	r.masks = r.masks[:(n+1)*words]
	if err := g.Fill(key, r.masks[n*words:]); err != nil {
		return err
	}
	r.keys = append(r.keys, key)
	row.Mask = int32(n)
	r.step.Masks, r.step.NMasks = r.masks, n+1
	return nil
}

// startMasks forgets the masks of the step before.
func (r *run) startMasks() {
	r.keys, r.masks = r.keys[:0], r.masks[:0]
}

// walk follows the choices down the tree with the guide's last word on each.
func (r *run) walk() {
	r.path = append(r.path[:0], 0)
	state, node := r.state, int32(0)
	for !r.req.Guide.Ended(state) {
		token, after := r.req.Guide.Resolve(state, r.result.Tokens[node])
		child := r.tree.Child(node, token)
		// The node's masks were made for the state that was expected behind its token.
		if child < 0 || !r.states[child].Alike(after) {
			return
		}
		node, state = child, after
		r.path = append(r.path, node)
	}
}

// resolve replaces the sampled token of a row by the one that follows, and advances the request's state by it.
func (r *run) resolve(row int) int32 {
	sampled := r.result.Tokens[row]
	token, after := r.req.Guide.Resolve(r.state, sampled)
	if token != sampled {
		r.result.Tokens[row] = token
		if r.step.Rows[row].Want&engineplugin.WantScore != 0 {
			r.result.Logprobs[row] = r.result.Scores[row]
		}
	}
	if after.Closed(r.state) {
		r.closed = r.req.Guide.Kind(after)
	}
	r.state = after
	return token
}

// follow brings the guide's state behind a token that an earlier worker generated; sampled is what the row before it chooses.
func (r *run) follow(i int, sampled int32) error {
	token := r.req.Committed[i]
	if got, after := r.req.Guide.Resolve(r.state, sampled); got == token && got != sampled {
		r.state = after
		return nil
	}
	after, ok := r.req.Guide.Allows(r.state, token)
	if !ok {
		return rpcerr.InvalidArgument("committed_tokens", "token %d at %d does not follow the guide", token, i)
	}
	r.state = after
	return nil
}
