// Package tokenizer turns text into token ids and back for models with byte-level BPE vocabularies of the Qwen family,
// exactly as the published tokenizers do.
//
// The steps of encoding: added tokens are cut out of the raw text (leftmost, then longest); the rest is brought into
// Unicode normal form C; a hand-written matcher splits it into pieces the way the vocabulary's regular expression
// would; each piece's bytes are merged by rank. No token is inserted before or after the text.
//
// Time is linear in the text but for one logarithm inside a piece, and nothing recurses, so hostile input costs no more
// than other input of its size. A Tokenizer is immutable after construction and safe for concurrent use.
package tokenizer
