// Package emit turns the tokens of one choice into events. Special tokens are left out, bytes become whole characters,
// and reasoning is separated from content. Tool calls are taken out of the content (package toolcall), and stop strings
// are found in what remains. Text that may still become part of a mark or of a stop string is held back.
//
// The same Emitter feeds streams and whole answers: an answer is the concatenation of its events, wherever the tokens
// were cut into groups. An Emitter is not safe for concurrent use.
package emit
