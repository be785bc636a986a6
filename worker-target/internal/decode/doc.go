// Package decode runs one request on a target engine: prefill, then rounds of drafting and verification until it ends.
//
// A round is one engine call. Its rows are the anchor (newest token) and the draft tree below it, all with the
// sequence's own sampler, so that every row's choice is exactly what plain decoding would choose after the same tokens.
//
//	wait     for the proposal: a draft tree, cut to what is worth its rows and fitted to the constraint
//	verify   the tree's rows in one step, which first commits the path of the round before
//	walk     down the tree as far as the target's choices agree with it; the output is these tokens and one more
//	ask      the draft for the next proposal, with the features of the accepted rows
//	emit     the output to the caller, while the draft works
//
// Without a tree a round is plain decoding of one token. A step waits for nothing else; a round waits for a proposal
// until its deadline.
//
// A Slot owns the parts of a request, one package each. None of them uses another's fields; an arrow shows where one
// uses another, and the rest passes through the slot:
//
//	decode.Slot ── sequence   the engine's side: step, result, pending path
//	            ├─ text       prompt and output, indexed for prompt lookup
//	            ├─ speculate  what is proposed, by whom, and what is learnt from it      → text
//	            ├─ constrain  what the constraint allows: masks, certain tokens
//	            ├─ features   rows of features for the draft                             → sequence
//	            ├─ reuse      what the prefix cache gives to a prompt and gets from it
//	            └─ output     tokens and log-probabilities for the caller
//
// A step for which the engine has no memory may preempt another request, or this one (park.go, package preempt).
//
// Exactness after failover: tokens committed before are replayed as chains through the same steps that decoding uses,
// not as prefill, because prefill may use other kernels; and the cuts of a prompt depend on its tokens alone
// (package piece).
package decode
