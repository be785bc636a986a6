package engineplugin_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	enginev1 "github.com/tandem-inference/tandem/proto/tandem/engine/v1"
	"github.com/tandem-inference/tandem/services/engineplugin"
	"github.com/tandem-inference/tandem/services/engineplugin/enginefake"
	"github.com/tandem-inference/tandem/services/engineplugin/enginetest"
	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/testwait"
)

// TestGuardConforms: a guarded engine is an engine like any other.
func TestGuardConforms(t *testing.T) {
	enginetest.Run(t, func(*testing.T) (engineplugin.Opener, enginetest.Models) {
		return guarding{enginefake.New(enginefake.Options{})}, fakeModels
	})
}

type guarding struct{ inner engineplugin.Opener }

func (g guarding) Open(ctx context.Context, o engineplugin.OpenOptions, p engineplugin.Progress) (engineplugin.Engine, error) {
	e, err := g.inner.Open(ctx, o, p)
	if err != nil {
		return nil, err
	}
	return engineplugin.NewGuard(e, engineplugin.GuardConfig{}), nil
}

// TestServerFreesForCancelledCalls: a client that cancels a call which makes a handle leaves none behind, though it does not
// wait for the answer.
func TestServerFreesForCancelledCalls(t *testing.T) {
	awaits := enginetest.Awaits{Hold: testwait.Limit} // what is cancelled after its answer is for guards
	fake := enginefake.New(enginefake.Options{})
	conn, stop := serve(t, engineplugin.NewServer(awaits.Wrap(fake, "engine")))
	defer stop()
	client := enginev1.NewEngineServiceClient(conn)
	opening, err := client.Open(t.Context(), &enginev1.OpenRequest{Role: 1, ModelPath: "m", MaxSequences: 2, KvTypeK: -1, KvTypeV: -1})
	for err == nil {
		_, err = opening.Recv()
	}
	q, err := client.CreateSequence(t.Context(), &enginev1.CreateSequenceRequest{})
	if err != nil {
		t.Fatal(err)
	}
	cancelled := func(call func(ctx context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		awaits.Arm(2, cancel) // when the call in the engine has ended
		if err := call(ctx); rpcerr.Code(err) != codes.Canceled {
			t.Fatal(err)
		}
		want := engineplugin.Handles{Sequences: []engineplugin.Sequence{engineplugin.Sequence(q.Sequence)}}
		testwait.Until(t, "the handle is freed", func() bool {
			h, err := fake.Opened()[0].Handles(t.Context())
			return err == nil && slices.Equal(h.Sequences, want.Sequences) && len(h.Snapshots) == 0
		})
	}
	for range 5 {
		cancelled(func(ctx context.Context) error {
			_, err := client.CreateSequence(ctx, &enginev1.CreateSequenceRequest{})
			return err
		})
		cancelled(func(ctx context.Context) error {
			_, err := client.CreateSnapshot(ctx, &enginev1.CreateSnapshotRequest{Sequence: q.Sequence})
			return err
		})
	}
}

// flawed is an engine whose frees fail as often as told.
type flawed struct {
	*enginefake.Engine
	failures atomic.Int32
	killed   atomic.Bool
}

func (f *flawed) FreeSequence(ctx context.Context, s engineplugin.Sequence) error {
	if f.failures.Add(-1) >= 0 {
		return rpcerr.Aborted("injected")
	}
	return f.Engine.FreeSequence(ctx, s)
}

func (f *flawed) Kill(error) { f.killed.Store(true); f.Crash() }

func openFlawed(t *testing.T, cfg engineplugin.GuardConfig) (*flawed, *engineplugin.Guard) {
	t.Helper()
	e, err := enginefake.New(enginefake.Options{}).Open(t.Context(), targetOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	f := &flawed{Engine: e.(*enginefake.Engine)}
	g := engineplugin.NewGuard(f, cfg)
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

// TestGuardRetriesFrees: what could not be freed is freed later, and counted as an orphan until then. In virtual time, as
// all tests of what a guard does in time: on a busy machine it is done before a test has looked.
func TestGuardRetriesFrees(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		f, g := openFlawed(t, engineplugin.GuardConfig{Every: 5 * time.Millisecond})
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
		testwait.Until(t, "and no longer an orphan", func() bool { return g.Counts().Orphans == 0 && g.Counts().Sequences == 0 })
		if g.Err() != nil || f.killed.Load() {
			t.Errorf("the engine was given up: %v", g.Err())
		}
	})
}

// TestGuardGivesUp: an engine that never frees is ended rather than leaking, and its supervisor is notified.
func TestGuardGivesUp(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		f, g := openFlawed(t, engineplugin.GuardConfig{Every: 5 * time.Millisecond})
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
		var told []engineplugin.Sequence
		f, g := openFlawed(t, engineplugin.GuardConfig{Every: 5 * time.Millisecond, Grace: 100 * time.Millisecond, OwnerGrace: 20 * time.Millisecond,
			OnOrphans: func(h engineplugin.Handles) {
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
		if !slices.Equal(told, []engineplugin.Sequence{stray, lapsed}) {
			t.Errorf("reported %v, want %d and %d", told, stray, lapsed)
		}
	})
}

// TestGuardReclaims: nobody is refused for want of sequences that belong to nobody, even before they are old enough.
func TestGuardReclaims(t *testing.T) {
	f, g := openFlawed(t, engineplugin.GuardConfig{Every: time.Hour})
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

// TestGuardLateFree: a request that is long over cannot free the sequence that another got under the same handle.
func TestGuardLateFree(t *testing.T) {
	f, g := openFlawed(t, engineplugin.GuardConfig{Every: time.Hour})
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
