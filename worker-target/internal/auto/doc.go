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
// When plain decoding is estimated to be faster, the request decodes plainly and sounds the draft out: now and then it asks
// for a chain and does not wait. Plain decoding goes on while the draft works; what it chooses shows how much of the proposal
// is right, and what is left of a proposal that was right so far is verified at once. So a sounding of a bad draft costs what
// the two take from each other's machine, measured, and one of a good draft hardly anything. A request of which nothing is
// known starts that way when requests often turn out to be foreign to the draft and a wide step is dear: a first round would
// cost a draft's time and that step for one token.
//
// The ledger of soundings belongs to the worker: plain rounds add 3 % of their time, a sounding takes what it cost. Debt is
// bounded by one dear round: a proposal that hung is forgiven beyond that. The same ledger pays for trials of a plan that has
// not run for a while.
package auto
