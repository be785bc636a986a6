package decode

import (
	"slices"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/ddtree"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
)

// expectedRight is the log-probability of a token that lookup proposes: three of four right. It tells only how deep a guide goes on
// extending the chain.
const expectedRight = -0.3

// looks starts lookup for a request that may use it.
func (r *run) looks() bool {
	switch {
	case r.req.Max <= r.out+1:
		return false
	case r.req.Mode == tandemv1.SpeculationMode_SPECULATION_MODE_LOOKUP:
	case !r.automatic() || r.cfg.NoLookup:
		return false
	}
	// Room for most answers; longer ones let the index grow.
	const answer = 4096
	r.index.Reset(len(r.req.Prompt) + min(r.req.Max, answer))
	return true
}

// read tells the index of tokens that were there before this worker decodes.
func (r *run) read(tokens []int32) {
	if r.lookup {
		r.index.Extend(tokens)
	}
}

// look compares a new token with what lookup expected, and tells the index.
func (r *run) look(token int32) {
	if !r.lookup {
		return
	}
	next, ok := r.index.Next()
	r.looked = append(r.looked, auto.Look{Matched: r.index.Matched(), Right: ok && next == token})
	r.index.Append(token)
}

// matched is the length of the match that a proposal would continue, 0 = there is none.
func (r *run) matched() int {
	if !r.lookup {
		return 0
	}
	return r.index.Matched()
}

// lookUp fills the round's tree with what followed the match.
func (r *run) lookUp() {
	r.found = r.index.Propose(r.found[:0], min(r.plan.Budget, ddtree.MaxNodes, ddtree.MaxDepth))
	logprob, node := float32(0), int32(0)
	for _, token := range r.found {
		logprob += expectedRight
		node = r.tree.Add(token, node, logprob)
	}
}

// prolong hangs what lookup expects there behind the end of a proposal that the draft's block ends, as far as that is worth its rows, and
// returns the number of tokens. A grammar goes on behind proposals itself.
func (r *run) prolong() int {
	t := &r.tree
	if !r.lookup || r.req.Guide != nil {
		return 0
	}
	depth, leaf := r.capture.Block-1, int32(0)
	for i, d := range t.Depths {
		if int(d) == depth && (leaf == 0 || t.Logprobs[i] > t.Logprobs[leaf]) {
			leaf = int32(i)
		}
	}
	most := min(r.width()-t.Len(), r.req.Max-r.out-1-depth, ddtree.MaxNodes-t.Nodes(), ddtree.MaxDepth-depth)
	if leaf == 0 || most < 1 {
		return 0
	}
	r.found = r.found[:0]
	for node := leaf; node != 0; node = t.Parents[node] {
		r.found = append(r.found, t.Tokens[node])
	}
	slices.Reverse(r.found)
	var matched int
	r.found, matched = r.index.Behind(r.found, r.found, most)
	n := r.policy.Prolong(t, leaf, matched, len(r.found)-depth, r.length)
	logprob := t.Logprobs[leaf]
	for _, token := range r.found[depth : depth+n] {
		logprob += expectedRight
		leaf = t.Add(token, leaf, logprob)
	}
	return n
}

// shorten takes what lookup added off the tree again, the last n nodes, and returns how many of them are on the path.
func (r *run) shorten(n int) (onPath int) {
	if n == 0 {
		return 0
	}
	own := r.tree.Len() - n
	r.keep = r.keep[:0]
	for i := range r.tree.Len() {
		r.keep = append(r.keep, i < own)
	}
	r.tree.Keep(r.keep)
	for i := len(r.path) - 1; int(r.path[i]) >= own; i-- {
		onPath++
	}
	return onPath
}

// learnLooks teaches the policy what lookup would have been worth in the round, which had length positions before it.
func (r *run) learnLooks(length int) {
	if len(r.looked) > 0 {
		r.policy.Foretold(r.looked, length)
	}
}
