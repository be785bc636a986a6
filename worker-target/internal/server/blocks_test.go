package server

import (
	"fmt"
	"slices"
	"testing"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/worker-target/internal/drafttest"
)

// TestAnyDraftBlock: drafts of blocks larger than a step, and drafts whose context hardly holds a block, are used as
// far as they go, in every mode, with the text of plain decoding.
func TestAnyDraftBlock(t *testing.T) {
	for _, draft := range []struct{ block, context int }{
		{2, 0}, {64, 0}, {128, 0}, {129, 0}, {256, 0}, {4000, 0}, {16, 4}, {16, 16}, {16, 17}, {16, 40}, {300, 50},
		{256, 257},
	} {
		t.Run(fmt.Sprintf("%d of %d", draft.block, draft.context), func(t *testing.T) {
			o := enginefake.Options{Accept: 0.95, BlockSize: draft.block}
			r := newRig(t, rigOptions{target: o, draft: drafttest.New(t, o, draft.context)})
			want := r.must(&tandemv1.DecodeRequest{PromptTokens: prompt(60, 1), MaxTokens: 150, TopLogprobs: -1,
				Speculation: modes()[0].spec}).tokens
			for _, m := range modes() {
				for range 2 {
					a := r.must(&tandemv1.DecodeRequest{PromptTokens: prompt(60, 1), MaxTokens: 150, TopLogprobs: -1,
						Speculation: m.spec})
					if !slices.Equal(a.tokens, want) {
						t.Fatalf("%s: other tokens than plain decoding", m.name)
					}
					if m.name == "chain" && draft.block > 64 && draft.context == 0 &&
						a.finished.GetTimings().GetAcceptedTokens() == 0 {
						t.Errorf("%s: nothing of the draft was accepted", m.name)
					}
				}
			}
		})
	}
}
