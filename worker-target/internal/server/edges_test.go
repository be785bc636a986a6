package server

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/services/registry"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/worker-target/internal/drafttest"
	"google.golang.org/protobuf/proto"
)

const (
	length = tandemv1.FinishReason_FINISH_REASON_LENGTH
	stop   = tandemv1.FinishReason_FINISH_REASON_STOP
)

// TestMaxTokens: every mode emits exactly as many tokens as asked for, from 0 on.
func TestMaxTokens(t *testing.T) {
	o := enginefake.Options{Accept: 0.95, BlockSize: 16}
	r := newRig(t, rigOptions{target: o, draft: drafttest.New(t, o, 0)})
	want := r.must(&tandemv1.DecodeRequest{PromptTokens: prompt(30, 1), MaxTokens: 40, TopLogprobs: -1,
		Speculation: modes()[0].spec}).tokens
	for _, m := range modes() {
		for n := range 36 {
			a := r.must(&tandemv1.DecodeRequest{PromptTokens: prompt(30, 1), MaxTokens: int32(n), TopLogprobs: -1,
				Speculation: m.spec})
			if !slices.Equal(a.tokens, want[:n]) || a.finished.Reason != length || a.finished.StopToken != nil {
				t.Fatalf("%s, %d tokens: got %v, %v", m.name, n, a.tokens, a.finished)
			}
		}
	}
}

// TestStopTokens: an answer ends before the first stop token wherever in a block it falls, and names it.
func TestStopTokens(t *testing.T) {
	o := enginefake.Options{Accept: 0.95, BlockSize: 16}
	r := newRig(t, rigOptions{target: o, draft: drafttest.New(t, o, 0)})
	want := r.must(&tandemv1.DecodeRequest{PromptTokens: prompt(30, 1), MaxTokens: 60, TopLogprobs: -1,
		Speculation: modes()[0].spec}).tokens
	for at := range 40 {
		token := want[at]
		n := slices.Index(want, token)
		for _, m := range modes() {
			a := r.must(&tandemv1.DecodeRequest{
				PromptTokens: prompt(30, 1), MaxTokens: 60, StopTokens: []int32{token}, TopLogprobs: 0, Speculation: m.spec,
			})
			if !slices.Equal(a.tokens, want[:n]) || a.finished.Reason != stop || a.finished.GetStopToken() != token ||
				a.finished.StopToken == nil || len(a.logprobs) != n {
				t.Fatalf("%s, stop at %d: got %d tokens, %v", m.name, n, len(a.tokens), a.finished)
			}
		}
	}
}

// TestContextEnd: a request that runs into the end of the context ends there, in every mode.
func TestContextEnd(t *testing.T) {
	o := enginefake.Options{Accept: 0.9, BlockSize: 16}
	r := newRig(t, rigOptions{target: o, draft: drafttest.New(t, o, 0), open: engine.OpenOptions{MaxContext: 100}})
	for _, p := range []int{1, 60, 99, 100} {
		for _, m := range modes() {
			a := r.must(&tandemv1.DecodeRequest{PromptTokens: prompt(p, 1), MaxTokens: 500, TopLogprobs: -1,
				Speculation: m.spec})
			if len(a.tokens) != 101-p || a.finished.Reason != length {
				t.Errorf("%s after %d: %d tokens, %v", m.name, p, len(a.tokens), a.finished.Reason)
			}
		}
	}
}

// TestFailover: prompt and committed tokens give the same continuation as the uninterrupted request.
func TestFailover(t *testing.T) {
	o := enginefake.Options{Accept: 0.8, BlockSize: 16, PromptRows: 64}
	r := newRig(t, rigOptions{target: o, draft: drafttest.New(t, o, 0)})
	for name, sampling := range samplings() {
		full := r.must(&tandemv1.DecodeRequest{PromptTokens: prompt(70, 2), Sampling: sampling, MaxTokens: 200,
			TopLogprobs: -1, Speculation: modes()[0].spec}).tokens
		for _, n := range []int{1, 2, 63, 64, 65, 150, 199} {
			for _, m := range modes()[:8] {
				a := r.must(&tandemv1.DecodeRequest{
					PromptTokens: prompt(70, 2), CommittedTokens: full[:n], Sampling: sampling, MaxTokens: 200, TopLogprobs: -1,
					Speculation: m.spec,
				})
				if d := cmp.Diff(full[n:], a.tokens); d != "" {
					t.Fatalf("%s %s after %d: %s", name, m.name, n, d)
				}
			}
		}
		a := r.must(&tandemv1.DecodeRequest{PromptTokens: prompt(70, 2), CommittedTokens: full, Sampling: sampling,
			MaxTokens: 200, TopLogprobs: -1})
		if len(a.tokens) != 0 || a.finished.Reason != length {
			t.Errorf("after all tokens: %v, %v", a.tokens, a.finished)
		}
		a = r.must(&tandemv1.DecodeRequest{
			PromptTokens: prompt(70, 2), CommittedTokens: full[:9], Sampling: sampling, MaxTokens: 200, TopLogprobs: -1,
			StopTokens: full[8:9],
		})
		if len(a.tokens) != 0 || a.finished.Reason != stop {
			t.Errorf("after a stop token: %v, %v", a.tokens, a.finished)
		}
	}
}

// TestPromptLogprobs: log-probabilities of the prompt do not depend on how it is cut, and need no generated token.
func TestPromptLogprobs(t *testing.T) {
	var want []*tandemv1.PositionLogprobs
	for _, rows := range []int{512, 100, 7} {
		r := newRig(t, rigOptions{open: engine.OpenOptions{MaxBatchRows: rows}})
		a := r.must(&tandemv1.DecodeRequest{PromptTokens: prompt(230, 4), MaxTokens: 0, TopLogprobs: 3, PromptLogprobs: true})
		if len(a.tokens) != 0 || a.finished.Reason != length || a.prefill.Tokens != 230 || len(a.prefill.Logprobs) != 229 {
			t.Fatalf("%d tokens, %v, %d log-probabilities", len(a.tokens), a.finished, len(a.prefill.Logprobs))
		}
		for i, p := range a.prefill.Logprobs {
			if len(p.Top) != 3 || p.Logprob > p.Top[0].Logprob || want != nil && !proto.Equal(p, want[i]) {
				t.Fatalf("position %d: %v", i, p)
			}
		}
		want = a.prefill.Logprobs
	}
}

// TestCancel: a request cancelled at any point, prefill included, gives slot, sequence and stream back.
func TestCancel(t *testing.T) {
	o := enginefake.Options{Accept: 0.8, BlockSize: 8}
	draft := drafttest.New(t, o, 0)
	target := o
	target.StepDelay = 100 * time.Microsecond
	r := newRig(t, rigOptions{target: target, draft: draft, slots: 1, open: engine.OpenOptions{MaxBatchRows: 64}})
	for i := range 40 {
		ctx, cancel := context.WithCancel(context.Background())
		at := rand.IntN(100)
		if i%4 == 0 {
			time.AfterFunc(time.Duration(rand.IntN(3000))*time.Microsecond, cancel) // somewhere in the prefill
		}
		_, err := r.decode(ctx, &tandemv1.DecodeRequest{
			PromptTokens: prompt(1000, int32(i)), MaxTokens: 2000, TopLogprobs: -1, Speculation: modes()[i%len(modes())].spec,
		}, func(total int) {
			if total >= at {
				cancel()
			}
		})
		// A request that was cancelled before its handler ran may take the slot after the caller has gone.
		if !errors.Is(err, context.Canceled) && !errors.Is(err, rpcerr.NoSlot) {
			t.Fatalf("%d: %v", i, err)
		}
		cancel()
		r.idle()
	}
	r.until("streams ended", func() bool { streams, _, _, _ := draft.State(); return streams == 0 })
}

// TestCancelEndsWithinOneStep measures the time from cancel to a free slot, in virtual time, against that of a step, 50
// ms.
func TestCancelEndsWithinOneStep(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{target: enginefake.Options{StepDelay: 50 * time.Millisecond}, slots: 1})
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var at time.Time
		_, err := r.decode(ctx, &tandemv1.DecodeRequest{PromptTokens: prompt(10, 1), MaxTokens: 500, TopLogprobs: -1},
			func(total int) {
				if total == 3 {
					at = time.Now()
					cancel()
				}
			})
		r.idle()
		if took := time.Since(at); !errors.Is(err, context.Canceled) || took > 60*time.Millisecond {
			t.Errorf("free after %v, %v", took, err)
		}
	})
}

// TestCrash: the death of the engine fails running requests with UNAVAILABLE; the worker serves again by itself, with
// features for its draft. In virtual time, in which a busy machine makes no proposal late.
func TestCrash(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		r, _ := newSlowRig(t, enginefake.Options{Accept: 1, BlockSize: 8}, time.Millisecond)
		first, _ := r.keeper.Engine()
		request := &tandemv1.DecodeRequest{
			PromptTokens: prompt(10, 1), MaxTokens: 400, TopLogprobs: -1,
			Speculation: &tandemv1.Speculation{Mode: tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN},
		}
		want := r.must(request)
		got, err := r.decode(context.Background(), request, func(total int) {
			if total > 100 {
				r.opener.Opened()[0].Crash()
			}
		})
		if !errors.Is(err, rpcerr.AnyUnavailable) {
			t.Fatalf("after the crash: %v", err)
		}
		r.until("engine back", func() bool { e, err := r.keeper.Engine(); return err == nil && e != first })
		request.CommittedTokens = got.tokens
		rest := r.must(request)
		if d := cmp.Diff(want.tokens, append(got.tokens, rest.tokens...)); d != "" {
			t.Error(d)
		}
		if tm := rest.finished.Timings; tm.AcceptedTokens == 0 || tm.SpeculationDegraded {
			t.Errorf("after the restart: %v", tm)
		}
	})
}

// TestDeviceFault: a poisoned engine is replaced.
func TestDeviceFault(t *testing.T) {
	r := newRig(t, rigOptions{target: enginefake.Options{FailAfterSteps: 20}})
	first, _ := r.keeper.Engine()
	_, err := r.decode(context.Background(), &tandemv1.DecodeRequest{PromptTokens: prompt(10, 1), MaxTokens: 100,
		TopLogprobs: -1}, nil)
	if !errors.Is(err, rpcerr.AnyInternal) {
		t.Fatalf("fault: %v", err)
	}
	r.until("engine back", func() bool { e, err := r.keeper.Engine(); return err == nil && e != first })
	if a := r.must(&tandemv1.DecodeRequest{PromptTokens: prompt(10, 1), MaxTokens: 5,
		TopLogprobs: -1}); len(a.tokens) != 5 {
		t.Errorf("%d tokens", len(a.tokens))
	}
}

// TestRefusals: what cannot be served is refused with the code that tells the caller what to do.
func TestRefusals(t *testing.T) {
	r := newRig(t, rigOptions{slots: 1, open: engine.OpenOptions{MaxContext: 200}})
	for name, test := range map[string]struct {
		request *tandemv1.DecodeRequest
		want    error
	}{
		"no prompt":   {&tandemv1.DecodeRequest{MaxTokens: 5}, rpcerr.AnyInvalidArgument},
		"long prompt": {&tandemv1.DecodeRequest{PromptTokens: prompt(201, 1), MaxTokens: 5}, rpcerr.ContextLength},
		"token":       {&tandemv1.DecodeRequest{PromptTokens: []int32{64}, MaxTokens: 5}, rpcerr.AnyInvalidArgument},
		"stop token": {&tandemv1.DecodeRequest{PromptTokens: []int32{1}, StopTokens: []int32{-1}, MaxTokens: 5},
			rpcerr.AnyInvalidArgument},
		"max tokens": {&tandemv1.DecodeRequest{PromptTokens: []int32{1}, MaxTokens: -1}, rpcerr.AnyInvalidArgument},
		"top":        {&tandemv1.DecodeRequest{PromptTokens: []int32{1}, TopLogprobs: 65}, rpcerr.AnyInvalidArgument},
		"temperature": {&tandemv1.DecodeRequest{PromptTokens: []int32{1},
			Sampling: &tandemv1.Sampling{Temperature: ptr(-1.0)}}, rpcerr.AnyInvalidArgument},
		"top p": {&tandemv1.DecodeRequest{PromptTokens: []int32{1}, Sampling: &tandemv1.Sampling{TopP: ptr(0.0)}},
			rpcerr.AnyInvalidArgument},
		"bias": {&tandemv1.DecodeRequest{PromptTokens: []int32{1},
			Sampling: &tandemv1.Sampling{LogitBias: map[int32]float64{64: 1}}}, rpcerr.AnyInvalidArgument},
		"budget": {&tandemv1.DecodeRequest{PromptTokens: []int32{1}, Speculation: &tandemv1.Speculation{Budget: 64}},
			rpcerr.AnyInvalidArgument},
		"block": {&tandemv1.DecodeRequest{PromptTokens: []int32{1}, Speculation: &tandemv1.Speculation{Block: 1}},
			rpcerr.AnyInvalidArgument},
	} {
		if _, err := r.decode(context.Background(), test.request, nil); !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRefusedWhileBusy: a request that finds no free slot, or a worker that drains, is refused, and what runs goes on.
// In virtual time, in which a busy machine does not let the first request end before the others are sent.
func TestRefusedWhileBusy(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		r := newRig(t, rigOptions{slots: 1, target: enginefake.Options{StepDelay: time.Millisecond},
			open: engine.OpenOptions{MaxContext: 200}})
		tried := false
		a, err := r.decode(context.Background(), &tandemv1.DecodeRequest{PromptTokens: prompt(9, 1), MaxTokens: 100,
			TopLogprobs: -1}, func(total int) {
			if tried {
				return
			}
			tried = true
			_, err := r.decode(context.Background(), &tandemv1.DecodeRequest{PromptTokens: prompt(9, 1), MaxTokens: 1,
				TopLogprobs: -1}, nil)
			if !errors.Is(err, rpcerr.NoSlot) || rpcerr.RetryAfter(err) == 0 {
				t.Errorf("second request on one slot: %v", err)
			}
			r.server.Drain()
			_, err = r.decode(context.Background(), &tandemv1.DecodeRequest{PromptTokens: prompt(9, 1), MaxTokens: 1,
				TopLogprobs: -1}, nil)
			if !errors.Is(err, rpcerr.Draining) {
				t.Errorf("request while draining: %v", err)
			}
		})
		if err != nil || len(a.tokens) != 100 {
			t.Errorf("request that ran before the drain: %d tokens, %v", len(a.tokens), err)
		}
	})
}

// TestWithoutDraft: modes that want a draft decode plainly without one; only those that insist are degraded.
func TestWithoutDraft(t *testing.T) {
	r := newRig(t, rigOptions{})
	for _, m := range modes() {
		a := r.must(&tandemv1.DecodeRequest{PromptTokens: prompt(10, 1), MaxTokens: 20, TopLogprobs: -1, Speculation: m.spec})
		mode := m.spec.GetMode()
		insists := mode == tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN ||
			mode == tandemv1.SpeculationMode_SPECULATION_MODE_TREE
		if tm := a.finished.Timings; len(a.tokens) != 20 || tm.SpeculationDegraded != insists || tm.VerifySteps != 19 ||
			tm.DraftedTokens != 0 {
			t.Errorf("%s: %d tokens, %v", m.name, len(a.tokens), tm)
		}
	}
}

// TestHeartbeat: slots, drafts and counters are reported.
func TestHeartbeat(t *testing.T) {
	o := enginefake.Options{Accept: 0.8, BlockSize: 8}
	r := newRig(t, rigOptions{target: o, draft: drafttest.New(t, o, 0)})
	a := r.must(&tandemv1.DecodeRequest{PromptTokens: prompt(10, 1), MaxTokens: 50, TopLogprobs: -1})
	r.idle()
	var h tandemv1.Heartbeat
	r.server.Heartbeat(&h)
	tm := a.finished.Timings
	if h.LanesBusy != 0 || len(h.Attached) != 1 || h.Counters["generated_tokens"] != 50 ||
		h.Counters["accepted_tokens"] != float64(tm.AcceptedTokens) ||
		h.Counters["prompt_tokens"] != 10 || h.Counters["requests"] != 1 {
		t.Errorf("%v", &h)
	}
	for name := range h.Counters {
		if registry.Counters[name]+registry.Gauges[name] == "" {
			t.Errorf("%s is not in registry.Counters or Gauges: the gateway will not show it", name)
		}
	}
	if tm.AcceptedTokens+tm.VerifySteps+1 < 50 {
		t.Errorf("steps and accepted tokens do not add up: %v", tm)
	}
}
