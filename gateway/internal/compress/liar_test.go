package compress_test

import (
	"context"
	"math"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
)

// TestLyingScorer: what a scorer answers is held against what it was asked; another one is asked instead, and without
// one the prompt stays whole.
func TestLyingScorer(t *testing.T) {
	for name, change := range map[string]func(req *tandemv1.CompressRequest, a *tandemv1.CompressResponse){
		"no segments": func(_ *tandemv1.CompressRequest, a *tandemv1.CompressResponse) { a.Segments = nil },
		"too many": func(_ *tandemv1.CompressRequest, a *tandemv1.CompressResponse) {
			a.Segments = append(a.Segments, a.Segments...)
		},
		"before its start": func(_ *tandemv1.CompressRequest,
			a *tandemv1.CompressResponse) {
			a.Segments[0].Kept[0].First = -5
		},
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
			r := rig.Start(t, func(c *app.Config) { c.PrefillCompression, c.PrefillThreshold = "auto", 1000 })
			r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("ok", 1)})
			honest, _ := rig.Scorer(t, "raven")
			join := func(id string, script gatewaytest.Compress) *gatewaytest.Worker {
				return gatewaytest.Join(t, r.App.RegistryAddr().String(),
					gatewaytest.WorkerOptions{ID: id, Role: tandemv1.Role_ROLE_PREFILL, Slots: 1, MaxContext: 65536, Compress: script})
			}
			join("a-liar", func(ctx context.Context, req *tandemv1.CompressRequest) (*tandemv1.CompressResponse, error) {
				a, err := honest(ctx, req)
				if err == nil {
					change(req, a)
				}
				return a, err
			})
			r.Eventually("scorer is ready",
				func() bool { return r.Parts.Cluster.Scorers.Ready() && r.Parts.ScorerTokenizer() != nil })
			body := `{"messages":` + rig.ChatOf("user", rig.Haystack(200, 50)+"\nWhat is the code of raven?") + "}"
			got := r.Post("/v1/chat/completions", body)
			if reason := rig.At(got.JSON(t), "usage", "pflash", "reason"); got.Status != 200 || reason != "scorer_failed" {
				t.Fatalf("alone: %d, reason %v: %.300s", got.Status, reason, got.Body)
			}
			if page := string(r.Do("GET", "/metrics", "").Body); !strings.Contains(page,
				`tandem_worker_violations_total{field="segments",`) {
				t.Error("not counted")
			}
			b := join("b", honest)
			r.Eventually("the honest one is asked", func() bool {
				got = r.Post("/v1/chat/completions", body)
				if got.Status != 200 {
					t.Fatalf("%d %.300s", got.Status, got.Body)
				}
				return len(b.Scored()) > 0
			})
			if rig.At(got.JSON(t), "usage", "pflash", "applied") != true {
				t.Errorf("beside an honest one: %.300s", got.Body)
			}
		})
	}
}
