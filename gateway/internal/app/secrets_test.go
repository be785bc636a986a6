package app_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
)

// TestRPCOverTLS: with a certificate the gRPC port speaks TLS only, so that no key travels in the clear.
func TestRPCOverTLS(t *testing.T) {
	cert, key, pool := certificate(t)
	r := rig.Start(t, func(c *app.Config) { c.TLSCert, c.TLSKey, c.APIKey = cert, key, append(c.APIKey, "secret") })
	r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("behind a lock", 1)})
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-api-key", "secret")
	conn, err := grpc.NewClient(r.App.GRPCAddr().String(),
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool})))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	api := tandemv1.NewInferenceServiceClient(conn)
	if g, err := rig.RunRPC(ctx, api, &tandemv1.GenerateRequest{Input: rig.ChatInput("x", false)}); err != nil ||
		g.Text != "behind a lock" {
		t.Errorf("over TLS: %q, %v", g.Text, err)
	}
	if _, err := api.ListModels(t.Context(), &tandemv1.ListModelsRequest{}); rpcerr.Code(err) != codes.Unauthenticated {
		t.Errorf("over TLS without a key: %v", err)
	}
	if _, err := r.RPC().ListModels(ctx, &tandemv1.ListModelsRequest{}); rpcerr.Code(err) != codes.Unavailable {
		t.Errorf("in the clear: %v", err)
	}
}

// TestRPCHealth: the public port says over gRPC what /health says, to those who ask and to those who watch.
func TestRPCHealth(t *testing.T) {
	r := rig.Start(t, nil)
	api := healthv1.NewHealthClient(r.Conn(r.App.GRPCAddr().String()))
	check := func(service string, want healthv1.HealthCheckResponse_ServingStatus) {
		t.Helper()
		if h, err := api.Check(t.Context(), &healthv1.HealthCheckRequest{Service: service}); err != nil ||
			h.GetStatus() != want {
			t.Errorf("%q is %v, %v, want %v", service, h.GetStatus(), err, want)
		}
	}
	watch, err := api.Watch(t.Context(), &healthv1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	next := func(want healthv1.HealthCheckResponse_ServingStatus) {
		t.Helper()
		if h, err := watch.Recv(); err != nil || h.GetStatus() != want {
			t.Fatalf("watched %v, %v, want %v", h.GetStatus(), err, want)
		}
	}
	const service = "tandem.v1.InferenceService"
	for _, name := range []string{"", service} {
		check(name, healthv1.HealthCheckResponse_NOT_SERVING)
	}
	next(healthv1.HealthCheckResponse_NOT_SERVING)
	w := r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("ok", 1)})
	for _, name := range []string{"", service} {
		check(name, healthv1.HealthCheckResponse_SERVING)
	}
	next(healthv1.HealthCheckResponse_SERVING)
	w.Kill()
	next(healthv1.HealthCheckResponse_NOT_SERVING)
	check("", healthv1.HealthCheckResponse_NOT_SERVING)
	if _, err := api.Check(t.Context(),
		&healthv1.HealthCheckRequest{Service: "other"}); rpcerr.Code(err) != codes.NotFound {
		t.Errorf("an unknown service: %v", err)
	}
}

// replace puts a file in the place of another at once, as tools that renew certificates do.
func replace(t *testing.T, path string, text []byte) {
	t.Helper()
	next := path + ".new"
	if err := os.WriteFile(next, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestReload: keys and certificate follow their files, on the app's own account and when it is told to; what cannot be
// read changes nothing.
func TestReload(t *testing.T) {
	for name, told := range map[string]bool{"files are watched": false, "by signal": true} {
		t.Run(name, func(t *testing.T) {
			cert, key, oldPool := certificate(t)
			nextCert, nextKey, newPool := certificate(t)
			keys := filepath.Join(t.TempDir(), "keys")
			replace(t, keys, []byte("old-key\n"))
			r := rig.Start(t, func(c *app.Config) {
				c.TLSCert, c.TLSKey, c.APIKeyFile, c.FilePollS = cert, key, keys, 0.01
				if told {
					c.FilePollS = 1e6
				}
			})
			changed := func() {
				if told {
					_ = r.App.Reload()
				}
			}
			ask := func(pool *x509.CertPool, key string) int {
				client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
				defer client.CloseIdleConnections()
				req, err := http.NewRequestWithContext(t.Context(), "GET", "https://"+r.App.HTTPAddr().String()+"/v1/models", nil)
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("x-api-key", key)
				resp, err := client.Do(req)
				if err != nil {
					return 0
				}
				resp.Body.Close()
				return resp.StatusCode
			}
			rpc := func(pool *x509.CertPool, key string) codes.Code {
				conn, err := grpc.NewClient(r.App.GRPCAddr().String(),
					grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool})))
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(t.Context(), "x-api-key", key))
				defer cancel()
				_, err = tandemv1.NewInferenceServiceClient(conn).GetCluster(ctx, &tandemv1.GetClusterRequest{})
				return rpcerr.Code(err)
			}
			const refused = http.StatusUnauthorized
			if got := ask(oldPool, "old-key"); got == refused || got == 0 {
				t.Fatalf("before any change: %d", got)
			}
			replace(t, keys, []byte("new-key\n"))
			changed()
			r.Eventually("the new key is valid", func() bool { return ask(oldPool, "new-key") != refused })
			if got := ask(oldPool, "old-key"); got != refused {
				t.Errorf("the key that was taken out: %d", got)
			}
			// An emptied file must not open the gateway, a wrong line must not close it.
			for _, text := range []string{"", "bob:\n"} {
				replace(t, keys, []byte(text))
				if r.App.Reload() == nil || ask(oldPool, "new-key") == refused || ask(oldPool, "none") != refused {
					t.Errorf("after %q the keys are other ones", text)
				}
			}
			replace(t, keys, []byte("new-key\n"))
			// A certificate without its key is half a change.
			replace(t, cert, read(t, nextCert))
			if r.App.Reload() == nil || ask(oldPool, "new-key") == 0 {
				t.Error("half a change was taken")
			}
			replace(t, key, read(t, nextKey))
			changed()
			r.Eventually("the new certificate is shown", func() bool { return ask(newPool, "new-key") != 0 })
			if got := ask(oldPool, "new-key"); got != 0 {
				t.Errorf("the old certificate is shown too: %d", got)
			}
			if got := rpc(newPool, "new-key"); got != codes.OK {
				t.Errorf("gRPC with the new certificate and key: %v", got)
			}
			if got := rpc(newPool, "old-key"); got != codes.Unauthenticated {
				t.Errorf("gRPC with the old key: %v", got)
			}
		})
	}
}
