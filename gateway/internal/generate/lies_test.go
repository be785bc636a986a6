package generate_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/generate"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/testwait"
	"google.golang.org/protobuf/proto"
)

// lie is a target that changes the messages of an honest script.
type lie struct {
	name, field string
	change      func(m *tandemv1.DecodeResponse) []*tandemv1.DecodeResponse
}

func lies() []lie {
	committed := func(name, field string, change func(c *tandemv1.Committed)) lie {
		return lie{name, field, func(m *tandemv1.DecodeResponse) []*tandemv1.DecodeResponse {
			if c := m.GetCommitted(); c != nil {
				change(c)
			}
			return []*tandemv1.DecodeResponse{m}
		}}
	}
	finished := func(name, field string, change func(f *tandemv1.Finished)) lie {
		return lie{name, field, func(m *tandemv1.DecodeResponse) []*tandemv1.DecodeResponse {
			if f := m.GetFinished(); f != nil {
				change(f)
			}
			return []*tandemv1.DecodeResponse{m}
		}}
	}
	prefilled := func(name, field string, change func(p *tandemv1.Prefilled)) lie {
		return lie{name, field, func(m *tandemv1.DecodeResponse) []*tandemv1.DecodeResponse {
			if p := m.GetPrefilled(); p != nil {
				change(p)
			}
			return []*tandemv1.DecodeResponse{m}
		}}
	}
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	return []lie{
		committed("flood", "committed.tokens", func(c *tandemv1.Committed) { c.Tokens = make([]int32, 100) }),
		committed("one message of 3 million tokens", "message",
			func(c *tandemv1.Committed) { c.Tokens = make([]int32, 3_000_000) }),
		committed("no tokens", "committed.tokens", func(c *tandemv1.Committed) { c.Tokens, c.Logprobs = nil, nil }),
		committed("beyond the vocabulary", "committed.tokens", func(c *tandemv1.Committed) { c.Tokens[0] = 8192 }),
		committed("negative token", "committed.tokens", func(c *tandemv1.Committed) { c.Tokens[0] = -1 }),
		committed("NaN", "committed.logprobs", func(c *tandemv1.Committed) { c.Logprobs[0].Logprob = nan }),
		committed("infinite", "committed.logprobs", func(c *tandemv1.Committed) { c.Logprobs[0].Logprob = inf }),
		committed("more likely than 1", "committed.logprobs", func(c *tandemv1.Committed) { c.Logprobs[0].Logprob = 3 }),
		committed("no log-probabilities", "committed.logprobs", func(c *tandemv1.Committed) { c.Logprobs = nil }),
		committed("too many log-probabilities", "committed.logprobs",
			func(c *tandemv1.Committed) { c.Logprobs = append(c.Logprobs, c.Logprobs[0]) }),
		committed("too many candidates", "committed.logprobs", func(c *tandemv1.Committed) {
			c.Logprobs[0].Top = append(c.Logprobs[0].Top, c.Logprobs[0].Top[0])
		}),
		committed("candidate NaN", "committed.logprobs", func(c *tandemv1.Committed) { c.Logprobs[0].Top[0].Logprob = nan }),
		committed("candidate beyond the vocabulary", "committed.logprobs",
			func(c *tandemv1.Committed) { c.Logprobs[0].Top[0].Token = 1 << 30 }),
		committed("close kind", "committed.close_kind", func(c *tandemv1.Committed) { c.CloseKind = 99 }),
		finished("reason", "finished.reason", func(f *tandemv1.Finished) { f.Reason = 99 }),
		finished("no reason", "finished.reason", func(f *tandemv1.Finished) { f.Reason = 0 }),
		finished("reason of a gateway", "finished.reason",
			func(f *tandemv1.Finished) { f.Reason = tandemv1.FinishReason_FINISH_REASON_TOOL_CALLS }),
		finished("stop token", "finished.stop_token", func(f *tandemv1.Finished) { f.StopToken = proto.Int32(17) }),
		finished("close kind at the end", "finished.close_kind", func(f *tandemv1.Finished) { f.CloseKind = -1 }),
		finished("time", "finished.timings", func(f *tandemv1.Finished) { f.Timings.DecodeMs = math.NaN() }),
		finished("time before its start", "finished.timings", func(f *tandemv1.Finished) { f.Timings.PrefillMs = -5 }),
		finished("negative count", "finished.timings", func(f *tandemv1.Finished) { f.Timings.DraftedTokens = -5 }),
		finished("accepted more than drafted", "finished.timings",
			func(f *tandemv1.Finished) { f.Timings.AcceptedTokens = 1 << 20 }),
		prefilled("prompt of another length", "prefilled.tokens", func(p *tandemv1.Prefilled) { p.Tokens = 1 << 30 }),
		prefilled("all of the prompt from the cache", "prefilled.cached_tokens",
			func(p *tandemv1.Prefilled) { p.CachedTokens = p.Tokens }),
		prefilled("less than nothing from the cache", "prefilled.cached_tokens",
			func(p *tandemv1.Prefilled) { p.CachedTokens = -1 }),
		prefilled("more saved than there is", "prefilled.saved_tokens",
			func(p *tandemv1.Prefilled) { p.SavedTokens = p.Tokens + 1 }),
		prefilled("less than nothing saved", "prefilled.saved_tokens",
			func(p *tandemv1.Prefilled) { p.SavedTokens = -1 }),
		prefilled("negative prompt", "prefilled.tokens", func(p *tandemv1.Prefilled) { p.Tokens = -1 }),
		prefilled("log-probabilities that nobody asked for", "prefilled.logprobs",
			func(p *tandemv1.Prefilled) { p.Logprobs = []*tandemv1.PositionLogprobs{{}} }),
		{"nothing", "admitted", func(*tandemv1.DecodeResponse) []*tandemv1.DecodeResponse {
			return []*tandemv1.DecodeResponse{{}}
		}},
		{"long name", "admitted.worker_id", func(m *tandemv1.DecodeResponse) []*tandemv1.DecodeResponse {
			if a := m.GetAdmitted(); a != nil {
				a.WorkerId = strings.Repeat("x", 257)
			}
			return []*tandemv1.DecodeResponse{m}
		}},
		{"long contract", "admitted.contract", func(m *tandemv1.DecodeResponse) []*tandemv1.DecodeResponse {
			if a := m.GetAdmitted(); a != nil {
				a.Contract = strings.Repeat("x", 257)
			}
			return []*tandemv1.DecodeResponse{m}
		}},
		{"twice", "admitted", func(m *tandemv1.DecodeResponse) []*tandemv1.DecodeResponse {
			return []*tandemv1.DecodeResponse{m, m}
		}},
		{"not admitted", "admitted", func(m *tandemv1.DecodeResponse) []*tandemv1.DecodeResponse {
			if m.GetAdmitted() != nil {
				return nil
			}
			return []*tandemv1.DecodeResponse{m}
		}},
		{"after the end", "event", func(m *tandemv1.DecodeResponse) []*tandemv1.DecodeResponse {
			if m.GetFinished() != nil {
				return []*tandemv1.DecodeResponse{m, m}
			}
			return []*tandemv1.DecodeResponse{m}
		}},
	}
}

// liar plays script and changes what it sends.
type liar struct {
	tandemv1.TargetService_DecodeServer
	change func(m *tandemv1.DecodeResponse) []*tandemv1.DecodeResponse
}

func (l liar) Send(m *tandemv1.DecodeResponse) error {
	for _, m := range l.change(proto.Clone(m).(*tandemv1.DecodeResponse)) {
		if err := l.TargetService_DecodeServer.Send(m); err != nil {
			return err
		}
	}
	return nil
}

// TestLyingTarget: whatever a target sends, it is not believed. Alone it ends the request with an error that names the
// field, beside an honest one the client gets the honest text, and it is counted.
func TestLyingTarget(t *testing.T) {
	const text = "The code of lilac is 55555."
	for _, l := range lies() {
		t.Run(l.name, func(t *testing.T) {
			r := start(t, generate.Config{})
			ask := func() outcome {
				req := r.request()
				req.MaxTokens, req.MaxTokensGiven, req.TopLogprobs = 40, true, 2
				return r.run(t.Context(), req)
			}
			honest := say(r, text, 3)
			lying := func(req *tandemv1.DecodeRequest, stream tandemv1.TargetService_DecodeServer) error {
				return honest(req, liar{stream, l.change})
			}
			r.Target(gatewaytest.WorkerOptions{ID: "a-liar", Decode: lying})
			got := ask()
			if e := rpcerr.From(got.err); e == nil || e.Reason() != reqerr.ReasonWorkerInvalid ||
				!strings.Contains(e.Message(), l.field) {
				t.Fatalf("alone: %.300v, want %s that names %s", got.err, reqerr.ReasonWorkerInvalid, l.field)
			}
			if !strings.Contains(r.Page(), fmt.Sprintf(`tandem_worker_violations_total{field=%q,`, l.field)) {
				t.Errorf("not counted: %s", l.field)
			}
			b := r.Target(gatewaytest.WorkerOptions{ID: "b", Decode: honest})
			testwait.Until(t, "both are used", func() bool {
				if got = ask(); got.err != nil || got.texts[0] != text {
					t.Fatalf("beside an honest one: %q, %.300v", got.texts, got.err)
				}
				return len(b.Requests()) > 0
			})
		})
	}
}
