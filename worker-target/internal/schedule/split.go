package schedule

import (
	"slices"

	"github.com/tandem-inference/tandem/services/engine"
)

// splitter distributes a joint result to its cuts, in order.
type splitter struct {
	from     *engine.StepResult
	rows     []engine.Row
	total    int
	prompt   int // rows of pieces
	rounds   int // cuts that are rounds
	row      int // of the next cut
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

// wants returns the union of the rows' wants.
func wants(rows []engine.Row) (want uint32) {
	for i := range rows {
		want |= rows[i].Want
	}
	return want
}

// next puts the rows of a cut into the result of its part, which is one result in the end, however it was cut.
func (s *splitter) next(c cut) {
	to, f, step := c.p.result, s.from, c.p.step
	kept := 0
	if c.from == 0 {
		prepare(to, step.Rows)
		kept = keptRows(step) * s.width
	}
	own := step.Rows[c.from : c.from+c.n]
	want := wants(own)
	deal(&to.Tokens, f.Tokens, c, s.row, want&engine.WantToken)
	deal(&to.Logprobs, f.Logprobs, c, s.row, want&engine.WantToken)
	deal(&to.Scores, f.Scores, c, s.row, want&engine.WantScore)
	dealTop(to, f, c, s.row, want&engine.WantTop)
	width := len(f.HiddenOut) / s.total
	to.HiddenOut = append(to.HiddenOut, f.HiddenOut[s.row*width:(s.row+c.n)*width]...)
	to.Features = append(to.Features, f.Features[s.kept:s.kept+kept]...)
	features := wanting(own, engine.WantFeatures) * s.width
	to.Features = append(to.Features, f.Features[s.features:s.features+features]...)
	s.kept, s.features = s.kept+kept, s.features+features
	if all := wanting(s.rows, engine.WantLogits); all > 0 {
		n := wanting(own, engine.WantLogits) * (len(f.Logits) / all)
		to.Logits = append(to.Logits, f.Logits[s.logits:s.logits+n]...)
		s.logits += n
	}
	to.EngineNanos += f.EngineNanos
	to.BatchRows, to.PromptRows, to.BatchRounds = s.total, s.prompt, s.rounds
	s.row += c.n
}

// prepare gives a result the shape that a step of rows alone gives it.
func prepare(to *engine.StepResult, rows []engine.Row) {
	n, want, stride := len(rows), wants(rows), 0
	for i := range rows {
		if rows[i].Want&engine.WantTop != 0 {
			stride = max(stride, int(rows[i].TopK))
		}
	}
	to.Tokens = filled(to.Tokens, n, want&engine.WantToken, -1)
	to.Logprobs = filled(to.Logprobs, n, want&engine.WantToken, 0)
	to.Scores = filled(to.Scores, n, want&engine.WantScore, 0)
	to.TopStride = stride
	to.TopIDs = filled(to.TopIDs, n*stride, want&engine.WantTop, -1)
	to.TopLogprobs = filled(to.TopLogprobs, n*stride, want&engine.WantTop, 0)
	to.HiddenOut, to.Features, to.Logits, to.EngineNanos = to.HiddenOut[:0], to.Features[:0], to.Logits[:0], 0
}

// filled returns n times value where something is wanted, else nothing.
func filled[T any](list []T, n int, want uint32, value T) []T {
	if want == 0 {
		return list[:0]
	}
	list = slices.Grow(list[:0], n)[:n]
	for i := range list {
		list[i] = value
	}
	return list
}

// deal copies the values of a cut's rows, from row on. Values that were requested but that the engine did not return
// are missing in the part's result too.
func deal[T any](to *[]T, from []T, c cut, row int, want uint32) {
	switch {
	case want == 0:
	case len(from) < row+c.n || len(*to) < c.from+c.n:
		*to = (*to)[:min(len(*to), c.from)]
	default:
		copy((*to)[c.from:], from[row:row+c.n])
	}
}

// dealTop is deal for the most likely tokens, of which a joint step may have more a row.
func dealTop(to, from *engine.StepResult, c cut, row int, want uint32) {
	mine, theirs := to.TopStride, from.TopStride
	switch {
	case want == 0:
		return
	case len(from.TopIDs) < (row+c.n)*theirs || len(from.TopLogprobs) < (row+c.n)*theirs || mine > theirs ||
		len(to.TopIDs) < (c.from+c.n)*mine:
		to.TopIDs = to.TopIDs[:min(len(to.TopIDs), c.from*mine)]
		to.TopLogprobs = to.TopLogprobs[:len(to.TopIDs)]
		return
	}
	for i := range c.n {
		copy(to.TopIDs[(c.from+i)*mine:][:mine], from.TopIDs[(row+i)*theirs:])
		copy(to.TopLogprobs[(c.from+i)*mine:][:mine], from.TopLogprobs[(row+i)*theirs:])
	}
}
