package decode

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/worker-target/internal/piece"
	"github.com/tandem-inference/tandem/worker-target/internal/preempt"
)

// Memory of the engine: a request that finds none preempts another one or parks itself (package preempt).
//
// A request parks where a step is put together and has not run. What is pending is committed and the features that the
// engine keeps are read, by steps without rows; so nothing but the sequence itself is left in the engine. Its state
// then moves to host memory as a snapshot, or is dropped, whichever is measured to cost less; it is dropped, too, when
// host memory has no room. The request comes back with a new sequence: the snapshot is restored into it, or the text so
// far is read into it again, the prompt by the same pieces and the answer by rows of decoding, as after a failover.
// Then the step runs. Output, constraint and proposals are not touched.

// refused reports whether an engine found no memory for a call, which has changed nothing.
func refused(err error) bool { return rpcerr.Code(err) == codes.ResourceExhausted }

// parked is the state of a request that has given up its sequence.
type parked struct {
	length   int // positions
	snapshot engine.Snapshot
	stored   bool          // there is a snapshot
	took     time.Duration // to store it
}

// newSequence makes the request's sequence.
func (s *Slot) newSequence(ctx context.Context) error {
	for waited := false; ; {
		seq, err := s.engine.NewSequence(ctx)
		if err == nil {
			s.handle, s.held = seq, true
			if waited {
				s.member.Resumed(false)
			}
			return nil
		}
		if !refused(err) {
			return err
		}
		verdict, lost := s.member.Want(ctx)
		switch {
		case lost != nil:
			return rpcerr.From(lost)
		case verdict == preempt.Alone:
			return err
		case verdict == preempt.Retry:
			continue
		case !waited:
			s.member.Park(nil)
			waited = true
		}
		if err := s.member.Wait(ctx); err != nil {
			return rpcerr.From(err)
		}
	}
}

// freeSequence frees the request's sequence, if there is one.
func (s *Slot) freeSequence(ctx context.Context) {
	if s.held {
		s.held = false
		_ = s.engine.FreeSequence(ctx, s.handle) // the guard tries again
		s.reuse.Freed()
	}
}

// dropParked frees what a parked request has stored.
func (s *Slot) dropParked(ctx context.Context) {
	if s.parked.stored {
		s.parked.stored = false
		_ = s.engine.FreeSnapshot(ctx, s.parked.snapshot) // the guard tries again
	}
}

// makeRoom finds memory for the step that is put together after the engine refused it: a stored state is dropped, or
// another request parks, or this one parks and resumes. It returns the refusal when there is no other request.
func (s *Slot) makeRoom(ctx context.Context, refusal error) error {
	if s.relieve(ctx) {
		return nil
	}
	verdict, err := s.member.Want(ctx)
	switch {
	case err != nil:
		return rpcerr.From(err)
	case verdict == preempt.Alone:
		return refusal
	case verdict == preempt.Park:
		return s.yield(ctx)
	}
	return nil
}

// relieve makes room by state that is not needed now. It reports whether there was any.
func (s *Slot) relieve(ctx context.Context) bool {
	return s.reuse.Relieve() || s.members.Demote(ctx)
}

// yield parks the request for one of a better rank and resumes it afterwards.
func (s *Slot) yield(ctx context.Context) error {
	begin := time.Now()
	if err := s.park(ctx); err != nil {
		return err
	}
	s.member.Park(s.demotion())
	if err := s.comeBack(ctx); err != nil {
		return err
	}
	s.stats.Preemptions++
	s.reuse.Paused(time.Since(begin))
	return nil
}

// park saves or drops the request's state and frees its sequence.
func (s *Slot) park(ctx context.Context) error {
	if err := s.seq.Settle(ctx); err != nil {
		return err
	}
	if err := s.features.Settle(ctx, &s.seq); err != nil {
		return err
	}
	// A piece that was refused on the way has committed rows that the slot does not count yet.
	length, err := s.engine.SequenceLength(ctx, s.handle)
	if err != nil {
		return err
	}
	s.parked = parked{length: length}
	start := time.Now()
	if length > 0 && s.members.Moves(length, s.readingTime(length-s.reuse.Known())) {
		snapshot, err := s.engine.NewSnapshot(ctx, s.handle)
		if err != nil && !refused(err) {
			return err
		}
		s.parked.snapshot, s.parked.stored = snapshot, err == nil
	}
	s.freeSequence(ctx)
	if s.parked.stored {
		if err := s.engine.DemoteSnapshot(ctx, s.parked.snapshot); err != nil {
			s.dropParked(ctx)
			if !refused(err) {
				return err
			}
		}
	}
	s.parked.took = time.Since(start)
	return nil
}

// demotion returns a function that moves pages which the parked request shares with others to host memory.
func (s *Slot) demotion() func(context.Context) {
	if !s.parked.stored {
		return nil
	}
	e, snapshot := s.engine, s.parked.snapshot
	return func(ctx context.Context) {
		_ = e.DemoteSnapshot(ctx, snapshot) // restored or freed by now, or no room: then the pages stay
	}
}

// readingTime is the expected time of reading so many tokens again, 0 = not known.
func (s *Slot) readingTime(tokens int) time.Duration {
	rows := min(max(tokens, 1), piece.Grid)
	return s.model.Prompt(rows, tokens, false) * time.Duration(max(tokens, 1)) / time.Duration(rows)
}

// comeBack waits for the request's turn and restores its sequence.
func (s *Slot) comeBack(ctx context.Context) error {
	for {
		if err := s.member.Wait(ctx); err != nil {
			return rpcerr.From(err)
		}
		stored := s.parked.stored
		err := s.restore(ctx)
		if err == nil {
			s.member.Resumed(stored)
			return nil
		}
		s.freeSequence(ctx)
		if !refused(err) {
			return err
		}
		verdict, lost := s.member.Want(ctx)
		switch {
		case lost != nil:
			return rpcerr.From(lost)
		case verdict == preempt.Alone:
			return err
		}
	}
}

// roomy makes a call that needs memory of the engine, again as long as something makes room for it. The request's
// sequence is not freed in between: that could repeat without end, since the next try would use up the room again.
func (s *Slot) roomy(ctx context.Context, call func() error) error {
	err := call()
	for refused(err) && s.relieve(ctx) {
		err = call()
	}
	return err
}

// restore gives a parked request a sequence in the state of the one that it gave up.
func (s *Slot) restore(ctx context.Context) error {
	s.freeSequence(ctx)
	err := s.roomy(ctx, func() (err error) {
		s.handle, err = s.engine.NewSequence(ctx)
		return err
	})
	if err != nil {
		return err
	}
	s.held = true
	s.seq.Move(s.handle)
	start := time.Now()
	if s.parked.stored {
		err := s.roomy(ctx, func() error { return s.engine.RestoreSnapshot(ctx, s.parked.snapshot, s.handle) })
		if err != nil {
			return err
		}
		s.members.Moved(s.parked.length, s.parked.took+time.Since(start))
		s.dropParked(ctx)
	} else if err := s.readAgain(ctx); err != nil {
		return err
	}
	return s.engine.SetSampler(ctx, s.handle, s.sampler)
}

// readAgain reads the text of a parked request into its new sequence.
func (s *Slot) readAgain(ctx context.Context) error {
	prompt, length := s.req.Prompt, s.parked.length
	at, err := s.reuse.Again(ctx, s.handle, min(length, len(prompt)))
	if err != nil && !refused(err) && ctx.Err() == nil {
		return s.restore(ctx) // that state is gone now, and what the sequence holds is not known
	}
	if err != nil {
		return err
	}
	for at < length {
		if s.member.Asked() {
			return rpcerr.ResourceExhausted("a request of a better rank needs the memory")
		}
		var tokens []int32
		kind := engine.KindDecode
		if at < len(prompt) {
			var end int
			end, kind = s.nextStep(at, min(length, len(prompt)))
			tokens = prompt[at:end]
		} else {
			answer := s.answer[at-len(prompt) : length-len(prompt)]
			tokens = answer[:min(len(answer), s.info.MaxTreeRows, s.info.MaxBatchRows)]
		}
		err := s.seq.Read(ctx, kind, tokens, at)
		if err != nil && !(refused(err) && s.relieve(ctx)) {
			return err
		}
		next := at + len(tokens)
		if err != nil { // a piece may be refused on the way
			if next, err = s.engine.SequenceLength(ctx, s.handle); err != nil {
				return err
			}
		}
		s.stats.ReadAgain += next - at
		at = next
	}
	return nil
}
