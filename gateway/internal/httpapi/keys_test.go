package httpapi_test

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
)

// TestSlowReader: a client that accepts nothing for the stall time is given up, and its work at the worker with it.
func TestSlowReader(t *testing.T) {
	r := rig.Start(t, func(c *app.Config) { c.StallTimeoutS = 0.2 })
	gone := make(chan struct{})
	script := gatewaytest.Script{Tokens: r.Encode(strings.Repeat("words that nobody reads ", 2000))[:5000]}
	script.Before = func(i int, s tandemv1.TargetService_DecodeServer) error {
		if i == len(script.Tokens)-1 { // never ends by itself
			<-s.Context().Done()
		}
		return s.Context().Err()
	}
	r.Target(gatewaytest.WorkerOptions{Decode: func(req *tandemv1.DecodeRequest,
		s tandemv1.TargetService_DecodeServer) error {
		defer close(gone)
		return script.Run(req, s)
	}})
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	// Candidates make the events large, more than all buffers on the way hold.
	body := rig.ChatBody(`"stream":true,"max_tokens":10000,"logprobs":true,"top_logprobs":20`)
	fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	rig.Receive(t, gone, "end at the worker")
}

// TestNamedKeys: every key of flags and file opens every route that needs one, and names show in the metrics,
// secrets nowhere.
func TestNamedKeys(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, []byte("# people\nalice: key-of-alice\n\nbob:key-of-bob\nunnamed-key\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	r := rig.Start(t, func(c *app.Config) {
		c.APIKeyFile = file
		c.APIKey = append(c.APIKey, "flag-key")
	})
	r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("ok", 1)})
	for _, key := range []string{"key-of-alice", "key-of-bob", "unnamed-key", "flag-key"} {
		for _, header := range [][]string{{"Authorization", "Bearer " + key}, {"authorization", "bearer " + key},
			{"x-api-key", key}, {"api-key", key},
			// Clients and proxies that send both: one that is valid suffices.
			{"Authorization", "Bearer wrong", "x-api-key", key}, {"Authorization", "Bearer " + key, "x-api-key", "wrong"}} {
			for _, wire := range rig.Wires {
				if a := r.Post(wire.Path, fmt.Sprintf(wire.Body, false), header...); a.Status != http.StatusOK {
					t.Errorf("%s with %v: %d %s", wire.Path, header, a.Status, a.Body)
				}
			}
		}
	}
	for _, header := range [][]string{nil, {"x-api-key", "alice"}, {"x-api-key", "key-of-alic"},
		{"Authorization", "Basic key-of-bob"}, {"Authorization", "key-of-bob"}} {
		for _, wire := range rig.Wires {
			if a := r.Post(wire.Path, fmt.Sprintf(wire.Body, true), header...); a.Status != http.StatusUnauthorized ||
				a.Header.Get("WWW-Authenticate") == "" {
				t.Errorf("%s with %v: %d %s", wire.Path, header, a.Status, a.Body)
			}
		}
	}
	text := string(r.Do("GET", "/metrics", "").Body)
	if !strings.Contains(text, `key="alice"`) || !strings.Contains(text, `key="bob"`) {
		t.Error("named keys are no labels of the requests")
	}
	for _, secret := range []string{"key-of-", "unnamed-key", "flag-key"} {
		if strings.Contains(text, secret) {
			t.Errorf("metrics tell %q", secret)
		}
	}
	// Without a valid key, /props shows the base names of files only, and nothing else shows their folder either.
	path := gatewaytest.ModelPath(t, gatewaytest.Target)
	for key, want := range map[string]string{"": filepath.Base(path), "wrong": filepath.Base(path), "flag-key": path} {
		if a := r.Do("GET", "/props", "", "x-api-key", key); a.Status != http.StatusOK ||
			rig.At(a.JSON(t), "model_path") != want ||
			strings.Contains(string(a.Body), filepath.Dir(path)) != (key == "flag-key") {
			t.Errorf("props with the key %q: %d %s, want the path %s", key, a.Status, a.Body, want)
		}
		if a := r.Do("GET", "/cluster", "", "x-api-key", key); strings.Contains(string(a.Body), filepath.Dir(path)) {
			t.Errorf("cluster: %s", a.Body)
		}
	}
}

// TestIDsNeverRepeat: neither within a gateway nor after a restart.
func TestIDsNeverRepeat(t *testing.T) {
	seen := map[string]bool{}
	for range 2 {
		r := rig.Start(t, nil)
		r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("ok", 1)})
		for range 3 {
			for _, wire := range rig.Wires {
				a := r.Post(wire.Path, fmt.Sprintf(wire.Body, false))
				id, _ := a.JSON(t)["id"].(string)
				for _, id := range []string{id, a.Header.Get("X-Request-Id")} {
					if len(id) < 20 || seen[id] {
						t.Errorf("%s: id %q is short or was given before", wire.Path, id)
					}
					seen[id] = true
				}
			}
		}
		if err := r.Stop(); err != nil {
			t.Error(err)
		}
	}
}
