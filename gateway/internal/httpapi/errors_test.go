package httpapi_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
)

func TestTransport(t *testing.T) {
	r := rig.Start(t, func(c *app.Config) { c.CORSOrigin = []string{"https://a.example"} })
	w := r.Target(gatewaytest.WorkerOptions{})
	w.SetDecode(r.Reply("ok", 1))
	for _, tt := range []struct {
		name, method, path, body string
		header                   []string
		status                   int
		code                     string
		want                     http.Header
	}{
		{"unknown path", "GET", "/api/tags", "", nil, 404, "not_found", nil},
		{"wrong method", "DELETE", "/v1/chat/completions", "", nil, 405, "method_not_allowed",
			http.Header{"Allow": {"OPTIONS, POST"}}},
		{"wrong method on get", "POST", "/health", "{}", nil, 405, "method_not_allowed",
			http.Header{"Allow": {"GET, HEAD, OPTIONS"}}},
		{"long URL", "GET", "/health?" + strings.Repeat("a", 17000), "", nil, 414, "uri_too_long", nil},
		{"preflight", "OPTIONS", "/v1/anything", "", []string{"Origin", "https://a.example"}, 204, "",
			http.Header{"Access-Control-Allow-Origin": {"https://a.example"},
				"Access-Control-Max-Age": {"86400"}, "Vary": {"Origin"}}},
		{"foreign origin", "GET", "/health", "", []string{"Origin", "https://b.example"}, 200, "",
			http.Header{"Access-Control-Allow-Origin": nil}},
		{"request id is returned", "GET", "/health", "", []string{"X-Request-Id", "abc-1"}, 200, "",
			http.Header{"X-Request-Id": {"abc-1"}}},
		{"head", "HEAD", "/health", "", nil, 200, "", nil},
		{"query is ignored", "POST", "/v1/chat/completions?beta=true", rig.ChatBody(""), nil, 200, "", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := r.Do(tt.method, tt.path, tt.body, tt.header...)
			if a.Status != tt.status {
				t.Fatalf("status %d: %s", a.Status, a.Body)
			}
			if tt.code != "" && rig.At(a.JSON(t), "error", "code") != tt.code {
				t.Errorf("body %s", a.Body)
			}
			for k, v := range tt.want {
				if got := a.Header.Values(k); fmt.Sprint(got) != fmt.Sprint(v) {
					t.Errorf("%s: %v, want %v", k, got, v)
				}
			}
			if a.Header.Get("X-Request-Id") == "" {
				t.Error("no request id")
			}
		})
	}
}

func TestAuth(t *testing.T) {
	r := rig.Start(t, func(c *app.Config) { c.APIKey = append(c.APIKey, "secret"); c.ProtectIntrospection = true })
	w := r.Target(gatewaytest.WorkerOptions{})
	w.SetDecode(r.Reply("ok", 1))
	for _, tt := range []struct {
		method, path string
		header       []string
		status       int
	}{
		{"GET", "/health", nil, 200},
		{"GET", "/v1/models", nil, 401},
		{"GET", "/v1/models", []string{"Authorization", "Bearer secret"}, 200},
		{"GET", "/v1/models", []string{"Authorization", "Bearer wrong"}, 401},
		{"GET", "/v1/models", []string{"x-api-key", "secret"}, 200},
		{"GET", "/cluster", nil, 401},
		{"GET", "/metrics", []string{"x-api-key", "secret"}, 200},
		{"OPTIONS", "/v1/models", nil, 204},
		{"POST", "/v1/chat/completions", nil, 401},
	} {
		if a := r.Do(tt.method, tt.path, "", tt.header...); a.Status != tt.status {
			t.Errorf("%s %s %v: %d, want %d", tt.method, tt.path, tt.header, a.Status, tt.status)
		}
	}
}

func TestBodyLimits(t *testing.T) {
	r := rig.Start(t, nil)
	r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("ok", 1)})
	req, _ := http.NewRequestWithContext(t.Context(), "POST", r.URL+"/v1/chat/completions",
		strings.NewReader(strings.Repeat(" ", 64<<20+1)))
	resp, err := r.Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 413 {
		t.Errorf("64 MiB + 1: status %d, want 413", resp.StatusCode)
	}
	// A reader of unknown length is sent in chunks.
	req, _ = http.NewRequestWithContext(t.Context(), "POST", r.URL+"/v1/chat/completions",
		struct{ *strings.Reader }{strings.NewReader(rig.ChatBody(""))})
	req.ContentLength = -1
	resp, err = r.Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("chunked body: status %d, want 200", resp.StatusCode)
	}
}
