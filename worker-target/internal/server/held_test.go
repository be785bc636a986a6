package server

import (
	"bytes"
	"slices"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/ddtree"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"github.com/tandem-inference/tandem/worker-target/internal/decode"
)

// teach tells a model of requests that begin with prompt what became of their first proposals: all of it was right or
// nothing.
func teach(model *auto.Model, prompt []int32, block int, right bool) {
	p := model.NewRequest(block, 64, prompt)
	plan := p.Next(len(prompt), block, 0)
	if !plan.Kind.Drafts() {
		return
	}
	var tree ddtree.Tree
	tree.Reset(0)
	path := []int32{0}
	for node := int32(0); int(node) < plan.Block-1; {
		node = tree.Add(1, node, tree.Logprobs[node]-.05)
		if right {
			path = append(path, node)
		}
	}
	p.Observe(&auto.Round{
		Plan: plan, Length: len(prompt), Rows: tree.Len(), Verify: 5 * time.Millisecond, Draft: 8 * time.Millisecond,
		Tree: &tree, Path: path,
	})
}

// TestHeldBack runs in virtual time: where requests that began alike lost by drafting, the draft does not hear of the
// next one. One that is long enough to try it sends the features that any other sends, and the text is that of plain
// decoding.
func TestHeldBack(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		o := enginefake.Options{NeverAccept: true, BlockSize: 8}
		ctx, d, draft := calibrated(t, o, 8*time.Millisecond, 5*time.Millisecond)
		// A failed trial costs 1.6 plain rounds here, so that the first one comes after 16 tokens.
		const short, long = 12, 400
		// early and opened are the draft's streams that the request opened in its first tokens and in all.
		run := func(tokens int, mode tandemv1.SpeculationMode) (out []int32, early, opened int) {
			t.Helper()
			_, before, _, _ := draft.State()
			c := &collect{}
			c.on = func(total int) {
				if _, now, _, _ := draft.State(); total <= short {
					early = now - before
				}
			}
			var stats decode.Stats
			_, err := d.slot.Run(ctx, d.engine, &decode.Request{
				Prompt: prompt(300, 1), Sampler: engine.DefaultSampler(), Max: tokens, Mode: mode, TopLogprobs: -1,
				Arrived: time.Now(),
			}, c, &stats)
			if err != nil {
				t.Fatal(err)
			}
			_, after, _, _ := draft.State()
			return c.tokens, early, after - before
		}
		hold := func() {
			t.Helper()
			for i := 0; !d.model.NewRequest(o.BlockSize, 64, prompt(300, 1)).Held(300, o.BlockSize); i++ {
				if i > 100 {
					t.Fatal("requests are not held back from a draft by which they lose")
				}
				for range 3 { // others do well with it
					teach(d.model, prompt(300, 2), o.BlockSize, true)
				}
				teach(d.model, prompt(300, 1), o.BlockSize, false)
			}
		}
		hold()
		if _, _, opened := run(short, tandemv1.SpeculationMode_SPECULATION_MODE_AUTO); opened != 0 {
			t.Errorf("%d streams of a request that was held back to its end", opened)
		}
		plain, _, _ := run(long, tandemv1.SpeculationMode_SPECULATION_MODE_OFF)
		run(long, tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN)
		wantFirst, want := draft.Features()
		hold()
		out, early, opened := run(long, tandemv1.SpeculationMode_SPECULATION_MODE_AUTO)
		first, got := draft.Features()
		if early != 0 || opened != 1 || !slices.Equal(out, plain) {
			t.Errorf("a request that tries its draft late opened %d streams, %d of them early; text equal: %v", opened, early, slices.Equal(out, plain))
		}
		n := min(len(got), len(want))
		if row := d.manager.Capture().Width; first != wantFirst || n < 330*row || !bytes.Equal(got[:n], want[:n]) {
			t.Errorf("%d bytes of features from position %d, want those of a request that always drafts: %d from %d", len(got), first, len(want), wantFirst)
		}
	})
}
