package server

import (
	"context"
	"testing"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/engine/enginetest"
)

// TestCancelAtEveryAwait: a request that is cancelled at any of the moments at which it waits gives its slot back, and
// the engine scores the next prompt.
func TestCancelAtEveryAwait(t *testing.T) {
	var awaits enginetest.Awaits
	fake := enginefake.New(enginefake.Options{Vocab: 128})
	for way, opener := range map[string]engine.Opener{
		"in process": awaits.Wrap(fake, "engine"),
		"plugin":     awaits.Plugged(fake),
	} {
		t.Run(way, func(t *testing.T) {
			inner, err := opener.OpenScorer(t.Context(), engine.OpenOptions{
				ModelPath: "scorer", MaxSequences: 1, KVTypeK: engine.KVDefault,
				KVTypeV: engine.KVDefault,
			}, nil)
			if err != nil {
				t.Fatal(err)
			}
			engine := engine.GuardScorer(inner, engine.GuardConfig{})
			t.Cleanup(func() { engine.Close() })
			s := New(fixed{engine}, 1, nil, nil)
			tokens, question := document()
			request := &tandemv1.CompressRequest{Tokens: tokens, Query: question,
				Segments: []*tandemv1.Segment{{Span: &tandemv1.Span{First: 0, Last: 2982}, KeepRatio: 0.1}}}
			k := 1
			for ; ; k++ {
				ctx, cancel := context.WithCancel(t.Context())
				awaits.Arm(k, cancel)
				_, err := s.Compress(ctx, request)
				at := awaits.Disarm()
				cancel()
				if len(s.slots) != 0 {
					t.Fatalf("cancelled when %s: the slot is not free", at)
				}
				if at == "" {
					if err != nil {
						t.Fatalf("a request that was not cancelled: %v", err)
					}
					break
				}
				if h, err := engine.Handles(t.Context()); err != nil || len(h.Sequences)+len(h.Snapshots) > 0 {
					t.Fatalf("cancelled when %s: %v, %v", at, h, err)
				}
			}
			if k < 3 {
				t.Errorf("only %d moments were reached", k)
			}
		})
	}
}
