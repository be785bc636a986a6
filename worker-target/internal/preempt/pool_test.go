package preempt

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-inference/tandem/services/racetest"
)

// enter adds a running member.
func enter(t *testing.T, p *Pool, priority int) *Member {
	t.Helper()
	m := p.Join(priority)
	if err := m.Enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	return m
}

// want calls Want beside the test. The verdict comes when it is given.
func want(t *testing.T, m *Member) <-chan Verdict {
	c := make(chan Verdict, 1)
	go func() {
		v, err := m.Want(t.Context())
		if err != nil {
			t.Error(err)
		}
		c <- v
	}()
	synctest.Wait()
	return c
}

// back calls Wait beside the test.
func back(t *testing.T, m *Member) <-chan struct{} {
	c := make(chan struct{})
	go func() {
		defer close(c)
		if err := m.Wait(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	synctest.Wait()
	return c
}

func is[T any](c <-chan T) bool {
	synctest.Wait()
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// TestVictims: the lowest priority is preempted first, among equals the latest arrival, itself included; who is alone
// is told so.
func TestVictims(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		p := New()
		high, old, young, low := enter(t, p, 5), enter(t, p, 0), enter(t, p, 0), enter(t, p, -1)
		for _, victim := range []*Member{low, young} {
			verdict := want(t, old)
			for _, m := range []*Member{high, old, young, low} {
				if m.Asked() != (m == victim) {
					t.Errorf("member %d of priority %d is asked: %v", m.arrived, m.priority, m.Asked())
				}
			}
			if len(verdict) > 0 {
				t.Error("the asker did not wait")
			}
			victim.Park(nil)
			if v := <-verdict; v != Retry || victim.Asked() {
				t.Errorf("verdict %d, the victim is asked still: %v", v, victim.Asked())
			}
		}
		if v := <-want(t, old); v != Park {
			t.Errorf("the lowest that runs is told %d", v)
		}
		old.Park(nil)
		if v := <-want(t, high); v != Retry {
			t.Errorf("who is refused as others give up their memory is told %d", v)
		}
		if v := <-want(t, high); v != Alone {
			t.Errorf("the last that runs is told %d", v)
		}
		if s := p.Stats(); s.Preemptions != 3 || s.Parked != 3 {
			t.Errorf("%+v", s)
		}
		for _, m := range []*Member{high, old, young, low} {
			m.Leave()
		}
	})
}

// TestGivenMeanwhile: memory that is given up between a refusal and the question about it is not lost, whether the
// refused one runs or comes back.
func TestGivenMeanwhile(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		p := New()
		a, b := enter(t, p, 0), enter(t, p, 0)
		b.Leave() // a was refused just before
		if v := <-want(t, a); v != Retry {
			t.Errorf("a running member is told %d", v)
		}
		c, d := enter(t, p, 0), enter(t, p, 0)
		a.Park(nil)
		waits := back(t, a)
		d.Leave()
		if !is(waits) {
			t.Fatal("there is memory to try")
		}
		c.Leave() // a was refused just before
		if v := <-want(t, a); v != Park {
			t.Errorf("a member that comes back is told %d", v)
		}
		if !is(back(t, a)) {
			t.Fatal("nobody is before it")
		}
		if v := <-want(t, a); v != Alone {
			t.Errorf("a member that was refused alone is told %d", v)
		}
		// One that goes on beside it need not end before the other tries what a third has given.
		e, f := enter(t, p, 0), enter(t, p, 0)
		f.Leave() // a was refused just before
		if v := <-want(t, a); v != Park || !is(back(t, a)) {
			t.Errorf("told %d, it waits for one that runs", v)
		}
		e.Leave()
		a.Leave()
	})
}

// TestAskerIsAsked: one that waits for a lower one parks when a higher one asks; the higher one goes on when any of
// them has, and who was asked in vain is asked no more.
func TestAskerIsAsked(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		p := New()
		a, b, c := enter(t, p, 2), enter(t, p, 1), enter(t, p, 0)
		of := want(t, b)
		if !c.Asked() {
			t.Fatal("nobody was asked")
		}
		c.Leave()
		if v := <-of; v != Retry {
			t.Errorf("after the victim left: %d", v)
		}
		d := enter(t, p, 0)
		of = want(t, b)
		d.Park(nil)
		if v := <-of; v != Retry {
			t.Errorf("after the victim parked: %d", v)
		}
		e := enter(t, p, 1)
		lower, higher := want(t, b), want(t, a) // both wait for e
		if !e.Asked() || b.Asked() {
			t.Error("the lowest was not asked")
		}
		e.Leave()
		if v, w := <-lower, <-higher; v != Retry || w != Retry {
			t.Errorf("%d and %d", v, w)
		}
		f := enter(t, p, 1)
		lower = want(t, b)
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error, 1)
		go func() {
			_, err := a.Want(ctx)
			gone <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		if !f.Asked() {
			t.Error("the other asker is forgotten")
		}
		f.Park(nil)
		if v := <-lower; v != Retry {
			t.Errorf("%d", v)
		}
		higher = want(t, a)
		if !b.Asked() {
			t.Error("b is the lowest that runs")
		}
		if v := <-want(t, b); v != Park {
			t.Errorf("one that was asked, and asks: %d", v)
		}
		b.Park(nil)
		if v := <-higher; v != Retry {
			t.Errorf("%d", v)
		}
		for _, m := range []*Member{a, b, d, f} {
			m.Leave()
		}
	})
}

// TestComingBack: parked members come back by rank once another one left, one at a time; one that finds no memory waits
// for the next that leaves; memory given up for a member that asked is not taken by those who are parked.
func TestComingBack(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		p := New()
		a, b, c, d, e := enter(t, p, 3), enter(t, p, 3), enter(t, p, 2), enter(t, p, 1), enter(t, p, 3)
		c.Park(nil)
		d.Park(nil)
		second, first := back(t, d), back(t, c)
		b.Park(nil)
		third := back(t, b)
		if is(first) || is(second) || is(third) {
			t.Fatal("a member came back although nobody left")
		}
		e.Leave()
		if !is(third) || is(first) || is(second) {
			t.Fatal("the best was not alone to try")
		}
		if v := <-want(t, b); v != Park {
			t.Errorf("refused: %d", v)
		}
		third = back(t, b)
		if is(third) || is(first) {
			t.Error("nothing is free, but somebody tries")
		}
		a.Leave()
		if !is(third) {
			t.Error("nobody runs, and nobody tries")
		}
		if v := <-want(t, b); v != Alone {
			t.Errorf("nobody else has memory: %d", v)
		}
		b.Resumed(true)
		if !is(first) {
			t.Error("what is left may do for the next")
		}
		c.Resumed(false)
		if !is(second) {
			t.Error("the last one does not try")
		}
		d.Resumed(false)
		if s := p.Stats(); s.Restored != 1 || s.Recomputed != 2 || s.Parked != 0 {
			t.Errorf("%+v", s)
		}
		for _, m := range []*Member{b, c, d} {
			m.Leave()
		}
	})
}

// TestNewcomers wait after parked members of a better rank, and who goes away makes room.
func TestNewcomers(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		p := New()
		a, b := enter(t, p, 1), enter(t, p, 1)
		b.Park(nil)
		waits := back(t, b)
		high := enter(t, p, 2) // at once
		low := p.Join(1)
		entered := make(chan struct{})
		go func() {
			defer close(entered)
			if err := low.Enter(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		if is(waits) || is(entered) {
			t.Error("nobody left")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		gone := p.Join(1)
		if err := gone.Enter(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		gone.Leave()
		a.Away(nil)
		if !is(waits) || is(entered) {
			t.Error("it is the parked member's turn")
		}
		b.Resumed(true)
		if !is(entered) {
			t.Error("the newcomer waits for nobody")
		}
		if s := p.Stats(); s.Away != 1 || s.Parked != 1 || s.Preemptions != 1 {
			t.Errorf("%+v", s)
		}
		returns := back(t, a)
		if !is(returns) {
			t.Error("nobody is before the one that was away")
		}
		a.Resumed(true)
		for _, m := range []*Member{a, b, high, low} {
			m.Leave()
		}
	})
}

// TestDemote: snapshots of parked members are demoted again once somebody gave up the pages that they shared.
func TestDemote(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		p := New()
		a, b, c := enter(t, p, 0), enter(t, p, 0), enter(t, p, 0)
		calls := 0
		a.Park(func(context.Context) { calls++ })
		if p.Demote(t.Context()) {
			t.Error("it was demoted just now")
		}
		b.Leave()
		if !p.Demote(t.Context()) || p.Demote(t.Context()) || calls != 1 {
			t.Errorf("demoted %d times", calls)
		}
		if !is(back(t, a)) {
			t.Fatal("it does not come back")
		}
		a.Resumed(true)
		c.Leave()
		if p.Demote(t.Context()) {
			t.Error("a running member has no snapshot")
		}
		a.Leave()
	})
}

// TestMoves: what costs less is done, and what was found dear is tried again.
func TestMoves(t *testing.T) {
	p := New()
	if !p.Moves(1000, time.Second) {
		t.Error("moving is not known to cost anything")
	}
	p.Moved(1000, 2*time.Second)
	if !p.Moves(1000, 3*time.Second) || !p.Moves(1000, 0) || p.Moves(1000, time.Second) {
		t.Error("the cheaper one was not chosen")
	}
	tries := 0
	for !p.Moves(1000, time.Second) {
		tries++
	}
	if tries == 0 || tries > 10 {
		t.Errorf("tried again after %d decisions", tries)
	}
	p.Moved(1000, 100*time.Second)
	if p.Moves(1000, time.Second) {
		t.Error("the measurement is not used")
	}
}

// memory is the pages of an engine.
type memory struct {
	mu   sync.Mutex
	free int
}

func (m *memory) take(n int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n > m.free {
		return false
	}
	m.free -= n
	return true
}

// TestEverybodyFinishes: requests of random sizes, priorities and arrivals on a memory that a few of them fill all
// finish, but for those that leave and those that do not fit alone; a bubble whose goroutines all wait fails.
func TestEverybodyFinishes(t *testing.T) {
	for seed := range uint64(200) {
		racetest.Bubble(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			const pages = 100
			p, m := New(), &memory{free: pages}
			var group sync.WaitGroup
			for range 24 {
				need, priority, begin := 1+random.IntN(pages+5), random.IntN(3), time.Duration(random.IntN(300))*time.Millisecond
				step, pause := 1+random.IntN(4), random.IntN(6) == 0
				ctx, cancel := context.WithCancel(t.Context())
				if random.IntN(8) == 0 {
					ctx, cancel = context.WithTimeout(t.Context(), time.Duration(random.IntN(500))*time.Millisecond)
				}
				group.Go(func() {
					defer cancel()
					time.Sleep(begin)
					if err := simulate(ctx, p, m, need, step, priority, pause); err != nil && ctx.Err() == nil && need <= pages {
						t.Errorf("seed %d: a request of %d pages: %v", seed, need, err)
					}
				})
			}
			group.Wait()
			if s := p.Stats(); m.free != pages || s.Parked != 0 || len(p.members) != 0 || p.askers != 0 || p.trying != nil {
				t.Errorf("seed %d: %d pages are free, %+v", seed, m.free, s)
			}
		})
	}
}

var errMemory = errors.New("no memory")

// simulate runs a request that takes pages, `step` at a time, until it has as many as it needs.
func simulate(ctx context.Context, p *Pool, m *memory, need, step, priority int, pause bool) error {
	member := p.Join(priority)
	defer member.Leave()
	if err := member.Enter(ctx); err != nil {
		return err
	}
	held := 0
	release := func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.free += held
	}
	defer func() { release() }()
	yield := func(leave func(func(context.Context))) error {
		release()
		kept := held
		held = 0
		leave(nil)
		for {
			if err := member.Wait(ctx); err != nil {
				return err
			}
			time.Sleep(time.Millisecond)
			if m.take(kept) {
				held = kept
				member.Resumed(true)
				return nil
			}
			if v, err := member.Want(ctx); err != nil || v == Alone {
				return errors.Join(err, errMemory)
			}
		}
	}
	for held < need {
		if member.Asked() {
			if err := yield(member.Park); err != nil {
				return err
			}
		}
		if n := min(step, need-held); m.take(n) {
			held += n
			time.Sleep(time.Millisecond)
			if pause && held > need/2 {
				pause = false
				if err := yield(member.Away); err != nil {
					return err
				}
			}
			continue
		}
		switch v, err := member.Want(ctx); {
		case err != nil:
			return err
		case v == Alone:
			return errMemory
		case v == Park:
			if err := yield(member.Park); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}
