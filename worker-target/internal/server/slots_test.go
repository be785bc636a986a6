package server

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// shrinking opens engines of fewer and fewer sequences, as when memory gets short.
type shrinking struct {
	engine.Opener
	next *atomic.Int64
}

func (s shrinking) OpenTarget(ctx context.Context, o engine.OpenOptions, p engine.Progress) (engine.Target, error) {
	o.MaxSequences = int(s.next.Add(-1))
	return s.Opener.OpenTarget(ctx, o, p)
}

// TestSlotsFollowTheEngine: a server has as many slots as the engine that is open has sequences, and a request that is
// late with an engine that was lost takes no slot of another.
func TestSlotsFollowTheEngine(t *testing.T) {
	next := &atomic.Int64{}
	next.Store(4)
	r := newRig(t, rigOptions{target: enginefake.Options{FailAfterSteps: 20},
		wrap: func(o engine.Opener) engine.Opener { return shrinking{o, next} }})
	lost, _ := r.keeper.Engine()
	request := &tandemv1.DecodeRequest{PromptTokens: prompt(10, 1), MaxTokens: 5, TopLogprobs: -1}
	r.must(request)
	if n := r.slots().total; n != 3 {
		t.Errorf("%d slots, the engine has 3 sequences", n)
	}
	request.MaxTokens = 100
	if _, err := r.decode(t.Context(), request, nil); !errors.Is(err, rpcerr.AnyInternal) {
		t.Fatalf("fault: %v", err)
	}
	r.until("engine back", func() bool { e, err := r.keeper.Engine(); return err == nil && e != lost })
	request.MaxTokens = 5
	r.must(request)
	after := r.slots()
	if after.total != 2 {
		t.Errorf("%d slots, the new engine has 2 sequences", after.total)
	}
	if _, err := r.server.places(lost); !errors.Is(err, rpcerr.EngineLost) || r.slots() != after {
		t.Errorf("slots of an engine that was lost: %v", err)
	}
}
