package app

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/model"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/tokenizer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// haystack is a document of about 25 tokens a line with one line that answers the question.
func haystack(lines, needle int) string {
	var b strings.Builder
	for i := range lines {
		if i == needle {
			b.WriteString("The access code of raven is 40963.\n")
		}
		fmt.Fprintf(&b, "Line %d of the document says that nothing of note happened on day %d of the long trip.\n", i, i*7)
	}
	return b.String()
}

// scorer keeps the chunks of 32 tokens that hold one of the words, and the first and last of each segment.
func scorer(t *testing.T, words ...string) (gatewaytest.Compress, *tokenizer.Tokenizer) {
	tok, err := model.LoadTokenizer(gatewaytest.ModelPath(t, gatewaytest.Scorer))
	if err != nil {
		t.Fatal(err)
	}
	return func(_ context.Context, req *tandemv1.CompressRequest) (*tandemv1.CompressResponse, error) {
		out := &tandemv1.CompressResponse{ScoreMs: 12.5}
		for _, s := range req.GetSegments() {
			k := &tandemv1.KeptSegment{}
			for a := s.GetSpan().GetFirst(); a < s.GetSpan().GetLast(); a += 32 {
				b := min(a+32, s.GetSpan().GetLast())
				keep := a == s.GetSpan().GetFirst() || b == s.GetSpan().GetLast()
				for _, w := range words {
					keep = keep || strings.Contains(tok.Decode(req.GetTokens()[a:b], true), w)
				}
				if keep {
					k.Kept = append(k.Kept, &tandemv1.Span{First: a, Last: b})
				}
			}
			out.Segments = append(out.Segments, k)
		}
		return out, nil
	}, tok
}

func (r *rig) scorer(script gatewaytest.Compress) *gatewaytest.Worker {
	r.t.Helper()
	w := gatewaytest.Join(r.t, r.app.RegistryAddr().String(),
		gatewaytest.WorkerOptions{ID: "s1", Role: tandemv1.Role_ROLE_PREFILL, Lanes: 1, MaxContext: 65536, Compress: script})
	r.eventually("scorer is ready",
		func() bool { return r.app.cluster.Scorers.Ready() && r.app.models.scorerTokenizer() != nil })
	return w
}

func chatOf(msgs ...string) string {
	var list []map[string]string
	for i := 0; i+1 < len(msgs); i += 2 {
		list = append(list, map[string]string{"role": msgs[i], "content": msgs[i+1]})
	}
	return string(mustJSON(list))
}

func TestPflashSingleMessage(t *testing.T) {
	r := start(t, nil)
	w := r.target(gatewaytest.WorkerOptions{Decode: r.reply("40963", 1)})
	script, tok := scorer(t, "raven", "40963")
	s := r.scorer(script)
	doc := haystack(200, 120) + "\nTell me the access code of raven."
	v := r.post("/v1/chat/completions",
		`{"messages":`+chatOf("system", "Be brief.", "user", doc)+
			`,"pflash":{"mode":"always","keep_ratio":0.1,"min_chunks":40}}`).json(t)
	p := at(v, "usage", "pflash")
	if at(p, "applied") != true || at(p, "segments") != 1.0 || at(p, "keep_ratio") != 0.1 || at(p, "score_ms") != 12.5 {
		t.Fatalf("pflash %v", p)
	}
	orig, kept := at(p, "original_tokens").(float64), at(p, "kept_tokens").(float64)
	if at(v, "usage", "prompt_tokens") != orig ||
		at(v, "usage", "prompt_tokens_details", "compressed_tokens") != orig-kept || kept*5 > orig {
		t.Errorf("usage %v", v["usage"])
	}
	req := w.Requests()[0]
	text := r.tok.Decode(req.GetPromptTokens(), true)
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
	r := start(t, func(c *Config) { c.PrefillCompression, c.PrefillThreshold = "auto", 1000 })
	w := r.target(gatewaytest.WorkerOptions{Decode: r.reply("ok", 1)})
	script, _ := scorer(t, "raven")
	s := r.scorer(script)
	system := strings.Repeat("You are a careful reader of long documents. ", 60)
	body := `{"messages":` + chatOf("system", system, "user", haystack(150, 60), "assistant", "I read it.", "user",
		"What is the code of raven?") + `}`
	v := r.post("/v1/chat/completions", body).json(t)
	if at(v, "usage", "pflash", "applied") != true {
		t.Fatalf("usage %v", v["usage"])
	}
	text := r.tok.Decode(w.Requests()[0].GetPromptTokens(), true)
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
	v = r.post("/v1/chat/completions", chatBody("")).json(t)
	if at(v, "usage", "pflash", "applied") != false || at(v, "usage", "pflash", "reason") != "below_threshold" {
		t.Errorf("short prompt: %v", at(v, "usage", "pflash"))
	}
	// Off for this request: no report at all.
	v = r.post("/v1/chat/completions", strings.TrimSuffix(body, "}")+`,"pflash":{"mode":"off"}}`).json(t)
	if at(v, "usage", "pflash") != nil {
		t.Errorf("off: %v", at(v, "usage", "pflash"))
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
			r := start(t, func(cfg *Config) { cfg.PflashTimeoutS = c.timeoutS })
			r.target(gatewaytest.WorkerOptions{Decode: r.reply("ok", 1), MaxContext: 8192})
			s := r.scorer(c.script)
			if c.lost {
				s.Kill()
				r.eventually("scorer is gone", func() bool { return !r.app.cluster.Scorers.Ready() })
			}
			messages := chatOf("user", haystack(c.lines, 50)+"\nWhat is it?")
			a := r.post("/v1/chat/completions", `{"messages":`+messages+`,"pflash":{"mode":"always"}}`)
			if a.status != c.status || at(a.json(t), c.path...) != c.want {
				t.Errorf("%d %s, want %d and %q", a.status, a.body, c.status, c.want)
			}
			if warning := a.header.Get("X-Tandem-Warning"); c.status == 200 && warning != "pflash-skipped" {
				t.Errorf("warning %q", warning)
			}
		})
	}
}

func TestPflashAdmitsWhatFitsCompressed(t *testing.T) {
	r := start(t, nil)
	r.target(gatewaytest.WorkerOptions{Decode: r.reply("ok", 1), MaxContext: 4096})
	script, _ := scorer(t, "raven")
	r.scorer(script)
	body, _ := json.Marshal(haystack(600, 300) + "\nWhat is the access code of raven?")
	v := r.post("/v1/chat/completions",
		`{"messages":[{"role":"user","content":`+string(body)+`}],"pflash":{"mode":"always"},"max_tokens":100}`)
	if v.status != 200 || at(v.json(t), "usage", "pflash", "applied") != true {
		t.Errorf("%d %s", v.status, v.body)
	}
}
