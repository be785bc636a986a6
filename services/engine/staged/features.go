package staged

import (
	"context"
	"slices"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/stepcheck"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// Features of a row are those of the captured layers, which may lie in several stages: then the stages give raw rows,
// which are put together here and fused by one of them, as for any engine that has only some of the layers.

// features says how a step gets its features.
type features struct {
	encoding engine.FeatureEncoding // that the stages are asked for
	rows     int                    // kept rows that are read, and rows that want features
	whole    bool                   // one stage has them as the step wants them, else they are put together
}

// width is the number of bytes of a row that a stage gives; 0 = it captures nothing.
func (t *Target) width(f features, stage int) int {
	if f.encoding == engine.FeatureRawBF16 || f.encoding == engine.FeatureFusedBF16 {
		return 2 * t.captured[stage]
	}
	return 4 * t.captured[stage]
}

// featuresOf plans the features of a checked step.
func (t *Target) featuresOf(step *engine.Step, groups []stepcheck.Group[*sequence]) features {
	f := features{encoding: step.Features, whole: t.capturing >= 0}
	for i := range groups {
		f.rows += int(groups[i].Kept.Rows) + groups[i].Wanting(engine.WantFeatures)
	}
	if !f.whole && stepcheck.Fused(step.Features) {
		f.encoding = engine.FeatureRawF32
	}
	return f
}

// collect puts the features of the stages together. The last stage's result is the step's.
func (t *Target) collect(ctx context.Context, w *work, step *engine.Step, result *engine.StepResult) error {
	last, groups, f := len(t.stages)-1, w.checked, w.features
	if f.rows == 0 {
		return nil
	}
	from := func(k int) []byte {
		if k == last {
			return result.Features
		}
		return w.stages[k].Features
	}
	if f.whole {
		if t.capturing != last {
			result.Features = append(result.Features[:0], from(t.capturing)...)
		}
		return nil
	}
	w.raw = w.raw[:0]
	for row := range f.rows {
		for k := range t.stages {
			if width := t.width(f, k); width > 0 {
				w.raw = append(w.raw, from(k)[row*width:(row+1)*width]...)
			}
		}
	}
	if !stepcheck.Fused(step.Features) {
		result.Features = append(result.Features[:0], w.raw...)
		return nil
	}
	result.Features = result.Features[:0]
	width := len(w.raw) / f.rows
	done := 0
	fuse := func(rows int, kind engine.GroupKind) error {
		if rows == 0 {
			return nil
		}
		data, err := t.stages[t.fuser()].Fuse(ctx, engine.RawFeatures{Rows: int32(rows), Kind: kind,
			Encoding: engine.FeatureRawF32, Data: w.raw[done*width : (done+rows)*width]}, step.Features)
		if err != nil {
			return err
		}
		done += rows
		result.Features = append(result.Features, data...)
		return nil
	}
	// Kept rows have the contract of decoding, and groups of one kind that follow each other are fused together.
	n, kind := 0, engine.KindDecode
	for i := range groups {
		n += int(groups[i].Kept.Rows)
	}
	for i := range groups {
		g := &groups[i]
		wanting := g.Wanting(engine.WantFeatures)
		if wanting > 0 && g.Kind != kind {
			if err := fuse(n, kind); err != nil {
				return err
			}
			n, kind = 0, g.Kind
		}
		n += wanting
	}
	return fuse(n, kind)
}

// broken breaks the sequences of committing groups when the features of a step that ran are lost: a caller that tries
// again must not run the rows twice.
func (t *Target) broken(groups []stepcheck.Group[*sequence], err error) error {
	if err == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range groups {
		if groups[i].Commit {
			groups[i].S.doom(err)
		}
	}
	return err
}

// fuser is the stage that fuses.
func (t *Target) fuser() int { return len(t.stages) - 1 }

// gatherFeatures fills what an Info says of features, and notes which stages have them.
func (t *Target) gatherFeatures(i *engine.Info) {
	i.CaptureLayers, i.FeatureRaw, i.FeatureFused, i.FuseRaw = nil, 0, 0, 0
	t.captured, t.capturing = t.captured[:0], -1
	for k, e := range t.stages {
		s := e.Info()
		i.CaptureLayers = append(i.CaptureLayers, s.CaptureLayers...)
		i.FeatureRaw += s.FeatureRaw
		t.captured = append(t.captured, s.FeatureRaw)
		if s.FeatureRaw != 0 {
			t.capturing = k
		}
	}
	if t.capturing >= 0 && t.captured[t.capturing] != i.FeatureRaw {
		t.capturing = -1
	}
	s := t.stages[t.fuser()].Info()
	i.FuseRaw = s.FuseRaw
	if s.FuseRaw != 0 {
		i.FeatureFused = s.FeatureFused
	}
}

// capture changes what the stages capture, after enterAlone. What was captured before is of no use then.
func (t *Target) capture(change func(e engine.Target, stage int) error) error {
	before := t.info.CaptureLayers
	var failed error
	for k, e := range t.stages {
		if err := change(e, k); err != nil {
			if k == 0 {
				return err
			}
			failed = err
			break
		}
	}
	if failed != nil { // nothing is captured rather than something else in every stage
		for _, e := range t.stages {
			if err := e.SetCapture(context.Background(), nil); err != nil {
				return t.giveUp("they capture other layers", err)
			}
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.infoMu.Lock()
	defer t.infoMu.Unlock()
	t.gatherFeatures(&t.info)
	if failed != nil || !slices.Equal(before, t.info.CaptureLayers) {
		for _, s := range t.sequences {
			s.kept = stepcheck.Span{}
			for i := range s.pending {
				s.pending[i].kept = false
			}
		}
	}
	return failed
}

// SetCapture implements engine.Target: each stage captures those of its layers.
func (t *Target) SetCapture(ctx context.Context, layers []int32) error {
	if err := t.enterAlone(ctx); err != nil {
		return err
	}
	defer t.leave()
	for i, l := range layers {
		if int(l) < t.info.LayerFirst || int(l) >= t.info.LayerLast || i > 0 && l <= layers[i-1] {
			return rpcerr.InvalidArgument("layers", "must ascend within %d..%d, got %v", t.info.LayerFirst,
				t.info.LayerLast-1, layers)
		}
	}
	return t.capture(func(e engine.Target, _ int) error {
		i := e.Info()
		var own []int32
		for _, l := range layers {
			if int(l) >= i.LayerFirst && int(l) < i.LayerLast {
				own = append(own, l)
			}
		}
		return e.SetCapture(ctx, own)
	})
}

// LoadFuse implements engine.Target: every stage learns from the file which of its layers to capture.
func (t *Target) LoadFuse(ctx context.Context, path string) error {
	if err := t.enterAlone(ctx); err != nil {
		return err
	}
	defer t.leave()
	return t.capture(func(e engine.Target, _ int) error { return e.LoadFuse(ctx, path) })
}

// Fuse implements engine.Target. It needs no turn: it depends on no sequence.
func (t *Target) Fuse(ctx context.Context, raw engine.RawFeatures, encoding engine.FeatureEncoding) ([]byte, error) {
	if err := t.Err(); err != nil {
		return nil, err
	}
	return t.stages[t.fuser()].Fuse(ctx, raw, encoding)
}
