// Package lookup implements prompt lookup: it proposes the tokens that followed an earlier occurrence of the newest
// tokens of a text. It predicts edited code, quoted sources and repeated names without a model; verification keeps the
// output exact.
//
// An Index answers after every token: of all earlier occurrences of the last n tokens, n from MaxGram down to MinGram,
// the first n that occurred before counts, and of its occurrences the latest. A hash table for each n keeps the
// position at which an n-gram ended last, so that a token costs one probe in each, whatever the length of the text.
// Positions are compared by the tokens themselves: there are no false matches.
//
// Memory: 4 bytes for a token and 4 bytes for a slot of each of the five tables, which are 3/8 to 3/4 full: 31 to 58
// bytes a token. It stays with the index for the next text. A prompt is added chunk by chunk while it is read
// (BenchmarkAppend: 30 to 70 ns a token up to 128K tokens, at most a thousandth of the time of reading it).
//
// The index holds committed tokens only, prompt and output. Tokens that a verify step rejects never enter it, so
// nothing needs to be removed.
package lookup
