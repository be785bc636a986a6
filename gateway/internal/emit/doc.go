// Package emit turns the tokens of one choice into events: special tokens are left out, bytes become whole characters,
// reasoning is told from content, tool calls are taken out of the content (package toolcall), stop strings are found in
// what remains, and what may still become part of a mark or of a stop string is held back.
//
// The same Emitter feeds streams and whole answers: an answer is the concatenation of its events, wherever the tokens
// were cut into groups. An Emitter is not safe for concurrent use.
package emit
