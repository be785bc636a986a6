package server

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/worker-target/internal/drafttest"
)

// TestEqualPromptsAreReadOnce: eight choices of one prompt of 2K tokens that arrive together read it once, and
// requests that begin alike read that part once; every one gives the tokens that it gives without a cache, and its
// draft has the features. When the one that reads is cancelled another reads on.
func TestEqualPromptsAreReadOnce(t *testing.T) {
	const n, length, system = 8, 2048, 1600
	for _, promptRows := range []int{0, 64} {
		for name, c := range map[string]struct {
			prompt func(i int) []int32
			cancel bool
			most   int // prompt tokens that are read
		}{
			"equal": {
				prompt: func(int) []int32 { return prompt(length, 3) },
				most:   map[int]int{0: length * 11 / 10, 64: length + (n-1)*64}[promptRows],
			},
			"equal, the reader is cancelled": {
				prompt: func(int) []int32 { return prompt(length, 3) }, cancel: true,
				most: 2*length + (n-1)*64,
			},
			"one system text": {
				prompt: func(i int) []int32 { return append(prompt(system, 3), prompt(100, int32(i))...) },
				most:   map[int]int{0: system + n*100, 64: system + 100 + (n-1)*(system-1536+100)}[promptRows],
			},
		} {
			t.Run(fmt.Sprintf("%s, %d prompt rows", name, promptRows), func(t *testing.T) {
				o := enginefake.Options{PromptRows: promptRows, StepDelay: 2 * time.Millisecond}
				r := newRig(t, rigOptions{
					target: o, draft: drafttest.New(t, o, 4096), slots: n,
					open: engine.OpenOptions{MaxContext: 4096, MaxBatchRows: 256},
				})
				message := func(i int, off bool) *tandemv1.DecodeRequest {
					return &tandemv1.DecodeRequest{
						PromptTokens: c.prompt(i), MaxTokens: 20, TopLogprobs: -1, Choice: int32(i), Speculation: modes()[i%3].spec,
						Sampling: &tandemv1.Sampling{Temperature: ptr(1.2), Seed: ptr(int64(5))}, Cache: &tandemv1.CacheUse{Off: off},
					}
				}
				alone := make([]answer, n)
				for i := range alone {
					alone[i] = r.must(message(i, true))
				}
				before := r.counters()["prompt_tokens"]
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.cancel {
					leader, err := r.client.Decode(ctx, message(0, false))
					if err != nil {
						t.Fatal(err)
					}
					if _, err := leader.Recv(); err != nil {
						t.Fatal(err)
					}
				}
				var group sync.WaitGroup
				for i := range n {
					if c.cancel && i == 0 {
						continue
					}
					group.Go(func() {
						a, err := r.decode(t.Context(), message(i, false), nil)
						if err != nil || !slices.Equal(a.tokens, alone[i].tokens) {
							t.Errorf("request %d: %v, %v, alone %v", i, a.tokens, err, alone[i].tokens)
						}
					})
				}
				if c.cancel {
					r.until("all wait", func() bool { return r.server.Busy() == n })
					cancel()
				}
				group.Wait()
				r.idle()
				r.until("all are counted", func() bool { return r.counters()["requests"] == 2*n })
				read := int(r.counters()["prompt_tokens"] - before)
				t.Logf("%d tokens were read, of %d prompts of %d", read, n, len(c.prompt(0)))
				if read > c.most {
					t.Errorf("%d tokens were read, at most %d are needed", read, c.most)
				}
			})
		}
	}
}
