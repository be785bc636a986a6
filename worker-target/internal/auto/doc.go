// Package auto decides, round by round, whether and how a target drafts. It changes time only, never output.
//
// The policy. A round commits E tokens and costs D + V(n): the draft's answer and one verify step of n rows. Plain decoding
// commits one token in V(1). The rule is to take the plan with the most committed tokens a second,
//
//	plain 1/V(1)   chain of block b: E_chain(b) / (D(b) + V(b))   tree: E_tree / (D(B) + V(rows))
//
// V is a table over row counts and context lengths, timed at the start and measured by every step; D is a running mean per
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
// A proposal is many tests at once: what the draft claims of the nodes of its chain, corrected in the same way, counts beside
// the few that the target's choices decide. So a text that turns foreign shows within a round or two.
//
// When plain decoding is estimated to be faster, the request decodes plainly and tries the draft now and then. There are two
// ways. A sounding asks for a chain and does not wait: plain decoding goes on while the draft works; what it chooses shows how
// much of the proposal is right, and what is left of a proposal that was right so far is verified at once. It costs what the
// two take from each other's machine: nothing where each has its own, more than the draft's time where they share processors.
// There a round of the best plan, waited for and cut to what is worth its rows, is the cheaper way. The price of soundings is
// measured, plain steps beside them less plain steps alone, and the cheaper way is taken.
//
// A request of which nothing is known starts with a sounding when requests often turn out to be foreign to the draft and a wide
// step is dear: a first round would cost a draft's time and that step for one token.
//
// Lookup proposes what followed the newest tokens where they stood in the text before. It has no price beside its rows, and what it
// is worth is learnt without trying: every committed token shows whether lookup would have foretold it. Its rates are kept by the
// length of the match; a token behind j right ones of a proposal stands behind a match that is j longer, so a proposal of k tokens
// commits 1 + sum over j <= k of the product of j rates. A match is there in some rounds only. So its plan is the k that gains most
// on what the text is decoded at else, tokens less seconds times that speed; and a draft has to beat decoding without it as it
// does on the whole, lookups included. That pace is counted beside every text, also while the draft is used. A draft that has proposed all
// that its block holds is prolonged by lookup: tokens behind it are added while their chance, the proposal's included, is worth their row
// at the speed of the round's plan.
//
// What the best plan with a draft promises is held against what such rounds brought, apart for first rounds, those behind a
// proposal that was right and those behind one that went wrong: texts change, and most changes are for the worse.
//
// Requests that begin alike (one client, one system prompt, one way to ask) behave alike. So what rounds with a draft brought against
// what decoding without it would have taken for the same tokens is kept by the first 4, 8, 16, 32 and 64 tokens of the prompt too.
// A longer prefix leans on the shorter one, the shortest on the worker's memory: a template that all share hides nothing, and a
// prompt never seen before is planned as if there were no prefixes. A request of a kind that loses by drafting starts without the
// draft, which hears nothing of it, and tries it late; the trial pays for reading the text so far. What held it back fades with every
// such request, so that a draft that became good is found again. Of prompts only salted hashes are stored, of the 1024 prefixes
// used last, in some 100 KB, and no longer than the process lives.
//
// Times from the start may be wrong: other programs load their models at that moment. They count little (costs.go): the first
// measurements while serving are averaged, one that is far shorter than an estimate replaces it, and a width that was not measured is
// never believed dearer than a wider one that was, or than as many narrower ones. Measurements fade with the time spent in steps.
// Where the time of a plain step or of the draft's whole block is hardly known, such a round is run once, paid by the ledger, also
// for a draft that is held back: it is what may be wrong with the reason. When a time turns out to have been far too long, what was
// concluded from it (which prompts lose by drafting, how promises are kept) is dropped. Report says what is believed.
//
// The ledger of trials belongs to the worker: rounds add 3 % of their time, a trial takes what it cost, the slower plain step
// behind it included. Where rounds cost little more than plain steps no single trial looks hopeless, so after 128 trials in a row
// that brought little, rounds add half of that until one brings more. Savings end at half a chain round, so that no request pays
// for what the draft did well in others. Debt is bounded by one dear round: a proposal that hung is forgiven beyond that. A request
// that even a trial shows far from break-even waits twice as long for the next one. The same ledger pays for rounds of a plan that
// has not run for a while.
package auto
