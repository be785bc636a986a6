package apierror_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	"google.golang.org/grpc/codes"
	rpcstatus "google.golang.org/grpc/status"
)

// TestDialectStatuses has the rows that the state of the server causes.
func TestDialectStatuses(t *testing.T) {
	check := func(t *testing.T, a rig.Answer, status int, typ string) {
		t.Helper()
		if a.Status != status || rig.At(a.JSON(t), "error", "type") != typ {
			t.Errorf("%d %s, want %d %s", a.Status, a.Body, status, typ)
		}
		if status == 429 || status == 503 || status == 529 {
			if a.Header.Get("Retry-After") == "" {
				t.Error("no Retry-After")
			}
		}
	}
	const messages = `{"messages":[{"role":"user","content":"Hi"}]}`
	t.Run("no worker", func(t *testing.T) {
		r := rig.Start(t, func(c *app.Config) {
			c.Model = gatewaytest.ModelPath(t,
				gatewaytest.Target)
			c.FailoverTimeoutS = 0.05
		})
		check(t, r.Post("/v1/messages", messages), 529, "overloaded_error")
		check(t, r.Post("/v1/responses", `{"input":"Hi"}`), 503, "server_error")
		if a := r.Post("/v1/messages/count_tokens", messages); a.Status != 200 {
			t.Errorf("counting needs no worker: %d %s", a.Status, a.Body)
		}
	})
	t.Run("queue", func(t *testing.T) {
		r := rig.Start(t, func(c *app.Config) { c.MaxQueue = 1 })
		b := gatewaytest.NewBlock()
		r.Target(gatewaytest.WorkerOptions{Slots: 1, Decode: b.Script(r.Tok, "one two")})
		first := r.Send(t.Context(), rig.ChatBody(""))
		rig.Receive(t, b.Admitted, "first request runs")
		second := r.Send(t.Context(), rig.ChatBody(""))
		r.Eventually("second request waits", func() bool { return r.Parts.Cluster.Targets.Queued() == 1 })
		check(t, r.Post("/v1/messages", messages), 429, "rate_limit_error")
		check(t, r.Post("/v1/responses", `{"input":"Hi"}`), 429, "rate_limit_error")
		close(b.Release)
		rig.Receive(t, first, "first answer")
		rig.Receive(t, second, "second answer")
	})
	t.Run("deadline", func(t *testing.T) {
		r := rig.Start(t, func(c *app.Config) { c.RequestTimeoutS = 0.05 })
		b := gatewaytest.NewBlock()
		r.Target(gatewaytest.WorkerOptions{Slots: 1, Decode: b.Script(r.Tok, "one two")})
		check(t, r.Post("/v1/messages", messages), 504, "timeout_error")
		check(t, r.Post("/v1/responses", `{"input":"Hi"}`), 504, "server_error")
	})
	t.Run("worker failed", func(t *testing.T) {
		r := rig.Start(t, func(c *app.Config) { c.FailoverTimeoutS = 0.05 })
		r.Target(gatewaytest.WorkerOptions{Decode: gatewaytest.DieAt(r.Tok, "one two three", 0, 99,
			rpcstatus.Error(codes.Internal, "fault"))})
		check(t, r.Post("/v1/messages", messages), 500, "api_error")
		check(t, r.Post("/v1/responses", `{"input":"Hi"}`), 500, "server_error")
	})
	t.Run("draining", func(t *testing.T) {
		r := rig.Start(t, nil)
		b := gatewaytest.NewBlock()
		r.Target(gatewaytest.WorkerOptions{Slots: 1, Decode: b.Script(r.Tok, "one two")})
		first := r.Send(t.Context(), rig.ChatBody(""))
		rig.Receive(t, b.Admitted, "first request runs")
		stopped := make(chan error, 1)
		go func() { stopped <- r.Stop() }()
		r.Eventually("the gateway drains", r.Parts.Draining)
		check(t, r.Post("/v1/messages", messages), 529, "overloaded_error")
		check(t, r.Post("/v1/responses", `{"input":"Hi"}`), 503, "server_error")
		close(b.Release)
		rig.Receive(t, first, "first answer")
		if err := rig.Receive(t, stopped, "end of the gateway"); err != nil {
			t.Error(err)
		}
	})
	t.Run("body", func(t *testing.T) {
		r := rig.Start(t, nil)
		// The body is never sent: the answer comes to its announcement.
		client := &http.Client{Transport: &http.Transport{ExpectContinueTimeout: 10 * time.Second}}
		defer client.CloseIdleConnections()
		for path, typ := range map[string]string{"/v1/messages": "request_too_large",
			"/v1/responses": "invalid_request_error"} {
			req, err := http.NewRequestWithContext(t.Context(), "POST", r.URL+path, strings.NewReader("{"))
			if err != nil {
				t.Fatal(err)
			}
			req.ContentLength = 64<<20 + 1
			req.Header.Set("Expect", "100-continue")
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			check(t, rig.Answer{Status: resp.StatusCode, Header: resp.Header, Body: body}, 413, typ)
		}
	})
	t.Run("routes", func(t *testing.T) {
		r := rig.Start(t, func(c *app.Config) { c.APIKey = append(c.APIKey, "secret") })
		key := []string{"x-api-key", "secret"}
		check(t, r.Post("/v1/messages", messages), 401, "authentication_error")
		check(t, r.Post("/v1/responses", `{}`), 401, "authentication_error")
		check(t, r.Do("GET", "/v1/messages", "", key...), 405, "invalid_request_error")
		check(t, r.Do("PUT", "/responses/resp_1", "", key...), 405, "invalid_request_error")
		check(t, r.Do("GET", "/v1/responses/resp_1", "", key...), 404, "invalid_request_error")
		check(t, r.Do("DELETE", "/responses/resp_1", "", key...), 404, "invalid_request_error")
		check(t, r.Do("POST", "/v1/responses/resp_1/cancel", "", key...), 404, "invalid_request_error")
		check(t, r.Do("GET", "/v1/messages/batches", "", key...), 404, "not_found_error")
		check(t, r.Do("GET", "/v1/models/unknown", "", append(key, "anthropic-version", "2023-06-01")...), 404,
			"not_found_error")
		check(t, r.Do("POST", "/v1/messages?"+strings.Repeat("a", 17000), messages, key...), 414, "invalid_request_error")
		if a := r.Do("HEAD", "/api/hello", ""); a.Status != 404 {
			t.Errorf("unknown paths must be 404, got %d", a.Status)
		}
	})
}
