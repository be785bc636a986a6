package engine_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/engine/enginetest"
	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/testwait"
)

// TestGuardConforms: a guarded engine is an engine like any other.
func TestGuardConforms(t *testing.T) {
	enginetest.Run(t, func(*testing.T) (engine.Opener, enginetest.Models) {
		return guarding{enginefake.New(enginefake.Options{})}, enginetest.FakeModels
	})
}

type guarding struct{ inner engine.Opener }

func (g guarding) OpenTarget(ctx context.Context, o engine.OpenOptions, p engine.Progress) (engine.Target, error) {
	e, err := g.inner.OpenTarget(ctx, o, p)
	if err != nil {
		return nil, err
	}
	return engine.GuardTarget(e, engine.GuardConfig{}), nil
}

func (g guarding) OpenDraft(ctx context.Context, o engine.OpenOptions, p engine.Progress) (engine.Draft, error) {
	e, err := g.inner.OpenDraft(ctx, o, p)
	if err != nil {
		return nil, err
	}
	return engine.GuardDraft(e, engine.GuardConfig{}), nil
}

func (g guarding) OpenScorer(ctx context.Context, o engine.OpenOptions, p engine.Progress) (engine.Scorer, error) {
	e, err := g.inner.OpenScorer(ctx, o, p)
	if err != nil {
		return nil, err
	}
	return engine.GuardScorer(e, engine.GuardConfig{}), nil
}

// flawed is an engine whose frees fail as often as told.
type flawed struct {
	*enginefake.Target
	failures atomic.Int32
	killed   atomic.Bool
}

func (f *flawed) FreeSequence(ctx context.Context, s engine.Sequence) error {
	if f.failures.Add(-1) >= 0 {
		return rpcerr.Aborted("injected")
	}
	return f.Target.FreeSequence(ctx, s)
}

func (f *flawed) Kill(error) { f.killed.Store(true); f.Crash() }

func openFlawed(t *testing.T, cfg engine.GuardConfig) (*flawed, *engine.GuardedTarget) {
	t.Helper()
	e, err := enginefake.New(enginefake.Options{}).OpenTarget(t.Context(), enginetest.TargetOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	f := &flawed{Target: e.(*enginefake.Target)}
	g := engine.GuardTarget(f, cfg)
	t.Cleanup(func() { g.Close() })
	return f, g
}

func (f *flawed) left(t *testing.T) int {
	t.Helper()
	h, err := f.Engine.Handles(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return len(h.Sequences)
}

// TestGuardRetriesFrees: what could not be freed is freed later, and counted as an orphan until then. In virtual time,
// as all tests of what a guard does in time: on a busy machine it is done before a test has looked.
func TestGuardRetriesFrees(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		f, g := openFlawed(t, engine.GuardConfig{Every: 5 * time.Millisecond})
		ctx, cancel := context.WithCancel(t.Context())
		s, err := g.NewSequence(ctx)
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		f.failures.Store(3)
		if err := g.FreeSequence(ctx, s); !errors.Is(err, rpcerr.AnyAborted) {
			t.Fatal(err)
		}
		testwait.Until(t, "the sequence is freed", func() bool { return f.left(t) == 0 })
		testwait.Until(t, "and no longer an orphan", func() bool {
			return g.Counts().Orphans == 0 && g.Counts().Sequences == 0
		})
		if g.Err() != nil || f.killed.Load() {
			t.Errorf("the engine was given up: %v", g.Err())
		}
	})
}

// TestGuardGivesUp: an engine that never frees is ended rather than leaking, and its supervisor is notified.
func TestGuardGivesUp(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		f, g := openFlawed(t, engine.GuardConfig{Every: 5 * time.Millisecond})
		s, err := g.NewSequence(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		f.failures.Store(1000)
		_ = g.FreeSequence(t.Context(), s)
		testwait.For(t, g.Done(), "the engine is given up")
		if !f.killed.Load() || !errors.Is(g.Err(), rpcerr.EngineLost) {
			t.Errorf("killed %v, %v", f.killed.Load(), g.Err())
		}
	})
}

// TestGuardFreesOrphans: sequences that belong to no request are reported once and freed, others are left alone.
func TestGuardFreesOrphans(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		var mu sync.Mutex
		var told []engine.Sequence
		f, g := openFlawed(t, engine.GuardConfig{Every: 5 * time.Millisecond, Grace: 100 * time.Millisecond,
			OwnerGrace: 20 * time.Millisecond,
			OnOrphans: func(h engine.Handles) {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, h.Sequences...)
			}})
		held, err := g.NewSequence(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		stray, err := f.NewSequence(t.Context()) // behind the guard's back
		if err != nil {
			t.Fatal(err)
		}
		testwait.Until(t, "the stray shows", func() bool { return g.Counts().Orphans == 1 && g.Counts().Sequences == 2 })
		testwait.Until(t, "the stray is freed", func() bool { return f.left(t) == 1 })
		// One whose request ended without freeing it.
		ctx, cancel := context.WithCancel(t.Context())
		lapsed, err := g.NewSequence(ctx)
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		testwait.Until(t, "what its request forgot is freed", func() bool { return f.left(t) == 1 && g.Counts().Freed == 2 })
		if _, err := g.SequenceLength(t.Context(), held); err != nil {
			t.Errorf("a sequence in use: %v", err)
		}
		mu.Lock()
		defer mu.Unlock()
		if !slices.Equal(told, []engine.Sequence{stray, lapsed}) {
			t.Errorf("reported %v, want %d and %d", told, stray, lapsed)
		}
	})
}

// TestGuardReclaims: nobody is refused for want of sequences that belong to nobody, even before they are old enough.
func TestGuardReclaims(t *testing.T) {
	f, g := openFlawed(t, engine.GuardConfig{Every: time.Hour})
	for range 2 { // all that there are
		if _, err := f.NewSequence(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if _, err := g.NewSequence(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := g.NewSequence(t.Context()); rpcerr.Code(err) != codes.ResourceExhausted {
		t.Errorf("with all in use: %v", err)
	}
}

// TestGuardKeepsForks: a fork belongs to who asked for it, like any sequence, and comes in the place of one that
// belongs to nobody.
func TestGuardKeepsForks(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		f, g := openFlawed(t, engine.GuardConfig{Every: 5 * time.Millisecond, Grace: time.Hour,
			OwnerGrace: 20 * time.Millisecond})
		s, err := g.NewSequence(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.NewSequence(t.Context()); err != nil { // the other of two, behind the guard's back
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		if _, err := g.Fork(ctx, s); err != nil {
			t.Fatal(err)
		}
		if _, err := g.Fork(t.Context(), s); rpcerr.Code(err) != codes.ResourceExhausted {
			t.Errorf("with all in use: %v", err)
		}
		cancel()
		testwait.Until(t, "a fork that its request forgot is freed", func() bool { return f.left(t) == 1 })
		if _, err := g.SequenceLength(t.Context(), s); err != nil {
			t.Errorf("the sequence that was forked: %v", err)
		}
	})
}

// TestGuardLateFree: a request that is long over cannot free the sequence that another got under the same handle.
func TestGuardLateFree(t *testing.T) {
	f, g := openFlawed(t, engine.GuardConfig{Every: time.Hour})
	old, end := context.WithCancel(t.Context())
	end()
	s, err := g.NewSequence(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := g.FreeSequence(old, s); rpcerr.Code(err) != codes.NotFound || f.left(t) != 1 {
		t.Errorf("freed by another: %v, %d left", err, f.left(t))
	}
}
