// Package grammar computes which tokens may follow. It reads grammars (GBNF, or JSON Schema turned into GBNF),
// follows them byte by byte and returns, for any state, the set of tokens of a vocabulary that keep the output inside
// the language.
//
// Parse reads a text, Syntax.Compile binds it to a Vocabulary, and the Grammar then offers Advance, Accepts and Mask
// for States. A State is a small immutable value that may be kept, compared by identity and followed along several
// paths at once, as the nodes of a draft tree need it. docs/grammar.md describes both languages and their limits.
//
// How it works. A rule is a nondeterministic automaton over bytes (characters are expanded to their UTF-8 bytes) with
// calls to other rules. A State is the set of all stacks that the automaton could have, kept as a shared graph: frames
// with the same node are one frame, and below them is again such a set. Sets are interned, so that equal states are one
// object, and each stores where every byte leads: a repeated step is a table look-up, as in a DFA that is built lazily.
// A mask is a walk of that automaton along the trie of the vocabulary. Two rules keep the walk short. Groups of
// plain-text tokens are taken whole when the state accepts every text of that shape. Counted repetitions that are far
// from their limits share one mask.
//
// Any split of the bytes into tokens is allowed, also one that ends inside a character. Tokens with a meaning of their
// own (control tokens and literal tags such as <tool_call>) are never reached through bytes, only by terminals that
// name them.
package grammar
