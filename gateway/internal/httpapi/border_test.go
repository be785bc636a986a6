package httpapi_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
)

func TestCORS(t *testing.T) {
	const headers = "Access-Control-Allow-Origin Access-Control-Allow-Methods Access-Control-Allow-Headers Access-Control-Expose-Headers"
	for _, c := range []struct {
		name   string
		change func(*app.Config)
		origin string
		want   string // of Access-Control-Allow-Origin, empty = none of the headers
		vary   string
	}{
		{"default, a stranger", nil, "https://any.example", "", "Origin"},
		{"default, a page of this machine", nil, "http://localhost:3000", "http://localhost:3000", "Origin"},
		{"default, an address of this machine", nil, "https://127.0.0.1:3000", "https://127.0.0.1:3000", "Origin"},
		{"default, an app", nil, "tauri://localhost", "tauri://localhost", "Origin"},
		{"default, a name that looks local", nil, "http://localhost.example", "", "Origin"},
		{"default, a sandbox", nil, "null", "", "Origin"},
		{"default, no origin", nil, "", "", "Origin"},
		{"all", func(c *app.Config) { c.CORSOrigin = []string{"*"} }, "https://any.example", "*", ""},
		{"local and one more", func(c *app.Config) { c.CORSOrigin = []string{"local", "https://a.example"} },
			"https://a.example",
			"https://a.example", "Origin"},
		{"list, member", func(c *app.Config) { c.CORSOrigin = []string{"https://a.example", "https://b.example"} },
			"https://b.example", "https://b.example", "Origin"},
		{"list, stranger", func(c *app.Config) { c.CORSOrigin = []string{"https://a.example"} },
			"https://b.example", "", "Origin"},
		{"off", func(c *app.Config) { c.NoCORS = true }, "https://any.example", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := rig.Start(t, func(cfg *app.Config) {
				cfg.APIKey = append(cfg.APIKey, "secret")
				if c.change != nil {
					c.change(cfg)
				}
			})
			for _, call := range []struct {
				method, path string
				status       int
			}{
				{"GET", "/health/live", 200}, {"GET", "/v1/models", 401}, {"GET", "/nowhere", 404}, {"POST", "/v1/messages", 401},
				{"OPTIONS", "/v1/chat/completions", 204}, {"OPTIONS", "/nowhere", 204},
			} {
				a := r.Do(call.method, call.path, "", "Origin", c.origin, "Access-Control-Request-Method", "POST")
				if a.Status != call.status {
					t.Errorf("%s %s: %d, want %d", call.method, call.path, a.Status, call.status)
				}
				if got := a.Header.Get("Access-Control-Allow-Origin"); got != c.want || a.Header.Get("Vary") != c.vary {
					t.Errorf("%s %s: allows %q, varies by %q", call.method, call.path, got, a.Header.Get("Vary"))
				}
				for _, name := range strings.Fields(headers) {
					if (a.Header.Get(name) != "") != (c.want != "") {
						t.Errorf("%s %s: %s is %q", call.method, call.path, name, a.Header.Get(name))
					}
				}
				if call.method != "OPTIONS" {
					continue
				}
				if len(a.Body) > 0 || (a.Header.Get("Access-Control-Max-Age") == "86400") != (c.want != "") {
					t.Errorf("%s: %q, %v", call.path, a.Body, a.Header)
				}
			}
		})
	}
}

// TestForeignPages: without a key, what a user's browser sends for a web page of somebody else is refused, whether it
// needs CORS or not; with a key, it is the key that counts.
func TestForeignPages(t *testing.T) {
	for _, c := range []struct {
		name         string
		change       func(*app.Config)
		host, origin string
		status       int
	}{
		{"no page", nil, "", "", 200},
		{"page of this machine", nil, "", "http://localhost:3000", 200},
		{"page of its own", nil, "localhost:8000", "http://localhost:8000", 200},
		{"page of a stranger", nil, "", "https://evil.example", 403},
		{"sandboxed page", nil, "", "null", 403},
		{"a stranger's name for this machine", nil, "evil.example:8000", "", 403},
		{"a stranger's page under that name", nil, "evil.example:8000", "http://evil.example:8000", 403},
		{"name of the local network", nil, "rig.local:8000", "", 200},
		{"container's name", nil, "gateway:8000", "", 200},
		{"address", nil, "[::1]:8000", "", 200},
		{"allowed name", func(c *app.Config) { c.AllowedHost = []string{"llm.example"} }, "LLM.example:8000",
			"http://llm.example:8000", 200},
		{"allowed origin", func(c *app.Config) { c.CORSOrigin = []string{"https://ui.example"} }, "", "https://ui.example",
			200},
		{"all origins", func(c *app.Config) { c.CORSOrigin = []string{"*"} }, "", "https://evil.example", 200},
		{"without CORS", func(c *app.Config) { c.NoCORS = true }, "", "https://evil.example", 403},
		{"with a key", func(c *app.Config) { c.APIKey = append(c.APIKey, "secret") }, "llm.example", "https://evil.example",
			200},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := rig.Start(t, c.change)
			r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("ok", 1)})
			for _, path := range []string{"/v1/chat/completions", "/props", "/health"} {
				method, body := "GET", ""
				if path == "/v1/chat/completions" {
					method, body = "POST", rig.ChatBody("")
				}
				req, err := http.NewRequestWithContext(t.Context(), method, r.URL+path, strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Content-Type", "text/plain") // what a page may send without asking first
				req.Header.Set("x-api-key", "secret")
				if c.origin != "" {
					req.Header.Set("Origin", c.origin)
				}
				req.Host = c.host
				resp, err := r.Client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				text, _ := io.ReadAll(resp.Body)
				resp.Body.Close()
				want := c.status
				if path == "/health" {
					want = 200
				}
				if resp.StatusCode != want || (want == 403) != strings.Contains(string(text), `"forbidden_origin"`) {
					t.Errorf("%s: %d %s, want %d", path, resp.StatusCode, text, want)
				}
			}
		})
	}
}
