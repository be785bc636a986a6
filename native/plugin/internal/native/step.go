package native

import (
	"context"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// room returns n zero elements in s's memory when it is large enough.
func room[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	s = s[:n]
	clear(s)
	return s
}

// Step implements engine.Target.
func (e *target) Step(ctx context.Context, step *engine.Step, result *engine.StepResult) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	start := time.Now()
	if err := e.prepare(step, result); err != nil {
		return err
	}
	r, _, _ := purego.SyscallN(e.lib.sym.stepRun, e.handle, uintptr(unsafe.Pointer(&e.step)))
	runtime.KeepAlive(step)
	runtime.KeepAlive(result)
	if err := e.check(ctx, r); err != nil {
		return err
	}
	result.EngineNanos = int64(time.Since(start))
	return nil
}

// wanted is how many rows want what; features counts kept ones as well.
type wanted struct{ tokens, tops, logits, features, scores, stride int }

// prepare sizes the outputs and fills e.step. What the library can see it checks itself; here is what buffers are sized
// by.
func (e *target) prepare(step *engine.Step, result *engine.StepResult) error {
	i := &e.info // only calls that hold the turn change it
	n := len(step.Rows)
	words := (i.Vocab + 31) / 32
	if step.NMasks < 0 || len(step.Masks) != step.NMasks*words {
		return rpcerr.InvalidArgument("masks", "%d masks need %d words, got %d", step.NMasks, step.NMasks*words,
			len(step.Masks))
	}
	if i.LayerFirst == 0 && len(step.HiddenIn) > 0 {
		return rpcerr.InvalidArgument("hidden_in", "an engine that starts at layer 0 takes tokens")
	}
	width := i.Hidden * step.Hidden.Bytes()
	if width == 0 {
		return rpcerr.InvalidArgument("hidden_encoding", "unknown encoding %d", step.Hidden)
	}
	if i.LayerFirst > 0 && len(step.HiddenIn) != n*width {
		return rpcerr.InvalidArgument("hidden_in", "must have %d bytes, got %d", n*width, len(step.HiddenIn))
	}
	w := count(step.Rows, i.MaxTopK)
	kept, err := e.setGroups(step)
	if err != nil {
		return err
	}
	w.features += kept
	if w.features > 0 && step.Features != engine.FeatureNone && featureBytes(i, step.Features) == 0 {
		return rpcerr.FailedPrecondition("feature_encoding: %d needs captured layers, or a loaded fuse when it is fused", step.Features)
	}
	w.set(i, n, step, result)
	e.step = cStep{
		StructSize: uint32(unsafe.Sizeof(cStep{})), Groups: int32(len(step.Groups)), Rows: int32(n),
		Masks:     int32(step.NMasks),
		GroupData: pointer(e.groups), RowData: pointer(step.Rows), MaskData: pointer(step.Masks),
		HiddenIn: pointer(step.HiddenIn), HiddenOut: pointer(result.HiddenOut), HiddenEncoding: int32(step.Hidden),
		Tokens: pointer(result.Tokens), Logprobs: pointer(result.Logprobs), Scores: pointer(result.Scores),
		TopIDs: pointer(result.TopIDs), TopLogprobs: pointer(result.TopLogprobs), TopStride: int32(w.stride),
		FeatureEncoding: int32(step.Features), Logits: pointer(result.Logits), Features: pointer(result.Features),
	}
	return nil
}

// setGroups fills e.groups and counts the kept features that they read.
func (e *target) setGroups(step *engine.Step) (kept int, err error) {
	most := e.info.MaxBatchRows
	e.groups = room(e.groups, len(step.Groups))
	for i := range step.Groups {
		g := &step.Groups[i]
		if int(int32(g.Rows)) != g.Rows {
			return 0, rpcerr.InvalidArgument(fmt.Sprintf("groups[%d].n_rows", i), "%d is out of range", g.Rows)
		}
		c := &e.groups[i]
		*c = cGroup{
			Sequence: int32(g.Sequence), Rows: int32(g.Rows), Kind: uint32(g.Kind), Path: pointer(g.Path),
			PathRows:     int32(len(g.Path)),
			KeptPosition: g.Kept.Position, KeptRows: g.Kept.Rows,
		}
		if g.Commit {
			c.Flags = groupCommit
		}
		kept = min(kept+max(0, int(g.Kept.Rows)), most) // the library refuses more
	}
	if kept > 0 && step.Features == engine.FeatureNone {
		return 0, rpcerr.InvalidArgument("feature_encoding", "is missing for kept features")
	}
	return kept, nil
}

func count(rows []engine.Row, maxTopK int) (w wanted) {
	for i := range rows {
		r := &rows[i]
		if r.Want&engine.WantToken != 0 {
			w.tokens++
		}
		if r.Want&engine.WantTop != 0 {
			w.tops++
			// What is out of range is refused by the library; the buffers need not be larger for it.
			w.stride = max(w.stride, min(int(r.TopK), maxTopK))
		}
		if r.Want&engine.WantLogits != 0 {
			w.logits++
		}
		if r.Want&engine.WantFeatures != 0 {
			w.features++
		}
		if r.Want&engine.WantScore != 0 {
			w.scores++
		}
	}
	if w.tops > 0 {
		w.stride = max(w.stride, 1)
	}
	return w
}

// set sizes the arrays of a result.
func (w *wanted) set(i *engine.Info, n int, step *engine.Step, r *engine.StepResult) {
	rowsIf := func(some int) int {
		if some > 0 {
			return n
		}
		return 0
	}
	r.Tokens = room(r.Tokens, rowsIf(w.tokens))
	r.Logprobs = room(r.Logprobs, rowsIf(w.tokens))
	r.Scores = room(r.Scores, rowsIf(w.scores))
	r.TopStride = w.stride
	r.TopIDs = room(r.TopIDs, n*w.stride)
	r.TopLogprobs = room(r.TopLogprobs, n*w.stride)
	r.Logits = room(r.Logits, w.logits*i.Vocab)
	r.Features = room(r.Features, w.features*featureBytes(i, step.Features))
	hidden := 0
	if i.LayerLast < i.Layers {
		hidden = n * i.Hidden * step.Hidden.Bytes()
	}
	r.HiddenOut = room(r.HiddenOut, hidden)
}

// featureBytes is the size of a feature row.
func featureBytes(i *engine.Info, encoding engine.FeatureEncoding) int {
	switch encoding {
	case engine.FeatureRawBF16:
		return 2 * i.FeatureRaw
	case engine.FeatureFusedBF16:
		return 2 * i.FeatureFused
	case engine.FeatureRawF32:
		return 4 * i.FeatureRaw
	case engine.FeatureFusedF32:
		return 4 * i.FeatureFused
	}
	return 0
}

// SetCapture implements engine.Target.
func (e *target) SetCapture(ctx context.Context, layers []int32) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	r, _, _ := purego.SyscallN(e.lib.sym.captureSet, e.handle, uintptr(pointer(layers)), uintptr(len(layers)))
	runtime.KeepAlive(layers)
	if err := e.check(ctx, r); err != nil {
		return err
	}
	return e.refresh()
}

// LoadFuse implements engine.Target.
func (e *target) LoadFuse(ctx context.Context, path string) error {
	if path == "" {
		return rpcerr.InvalidArgument("path", "is empty")
	}
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	c := cString(path)
	r, _, _ := purego.SyscallN(e.lib.sym.fuseLoad, e.handle, uintptr(c))
	runtime.KeepAlive(c)
	if err := e.check(ctx, r); err != nil {
		return err
	}
	return e.refresh()
}

// Fuse implements engine.Target.
func (e *target) Fuse(ctx context.Context, raw engine.RawFeatures, encoding engine.FeatureEncoding) ([]byte, error) {
	if err := e.enter(ctx); err != nil {
		return nil, err
	}
	defer e.leave()
	i := &e.info
	// The library cannot see how many bytes there are; without a fuse it refuses, whatever they are.
	width := 2
	if raw.Encoding == engine.FeatureRawF32 {
		width = 4
	}
	if want := int(raw.Rows) * i.FuseRaw * width; raw.Rows > 0 && i.FuseRaw > 0 && len(raw.Data) != want {
		return nil, rpcerr.InvalidArgument("raw", "%d rows need %d bytes, got %d", raw.Rows, want, len(raw.Data))
	}
	fused := make([]byte, max(min(int(raw.Rows), i.MaxBatchRows), 1)*max(featureBytes(i, encoding), 1))
	if len(raw.Data) == 0 {
		return nil, rpcerr.InvalidArgument("raw", "is empty")
	}
	r, _, _ := purego.SyscallN(e.lib.sym.fuse, e.handle, uintptr(uint32(raw.Rows)), uintptr(raw.Kind),
		uintptr(uint32(raw.Encoding)),
		uintptr(pointer(raw.Data)), uintptr(uint32(encoding)), uintptr(pointer(fused)))
	runtime.KeepAlive(raw.Data)
	runtime.KeepAlive(fused)
	if err := e.check(ctx, r); err != nil {
		return nil, err
	}
	return fused, nil
}

// Propose implements engine.Draft: tnd_draft_append, then tnd_draft_propose.
func (e *draft) Propose(ctx context.Context, features []engine.FeatureRows, requests []engine.DraftRequest,
	result *engine.DraftResult) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	i := &e.info
	start := time.Now()
	e.pieces = room(e.pieces, len(features))
	for k := range features {
		f := &features[k]
		// The library cannot see how many bytes there are.
		if want := int(f.Rows) * featureBytes(i, f.Encoding); f.Rows > 0 && len(f.Data) != want &&
			featureBytes(i, f.Encoding) > 0 {
			return rpcerr.InvalidArgument(fmt.Sprintf("pieces[%d].features", k), "%d rows need %d bytes, got %d", f.Rows, want,
				len(f.Data))
		}
		e.pieces[k] = cFeatureRows{int32(f.Sequence), f.Position, f.Rows, int32(f.Encoding), pointer(f.Data)}
	}
	if len(features) > 0 {
		r, _, _ := purego.SyscallN(e.lib.sym.draftAppend, e.handle, uintptr(pointer(e.pieces)), uintptr(len(e.pieces)))
		runtime.KeepAlive(features)
		clear(e.pieces)
		if err := e.check(ctx, r); err != nil {
			return err
		}
	}
	result.AppendNanos = int64(time.Since(start))
	result.Stride, result.Positions = i.MaxTopK, i.BlockSize-1
	n := len(requests) * result.Positions * result.Stride
	result.IDs, result.Logprobs = room(result.IDs, n), room(result.Logprobs, n)
	if len(requests) > 0 {
		e.requests = room(e.requests, len(requests))
		for k := range requests {
			q := &requests[k]
			e.requests[k] = cDraftRequest{int32(q.Sequence), q.Token, q.Position, q.Block, q.TopK, q.Temperature}
		}
		r, _, _ := purego.SyscallN(e.lib.sym.draftPropose, e.handle, uintptr(pointer(e.requests)), uintptr(len(requests)),
			uintptr(pointer(result.IDs)), uintptr(pointer(result.Logprobs)))
		runtime.KeepAlive(result)
		if err := e.check(ctx, r); err != nil {
			return err
		}
	}
	result.EngineNanos = int64(time.Since(start))
	return nil
}

// Score implements engine.Scorer.
func (e *scorer) Score(ctx context.Context, prompts []engine.Prompt, rotated bool,
	progress engine.Progress) ([][]float32, error) {
	if len(prompts) == 0 {
		return nil, rpcerr.InvalidArgument("prompts", "is empty")
	}
	if err := e.enter(ctx); err != nil {
		return nil, err
	}
	defer e.leave()
	flags := uintptr(0)
	if rotated {
		flags = 1 // TND_SCORE_ROTATED
	}
	list, scores := make([]cScorePrompt, len(prompts)), make([][]float32, len(prompts))
	for i, p := range prompts {
		scores[i] = make([]float32, len(p.IDs))
		list[i] = cScorePrompt{
			pointer(p.IDs), pointer(p.QueryRows), pointer(scores[i]), int32(len(p.IDs)), int32(len(p.QueryRows)),
		}
	}
	callback, key := uintptr(0), uintptr(0)
	if progress != nil {
		_, callback = callbacks()
		key = hookKeys.Add(1)
		hookTable.Store(key, &hooks{progress: progress})
		defer hookTable.Delete(key)
	}
	r, _, _ := purego.SyscallN(e.lib.sym.scoreTarget, e.handle, uintptr(pointer(list)), uintptr(len(list)), flags,
		callback, key)
	runtime.KeepAlive(list)
	if err := e.check(ctx, r); err != nil {
		return nil, err
	}
	return scores, nil
}
