package enginefake

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/stepcheck"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// Histories lets drafts look up the text behind a feature row, which they need when Options.Next decides by the text.
// Share one between the Options of target and draft.
type Histories struct {
	mu sync.Mutex
	m  map[uint64][]int32
}

func (h *Histories) put(hash uint64, history []int32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.m == nil {
		h.m = map[uint64][]int32{}
	}
	if _, ok := h.m[hash]; !ok {
		h.m[hash] = slices.Clone(history)
	}
}

func (h *Histories) get(hash uint64) []int32 {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.m[hash])
}

func checkPath(field, path string) error {
	if path == "" {
		return rpcerr.InvalidArgument(field, "is empty")
	}
	if strings.Contains(path, "missing") {
		return rpcerr.NotFound("%s: no such file", field)
	}
	return nil
}

// Propose implements engine.Draft.
func (e *Draft) Propose(ctx context.Context, features []engine.FeatureRows, requests []engine.DraftRequest,
	result *engine.DraftResult) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	start := time.Now()
	e.proposals.Add(1)
	if err := e.strike(); err != nil {
		return err
	}
	if err := e.checkAppend(features); err != nil {
		return err
	}
	for i := range features {
		e.appendRows(&features[i])
	}
	result.AppendNanos = int64(time.Since(start))
	need := 0
	for i := range requests {
		if err := e.checkRequest(i, &requests[i]); err != nil {
			return err
		}
		need += e.draftPages(e.sequences[requests[i].Sequence], int(requests[i].Block))
		if need > e.pool.free {
			return exhausted("requests", need, e.pool.free)
		}
	}
	if len(requests) > 0 {
		if err := wait(ctx, e.m.o.ProposeDelay); err != nil {
			return err
		}
	}
	positions, stride := e.m.o.BlockSize-1, e.options.MaxTopK
	result.Positions, result.Stride = positions, stride
	n := len(requests) * positions * stride
	result.IDs = slices.Grow(result.IDs[:0], n)[:n]
	result.Logprobs = slices.Grow(result.Logprobs[:0], n)[:n]
	for i := range result.IDs {
		result.IDs[i], result.Logprobs[i] = -1, -1
	}
	for i := range requests {
		propose := e.propose
		if e.m.o.Text != nil {
			propose = e.guess
		}
		propose(&requests[i], result.IDs[i*positions*stride:], result.Logprobs[i*positions*stride:])
	}
	result.EngineNanos = int64(time.Since(start))
	return nil
}

// checkAppend holds features to the contract, all pieces before anything changes.
func (e *Engine) checkAppend(features []engine.FeatureRows) error {
	bad := rpcerr.InvalidArgument
	more := map[engine.Sequence]int{}
	for i := range features {
		f := &features[i]
		s, err := e.whole(f.Sequence)
		if err != nil {
			return err
		}
		name := func(field string) string { return fmt.Sprintf("pieces[%d].%s", i, field) }
		width := e.featureBytes(f.Encoding)
		length := s.length() + more[f.Sequence]
		switch {
		case width == 0:
			return bad(name("encoding"), "unknown encoding %d", f.Encoding)
		case f.Rows < 0:
			return bad(name("n_rows"), "must be >= 0, got %d", f.Rows)
		case int(f.Position) != length:
			return rpcerr.FailedPrecondition("%s: must be %d, the sequence's length, got %d", name("position"), length,
				f.Position)
		case int(f.Rows) > e.options.MaxContext-length:
			return rpcerr.ResourceExhausted("max_context: %d rows at %d do not fit into %d", f.Rows, f.Position,
				e.options.MaxContext)
		case len(f.Data) != int(f.Rows)*width:
			return bad(name("features"), "%d rows need %d bytes, got %d", f.Rows, int(f.Rows)*width, len(f.Data))
		}
		more[f.Sequence] += int(f.Rows)
	}
	need := 0
	for id, rows := range more {
		need += e.draftPages(e.sequences[id], rows)
	}
	if need > e.pool.free {
		return exhausted("n_rows", need, e.pool.free)
	}
	return nil
}

// featureBytes is the size of a feature row of a draft, 0 for an unknown encoding.
func (e *Engine) featureBytes(encoding engine.FeatureEncoding) int {
	if encoding < engine.FeatureRawBF16 || encoding > engine.FeatureFusedF32 {
		return 0
	}
	width := e.info.FeatureRaw
	if stepcheck.Fused(encoding) {
		width = e.info.FeatureFused
	}
	return width * valueBytes(encoding)
}

// appendRows takes checked features.
func (e *Engine) appendRows(f *engine.FeatureRows) {
	s, bytes := e.sequences[f.Sequence], e.featureBytes(f.Encoding)
	if f.Rows > 0 {
		e.own(s)
		e.resize(s, pagesOf(s.length()+int(f.Rows)))
	}
	for i := range int(f.Rows) {
		h := hashOfFeatures(f.Data[i*bytes:], isF32(f.Encoding))
		s.hashes = append(s.hashes, h)
		s.fold = mix(s.fold ^ h)
		if n := e.m.hintBytes(); n > 0 {
			s.hints = append(s.hints, hintOfFeatures(f.Data[i*bytes:], n, isF32(f.Encoding)))
		}
	}
}

// draftPages is what rows after the positions of a draft's sequence take of the pool.
func (e *Engine) draftPages(s *sequence, rows int) int {
	if rows == 0 {
		return 0
	}
	return copies(s) + pagesOf(s.length()+rows) - len(s.pages)
}

func (e *Engine) checkRequest(i int, r *engine.DraftRequest) error {
	bad := rpcerr.InvalidArgument
	s, err := e.whole(r.Sequence)
	if err != nil {
		return err
	}
	switch {
	case r.Token < 0 || int(r.Token) >= e.m.o.Vocab:
		return bad("requests.token", "request %d: must be in 0..%d, got %d", i, e.m.o.Vocab-1, r.Token)
	case int(r.Position) < s.length():
		return bad("requests.position", "request %d: must be >= %d, the sequence's length, got %d", i, s.length(), r.Position)
	case int(r.Position) >= e.options.MaxContext:
		return rpcerr.ResourceExhausted("max_context: request %d: position %d does not fit into %d", i, r.Position,
			e.options.MaxContext)
	case r.Block < 2 || int(r.Block) > e.m.o.BlockSize:
		return bad("requests.block", "request %d: must be in 2..%d, got %d", i, e.m.o.BlockSize, r.Block)
	case r.TopK < 1 || int(r.TopK) > e.options.MaxTopK:
		return bad("requests.top_k", "request %d: must be in 1..%d, got %d", i, e.options.MaxTopK, r.TopK)
	case !(r.Temperature > 0):
		return bad("requests.temperature", "request %d: must be > 0, got %v", i, r.Temperature)
	}
	return nil
}

func (e *Engine) propose(r *engine.DraftRequest, ids []int32, logprobs []float32) {
	s, w, vocab := e.sequences[r.Sequence], &e.w, e.m.o.Vocab
	h := e.m.extend(s.tip(), r.Token, r.Position, false)
	var history []int32
	if s.length() != int(r.Position) { // features are missing: the draft guesses
		h = mix(h ^ s.fold)
	} else if e.m.o.Next != nil {
		history = append(e.m.o.Histories.get(s.tip()), r.Token)
	}
	noise := h ^ s.fold
	for p := range int(r.Block) - 1 {
		right := e.m.likeliest(h, history)
		w.logits = slices.Grow(w.logits[:0], vocab)[:vocab]
		for v := range w.logits {
			w.logits[v] = float32(2 * unit(noise, uint64(p)<<32|uint64(v)))
		}
		wrong := int32((uint64(right) + 1 + mix(noise^uint64(p))%uint64(vocab-1)) % uint64(vocab))
		switch u := unit(noise, uint64(p)|1<<50); {
		case e.m.o.NeverAccept:
			w.logits[right], w.logits[wrong] = -20, 8
		case u < e.m.o.Accept:
			w.logits[right], w.logits[wrong] = 8, 5
		default:
			w.logits[right], w.logits[wrong] = 6, 7
		}
		norm := logSumExp(w.logits, float64(r.Temperature))
		at := p * e.options.MaxTopK
		topK(w.logits, ids[at:at+int(r.TopK)])
		for k, id := range ids[at : at+int(r.TopK)] {
			logprobs[at+k] = float32(float64(w.logits[id])/float64(r.Temperature) - norm)
		}
		h = e.m.extend(h, right, 0, false)
		if history != nil {
			history = append(history, right)
		}
	}
}

// Score implements engine.Scorer.
func (e *Scorer) Score(ctx context.Context, prompts []engine.Prompt, rotated bool,
	progress engine.Progress) ([][]float32, error) {
	if err := e.enter(ctx); err != nil {
		return nil, err
	}
	defer e.leave()
	if len(prompts) == 0 {
		return nil, rpcerr.InvalidArgument("prompts", "is empty")
	}
	done, total := uint64(0), uint64(0)
	for i := range prompts {
		if err := e.checkPrompt(i, &prompts[i]); err != nil {
			return nil, err
		}
		total += uint64(len(prompts[i].IDs) * e.m.o.Layers)
	}
	scores := make([][]float32, len(prompts))
	for i, p := range prompts {
		for range e.m.o.Layers {
			if err := wait(ctx, e.m.o.ScoreDelay/time.Duration(e.m.o.Layers)); err != nil {
				return nil, err
			}
			if done += uint64(len(p.IDs)); progress != nil {
				progress(done, total)
			}
		}
		e.scores.Add(1)
		scores[i] = make([]float32, len(p.IDs))
		for _, q := range p.QueryRows {
			for k := range int(q) + 1 {
				scores[i][k] += similarity(p.IDs, k, int(q), rotated)
			}
		}
		for k := range scores[i] {
			scores[i][k] /= float32(len(p.QueryRows))
		}
	}
	return scores, nil
}

func (e *Scorer) checkPrompt(index int, p *engine.Prompt) error {
	name := func(field string) string { return fmt.Sprintf("prompts[%d].%s", index, field) }
	bad := rpcerr.InvalidArgument
	switch {
	case len(p.IDs) == 0:
		return bad(name("ids"), "is empty")
	case len(p.IDs) > e.options.MaxContext:
		return rpcerr.ResourceExhausted("max_context: %d tokens do not fit into %d", len(p.IDs), e.options.MaxContext)
	case len(p.QueryRows) == 0:
		return bad(name("query_rows"), "is empty")
	}
	for i, id := range p.IDs {
		if id < 0 || int(id) >= e.m.o.Vocab {
			return bad(name("ids"), "token %d at %d is outside the vocabulary of %d", id, i, e.m.o.Vocab)
		}
	}
	for i, q := range p.QueryRows {
		if q < 0 || int(q) >= len(p.IDs) || i > 0 && q <= p.QueryRows[i-1] {
			return bad(name("query_rows"), "must be ascending in 0..%d, got %d at %d", len(p.IDs)-1, q, i)
		}
	}
	return nil
}

// similarity of the texts around two positions in [0, 1]; rotated scores fade with distance.
func similarity(ids []int32, i, q int, rotated bool) float32 {
	s := float32(0.01)
	if ids[i] == ids[q] {
		s = 0.5
		if i > 0 && ids[i-1] == ids[q-1] {
			s += 0.3
		}
		if i > 1 && ids[i-1] == ids[q-1] && ids[i-2] == ids[q-2] {
			s += 0.2
		}
	}
	if rotated {
		s *= 1 / (1 + 0.001*float32(q-i))
	}
	return s
}
