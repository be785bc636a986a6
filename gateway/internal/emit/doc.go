// Package emit turns the tokens of one choice into visible text: special tokens are left out, bytes become whole characters,
// reasoning is told from content, stop strings are found, and what may still become part of a stop string is held back.
//
// The same Emitter feeds streams and whole answers: an answer is the concatenation of its deltas, wherever the tokens were cut
// into groups. An Emitter is not safe for concurrent use.
package emit
