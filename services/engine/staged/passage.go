package staged

import (
	"context"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// Calls follow each other through the stages: while one is in the second stage, the next is in the first. A call has
// the turn of the first stage (enter) until it departs from it, and then the turn of each later stage in the order in
// which calls departed. So every stage runs the same calls in the same order. A call that fails on its way keeps its
// place and passes the other stages too, where it does what leaves the stages alike.
//
// A call of a sequence waits until no other call of it is on its way, because what it may do depends on how those end.
// Prompt pieces do not wait for the piece before them: see chained.

// passage is a call that departed from the first stage.
type passage struct {
	ticket uint64 // its place in the order
	stage  int    // whose turn it has
}

// enter waits for the turn of the first stage; without error the caller must leave or depart.
func (t *Target) enter(ctx context.Context) error {
	if err := t.turn.Acquire(ctx); err != nil {
		return rpcerr.From(err)
	}
	if err := t.Err(); err != nil {
		t.turn.Release()
		return err
	}
	return nil
}

// leave ends a call in the first stage.
func (t *Target) leave() { t.turn.Release() }

// enterFor is enter for a call of a sequence, which find looks up.
func (t *Target) enterFor(ctx context.Context, id engine.Sequence,
	find func(engine.Sequence) (*sequence, error)) (*sequence, error) {
	if err := t.enter(ctx); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s, err := find(id)
	if err == nil {
		if err = t.await(ctx, func() bool { return s.flying == 0 }); err == nil {
			s, err = find(id) // it may be freed or broken meanwhile
		}
	}
	if err != nil {
		t.leave()
		return nil, err
	}
	return s, nil
}

// enterAlone is enter for a call that no other may be on its way beside.
func (t *Target) enterAlone(ctx context.Context) error {
	if err := t.enter(ctx); err != nil {
		return err
	}
	err := t.alone(ctx)
	if err != nil {
		t.leave()
	}
	return err
}

// alone waits until no call is on its way. The caller has the first stage's turn.
func (t *Target) alone(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.await(ctx, func() bool { return t.flying == 0 })
}

// await waits until calls that are on their way have come so far. The caller holds mu, and the first stage's turn.
func (t *Target) await(ctx context.Context, so func() bool) error {
	if so() {
		return nil
	}
	stop := context.AfterFunc(ctx, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.moved.Broadcast()
	})
	defer stop()
	for !so() {
		if err := ctx.Err(); err != nil {
			return rpcerr.From(err)
		}
		t.moved.Wait()
	}
	return nil
}

// depart lets the next call into the first stage. The caller holds mu and names its sequences before it lets go of it.
func (t *Target) depart() passage {
	p := passage{ticket: t.tickets}
	t.tickets++
	t.flying++
	t.turn.Release()
	return p
}

// next waits for the turn of the next stage.
func (t *Target) next(p *passage) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.serve(p)
	p.stage++
	for t.served[p.stage] != p.ticket {
		t.moved.Wait()
	}
}

// serve gives up the turn of a later stage. The caller holds mu.
func (t *Target) serve(p *passage) {
	if p.stage > 0 {
		t.served[p.stage]++
		t.moved.Broadcast()
	}
}

// land ends a call that has had the turn of every stage. The caller holds mu and no longer names its sequences.
func (t *Target) land(p *passage) {
	t.serve(p)
	t.flying--
	t.moved.Broadcast()
}

// pass runs a call in every stage, after enter. An error of the first stage ends it there; a later one keeps it from
// the stages after that. settle gets the error and its stage when all stages have had their turn; it notes what the
// call changed, with mu held. s is the call's sequence, nil = it has none.
func (t *Target) pass(s *sequence, call func(e engine.Target, stage int) error,
	settle func(stage int, err error) error) error {
	err := call(t.stages[0], 0)
	if err != nil || len(t.stages) == 1 {
		t.mu.Lock()
		defer t.mu.Unlock()
		defer t.leave()
		return settle(0, err)
	}
	t.mu.Lock()
	p := t.depart()
	if s != nil {
		s.flying++
		s.chain = false
	}
	t.mu.Unlock()
	failed := 0
	for k := 1; k < len(t.stages); k++ {
		t.next(&p)
		if err == nil {
			if err = call(t.stages[k], k); err != nil {
				failed = k
			}
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	err = settle(failed, err)
	if s != nil {
		s.flying--
	}
	t.land(&p)
	return err
}

// all is pass for a call that no stage may refuse when the first took it; done notes what it changed.
func (t *Target) all(what string, s *sequence, call func(e engine.Target, stage int) error, done func()) error {
	return t.pass(s, call, func(stage int, err error) error {
		switch {
		case err == nil:
			done()
			return nil
		case stage == 0:
			return err
		}
		return t.giveUp(what, err)
	})
}
