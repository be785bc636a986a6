// Package pflash chooses which parts of a long prompt the target gets to read, from the scores that a small model gives
// to every token.
//
// Unit of selection is the chunk (32 tokens). Per segment that may be shortened: token scores are smoothed, averaged
// over chunks, and chunks are taken in this order until the quota is filled: first and last chunks, chunks around exact
// repetitions of the question's 4-grams (these may exceed the quota), then the best scores, ties to the lower index.
//
// The choice of query rows, whose attention gives the scores, decides their quality. The last tokens of a rendered
// prompt are template tokens, not the question. On needle prompts from 2K to 16K tokens, the median rank of the
// needle's chunk was 0.19 to 0.30 with them, and 0.00 with the last 8 tokens of the last user turn. So QueryRows takes
// the span of that turn when the caller gives it, and the end of the prompt otherwise.
package pflash

// Constants of the method.
const (
	DefaultChunk = 32 // tokens per chunk
	DefaultPool  = 13 // tokens of the moving average
	DefaultQuery = 8  // query rows

	headChunks   = 8
	tailChunks   = 24
	queryWindow  = 96 // tokens whose 4-grams are anchors
	gram         = 4
	maxHits      = 8 // a 4-gram with more occurrences is too common to point anywhere
	anchorRadius = 2
	keepWhole    = 8 // segments up to this many tokens are kept as they are
)

// Span is the half-open range [First, Last) of token positions.
type Span struct {
	First, Last int
}

// Len is the number of tokens in the span.
func (s Span) Len() int { return s.Last - s.First }
