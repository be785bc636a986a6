package server

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/engine/enginetest"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/worker-target/internal/drafttest"
	"google.golang.org/grpc/codes"
)

// unwatched keeps the guard's comparison from freeing what a test is to find.
var unwatched = engine.GuardConfig{Every: time.Hour}

// engines are the ways to a fake engine, with the moments of its calls counted on both sides of the plugin.
func engines(a *enginetest.Awaits) map[string]func(engine.Opener) engine.Opener {
	return map[string]func(engine.Opener) engine.Opener{
		"in process": func(o engine.Opener) engine.Opener { return a.Wrap(o, "engine") },
		"plugin":     a.Plugged,
	}
}

// left counts the sequences in the newest engine.
func (r *rig) left() int {
	r.t.Helper()
	all := r.opener.Opened()
	h, err := all[len(all)-1].Handles(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return len(h.Sequences)
}

// TestCancelAtEveryAwait: a request that is cancelled at any of the moments at which it waits leaves no sequence, no
// slot and no goroutine.
func TestCancelAtEveryAwait(t *testing.T) {
	requests := map[string]*tandemv1.DecodeRequest{
		"plain": {PromptTokens: prompt(140, 1), MaxTokens: 6, TopLogprobs: -1},
		"draft": {PromptTokens: prompt(140, 1), MaxTokens: 12, TopLogprobs: -1,
			Speculation: &tandemv1.Speculation{Mode: tandemv1.SpeculationMode_SPECULATION_MODE_TREE, Budget: 8}},
		"replay": {PromptTokens: prompt(140, 1), CommittedTokens: []int32{1, 2, 3}, MaxTokens: 8, TopLogprobs: -1},
	}
	var awaits enginetest.Awaits
	for way, wrap := range engines(&awaits) {
		for name, request := range requests {
			t.Run(way+"/"+name, func(t *testing.T) {
				o := enginefake.Options{Accept: 0.6, BlockSize: 8}
				options := rigOptions{target: o, wrap: wrap, guard: unwatched}
				options.decode.PrefillChunk = 64
				if name == "draft" {
					options.draft = drafttest.New(t, o, 0)
				}
				r := newRig(t, options)
				r.must(request)
				r.idle()
				before := runtime.NumGoroutine()
				k := 1
				for ; ; k++ {
					ctx, cancel := context.WithCancel(t.Context())
					awaits.Arm(k, cancel)
					_, err := r.decodeAwaited(ctx, &awaits, request)
					at := awaits.Disarm()
					cancel()
					if at == "" {
						if err != nil {
							t.Fatalf("a request that was not cancelled: %v", err)
						}
						break
					}
					r.idle()
					if n := r.left(); n != 0 {
						t.Fatalf("cancelled when %s (moment %d): %d sequences are left", at, k, n)
					}
				}
				if k < 15 {
					t.Errorf("only %d moments were reached", k)
				}
				r.until("goroutines are gone", func() bool { return runtime.NumGoroutine() <= before+2 })
			})
		}
	}
}

// decodeAwaited is decode with every event of the stream a moment.
func (r *rig) decodeAwaited(ctx context.Context, a *enginetest.Awaits, m *tandemv1.DecodeRequest) (int, error) {
	stream, err := r.client.Decode(ctx, m)
	if err != nil {
		return 0, err
	}
	for n := 0; ; n++ {
		a.Reach(ctx, "an event is awaited")
		e, err := stream.Recv()
		if err != nil {
			return n, err
		}
		if e.GetFinished() != nil {
			_, _ = stream.Recv() // the end of the stream
			return n, nil
		}
	}
}

// TestLeaversSoak: clients that leave at random moments, many at a time, leave nothing behind, and nobody is refused
// for want of sequences.
func TestLeaversSoak(t *testing.T) {
	for way, wrap := range engines(&enginetest.Awaits{}) {
		t.Run(way, func(t *testing.T) {
			o := enginefake.Options{Accept: 0.6, BlockSize: 8}
			draft := drafttest.New(t, o, 0)
			o.StepDelay = 50 * time.Microsecond
			r := newRig(t, rigOptions{target: o, draft: draft, wrap: wrap, guard: unwatched})
			rounds := 150
			if testing.Short() {
				rounds = 40
			}
			var group sync.WaitGroup
			for client := range 4 { // as many as there are slots
				group.Go(func() {
					rng := rand.New(rand.NewPCG(7, uint64(client)))
					for range rounds {
						ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rng.IntN(4000))*time.Microsecond)
						m := &tandemv1.DecodeRequest{PromptTokens: prompt(10+rng.IntN(60), int32(client)), MaxTokens: 40, TopLogprobs: -1}
						_, err := r.decode(ctx, m, nil)
						cancel()
						// That a slot is not back yet is said before anything is made, and passes.
						if rpcerr.Code(err) == codes.ResourceExhausted && !errors.Is(err, rpcerr.NoSlot) {
							t.Errorf("refused: %v", err)
						}
						r.until("a slot is free", func() bool { return r.server.Busy() < 4 })
					}
				})
			}
			group.Wait()
			r.idle()
			if n := r.left(); n != 0 {
				t.Errorf("%d sequences are left", n)
			}
		})
	}
}
