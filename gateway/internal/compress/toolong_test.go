package compress_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/tokenizer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestTooLongIsTheClientsFault: a prompt that does not fit is a 400 that agents shorten, unless a scorer failed that
// was to shorten it. Then it is worth another try.
func TestTooLongIsTheClientsFault(t *testing.T) {
	broken := func(code codes.Code) gatewaytest.Compress {
		return func(context.Context, *tandemv1.CompressRequest) (*tandemv1.CompressResponse, error) {
			return nil, status.Error(code, "fault")
		}
	}
	whole := func(_ context.Context, req *tandemv1.CompressRequest) (*tandemv1.CompressResponse, error) {
		out := &tandemv1.CompressResponse{}
		for _, s := range req.GetSegments() {
			out.Segments = append(out.Segments, &tandemv1.KeptSegment{Kept: []*tandemv1.Span{s.GetSpan()}})
		}
		return out, nil
	}
	words, _ := rig.Scorer(t, "raven")
	const tools = `,"tools":[{"type":"function","function":{"name":"f"}}]`
	for _, tt := range []struct {
		name      string
		threshold int
		more      string
		scorer    gatewaytest.Compress
		context   int32 // of the scorer
		status    int
	}{
		{"below the threshold", 32000, ``, words, 65536, 400},
		{"keep ratio", 1000, `,"pflash":{"keep_ratio":0.99}`, words, 65536, 400},
		{"too long for the scorer", 1000, ``, words, 1024, 400},
		{"no gain", 1000, ``, whole, 65536, 400},
		{"tools", 1000, tools, words, 65536, 400},
		{"off", 1000, `,"pflash":{"mode":"off"}`, words, 65536, 400},
		{"the scorer refuses it", 1000, ``, broken(codes.InvalidArgument), 65536, 400},
		{"the scorer fails", 1000, ``, broken(codes.Internal), 65536, 503},
		{"the scorer works", 1000, ``, words, 65536, 200},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := rig.Start(t, func(c *app.Config) { c.PrefillCompression, c.PrefillThreshold = "auto", tt.threshold })
			r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("ok", 1), MaxContext: 2048})
			gatewaytest.Join(t, r.App.RegistryAddr().String(),
				gatewaytest.WorkerOptions{ID: "s1", Role: tandemv1.Role_ROLE_PREFILL, Slots: 1,
					MaxContext: tt.context, Compress: tt.scorer})
			r.Eventually("scorer is ready",
				func() bool { return r.Parts.Cluster.Scorers.Ready() && r.Parts.ScorerTokenizer() != nil })
			messages := `{"max_tokens":100,"messages":` + rig.ChatOf("user",
				rig.Haystack(200, 50)+"\nWhat is the code of raven?") + tt.more
			for path, body := range map[string]string{
				"/v1/chat/completions": messages + "}",
				"/v1/messages": strings.ReplaceAll(messages, `{"type":"function","function":{"name":"f"}}`,
					`{"name":"f","input_schema":{}}`) + "}",
			} {
				want := tt.status
				if want == 503 && path == "/v1/messages" {
					want = 529
				}
				a := r.Post(path, body)
				if a.Status != want {
					t.Fatalf("%s: %d %s, want %d", path, a.Status, a.Body, want)
				}
				message := fmt.Sprint(rig.At(a.JSON(t), "error", "message"))
				words := "maximum context length is 2048 tokens"
				if path == "/v1/messages" {
					words = "2048 maximum"
				}
				if retry := a.Header.Get("Retry-After"); (retry != "") != (want > 400) ||
					(want == 400) != strings.Contains(message, words) {
					t.Errorf("%s: Retry-After %q, message %q", path, retry, message)
				}
			}
		})
	}
}

// TestAutoLeavesExactOutputAlone: what the model must copy exactly, definitions of tools and formats, is not put at
// risk by itself.
func TestAutoLeavesExactOutputAlone(t *testing.T) {
	r := rig.Start(t, func(c *app.Config) { c.PrefillCompression, c.PrefillThreshold = "auto", 1000 })
	r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("ok", 1)})
	script, _ := rig.Scorer(t, "raven")
	s := r.Scorer(script)
	body := `{"messages":` + rig.ChatOf("user", rig.Haystack(150, 60), "assistant", "I read it.", "user",
		"What is the code of raven?")
	for more, reason := range map[string]any{
		``: nil,
		`,"tools":[{"type":"function","function":{"name":"f"}}]`:                                  "tools",
		`,"response_format":{"type":"json_object"}`:                                               "response_format",
		`,"tools":[{"type":"function","function":{"name":"f"}}],"pflash":{"mode":"always"}`:       nil,
		`,"response_format":{"type":"json_object"},"pflash":{"mode":"always"}`:                    nil,
		`,"tools":[{"type":"function","function":{"name":"f"}}],"pflash":{"mode":"auto"}`:         "tools",
		`,"response_format":{"type":"text"}`:                                                      nil,
		`,"grammar":"root ::= [a-z ]+"`:                                                           "response_format",
		`,"tools":[{"type":"function","function":{"name":"f"}}],"pflash":{"threshold":999999999}`: "below_threshold",
	} {
		before := len(s.Scored())
		a := r.Post("/v1/chat/completions", body+more+"}")
		p := rig.At(a.JSON(t), "usage", "pflash")
		if rig.At(p, "applied") != (reason == nil) || rig.At(p, "reason") != reason ||
			(len(s.Scored()) > before) != (reason == nil) {
			t.Errorf("%s: pflash %v, want reason %v", more, p, reason)
		}
		if w := a.Header.Get("X-Tandem-Warning"); w != "" {
			t.Errorf("%s: warning %q for what was planned", more, w)
		}
	}
}

// TestLastTurnIsProtected: a last user turn below 1024 tokens stays word for word while others shrink; a longer one is
// a document with a question, which shrinks between its ends.
func TestLastTurnIsProtected(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("ok", 1)})
	script, tok := rig.Scorer(t, "raven")
	r.Scorer(script)
	ask := func(turn string) string {
		r.Post("/v1/chat/completions",
			`{"messages":`+rig.ChatOf("user", rig.Haystack(150, 60), "assistant", "I read it.", "user",
				turn)+`,"pflash":{"mode":"always"}}`)
		all := w.Requests()
		return r.Tok.Decode(all[len(all)-1].GetPromptTokens(), true)
	}
	short := strings.TrimSpace(rig.Haystack(30, 99))
	for n := 31; ; n++ {
		next := strings.TrimSpace(rig.Haystack(n, 99))
		if len(tok.Encode(next, tokenizer.Options{})) >= 1024 {
			if got := ask(next); strings.Contains(got, next) || !strings.Contains(got, next[len(next)-60:]) ||
				!strings.Contains(got, next[:20]) {
				t.Errorf("a turn of 1024 tokens is whole, or lost its ends:\n%s", got)
			}
			break
		}
		short = next
	}
	if got := ask(short); !strings.Contains(got, "<|im_start|>user\n"+short+"<|im_end|>") {
		t.Errorf("a turn below 1024 tokens was changed:\n%s", got)
	}
}

// TestStreamsWarnOfSkippedCompression: the header that whole answers have.
func TestStreamsWarnOfSkippedCompression(t *testing.T) {
	r := rig.Start(t, nil)
	r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("ok", 1)})
	r.Scorer(func(context.Context, *tandemv1.CompressRequest) (*tandemv1.CompressResponse, error) {
		return nil, status.Error(codes.Internal, "fault")
	})
	for path, conversation := range map[string]string{
		"/v1/chat/completions": `"messages":` + rig.ChatOf("user", rig.Haystack(100, 50)),
		"/v1/messages":         `"messages":` + rig.ChatOf("user", rig.Haystack(100, 50)),
		"/v1/responses":        `"input":` + rig.ChatOf("user", rig.Haystack(100, 50)),
	} {
		for _, stream := range []string{"false", "true"} {
			a := r.Post(path, `{`+conversation+`,"pflash":{"mode":"always"},"stream":`+stream+`}`)
			if a.Status != 200 || a.Header.Get("X-Tandem-Warning") != "pflash-skipped" {
				t.Errorf("%s, stream %s: %d, warning %q", path, stream, a.Status, a.Header.Get("X-Tandem-Warning"))
			}
		}
	}
}

// TestContextIsTheModels: a worker that claims more context than the model has neither shows in the lists nor lets
// requests wait for it.
func TestContextIsTheModels(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("ok", 1)})
	r.Target(gatewaytest.WorkerOptions{ID: "t2", MaxContext: 1<<31 - 1, Decode: r.Reply("ok", 1)})
	v := r.Do("GET", "/v1/models", "").JSON(t)
	if rig.At(v, "data", 0, "context_length") != 32768.0 || rig.At(v, "data", 0, "max_model_len") != 32768.0 {
		t.Errorf("models %v", v)
	}
	if n := rig.At(r.Do("GET", "/props", "").JSON(t), "default_generation_settings", "n_ctx"); n != 32768.0 {
		t.Errorf("n_ctx %v", n)
	}
	for range 4 {
		a := r.Post("/v1/chat/completions", rig.ChatBody(`"max_tokens":2147483647`))
		if a.Status != 200 || rig.At(a.JSON(t), "choices", 0, "finish_details", "max_tokens_clamped") == nil {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
	}
	for _, req := range w.Requests() {
		if n := int(req.GetMaxTokens()) + len(req.GetPromptTokens()); n != 32768 {
			t.Errorf("the worker is asked for %d tokens in all", n)
		}
	}
}
