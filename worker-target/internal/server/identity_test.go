package server

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/worker-target/internal/drafttest"
)

// TestIdentity: every mode gives the tokens of plain decoding, greedy and sampled, whatever the draft's quality.
func TestIdentity(t *testing.T) {
	for _, accept := range []float64{0.05, 0.5, 0.9, 1} {
		t.Run(fmt.Sprintf("accept %v", accept), func(t *testing.T) {
			racetest.Bubble(t, func(t *testing.T) {
				o := enginefake.Options{Accept: accept, BlockSize: 16}
				r := newRig(t, rigOptions{target: o, draft: drafttest.New(t, o, 0)})
				for name, sampling := range samplings() {
					for _, length := range []int{1, 40, 700} {
						want := r.must(&tandemv1.DecodeRequest{
							PromptTokens: prompt(length, 3), Sampling: sampling, MaxTokens: 120, TopLogprobs: 2,
							Speculation: &tandemv1.Speculation{Mode: tandemv1.SpeculationMode_SPECULATION_MODE_OFF},
						})
						if len(want.tokens) != 120 {
							t.Fatalf("plain: %d tokens", len(want.tokens))
						}
						for _, m := range modes() {
							got := r.must(&tandemv1.DecodeRequest{
								PromptTokens: prompt(length, 3), Sampling: sampling, MaxTokens: 120, TopLogprobs: 2, Speculation: m.spec,
							})
							if d := cmp.Diff(want.tokens, got.tokens); d != "" {
								t.Fatalf("%s %s %d: %s", name, m.name, length, d)
							}
							for i := range want.logprobs {
								a, b := want.logprobs[i], got.logprobs[i]
								if a.Logprob != b.Logprob || len(b.Top) != 2 || a.Top[0].Token != b.Top[0].Token ||
									a.Top[1].Logprob != b.Top[1].Logprob {
									t.Fatalf("%s %s: log-probabilities at %d are %v, want %v", name, m.name, i, b, a)
								}
							}
							timings := got.finished.Timings
							if wide := m.name == "chain" || m.name == "tree16" || m.name == "tree22"; wide && accept == 1 &&
								name == "greedy" && timings.AcceptedTokens < 30 && length > 1 {
								t.Errorf("%s: only %d of %d draft tokens accepted in %d steps", m.name, timings.AcceptedTokens,
									timings.DraftedTokens, timings.VerifySteps)
							}
						}
					}
				}
			})
		})
	}
}

// TestDraftFaults: losses, delays, wrong and malformed proposals change time only, and the answer never stops for a
// second. Like other tests of what depends on deadlines it runs in virtual time, in which a busy machine makes no
// proposal late.
func TestDraftFaults(t *testing.T) {
	o := enginefake.Options{Accept: 0.8, BlockSize: 8}
	for name, f := range map[string]drafttest.Faults{
		"break":   {Break: 0.1},
		"delay":   {Delay: 0.1, DelayFor: 60 * time.Millisecond},
		"silent":  {Silent: 0.03},
		"wrong":   {Wrong: 0.5},
		"garbage": {Garbage: 0.1},
		"stale":   {StaleStep: 0.1},
		"all":     {Break: 0.02, Delay: 0.05, DelayFor: 30 * time.Millisecond, Wrong: 0.1, Garbage: 0.02, StaleStep: 0.02},
	} {
		t.Run(name, func(t *testing.T) {
			racetest.Bubble(t, func(t *testing.T) {
				r, draft := newSlowRig(t, o, 2*time.Millisecond)
				request := &tandemv1.DecodeRequest{
					PromptTokens: prompt(50, 9), MaxTokens: 300, TopLogprobs: -1, Sampling: samplings()["sampled"],
					Speculation: &tandemv1.Speculation{Mode: tandemv1.SpeculationMode_SPECULATION_MODE_OFF},
				}
				want := r.must(request)
				draft.Set(f)
				for _, m := range []tandemv1.SpeculationMode{
					tandemv1.SpeculationMode_SPECULATION_MODE_TREE, tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN,
					tandemv1.SpeculationMode_SPECULATION_MODE_AUTO,
				} {
					request.Speculation = &tandemv1.Speculation{Mode: m}
					got := r.must(request)
					if d := cmp.Diff(want.tokens, got.tokens); d != "" {
						t.Fatalf("%v: %s", m, d)
					}
					if got.gap > time.Second {
						t.Errorf("%v: the answer stopped for %v", m, got.gap)
					}
					tm := got.finished.Timings
					t.Logf("%v: %d steps, %d of %d accepted, degraded %v, longest gap %v, %.0f ms", m, tm.VerifySteps, tm.AcceptedTokens, tm.DraftedTokens, tm.SpeculationDegraded, got.gap, tm.TotalMs)
				}
			})
		})
	}
}

// TestReattach: a draft that is away for a while in the middle of an answer is used again in the same answer.
func TestReattach(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		r, draft := newSlowRig(t, enginefake.Options{Accept: 0.95, BlockSize: 8}, time.Millisecond)
		plain := r.must(&tandemv1.DecodeRequest{
			PromptTokens: prompt(60, 5), MaxTokens: 3000, TopLogprobs: -1,
			Speculation: &tandemv1.Speculation{Mode: tandemv1.SpeculationMode_SPECULATION_MODE_OFF},
		})
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		var before, resumed int
		got, err := r.decode(ctx, &tandemv1.DecodeRequest{
			PromptTokens: prompt(60, 5), MaxTokens: 3000, TopLogprobs: -1,
			Speculation: &tandemv1.Speculation{Mode: tandemv1.SpeculationMode_SPECULATION_MODE_TREE},
		}, func(total int) {
			_, _, answers, _ := draft.State()
			switch {
			case total > 300 && before == 0:
				before = answers
				draft.SetDown(true)
			case total > 500 && before > 0:
				draft.SetDown(false)
			}
			if before > 0 && answers > before+20 && resumed == 0 {
				resumed = total
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(plain.tokens, got.tokens); d != "" {
			t.Fatal(d)
		}
		_, opened, answers, epoch := draft.State()
		t.Logf("resumed by token %d, %d answers, %d streams, epoch %d, longest gap %v", resumed, answers, opened, epoch, got.gap)
		if resumed == 0 || epoch < 2 || !got.finished.Timings.SpeculationDegraded {
			t.Errorf("resumed by token %d, epoch %d, degraded %v", resumed, epoch, got.finished.Timings.SpeculationDegraded)
		}
		if got.gap > time.Second {
			t.Errorf("the answer stopped for %v", got.gap)
		}
	})
}

// TestConcurrent: four requests at once, some cancelled at random points, all others exact; everything is freed.
func TestConcurrent(t *testing.T) {
	o := enginefake.Options{Accept: 0.7, BlockSize: 16}
	draft := drafttest.New(t, o, 0)
	r := newRig(t, rigOptions{target: o, draft: draft})
	var want [4][]int32
	for i := range want {
		want[i] = r.must(&tandemv1.DecodeRequest{
			PromptTokens: prompt(20+30*i, int32(i)), MaxTokens: 150, TopLogprobs: -1,
			Speculation: &tandemv1.Speculation{Mode: tandemv1.SpeculationMode_SPECULATION_MODE_OFF},
		}).tokens
	}
	all := modes()
	draft.Set(drafttest.Faults{Break: 0.01, Wrong: 0.1})
	for round := range 6 {
		var group sync.WaitGroup
		for i := range want {
			group.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				stop := 1 << 30
				if (i+round)%3 == 0 {
					stop = rand.IntN(150)
				}
				got, err := r.decode(ctx, &tandemv1.DecodeRequest{
					PromptTokens: prompt(20+30*i, int32(i)), MaxTokens: 150, TopLogprobs: -1,
					Speculation: all[(i+round)%len(all)].spec,
				}, func(total int) {
					if total >= stop {
						cancel()
					}
				})
				if stop > 150 && err != nil {
					t.Errorf("request %d: %v", i, err)
				}
				if stop > 150 && !slices.Equal(got.tokens, want[i]) || len(got.tokens) > 150 || !slices.Equal(got.tokens,
					want[i][:len(got.tokens)]) {
					t.Errorf("request %d: tokens differ", i)
				}
			})
		}
		group.Wait()
		r.idle()
	}
	r.until("streams ended", func() bool { streams, _, _, _ := draft.State(); return streams == 0 })
}

// TestLateDraft: a request that starts before any draft is there speculates once it has come.
func TestLateDraft(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		o := enginefake.Options{Accept: 1, BlockSize: 8}
		draft := drafttest.New(t, o, 0)
		draft.SetDown(true)
		target := o
		target.StepDelay = time.Millisecond
		r := newRig(t, rigOptions{target: target, draft: draft, dontAttach: true})
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		got, err := r.decode(ctx, &tandemv1.DecodeRequest{
			PromptTokens: prompt(60, 5), MaxTokens: 3000, TopLogprobs: -1,
			Speculation: &tandemv1.Speculation{Mode: tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN},
		}, func(int) { draft.SetDown(false) })
		if err != nil {
			t.Fatal(err)
		}
		if tm := got.finished.Timings; tm.AcceptedTokens == 0 || !tm.SpeculationDegraded || len(got.tokens) != 3000 {
			t.Errorf("%d tokens, %v", len(got.tokens), tm)
		}
	})
}

// TestFullDraft: a draft with a short context is started again with the newest features instead of running full.
func TestFullDraft(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		o := enginefake.Options{Accept: 1, BlockSize: 8}
		draft := drafttest.New(t, o, 128)
		r := newRig(t, rigOptions{target: o, draft: draft})
		got := r.must(&tandemv1.DecodeRequest{
			PromptTokens: prompt(300, 5), MaxTokens: 500, TopLogprobs: -1,
			Speculation: &tandemv1.Speculation{Mode: tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN},
		})
		_, opened, _, epoch := draft.State()
		if tm := got.finished.Timings; opened != 1 || epoch < 5 || tm.AcceptedTokens < 400 || tm.SpeculationDegraded {
			t.Errorf("%d streams, epoch %d, %v", opened, epoch, tm)
		}
	})
}

// TestLongPrompt: features of a prompt reach the draft in many messages before its first answer.
func TestLongPrompt(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		o := enginefake.Options{Accept: 1, BlockSize: 8}
		r := newRig(t, rigOptions{target: o, draft: drafttest.New(t, o, 0), open: engine.OpenOptions{MaxBatchRows: 64}})
		for _, n := range []int{1000, 3900} {
			a := r.must(&tandemv1.DecodeRequest{
				PromptTokens: prompt(n, 5), MaxTokens: 80, TopLogprobs: -1,
				Speculation: &tandemv1.Speculation{Mode: tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN},
			})
			if tm := a.finished.Timings; tm.AcceptedTokens < 30 {
				t.Errorf("%d tokens: %v", n, tm)
			}
		}
	})
}
