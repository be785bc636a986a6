// Package decode runs one request on a target engine: prefill, then rounds of drafting and verification until it ends.
//
// A round is one engine call. Its rows are the anchor (newest token) and the draft tree below it, all with the sequence's
// own sampler, so that every row's choice is exactly what plain decoding would choose after the same tokens. The walk keeps
// the path on which the choices agree with the tree and emits its tokens and one more; the path is committed by the *next*
// round's call, so that a round costs one round trip. Without a tree the round is plain decoding of one token.
//
// Proposals come from a draft or from lookup, which finds what followed the newest tokens in prompt or output before. Its chain is
// put together when the round starts; everything else is as with a draft's. Where a draft's proposal is likely to be right to the end
// of its block, lookup goes on behind it.
//
// While the engine works on a round nothing else is waited for except the draft's proposal for it, and that only until the
// proposal's deadline. Features of accepted rows leave together with the question for the next proposal, before the tokens
// are handed to the caller. Those of plain steps are fused in batches (features.go).
//
// Exactness after failover: tokens committed before are replayed as chains through the same uncommitted steps that decoding
// uses, not as prefill, because prefill may use other kernels; and prompts are cut into chunks of a fixed size.
package decode
