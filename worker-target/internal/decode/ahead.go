package decode

import (
	"context"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/worker-target/internal/decode/speculate"
)

// ReadAhead reads a prompt into the prefix cache, as far as another prompt that begins so can use it, and returns how
// many tokens it has read. However it ends, the state at the last border that it reached is kept. It ends when the
// engine has no room: no entry is moved for a prompt that may never come.
func (s *Slot) ReadAhead(ctx context.Context, e engine.Target, req *Request) (read int, err error) {
	s.req, s.info, s.stats = req, e.Info(), &Stats{}
	s.cuts = s.markers.Cut(req.Prompt, s.cuts)
	s.reuse.Start(req.Reuse, e, req.Prompt, s.cuts)
	goal := s.reuse.Goal()
	if !s.reuse.On() || goal == 0 {
		return 0, nil
	}
	handle, err := e.NewSequence(ctx)
	if err != nil {
		return 0, err
	}
	defer func() {
		_ = e.FreeSequence(ctx, handle)
		s.reuse.Freed()
	}()
	restored, err := s.reuse.RestoreAhead(ctx, handle)
	if err != nil || restored == goal {
		return 0, err
	}
	s.seq.Start(e, handle, restored, s.info.Vocab)
	s.captureAhead()
	for at := restored; at < goal; at = s.seq.Length() {
		n, err := s.stepAhead(ctx, at, goal)
		if err != nil {
			return read, err
		}
		read += n
		s.reuse.ReadAhead(handle, s.seq.Length())
	}
	return read, nil
}

// captureAhead captures the features that a draft needs in the first round after the state is used.
func (s *Slot) captureAhead() {
	s.features.Reset(s.info.MaxBatchRows)
	s.spec.Start(speculate.Request{
		ID: s.req.ID, Prompt: s.req.Prompt, Mode: tandemv1.SpeculationMode_SPECULATION_MODE_TREE, Max: 2, Left: 2,
		Vocab: s.info.Vocab, TreeRows: s.info.MaxTreeRows, Rows: s.info.MaxBatchRows,
	}, &s.stats.Stats)
	defer s.spec.Close()
	capture := s.spec.Capture(2)
	if capture == nil {
		return
	}
	length := s.seq.Length()
	s.reuse.Capture(s.features.Start(capture, length, len(s.req.Prompt), s.reuse.Rows(capture, length)), capture)
	s.features.Connect(nobody{})
}

// nobody is the reader of features that are captured for the cache alone.
type nobody struct{}

func (nobody) Fed() {}

// stepAhead runs one step of a prompt that is read ahead, from position at on.
func (s *Slot) stepAhead(ctx context.Context, at, goal int) (n int, err error) {
	end, kind := s.nextStep(at, goal)
	n, err = s.addKnown(kind, s.req.Prompt[at:end], func(int, *engine.Row) (bool, error) { return false, nil })
	if err != nil {
		return 0, err
	}
	s.seq.SetMasks(nil, 0)
	if err := s.seq.Run(ctx, true); err != nil {
		return 0, err
	}
	if err := s.features.Check(s.seq.Result().Features()); err != nil {
		return 0, err
	}
	s.takeKnown(n)
	return n, nil
}
