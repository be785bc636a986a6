package compress_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestPflashSingleMessage(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("40963", 1)})
	script, tok := rig.Scorer(t, "raven", "40963")
	s := r.Scorer(script)
	doc := rig.Haystack(200, 120) + "\nTell me the access code of raven."
	v := r.Post("/v1/chat/completions",
		`{"messages":`+rig.ChatOf("system", "Be brief.", "user", doc)+
			`,"pflash":{"mode":"always","keep_ratio":0.1,"min_chunks":40}}`).JSON(t)
	p := rig.At(v, "usage", "pflash")
	if rig.At(p, "applied") != true || rig.At(p, "segments") != 1.0 || rig.At(p, "keep_ratio") != 0.1 ||
		rig.At(p, "score_ms") != 12.5 {
		t.Fatalf("pflash %v", p)
	}
	orig, kept := rig.At(p, "original_tokens").(float64), rig.At(p, "kept_tokens").(float64)
	if rig.At(v, "usage", "prompt_tokens") != orig ||
		rig.At(v, "usage", "prompt_tokens_details", "compressed_tokens") != orig-kept || kept*5 > orig {
		t.Errorf("usage %v", v["usage"])
	}
	req := w.Requests()[0]
	text := r.Tok.Decode(req.GetPromptTokens(), true)
	for _, want := range []string{"<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n",
		"The access code of raven is 40963.", "Tell me the access code of raven.<|im_end|>\n<|im_start|>assistant\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("compressed prompt lacks %q:\n%s", want, text)
		}
	}
	if float64(len(req.GetPromptTokens())) != kept {
		t.Errorf("target got %d tokens, usage says %v", len(req.GetPromptTokens()), kept)
	}
	// The scorer saw the whole prompt, the segment, the question as query, and the settings.
	sc := s.Scored()[0]
	seg, q := sc.GetSegments()[0], sc.GetQuery()
	if seg.GetKeepRatio() != 0.1 || seg.GetMinChunks() != 40 {
		t.Errorf("segment %v", seg)
	}
	if got := tok.Decode(sc.GetTokens()[seg.GetSpan().GetFirst():seg.GetSpan().GetLast()],
		true); got != strings.TrimSpace(doc) {
		t.Errorf("segment is not the document: %.80q", got)
	}
	if got := tok.Decode(sc.GetTokens()[q.GetFirst():q.GetLast()], true); !strings.HasSuffix(got, "code of raven.") {
		t.Errorf("query ends with %.80q", got)
	}
}

func TestPflashProtectsTurns(t *testing.T) {
	r := rig.Start(t, func(c *app.Config) { c.PrefillCompression, c.PrefillThreshold = "auto", 1000 })
	w := r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("ok", 1)})
	script, _ := rig.Scorer(t, "raven")
	s := r.Scorer(script)
	system := strings.Repeat("You are a careful reader of long documents. ", 60)
	body := `{"messages":` + rig.ChatOf("system", system, "user", rig.Haystack(150, 60), "assistant", "I read it.", "user",
		"What is the code of raven?") + `}`
	v := r.Post("/v1/chat/completions", body).JSON(t)
	if rig.At(v, "usage", "pflash", "applied") != true {
		t.Fatalf("usage %v", v["usage"])
	}
	text := r.Tok.Decode(w.Requests()[0].GetPromptTokens(), true)
	for _, want := range []string{system, "I read it.", "<|im_start|>user\nWhat is the code of raven?<|im_end|>",
		"40963"} {
		if !strings.Contains(text, want) {
			t.Errorf("prompt lacks %.60q", want)
		}
	}
	if n := len(s.Scored()[0].GetSegments()); n != 1 {
		t.Errorf("%d segments, want the document alone", n)
	}
	// Below the threshold nothing happens, and the report says so.
	v = r.Post("/v1/chat/completions", rig.ChatBody("")).JSON(t)
	if rig.At(v, "usage", "pflash", "applied") != false || rig.At(v, "usage", "pflash", "reason") != "below_threshold" {
		t.Errorf("short prompt: %v", rig.At(v, "usage", "pflash"))
	}
	// Off for this request: no report at all.
	v = r.Post("/v1/chat/completions", strings.TrimSuffix(body, "}")+`,"pflash":{"mode":"off"}}`).JSON(t)
	if rig.At(v, "usage", "pflash") != nil {
		t.Errorf("off: %v", rig.At(v, "usage", "pflash"))
	}
}

// TestPflashFallsBack: without an answer of the scorer the prompt is taken whole where it fits. Each case has a gateway
// of its own: one that found its scorer at fault leaves it in peace for a second.
func TestPflashFallsBack(t *testing.T) {
	bad := func(context.Context, *tandemv1.CompressRequest) (*tandemv1.CompressResponse, error) {
		return &tandemv1.CompressResponse{}, nil
	}
	slow := func(ctx context.Context, _ *tandemv1.CompressRequest) (*tandemv1.CompressResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	faulty := func(context.Context, *tandemv1.CompressRequest) (*tandemv1.CompressResponse, error) {
		return nil, status.Error(codes.Internal, "fault")
	}
	for _, c := range []struct {
		name     string
		timeoutS float64
		script   gatewaytest.Compress
		lost     bool // the scorer has gone
		lines    int  // 1000 do not fit without compression
		status   int
		path     []any
		want     string
	}{
		{"bad answer", 60, bad, false, 100, 200, []any{"usage", "pflash", "reason"}, "scorer_failed"},
		{"slow scorer", 0.2, slow, false, 100, 200, []any{"usage", "pflash", "reason"}, "timeout"},
		{"does not fit without compression", 60, faulty, false, 1000, 503, []any{"error", "code"}, "no_worker"},
		{"lost scorer", 60, bad, true, 100, 200, []any{"usage", "pflash", "reason"}, "no_scorer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := rig.Start(t, func(cfg *app.Config) { cfg.PflashTimeoutS = c.timeoutS })
			r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("ok", 1), MaxContext: 8192})
			s := r.Scorer(c.script)
			if c.lost {
				s.Kill()
				r.Eventually("scorer is gone", func() bool { return !r.Parts.Cluster.Scorers.Ready() })
			}
			messages := rig.ChatOf("user", rig.Haystack(c.lines, 50)+"\nWhat is it?")
			a := r.Post("/v1/chat/completions", `{"messages":`+messages+`,"pflash":{"mode":"always"}}`)
			if a.Status != c.status || rig.At(a.JSON(t), c.path...) != c.want {
				t.Errorf("%d %s, want %d and %q", a.Status, a.Body, c.status, c.want)
			}
			if warning := a.Header.Get("X-Tandem-Warning"); c.status == 200 && warning != "pflash-skipped" {
				t.Errorf("warning %q", warning)
			}
		})
	}
}

func TestPflashAdmitsWhatFitsCompressed(t *testing.T) {
	r := rig.Start(t, nil)
	r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("ok", 1), MaxContext: 4096})
	script, _ := rig.Scorer(t, "raven")
	r.Scorer(script)
	body, _ := json.Marshal(rig.Haystack(600, 300) + "\nWhat is the access code of raven?")
	v := r.Post("/v1/chat/completions",
		`{"messages":[{"role":"user","content":`+string(body)+`}],"pflash":{"mode":"always"},"max_tokens":100}`)
	if v.Status != 200 || rig.At(v.JSON(t), "usage", "pflash", "applied") != true {
		t.Errorf("%d %s", v.Status, v.Body)
	}
}

// TestKeptSpans: with pflash.spans the usage names the parts that the target has read; without it nothing of the sort.
func TestKeptSpans(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("40963", 1)})
	script, _ := rig.Scorer(t, "raven", "40963")
	r.Scorer(script)
	doc := "  " + rig.Haystack(200, 120) + "\nTell me the access code of raven.\n"
	ask := func(more string) any {
		return rig.At(r.Post("/v1/chat/completions", `{"messages":`+rig.ChatOf("system", "Be brief.", "user", doc)+
			`,"pflash":{"mode":"always","keep_ratio":0.1`+more+`}}`).JSON(t), "usage", "pflash")
	}
	if p := ask(""); rig.At(p, "applied") != true || rig.At(p, "kept_spans") != nil {
		t.Errorf("not asked for: %v", p)
	}
	p := ask(`,"spans":true`)
	if rig.At(p, "kept_spans", 0, "message") != 1.0 || rig.At(p, "kept_spans", 1) != nil {
		t.Fatalf("spans %v", rig.At(p, "kept_spans"))
	}
	prompt := r.Tok.Decode(w.Requests()[1].GetPromptTokens(), true)
	text, at := strings.TrimSpace(doc), 0
	spans, _ := rig.At(p, "kept_spans", 0, "spans").([]any)
	for _, s := range spans {
		from, to := int(rig.At(s, 0).(float64)), int(rig.At(s, 1).(float64))
		if from < at || to <= from || to > len(text) {
			t.Fatalf("span %d to %d after %d in %d bytes", from, to, at, len(text))
		}
		if part := strings.TrimSpace(text[from:to]); !strings.Contains(prompt, part) {
			t.Errorf("the prompt lacks %q", part)
		}
		at = to
	}
	if len(spans) < 2 {
		t.Errorf("%d spans", len(spans))
	}
}
