// Package ddtree builds draft trees from the per-position candidates of a block draft and walks them
// after verification.
//
// A tree hangs from the anchor, the newest committed token: node 0 is the anchor itself, nodes 1..n are draft tokens in
// build order, every parent before its children. A node at depth d carries the sum of the log-probabilities of its path
// under the draft; because positions of a block draft are independent, the n most probable paths are the tree with the
// largest expected accepted length, and that set is closed under "parent of" (a prefix is never less probable).
//
// Build order and tie rule are part of the contract: float32 sums are formed incrementally in one fixed order and equal
// sums are taken in lexicographic order of the rank tuples, so that the same candidates give the same tree everywhere.
//
// Builder and Tree are reused from round to round; after warm-up neither allocates. Neither is safe for concurrent use.
package ddtree
