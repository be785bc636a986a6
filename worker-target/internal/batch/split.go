package batch

import "github.com/tandem-inference/tandem/services/engineplugin"

// splitter deals a joint result to its parts, in order.
type splitter struct {
	from     *engineplugin.StepResult
	rows     []engineplugin.Row
	total    int
	row      int // of the next part
	features int // bytes dealt
	logits   int // values dealt
}

// next fills to with the results of step.
func (s *splitter) next(step *engineplugin.Step, to *engineplugin.StepResult) {
	n, f := len(step.Rows), s.from
	to.Tokens = rows(to.Tokens, f.Tokens, s.row, n, 1)
	to.Logprobs = rows(to.Logprobs, f.Logprobs, s.row, n, 1)
	to.Scores = rows(to.Scores, f.Scores, s.row, n, 1)
	to.TopStride = f.TopStride
	to.TopIDs = rows(to.TopIDs, f.TopIDs, s.row, n, f.TopStride)
	to.TopLogprobs = rows(to.TopLogprobs, f.TopLogprobs, s.row, n, f.TopStride)
	to.HiddenOut = rows(to.HiddenOut, f.HiddenOut, s.row, n, len(f.HiddenOut)/s.total)
	to.Features, s.features = wanted(s, to.Features, f.Features, engineplugin.WantFeatures, n, s.features)
	to.Logits, s.logits = wanted(s, to.Logits, f.Logits, engineplugin.WantLogits, n, s.logits)
	to.EngineNanos, to.BatchRows = f.EngineNanos, s.total
	s.row += n
}

// rows copies n rows of width values from row on. What the engine did not fill stays empty.
func rows[T any](to, from []T, row, n, width int) []T {
	to = to[:0]
	if len(from) < (row+n)*width {
		return to
	}
	return append(to, from[row*width:(row+n)*width]...)
}

// wanted copies the values of those of the next n rows that want them, from at on, and returns where the next ones are.
func wanted[T any](s *splitter, to, from []T, want uint32, n, at int) ([]T, int) {
	mine, all := 0, 0
	for i := range s.rows {
		if s.rows[i].Want&want == 0 {
			continue
		}
		all++
		if i >= s.row && i < s.row+n {
			mine++
		}
	}
	to = to[:0]
	if all == 0 {
		return to, at
	}
	width := len(from) / all
	return append(to, from[at:at+mine*width]...), at + mine*width
}
