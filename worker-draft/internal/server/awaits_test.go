package server

import (
	"context"
	"runtime"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/engine/enginetest"
	"github.com/tandem-inference/tandem/services/testwait"
	"github.com/tandem-inference/tandem/services/workernode"
)

// TestCancelAtEveryAwait: a stream that is cancelled at any of the moments at which it waits leaves no sequence, no
// slot and no goroutine.
func TestCancelAtEveryAwait(t *testing.T) {
	var awaits enginetest.Awaits
	for way, wrap := range map[string]func(engine.Opener) engine.Opener{
		"in process": func(o engine.Opener) engine.Opener { return awaits.Wrap(o, "engine") },
		"plugin":     awaits.Plugged,
	} {
		t.Run(way, func(t *testing.T) {
			// The guard's comparison would free what the test is to find.
			unwatched := workernode.KeeperConfig[engine.Draft]{Guard: engine.GuardConfig{Every: time.Hour}}
			r := newWrappedRig(t, enginefake.Options{}, 2, 0, true, unwatched, wrap)
			r.ready()
			if err := r.speculate(t.Context(), &awaits); err != nil {
				t.Fatal(err)
			}
			r.idle()
			before := runtime.NumGoroutine()
			k := 1
			for ; ; k++ {
				ctx, cancel := context.WithCancel(t.Context())
				awaits.Arm(k, cancel)
				err := r.speculate(ctx, &awaits)
				at := awaits.Disarm()
				cancel()
				if at == "" {
					if err != nil {
						t.Fatalf("a stream that was not cancelled: %v", err)
					}
					break
				}
				r.idle()
				h, err := r.opener.Opened()[0].Handles(t.Context())
				if err != nil || len(h.Sequences) != 0 {
					t.Fatalf("cancelled when %s (moment %d): %v are left, %v", at, k, h.Sequences, err)
				}
			}
			if k < 10 {
				t.Errorf("only %d moments were reached", k)
			}
			testwait.Until(t, "goroutines are gone", func() bool { return runtime.NumGoroutine() <= before+2 })
		})
	}
}

// speculate exchanges a few messages, one of a new epoch, and ends the stream.
func (r *rig) speculate(ctx context.Context, a *enginetest.Awaits) error {
	s, err := r.client.Speculate(ctx)
	if err != nil {
		return err
	}
	for _, m := range []*tandemv1.SpeculateRequest{
		message(1, 1, 0, 20, ask(5, 20, 8, tree)), message(1, 2, 20, 2, ask(6, 22, 8, chain)),
		message(2, 1, 10, 4, ask(6, 14, 8, tree)),
	} {
		if err := s.Send(m); err != nil {
			_, err = s.Recv() // says why
			return err
		}
		a.Reach(ctx, "a proposal is awaited")
		if _, err := s.Recv(); err != nil {
			return err
		}
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	a.Reach(ctx, "the end is awaited")
	for {
		if _, err := s.Recv(); err != nil {
			return ctx.Err()
		}
	}
}

// idle waits until all slots are free.
func (r *rig) idle() {
	r.t.Helper()
	testwait.Until(r.t, "slots are free", func() bool {
		r.server.mu.Lock()
		defer r.server.mu.Unlock()
		return len(r.server.slots) == 0
	})
}
