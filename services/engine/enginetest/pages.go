package enginetest

import (
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// Shared pages: what forks and snapshots hold together is read by all and written by none of them.

// plain answers what a sequence of its own, read token by token, would.
type plain struct {
	*suite
	e engine.Target
}

func (p plain) probe(text []int32) row {
	p.Helper()
	q := p.sequence(p.e)
	p.feedAll(p.e, q, text)
	r := p.suite.probe(p.e, q)
	p.ok(p.e.FreeSequence(p.ctx, q))
	return r
}

// feedAll commits any number of tokens.
func (s *suite) feedAll(e engine.Target, q engine.Sequence, text []int32) {
	s.Helper()
	for part := range slices.Chunk(text, batchRows) {
		s.feed(e, q, part, 0)
	}
}

func (s *suite) fork(e engine.Target, q engine.Sequence) engine.Sequence {
	s.Helper()
	f, err := e.Fork(s.ctx, q)
	s.ok(err)
	return f
}

func (s *suite) forks() {
	e, alone := s.target(), plain{s, s.target()}
	page := e.Info().KVPage
	if page < 1 || e.Info().KVPositions < maxContext {
		s.Fatalf("pages of %d positions, %d positions together", page, e.Info().KVPositions)
	}
	for _, n := range []int{page + page/2, page, 1} {
		text, left, right := s.tokens(e, n), s.tokens(e, 9), s.tokens(e, 20)
		for _, first := range []int{0, 1} { // either side writes first
			q := s.sequence(e)
			s.feed(e, q, text, 0)
			s.step(e, q, chain(s.tokens(e, 5)), 0) // pending rows are no part of it
			f := s.fork(e, q)
			if got := s.length(e, f); got != n {
				s.Errorf("a fork of %d positions has %d", n, got)
			}
			s.refused("pending rows of a fork", e.Step(s.ctx, commit(f, 0), &engine.StepResult{}), codes.FailedPrecondition)
			sides := []engine.Sequence{q, f}
			one, two := sides[first], sides[1-first]
			s.feed(e, one, left, 0)
			s.same("the other side", alone.probe(text), s.probe(e, two))
			s.feed(e, two, right, 0)
			s.same("who wrote first", alone.probe(append(slices.Clone(text), left...)), s.probe(e, one))
			s.ok(e.FreeSequence(s.ctx, one))
			s.same("who is left", alone.probe(append(slices.Clone(text), right...)), s.probe(e, two))
			s.ok(e.FreeSequence(s.ctx, two))
		}
	}
	_, err := e.Fork(s.ctx, 4711)
	s.refused("fork of nothing", err, codes.NotFound, "sequence")
	var q engine.Sequence
	for range maxSequences {
		q = s.sequence(e)
	}
	_, err = e.Fork(s.ctx, q)
	s.refused("one sequence too many", err, codes.ResourceExhausted, "max_sequences")
}

func (s *suite) demote() {
	e := s.target()
	q, other := s.sequence(e), s.sequence(e)
	text := s.tokens(e, 90)
	s.feed(e, q, text, 0)
	want := s.probe(e, q)
	p, err := e.NewSnapshot(s.ctx, q)
	s.ok(err)
	s.ok(e.DemoteSnapshot(s.ctx, p)) // nothing to move: the sequence holds all
	s.same("beside a demoted snapshot", want, s.probe(e, q))
	s.ok(e.FreeSequence(s.ctx, q))
	for range 2 {
		s.ok(e.DemoteSnapshot(s.ctx, p))
		s.ok(e.DemoteSnapshot(s.ctx, p))
		s.ok(e.RestoreSnapshot(s.ctx, p, other))
		s.same("restored from host memory", want, s.probe(e, other))
		s.ok(e.Truncate(s.ctx, other, 0))
	}
	s.ok(e.FreeSnapshot(s.ctx, p))
	s.refused("a freed snapshot", e.DemoteSnapshot(s.ctx, p), codes.NotFound, "snapshot")
}

func (s *suite) poolOptions() {
	o := options(s.models.Target)
	o.KVPositions = maxContext - 1
	_, err := s.opener.OpenTarget(s.ctx, o, nil)
	s.refused("a pool smaller than a sequence", err, codes.InvalidArgument, "kv_positions")
	o.KVPositions = maxContext
	if i := s.openTarget(o).Info(); i.KVPositions != maxContext || i.MaxContext != maxContext {
		s.Errorf("kv_positions %d, max_context %d, want %d", i.KVPositions, i.MaxContext, maxContext)
	}
	if i := s.target().Info(); i.KVPositions != maxSequences*maxContext {
		s.Errorf("kv_positions %d, want %d", i.KVPositions, maxSequences*maxContext)
	}
}

// autoSequences opens engines that choose the number of their sequences. Bits of answers do not depend on it.
func (s *suite) autoSequences() {
	o := options(s.models.Target)
	o.MaxSequences = 0
	e := s.openTarget(o)
	i := e.Info()
	if i.MaxSequences != 32 || i.MaxContext != maxContext || i.KVPositions != 4*maxContext {
		s.Errorf("%d sequences of %d positions in a pool of %d, want 32 of %d in %d", i.MaxSequences, i.MaxContext,
			i.KVPositions, maxContext, 4*maxContext)
	}
	alone, text := s.target(), s.tokens(e, 8)
	q := s.sequence(alone)
	s.feed(alone, q, text, 0)
	want := s.probe(alone, q)
	for range i.MaxSequences {
		q = s.sequence(e)
		s.feed(e, q, text, 0)
	}
	_, err := e.NewSequence(s.ctx)
	s.refused("one sequence too many", err, codes.ResourceExhausted, "max_sequences", "sequences")
	s.same("the last of 32 sequences", want, s.probe(e, q))
	if s.models.Draft != "" {
		o := s.draftOptions()
		o.MaxSequences = 0
		if i := opened(s, s.opener.OpenDraft, o).Info(); i.MaxSequences != 32 || i.KVPositions != 4*maxContext {
			s.Errorf("a draft of %d sequences in a pool of %d, want 32 in %d", i.MaxSequences, i.KVPositions, 4*maxContext)
		}
	}
}

// autoContext opens engines that choose their context by the memory cap. Bits of answers do not depend on it.
func (s *suite) autoContext() {
	o := options(s.models.Target)
	o.MaxContext, o.MaxSequences = 0, 1
	whole := s.openTarget(o)
	trained := whole.Info().MaxContext
	memory, err := whole.Memory(s.ctx)
	s.ok(err)
	var all uint64
	for _, m := range memory {
		switch m.Name { // of the parts, however many an engine has, not of sums and counts of pages
		case "weights_bytes", "weight_bytes", "kv_bytes", "state_bytes", "replay_bytes", "scratch_bytes":
			all += m.Value
		}
	}
	o.MemoryCapBytes = all - uint64(trained/4)*whole.Info().KVBytesPerToken
	e := s.openTarget(o)
	i := e.Info()
	// What engines work in shrinks with the context, too.
	if i.MaxContext < trained/2 || i.MaxContext > trained*7/8 || i.KVPositions < i.MaxContext {
		s.Fatalf("a context of %d in a pool of %d, of %d that are trained", i.MaxContext, i.KVPositions, trained)
	}
	text := s.tokens(e, 8)
	q, alone := s.sequence(e), s.sequence(whole)
	s.feed(e, q, text, 0)
	s.feed(whole, alone, text, 0)
	s.same("in a shorter context", s.probe(whole, alone), s.probe(e, q))
	o.MaxContext = trained
	_, err = s.opener.OpenTarget(s.ctx, o, nil)
	s.refused("a context that does not fit", err, codes.ResourceExhausted)
}

// holder is a sequence or a snapshot of a random program, and the text that it should hold.
type holder[H any] struct {
	handle H
	text   []int32
}

// program runs random calls on an engine whose pool is too small for all it is asked for. Every sequence answers as one
// of its own, read from the start by another engine; what is refused changed nothing.
func (s *suite) program() {
	o := options(s.models.Target)
	o.KVPositions = maxContext
	e, alone := s.openTarget(o), plain{s, s.target()}
	var sequences []holder[engine.Sequence]
	var snapshots []holder[engine.Snapshot]
	refusals := 0
	// exhausted reports whether a call was refused for want of room, and fails for any other reason.
	exhausted := func(err error) bool {
		s.Helper()
		if rpcerr.Code(err) != codes.ResourceExhausted {
			s.ok(err)
			return false
		}
		refusals++
		return true
	}
	for i := range 150 {
		var touched *holder[engine.Sequence]
		if len(sequences) > 0 {
			touched = &sequences[s.rng.IntN(len(sequences))]
		}
		what := s.rng.IntN(10)
		switch {
		case touched == nil || what == 0 && len(sequences) < maxSequences:
			sequences = append(sequences, holder[engine.Sequence]{s.sequence(e), nil})
			touched = &sequences[len(sequences)-1]
		case what <= 3: // a committing step, then perhaps a tree and a path of it
			more := s.tokens(e, 1+s.rng.IntN(40))
			if len(touched.text)+len(more)+8 > maxContext {
				continue
			}
			rows := rowsOf(len(touched.text), chain(more), 0)
			if !exhausted(e.Step(s.ctx, one(engine.Group{Sequence: touched.handle, Commit: true}, rows), &engine.StepResult{})) {
				touched.text = append(touched.text, more...)
				s.grow(e, touched, exhausted)
			}
		case what == 4 && len(sequences) < maxSequences:
			sequences = append(sequences, holder[engine.Sequence]{s.fork(e, touched.handle), slices.Clone(touched.text)})
		case what == 5 && len(snapshots) < 5:
			p, err := e.NewSnapshot(s.ctx, touched.handle)
			s.ok(err)
			snapshots = append(snapshots, holder[engine.Snapshot]{p, slices.Clone(touched.text)})
		case what == 6 && len(snapshots) > 0:
			p := snapshots[s.rng.IntN(len(snapshots))]
			if !exhausted(e.RestoreSnapshot(s.ctx, p.handle, touched.handle)) {
				touched.text = slices.Clone(p.text)
			}
		case what == 7 && len(snapshots) > 0:
			for _, p := range snapshots {
				s.ok(e.DemoteSnapshot(s.ctx, p.handle))
			}
		case what == 8:
			n := len(touched.text) - s.rng.IntN(min(len(touched.text), 40)+1)
			if s.rng.IntN(4) == 0 {
				n = 0
			}
			if err := e.Truncate(s.ctx, touched.handle, n); rpcerr.Code(err) != codes.FailedPrecondition {
				s.ok(err)
				touched.text = touched.text[:n]
			}
		case what == 9 && len(snapshots) > 3:
			s.ok(e.FreeSnapshot(s.ctx, snapshots[0].handle))
			snapshots = snapshots[1:]
		case what == 9:
			s.ok(e.FreeSequence(s.ctx, touched.handle))
			sequences = slices.DeleteFunc(sequences, func(h holder[engine.Sequence]) bool { return h.handle == touched.handle })
			continue
		}
		if n := s.length(e, touched.handle); n != len(touched.text) {
			s.Fatalf("call %d: %d positions, want %d", i, n, len(touched.text))
		}
		if i%5 == 4 {
			s.check(e, alone, sequences, fmt.Sprintf("after call %d", i))
		}
	}
	if refusals == 0 {
		s.Error("the pool was never exhausted")
	}
	for _, p := range snapshots {
		s.ok(e.FreeSnapshot(s.ctx, p.handle))
	}
	for _, q := range sequences {
		s.ok(e.FreeSequence(s.ctx, q.handle))
	}
	// Everything is there again.
	s.feedAll(e, s.sequence(e), s.tokens(e, maxContext))
}

// grow runs a tree on a sequence and commits a path of it.
func (s *suite) grow(e engine.Target, h *holder[engine.Sequence], exhausted func(error) bool) {
	s.Helper()
	tree := s.randomTree(e, 1+s.rng.IntN(8))
	step := one(pending(h.handle), rowsOf(len(h.text), tree, 0))
	if exhausted(e.Step(s.ctx, step, &engine.StepResult{})) {
		return
	}
	path := pathTo(tree, s.rng.IntN(len(tree)))
	if exhausted(e.Step(s.ctx, commit(h.handle, path...), &engine.StepResult{})) {
		return // pending still, dropped by what comes next
	}
	for _, at := range path {
		h.text = append(h.text, tree[at].token)
	}
}

// check compares what all sequences say next. A probe that finds no room is left out.
func (s *suite) check(e engine.Target, alone plain, sequences []holder[engine.Sequence], where string) {
	s.Helper()
	for _, q := range sequences {
		r := &engine.StepResult{}
		err := e.Step(s.ctx, one(pending(q.handle), rowsOf(len(q.text), chain([]int32{1, 2}), everything)), r)
		if rpcerr.Code(err) == codes.ResourceExhausted {
			continue
		}
		s.ok(err)
		got := rowBits(r, 1, 2)
		s.commit(e, q.handle)
		s.same(fmt.Sprintf("%s: a sequence of %d", where, len(q.text)), alone.probe(q.text), got)
	}
}
