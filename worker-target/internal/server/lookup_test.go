package server

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/worker-target/internal/decode"
	"github.com/tandem-inference/tandem/worker-target/internal/drafttest"
)

// repeating is a model that copies what it has read, with breaks in between.
func repeating(accept float64) enginefake.Options {
	return enginefake.Options{
		Accept: accept, BlockSize: 8, Histories: new(enginefake.Histories),
		Next: func(history []int32) (int32, bool) {
			at := len(history)
			back := 29 + 7*(at/24)%20
			if at%24 < 3 || back > at {
				return 0, false
			}
			return history[at-back], true
		},
	}
}

// TestIdentityOfRepeats: where a text repeats itself lookup speculates, with and without a draft, and the tokens are
// those of plain decoding, log-probabilities included; after a failover too.
func TestIdentityOfRepeats(t *testing.T) {
	for name, drafted := range map[string]bool{"draft": true, "no draft": false} {
		t.Run(name, func(t *testing.T) {
			o := repeating(0.3)
			options := rigOptions{target: o}
			if drafted {
				options.draft = drafttest.New(t, o, 0)
			}
			r := newRig(t, options)
			for sampler, sampling := range samplings() {
				for _, length := range []int{2, 60, 700} {
					request := func(s *tandemv1.Speculation) *tandemv1.DecodeRequest {
						return &tandemv1.DecodeRequest{PromptTokens: prompt(length, 3), Sampling: sampling, MaxTokens: 200,
							TopLogprobs: 1, Speculation: s}
					}
					want := r.must(request(modes()[0].spec))
					for _, m := range modes() {
						for _, committed := range []int{0, 77} {
							request := request(m.spec)
							request.CommittedTokens = want.tokens[:committed]
							got := r.must(request)
							if d := cmp.Diff(want.tokens[committed:], got.tokens); d != "" {
								t.Fatalf("%s %s %d, %d committed: %s", sampler, m.name, length, committed, d)
							}
							for i, a := range want.logprobs[committed:] {
								if b := got.logprobs[i]; a.Logprob != b.Logprob || a.Top[0].Token != b.Top[0].Token {
									t.Fatalf("%s %s: log-probabilities at %d are %v, want %v", sampler, m.name, i, b, a)
								}
							}
							checkSource(t, fmt.Sprint(sampler, " ", m.name), m.spec, got.finished.Timings, sampler == "greedy" &&
								committed == 0)
						}
					}
				}
			}
		})
	}
}

// checkSource: only modes that look up count its tokens, and they do where the text repeats itself.
func checkSource(t *testing.T, name string, s *tandemv1.Speculation, tm *tandemv1.Timings, repeats bool) {
	t.Helper()
	if tm.LookupDraftedTokens > tm.DraftedTokens || tm.LookupAcceptedTokens > tm.AcceptedTokens ||
		tm.LookupAcceptedTokens > tm.LookupDraftedTokens {
		t.Errorf("%s: counts do not fit: %v", name, tm)
	}
	switch s.GetMode() {
	case tandemv1.SpeculationMode_SPECULATION_MODE_LOOKUP:
		if tm.DraftedTokens != tm.LookupDraftedTokens || tm.SpeculationDegraded {
			t.Errorf("%s: lookup needs no draft: %v", name, tm)
		}
		// How often lookup without a block is worth its rows hangs on times.
		if repeats && s.Block > 0 && tm.LookupAcceptedTokens < 40 {
			t.Errorf("%s: only %d of %d tokens of lookup accepted", name, tm.LookupAcceptedTokens, tm.LookupDraftedTokens)
		}
	case tandemv1.SpeculationMode_SPECULATION_MODE_OFF, tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN,
		tandemv1.SpeculationMode_SPECULATION_MODE_TREE:
		if tm.LookupDraftedTokens != 0 {
			t.Errorf("%s: looked up: %v", name, tm)
		}
	}
}

// TestNoLookup: automatic speculation looks nothing up where that is switched off, a request that names lookup still
// does.
func TestNoLookup(t *testing.T) {
	for _, off := range []bool{false, true} {
		r := newRig(t, rigOptions{target: repeating(0.3), decode: decode.Config{NoLookup: off}})
		for _, mode := range []tandemv1.SpeculationMode{tandemv1.SpeculationMode_SPECULATION_MODE_AUTO,
			tandemv1.SpeculationMode_SPECULATION_MODE_LOOKUP} {
			tm := r.must(&tandemv1.DecodeRequest{
				PromptTokens: prompt(60, 3), MaxTokens: 200, TopLogprobs: -1, Speculation: &tandemv1.Speculation{Mode: mode,
					Block: 4},
			}).finished.Timings
			named := mode == tandemv1.SpeculationMode_SPECULATION_MODE_LOOKUP
			if (off && !named && tm.DraftedTokens > 0) || (named && tm.LookupAcceptedTokens == 0) || tm.SpeculationDegraded {
				t.Errorf("off %v, %v: %v", off, mode, tm)
			}
		}
	}
}
