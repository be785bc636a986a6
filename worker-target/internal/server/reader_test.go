package server

import (
	"context"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
)

// TestSlowReader: a client that does not read stops its own stream and nobody else's: once its messages fill the
// connection's window it runs no more steps, others are answered meanwhile, and it goes on where it stopped.
func TestSlowReader(t *testing.T) {
	const context16 = 1 << 16
	r := newRig(t, rigOptions{
		target: enginefake.Options{Context: context16}, open: engine.OpenOptions{MaxContext: context16, MaxTopK: 32},
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	slow, err := r.client.Decode(ctx, &tandemv1.DecodeRequest{
		PromptTokens: prompt(5, 1), MaxTokens: context16 - 100, TopLogprobs: 32, Speculation: modes()[0].spec,
	})
	if err != nil {
		t.Fatal(err)
	}
	steps := func() uint64 {
		stats, err := r.opener.Opened()[0].Stats(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range stats {
			if s.Name == "steps" {
				return s.Value
			}
		}
		t.Fatal("the engine counts no steps")
		return 0
	}
	r.until("the slow reader's stream to stop", func() bool {
		before := steps()
		time.Sleep(100 * time.Millisecond)
		return before > 10 && steps() == before
	})
	stopped := steps()
	if stopped >= context16-100 {
		t.Fatalf("all %d steps ran, nobody had to wait", stopped)
	}
	if a := r.must(&tandemv1.DecodeRequest{PromptTokens: prompt(1000, 2), MaxTokens: 200,
		TopLogprobs: -1}); len(a.tokens) != 200 {
		t.Errorf("%d tokens beside a slow reader", len(a.tokens))
	}
	if r.server.Busy() != 1 {
		t.Errorf("%d slots are busy, the slow reader has one", r.server.Busy())
	}
	after := steps()
	for n := 0; n < 20_000 && steps() == after; n++ {
		if _, err := slow.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	r.until("the stream goes on once it is read", func() bool { return steps() > after })
}
