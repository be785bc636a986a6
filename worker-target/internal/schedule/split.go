package schedule

import "github.com/tandem-inference/tandem/services/engine"

// splitter deals a joint result to its parts, in order.
type splitter struct {
	from     *engine.StepResult
	rows     []engine.Row
	total    int
	row      int // of the next part
	width    int // bytes of a row of features
	kept     int // bytes of kept features dealt
	features int // bytes of features of rows dealt, and all those of kept ones before them
	logits   int // values dealt
}

func newSplitter(from *engine.StepResult, step *engine.Step) splitter {
	s := splitter{from: from, rows: step.Rows, total: len(step.Rows)}
	kept := keptRows(step)
	if n := kept + wanting(step.Rows, engine.WantFeatures); n > 0 {
		s.width = len(from.Features) / n
	}
	s.features = kept * s.width
	return s
}

// keptRows of a step are read before its rows run.
func keptRows(step *engine.Step) (n int) {
	for i := range step.Groups {
		n += int(step.Groups[i].Kept.Rows)
	}
	return n
}

// wanting counts the rows that want something.
func wanting(rows []engine.Row, want uint32) (n int) {
	for i := range rows {
		if rows[i].Want&want != 0 {
			n++
		}
	}
	return n
}

// next fills to with the results of step.
func (s *splitter) next(step *engine.Step, to *engine.StepResult) {
	n, f := len(step.Rows), s.from
	to.Tokens = rows(to.Tokens, f.Tokens, s.row, n, 1)
	to.Logprobs = rows(to.Logprobs, f.Logprobs, s.row, n, 1)
	to.Scores = rows(to.Scores, f.Scores, s.row, n, 1)
	to.TopStride = f.TopStride
	to.TopIDs = rows(to.TopIDs, f.TopIDs, s.row, n, f.TopStride)
	to.TopLogprobs = rows(to.TopLogprobs, f.TopLogprobs, s.row, n, f.TopStride)
	to.HiddenOut = rows(to.HiddenOut, f.HiddenOut, s.row, n, len(f.HiddenOut)/s.total)
	kept := keptRows(step) * s.width
	to.Features = append(to.Features[:0], f.Features[s.kept:s.kept+kept]...)
	own := wanting(step.Rows, engine.WantFeatures) * s.width
	to.Features = append(to.Features, f.Features[s.features:s.features+own]...)
	s.kept, s.features = s.kept+kept, s.features+own
	logits := 0
	if all := wanting(s.rows, engine.WantLogits); all > 0 {
		logits = wanting(step.Rows, engine.WantLogits) * (len(f.Logits) / all)
	}
	to.Logits = append(to.Logits[:0], f.Logits[s.logits:s.logits+logits]...)
	s.logits += logits
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
