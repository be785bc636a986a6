package cli

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTrust: a gateway over https is believed when its certificate is known, or when that is waived.
func TestTrust(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/health/ready" {
			_, _ = w.Write([]byte(`{"status":"ok"}`))
			return
		}
		for _, event := range chatEvents {
			_, _ = w.Write([]byte("data: " + event + "\n\n"))
		}
	}))
	server.Config.ErrorLog = nil
	defer server.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(ca, block, 0o600); err != nil {
		t.Fatal(err)
	}
	text := filepath.Join(t.TempDir(), "text.pem")
	if err := os.WriteFile(text, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, server string
		flags        []string
		code         int
		want         string
	}{
		{"unknown certificate", server.URL, nil, 1, "certificate"},
		{"known certificate", server.URL, []string{"--ca-file", ca}, 0, ""},
		{"waived", server.URL, []string{"--insecure"}, 0, ""},
		{"no such file", server.URL, []string{"--ca-file", ca + ".not"}, 1, "--ca-file"},
		{"no certificates", server.URL, []string{"--ca-file", text}, 1, "--ca-file"},
		{"not https", "http://127.0.0.1:1", []string{"--insecure"}, 1, "https://"},
	} {
		for _, command := range [][]string{{"run", "-q"}, {"health"}} {
			args := append(append(command, "--server", c.server), c.flags...)
			code, out, errOut := tandem(t, "hello", args...)
			if code != c.code || !strings.Contains(errOut, c.want) ||
				code == 0 && out != map[string]string{"run": "Hello you\n", "health": "ok\n"}[command[0]] {
				t.Errorf("%s, %s: %d %q %q", c.name, command[0], code, out, errOut)
			}
		}
	}
}

// TestNoGateway: commands look where tandem run does, and say what to do when nobody is there.
func TestNoGateway(t *testing.T) {
	t.Setenv("TANDEM_PORT", "1")
	for _, args := range [][]string{
		{"health"}, {"top", "--once"}, {"trace", "req-1"}, {"run", "--server", "127.0.0.1:1", "hi"},
	} {
		code, _, errOut := tandem(t, "", args...)
		if code != 1 || !strings.Contains(errOut, "no gateway at http://127.0.0.1:1: tandem serve starts one") {
			t.Errorf("%s: status %d, %s", args, code, errOut)
		}
	}
}
