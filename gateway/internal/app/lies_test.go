package app

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
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
		committed("one message of 3 million tokens", "message", func(c *tandemv1.Committed) { c.Tokens = make([]int32, 3_000_000) }),
		committed("no tokens", "committed.tokens", func(c *tandemv1.Committed) { c.Tokens, c.Logprobs = nil, nil }),
		committed("beyond the vocabulary", "committed.tokens", func(c *tandemv1.Committed) { c.Tokens[0] = 8192 }),
		committed("negative token", "committed.tokens", func(c *tandemv1.Committed) { c.Tokens[0] = -1 }),
		committed("NaN", "committed.logprobs", func(c *tandemv1.Committed) { c.Logprobs[0].Logprob = nan }),
		committed("infinite", "committed.logprobs", func(c *tandemv1.Committed) { c.Logprobs[0].Logprob = inf }),
		committed("more likely than 1", "committed.logprobs", func(c *tandemv1.Committed) { c.Logprobs[0].Logprob = 3 }),
		committed("no log-probabilities", "committed.logprobs", func(c *tandemv1.Committed) { c.Logprobs = nil }),
		committed("too many log-probabilities", "committed.logprobs", func(c *tandemv1.Committed) { c.Logprobs = append(c.Logprobs, c.Logprobs[0]) }),
		committed("too many candidates", "committed.logprobs", func(c *tandemv1.Committed) {
			c.Logprobs[0].Top = append(c.Logprobs[0].Top, c.Logprobs[0].Top[0])
		}),
		committed("candidate NaN", "committed.logprobs", func(c *tandemv1.Committed) { c.Logprobs[0].Top[0].Logprob = nan }),
		committed("candidate beyond the vocabulary", "committed.logprobs", func(c *tandemv1.Committed) { c.Logprobs[0].Top[0].Token = 1 << 30 }),
		committed("close kind", "committed.close_kind", func(c *tandemv1.Committed) { c.CloseKind = 99 }),
		finished("reason", "finished.reason", func(f *tandemv1.Finished) { f.Reason = 99 }),
		finished("no reason", "finished.reason", func(f *tandemv1.Finished) { f.Reason = 0 }),
		finished("reason of a gateway", "finished.reason", func(f *tandemv1.Finished) { f.Reason = tandemv1.FinishReason_FINISH_REASON_TOOL_CALLS }),
		finished("stop token", "finished.stop_token", func(f *tandemv1.Finished) { f.StopToken = proto.Int32(17) }),
		finished("close kind at the end", "finished.close_kind", func(f *tandemv1.Finished) { f.CloseKind = -1 }),
		finished("time", "finished.timings", func(f *tandemv1.Finished) { f.Timings.DecodeMs = math.NaN() }),
		finished("time before its start", "finished.timings", func(f *tandemv1.Finished) { f.Timings.PrefillMs = -5 }),
		finished("negative count", "finished.timings", func(f *tandemv1.Finished) { f.Timings.DraftedTokens = -5 }),
		finished("accepted more than drafted", "finished.timings", func(f *tandemv1.Finished) { f.Timings.AcceptedTokens = 1 << 20 }),
		prefilled("prompt of another length", "prefilled.tokens", func(p *tandemv1.Prefilled) { p.Tokens = 1 << 30 }),
		prefilled("negative prompt", "prefilled.tokens", func(p *tandemv1.Prefilled) { p.Tokens = -1 }),
		prefilled("log-probabilities that nobody asked for", "prefilled.logprobs", func(p *tandemv1.Prefilled) { p.Logprobs = []*tandemv1.PositionLogprobs{{}} }),
		{"nothing", "admitted", func(*tandemv1.DecodeResponse) []*tandemv1.DecodeResponse { return []*tandemv1.DecodeResponse{{}} }},
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
		{"twice", "admitted", func(m *tandemv1.DecodeResponse) []*tandemv1.DecodeResponse { return []*tandemv1.DecodeResponse{m, m} }},
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

// TestLyingTarget: whatever a target sends, it is not believed: alone it is a 502 that names the field, beside an honest one the
// client gets the honest text, and it is counted.
func TestLyingTarget(t *testing.T) {
	const text = "The code of lilac is 55555."
	body := chatBody(`"max_tokens":40,"logprobs":true,"top_logprobs":2`)
	for _, l := range lies() {
		t.Run(l.name, func(t *testing.T) {
			r := start(t, nil)
			honest := r.reply(text, 3)
			lying := func(req *tandemv1.DecodeRequest, stream tandemv1.TargetService_DecodeServer) error {
				return honest(req, liar{stream, l.change})
			}
			r.target(gatewaytest.WorkerOptions{ID: "a-liar", Decode: lying})
			got := r.post("/v1/chat/completions", body)
			if got.status != 502 || at(got.json(t), "error", "code") != "worker_invalid" || !strings.Contains(string(got.body), l.field) {
				t.Fatalf("alone: %d %.300s, want 502 that names %s", got.status, got.body, l.field)
			}
			if page := string(r.do("GET", "/metrics", "").body); !strings.Contains(page, fmt.Sprintf(`tandem_worker_violations_total{field=%q,`, l.field)) {
				t.Errorf("not counted: %s", l.field)
			}
			b := r.target(gatewaytest.WorkerOptions{ID: "b", Decode: honest})
			r.eventually("both are used", func() bool {
				got = r.post("/v1/chat/completions", body)
				if got.status != 200 {
					t.Fatalf("beside an honest one: %d %.300s", got.status, got.body)
				}
				if c := wholeChat(t, got); c[0].Content != text {
					t.Fatalf("beside an honest one: %q", c[0].Content)
				}
				return len(b.Requests()) > 0
			})
		})
	}
}

// TestLyingScorer: what a scorer answers is held against what it was asked; another one is asked instead, and without one the prompt
// stays whole.
func TestLyingScorer(t *testing.T) {
	for name, change := range map[string]func(req *tandemv1.CompressRequest, a *tandemv1.CompressResponse){
		"no segments": func(_ *tandemv1.CompressRequest, a *tandemv1.CompressResponse) { a.Segments = nil },
		"too many": func(_ *tandemv1.CompressRequest, a *tandemv1.CompressResponse) {
			a.Segments = append(a.Segments, a.Segments...)
		},
		"before its start": func(_ *tandemv1.CompressRequest, a *tandemv1.CompressResponse) { a.Segments[0].Kept[0].First = -5 },
		"outside": func(req *tandemv1.CompressRequest, a *tandemv1.CompressResponse) {
			a.Segments[0].Kept[0].Last = int32(len(req.Tokens)) + 5
		},
		"empty span": func(_ *tandemv1.CompressRequest, a *tandemv1.CompressResponse) {
			a.Segments[0].Kept[0].Last = a.Segments[0].Kept[0].First
		},
		"unsorted": func(_ *tandemv1.CompressRequest, a *tandemv1.CompressResponse) {
			a.Segments[0].Kept = append(a.Segments[0].Kept, a.Segments[0].Kept[0])
		},
		"time": func(_ *tandemv1.CompressRequest, a *tandemv1.CompressResponse) { a.ScoreMs = math.NaN() },
		"a million spans": func(_ *tandemv1.CompressRequest, a *tandemv1.CompressResponse) {
			a.Segments[0].Kept = make([]*tandemv1.Span, 1_000_000)
			for i := range a.Segments[0].Kept {
				a.Segments[0].Kept[i] = &tandemv1.Span{}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, func(c *Config) { c.PrefillCompression, c.PrefillThreshold = "auto", 1000 })
			r.target(gatewaytest.WorkerOptions{Decode: r.reply("ok", 1)})
			honest, _ := scorer(t, "raven")
			join := func(id string, script gatewaytest.Compress) *gatewaytest.Worker {
				return gatewaytest.Join(t, r.app.RegistryAddr().String(),
					gatewaytest.WorkerOptions{ID: id, Role: tandemv1.Role_ROLE_PREFILL, Lanes: 1, MaxContext: 65536, Compress: script})
			}
			join("a-liar", func(ctx context.Context, req *tandemv1.CompressRequest) (*tandemv1.CompressResponse, error) {
				a, err := honest(ctx, req)
				if err == nil {
					change(req, a)
				}
				return a, err
			})
			r.eventually("scorer is ready", func() bool { return r.app.cluster.Scorers.Ready() && r.app.models.scorerTokenizer() != nil })
			body := `{"messages":` + chatOf("user", haystack(200, 50)+"\nWhat is the code of raven?") + "}"
			got := r.post("/v1/chat/completions", body)
			if reason := at(got.json(t), "usage", "pflash", "reason"); got.status != 200 || reason != "scorer_failed" {
				t.Fatalf("alone: %d, reason %v: %.300s", got.status, reason, got.body)
			}
			if page := string(r.do("GET", "/metrics", "").body); !strings.Contains(page, `tandem_worker_violations_total{field="segments",`) {
				t.Error("not counted")
			}
			b := join("b", honest)
			r.eventually("the honest one is asked", func() bool {
				got = r.post("/v1/chat/completions", body)
				if got.status != 200 {
					t.Fatalf("%d %.300s", got.status, got.body)
				}
				return len(b.Scored()) > 0
			})
			if at(got.json(t), "usage", "pflash", "applied") != true {
				t.Errorf("beside an honest one: %.300s", got.body)
			}
		})
	}
}
