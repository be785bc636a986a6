package pflash

import "math"

// QueryRows returns the ascending positions of the rows that ask: the last count tokens of query, or of the prompt of
// length tokens when query is empty.
func QueryRows(length int, query Span, count int) []int32 {
	if query.Len() <= 0 {
		query = Span{First: 0, Last: length}
	}
	count = min(count, query.Len())
	rows := make([]int32, count)
	for i := range rows {
		rows[i] = int32(query.Last - count + i)
	}
	return rows
}

// Smooth is the moving average of scores over window tokens (an odd number; an even one counts as the next smaller odd
// one), shrunk at the edges and divided by the actual count. A score that is not a finite number counts as 0, so that a
// damaged row cannot spoil its neighbours.
func Smooth(scores []float32, window int) []float32 {
	half := max(0, (window-1)/2)
	out := make([]float32, len(scores))
	// Running sum in float64: values leave the window again, float32 would keep their rounding errors.
	var sum float64
	first, last := 0, 0 // the window is [first, last)
	for i := range scores {
		for last < min(len(scores), i+half+1) {
			sum += finite(scores[last])
			last++
		}
		for first < i-half {
			sum -= finite(scores[first])
			first++
		}
		out[i] = float32(sum / float64(last-first))
	}
	return out
}

func finite(score float32) float64 {
	f := float64(score)
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return 0
	}
	return f
}

// ChunkMeans averages scores over chunks of size tokens, the last chunk over its actual length.
func ChunkMeans(scores []float32, size int) []float32 {
	means := make([]float32, (len(scores)+size-1)/size)
	for c := range means {
		part := scores[c*size : min(len(scores), (c+1)*size)]
		var sum float64
		for _, s := range part {
			sum += float64(s)
		}
		means[c] = float32(sum / float64(len(part)))
	}
	return means
}
