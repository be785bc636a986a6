package accesslog_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc/metadata"
)

// TestAccessLines: every request, served, refused or left, over HTTP and gRPC, leaves exactly one line that says who
// asked what of which model and how it went, and holds neither text nor key.
func TestAccessLines(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	keys := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(keys, []byte("alice:very-secret-key\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := rig.StartWith(t, func(c *app.Config) { c.APIKeyFile = keys }, app.Deps{Version: "test", Logger: zap.New(core)})
	b := gatewaytest.NewBlock()
	w := r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("a private answer", 1)})
	const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	private := `{"messages":[{"role":"user","content":"a private question"}]}`
	rpc := func(key string) {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x-api-key", key, "x-request-id", "id-1")
		_, _ = rig.RunRPC(ctx, r.RPC(), &tandemv1.GenerateRequest{Input: rig.ChatInput("a private question", false)})
	}
	header := []string{"x-api-key", "very-secret-key", "X-Request-Id", "id-1", "Traceparent", traceparent}
	type fields = map[string]any
	served := fields{"key": "alice", "model": "tiny", "client": "127.0.0.1", "request_id": "id-1", "outcome": "ok",
		"tokens": int64(len(r.Encode("a private answer")))}
	for _, c := range []struct {
		name string
		ask  func()
		want fields
	}{
		{"chat", func() { r.Post("/v1/chat/completions", private, header...) },
			fields{"dialect": "chat", "method": "POST", "endpoint": "/chat/completions", "status": int64(200)}},
		{"messages", func() { r.Post("/v1/messages", private[:len(private)-1]+`,"max_tokens":20,"stream":true}`, header...) },
			fields{"dialect": "anthropic", "status": int64(200)}},
		{"gRPC", func() { rpc("very-secret-key") },
			fields{"dialect": "grpc", "method": "RPC", "endpoint": "tandem.v1.InferenceService/Generate", "code": "OK"}},
		{"refused", func() { r.Post("/v1/chat/completions", `{"messages":[]}`, header...) },
			fields{"status": int64(400), "outcome": "client_error", "reason": "missing_required_parameter", "tokens": nil}},
		{"without a key", func() { r.Post("/v1/chat/completions", private) },
			fields{"status": int64(401), "outcome": "client_error", "key": nil, "model": nil, "tokens": nil, "request_id": ""}},
		{"gRPC without a key", func() { rpc("wrong") },
			fields{"code": "Unauthenticated", "outcome": "client_error", "key": nil, "model": nil, "tokens": nil}},
		{"unknown path", func() { r.Do("GET", "/v1/secret-path", "", header...) },
			fields{"status": int64(404), "endpoint": "unknown", "outcome": "client_error", "model": nil, "tokens": nil}},
		{"left", func() {
			w.SetDecode(b.Script(r.Tok, "one two"))
			ctx, leave := context.WithCancel(t.Context())
			req, err := http.NewRequestWithContext(ctx, "POST", r.URL+"/v1/chat/completions", strings.NewReader(private))
			if err != nil {
				t.Fatal(err)
			}
			for i := 0; i < len(header); i += 2 {
				req.Header.Set(header[i], header[i+1])
			}
			go func() {
				<-b.Admitted
				leave()
			}()
			if resp, err := r.Client.Do(req); err == nil {
				resp.Body.Close()
			}
		}, fields{"status": int64(499), "outcome": "cancelled", "tokens": ""}},
	} {
		logs.TakeAll()
		c.ask()
		lines := func() []observer.LoggedEntry {
			return logs.Filter(func(e observer.LoggedEntry) bool { return strings.HasPrefix(e.Message, "request") }).All()
		}
		r.Eventually(c.name+" is logged", func() bool { return len(lines()) > 0 })
		all := lines()
		got := all[0].ContextMap()
		if len(all) != 1 || all[0].Level != zapcore.InfoLevel {
			t.Errorf("%s: %d lines, %v", c.name, len(all), all)
		}
		for k, v := range served {
			if _, ok := c.want[k]; !ok {
				c.want[k] = v
			}
		}
		for k, v := range c.want {
			if v != "" && got[k] != v {
				t.Errorf("%s: %s is %v, want %v", c.name, k, got[k], v)
			}
		}
		if c.want["tokens"] == served["tokens"] &&
			slices.ContainsFunc([]string{"prompt_tokens", "ttft_ms", "tokens_per_s", "duration_ms", "rounds", "drafted",
				"accepted", "queue_ms", "compress_ms", "restore_ms", "prefill_ms", "decode_ms", "retries", "worker"},
				func(name string) bool { return got[name] == nil }) {
			t.Errorf("%s: no times or counts in %v", c.name, got)
		}
		if _, overHTTP := got["status"]; overHTTP && c.name != "without a key" &&
			got["trace_id"] != "0af7651916cd43dd8448eb211c80319c" {
			t.Errorf("%s: trace %v", c.name, got["trace_id"])
		}
		for _, e := range logs.All() {
			for k, v := range e.ContextMap() {
				if s, ok := v.(string); ok && (strings.Contains(s, "private") || strings.Contains(s, "secret")) {
					t.Errorf("%s: %s is %q", c.name, k, s)
				}
			}
		}
	}
}
