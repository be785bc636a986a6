// Package prefix keeps the states of prompts, so that a prompt which begins like an earlier one is not read again from
// its first token.
//
// An entry is the engine's snapshot after a number of tokens, with the newest rows of features before that position, so
// that a draft proposes in the first round. Entries hang in a radix tree over token ids, one tree a namespace: the
// contract id and the isolation of requests. Ids are compared one by one, so a hit is never another prompt.
//
// Only canonical states may be stored: those that a cold run over the same tokens computes. The caller must ensure
// that, and must restore only where its own cold run has a border (package piece).
//
// Bytes of an entry are the engine's state, the K/V rows of its edge in the tree, which entries below it share, and
// pages of feature rows, which neighbours share. When the budget in bytes or entries is exceeded, entries are evicted
// by value (package eviction), but never while in use.
//
// With a disk tier (package disk), entries that a request asks for are written to files in the background: one at a
// time, chunk by chunk, with a pause after each that is as long as the read, so that steps come first. An entry may be
// evicted meanwhile; then it is not written. A lookup reads a longer state from disk and makes an entry of it, which
// shares the pages of the longest one in memory.
//
// Locking: mu guards everything; no call to the engine is made with it held. An engine's snapshots are gone with it:
// Use forgets them.
package prefix
