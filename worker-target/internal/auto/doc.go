// Package auto decides, round by round, whether and how a target drafts. It changes time only, never output.
//
// The policy. A round commits E tokens and costs D + V(n): the draft's answer and one verify step of n rows. Plain decoding
// commits one token in V(1). The rule is to take the plan with the most committed tokens a second,
//
//	plain 1/V(1)   chain of block b: E_chain(b) / (D(b) + V(b))   tree: E_tree / (D(B) + V(rows))
//
// V is a table over row counts and context lengths, measured at start and corrected by every step; D is a running mean per
// block size, waiting included; E is 1 + sum over depths of the product of conditional acceptance rates, kept separately for
// the draft's first choice (chain) and for any node (tree). Rates are running estimates of the request that lean on those of
// the whole worker, so that a new request starts where the last ones ended and still finds out about itself within some
// rounds.
//
// Trees are asked for at the largest budget and cut on arrival, when the draft's own log-probabilities are known: nodes in
// falling probability (parents come first of themselves) up to the largest (1 + sum of p) / (D + V(n)). p is the product
// along the path of the draft's probabilities, each times a correction learnt from how often nodes of that probability were
// accepted once their parents were.
//
// When plain decoding is estimated to be faster, the request decodes plainly and probes: one round of the best
// chain whenever the ledger allows it. The ledger belongs to the worker: plain rounds add 3 % of their time, a probe takes
// what it really cost more than plain decoding of the same tokens (or gives back what it won), so that probing costs at most
// 3 % of the time plus one round, and a change for the better is followed within a few probes. Debt is bounded by one
// dear round: a probe that hung is forgiven beyond that. The same ledger pays for trying a plan that has not run for a while.
package auto
