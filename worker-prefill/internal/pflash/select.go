package pflash

import (
	"cmp"
	"slices"
)

// Options of the selection; zero sizes mean the defaults.
type Options struct {
	Chunk int
	Pool  int
}

// Segment is one part of the prompt that may be shortened.
type Segment struct {
	Span Span
	// KeepRatio is the fraction of chunks to keep, in (0, 1].
	KeepRatio float32
	// MinChunks is a lower bound of the quota.
	MinChunks int
}

// Select returns the spans of seg to keep, ascending and disjoint. tokens and scores belong to the whole prompt; window
// is the span whose last tokens are the question, from which anchors are taken.
func Select(tokens []int32, scores []float32, seg Segment, window Span, o Options) []Span {
	size := o.Chunk
	if size <= 0 {
		size = DefaultChunk
	}
	pool := o.Pool
	if pool <= 0 {
		pool = DefaultPool
	}
	length := seg.Span.Len()
	if length <= keepWhole {
		return []Span{seg.Span}
	}
	means := ChunkMeans(Smooth(scores[seg.Span.First:seg.Span.Last], pool), size)
	chunks := len(means)
	quota := Quota(chunks, seg.KeepRatio, seg.MinChunks)
	keep := make([]bool, chunks)
	kept := 0
	take := func(c int) {
		if c >= 0 && c < chunks && !keep[c] {
			keep[c] = true
			kept++
		}
	}

	head, tail := Ends(quota)
	for c := range min(head, chunks) {
		take(c)
	}
	for c := max(0, chunks-tail); c < chunks; c++ {
		take(c)
	}
	// Anchors point away from the question: where a segment holds (part of) it, only earlier text is searched.
	question := Span{First: max(window.First, window.Last-queryWindow), Last: window.Last}
	text := tokens[seg.Span.First:seg.Span.Last]
	if question.First < seg.Span.Last && question.Last > seg.Span.First {
		text = text[:max(0, question.First-seg.Span.First)]
	}
	for _, p := range anchorHits(text, tokens[question.First:question.Last]) {
		for c := p/size - anchorRadius; c <= p/size+anchorRadius; c++ {
			take(c)
		}
	}
	order := make([]int, chunks)
	for c := range order {
		order[c] = c
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(means[b], means[a])
	})
	for _, c := range order {
		if kept >= quota {
			break
		}
		take(c)
	}

	var spans []Span
	for c, k := range keep {
		if !k {
			continue
		}
		s := Span{First: seg.Span.First + c*size, Last: min(seg.Span.Last, seg.Span.First+(c+1)*size)}
		if n := len(spans); n > 0 && spans[n-1].Last == s.First {
			spans[n-1].Last = s.Last
		} else {
			spans = append(spans, s)
		}
	}
	return spans
}

// Quota is the number of chunks to keep of a segment of chunks. The product is formed in float32.
func Quota(chunks int, ratio float32, minimum int) int {
	return min(chunks, max(1, int(float32(chunks)*ratio), minimum))
}

// Ends is the number of first and last chunks that are always kept: 8 and 24, scaled down in that proportion when
// together they would reach the quota, leaving at least one chunk to the scores.
func Ends(quota int) (head, tail int) {
	head, tail = headChunks, tailChunks
	if head+tail >= quota {
		b := max(1, quota-1)
		head = headChunks * b / (headChunks + tailChunks)
		tail = max(0, b-head)
	}
	return head, tail
}

// NeedsScores reports whether a segment of this span is chosen from; shorter ones are kept as they are.
func NeedsScores(s Span) bool { return s.Len() > keepWhole }
