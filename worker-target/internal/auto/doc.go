// Package auto decides, round by round, whether and how a target drafts. It changes time only, never output.
//
// # The rule
//
// A round commits E tokens and costs D + V(n): the draft's answer and one verify step of n rows. Plain decoding commits
// one token in V(1). The plan with the most committed tokens a second is taken:
//
//	plain             1 / V(1)
//	chain of block b  E_chain(b) / (D(b) + V(b))
//	tree of budget B  E_tree / (D(B) + V(rows))
//
// V is from a table over row counts and context lengths, timed at the start and corrected by every step. D is a running
// mean per block size, waiting included. E is 1 + the sum over depths of the product of conditional acceptance rates.
// Rates are kept separately for the draft's first choice (chain) and for any node (tree). A request's rates start from
// those of the whole worker: a new request begins where the last ones ended, and corrects its rates within some rounds.
//
// # Several requests
//
// Rounds of several requests run in one step, and all of them wait for the rows of each. So V(n) is the price of n rows
// for all requests: the time of a step together with the o rows of the others, and for each other request the time that
// the rows beyond one add:
//
//	V(n) = T(o + n) + k (T(o + n) - T(o + 1))
//
// T is the time of a step; o and the number of other requests are running means over the worker's rounds. k is that
// number, times how much faster than this request the worker's requests get tokens: a second of one that gets three
// tokens a step is worth three seconds of one that gets one. Alone, k is 0 and V(n) is T(n). Probes and trials pay
// that price to the ledger, and predicted speeds are compared with real ones by it.
//
// # Trees
//
// Trees are asked for at the largest budget and cut when they arrive and the draft's log-probabilities are there. Nodes
// are taken by falling probability, parents first, up to the largest (1 + sum of p) / (D + V(n)). p is the product of
// the draft's probabilities along the path. Each is corrected by how often nodes of that probability were accepted once
// their parents were.
//
// A proposal and its cut, where the draft takes D = 5 ms and a step of n rows V(n) = 20 + 2 (n - 1) ms:
//
//	anchor ─┬─ the .60 ─┬─ cat .50 ─── sat .40        rows  node added  p    1 + sum of p  ms  tokens/s
//	        │           └─ dog .30                    1     plain                    1.00  20      50.0
//	        └─ a .20                                  2     the         .60          1.60  27      59.3
//	                                                  3     cat         .30          1.90  29      65.5
//	                                                  4     a           .20          2.10  31      67.7
//	                                                  5     dog         .18          2.28  33      69.1  taken
//	                                                  6     sat         .12          2.40  35      68.6  sat is cut
//
// A proposal tests the draft at many nodes at once. The probabilities that the draft gives to the nodes of its chain,
// corrected in the same way, count beside the few nodes that the target's choices decide. So a text that the draft does
// not predict is noticed within a round or two.
//
// # Probes and trials
//
// When plain decoding is estimated to be faster, the request decodes plainly and tests the draft now and then, in the
// cheaper of two ways:
//
//   - A probe asks for a chain and does not wait for it. Plain decoding goes on while the draft works, and its tokens
//     show how much of the proposal is right. The rest of a proposal that was right so far is verified at once. The
//     cost of a probe is how much draft and target slow each other down: nothing where each has its own device, more
//     than the draft's time where they share processors. That cost is measured: plain steps beside probes less plain
//     steps alone.
//   - A trial is a round of the best plan. It is waited for and cut to the nodes that are worth their rows.
//
// A new request without a prior starts with a probe when drafts often fail in new requests and a wide step is
// expensive: a first round would cost a draft's time and that step for one token.
//
// # Prompt lookup
//
// Prompt lookup drafts the tokens that followed the newest tokens where these stood earlier in the text. It costs its
// rows only, and needs no trials: every committed token shows whether lookup would have predicted it. Its rates are
// kept by the length of the match. After j right tokens of a proposal the match is j longer, so a proposal of k tokens
// commits 1 + the sum over j <= k of the product of j rates. Matches exist in some rounds only. So k is chosen for the
// largest gain over the speed of the text without this lookup: tokens less seconds times that speed.
//
// A draft has to beat decoding without it, lookups included. That speed, S tokens a second, is measured along every
// text, also while the draft is used. Lookups go on beside a draft. So its round is compared with the plain round in
// its place, both at that speed, and is taken if E - S (D + V(n)) > 1 - S V(1).
//
// A draft's full block is lengthened by lookup: tokens are appended while their probability, the proposal's included,
// is worth their row at the speed of the round's plan.
//
// # Calibration and priors
//
// The predicted speed of the best plan with a draft is compared with the real speed of such rounds. First rounds,
// rounds after a proposal that was right and rounds after one that was wrong have a correction each: texts change, and
// most changes are for the worse.
//
// Requests whose prompts share a prefix (one client, one system prompt, one kind of question) behave alike. So the gain
// of rounds with a draft over decoding without it is also kept by the first 4, 8, 16, 32 and 64 tokens of the prompt:
// the prior. The prior of a longer prefix starts from that of the shorter one, the shortest from the worker's
// calibration. So a template that all requests share hides no differences between them, and a prompt that was never
// seen is planned as if there were no priors. A request whose prior says that drafting loses starts without the draft.
// No features are sent until the first trial, which is late and pays for the draft to catch up. Trials count in the
// prior, so a draft that improves is used again. Only salted hashes of prompts are stored: those of the 1024 prefixes
// used last, in about 100 KB, until the process ends.
//
// # Doubtful times
//
// Times from the start may be wrong, because other programs load their models at that moment. They count little
// (costs.go): the first measurements while serving are averaged, and one that is far shorter than an estimate replaces
// it. A width that was not measured is never taken for slower than a wider one that was, or than as many narrower ones.
// Measurements fade with the time spent in steps. Where the time of a plain step or of the draft's whole block is
// hardly known, such a round is run once, paid by the ledger, also for a draft that is held back: that time may be the
// wrong reason. When a time turns out to have been far too long, the conclusions from it (priors and calibration) are
// dropped. Report returns the current estimates.
//
// # The ledger
//
// The ledger of probes and trials belongs to the worker. Rounds add 3 % of their time; a probe or trial subtracts its
// cost, including the slower plain step after it. Where rounds cost little more than plain steps no single trial looks
// hopeless, and 3 % are many trials. So after 8 trials in a row with little gain, rounds add less where a failed trial
// costs less than three plain steps: in proportion to the root of that cost. After 128, they add half of the 3 % at
// most, until one gains more. Savings are capped at half a chain round, so that gains in other requests are not spent
// on one request. Debt is bounded by one round of the most expensive plan; the rest of the cost of a proposal that hung
// is dropped. A request in which even a trial is far from break-even waits twice as long for the next one; one whose
// prior is against the draft waits for the first in proportion to the cost of a failed one. The same ledger pays for
// rounds of a plan that has not run for a while.
package auto
