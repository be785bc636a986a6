package decode

import (
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

// learnLooks teaches the policy what lookup would have been worth in the round, which had length positions before it.
func (r *run) learnLooks(length int) {
	if len(r.looked) > 0 {
		r.policy.Foretold(r.looked, length)
	}
}
