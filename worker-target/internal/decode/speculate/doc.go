// Package speculate proposes the tokens that a round verifies.
//
//	Speculation ── planner    which kind of proposal, of how many tokens: the request's mode or auto's policy
//	            ├─ exchange   questions to the draft, its answers, deadlines and losses
//	            ├─ probe      a proposal that is not waited for, compared with what plain decoding chooses
//	            └─ extension  what prompt lookup adds to a draft's proposal of a whole block
//
// A round goes through four calls. Plan decides, Ask sends the question (the caller first completes the ring of
// features), Wait returns the draft tree, and Observe learns from what the target chose. Where each tree comes from:
//
//	plan     tree that Wait returns
//	Plain    the anchor alone; while a probe runs and is right so far, the rest of its proposal
//	Lookup   the anchor and what followed the newest tokens before
//	Chain    the draft's first choices, cut to what is worth its rows, perhaps extended by prompt lookup
//	Tree     the draft's best nodes, cut and extended in the same way
//
// Proposals never change what is generated, only how fast.
package speculate
