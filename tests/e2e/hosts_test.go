package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
)

// ownAddress is one at which other hosts reach this one: what comes through it counts as coming from elsewhere.
func ownAddress(t *testing.T) string {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			return n.IP.String()
		}
	}
	t.Skip("this host has no address but loopback")
	return ""
}

// freePorts returns ports at an address that nobody has now.
func freePorts(t *testing.T, ip string, n int) (at []string) {
	t.Helper()
	at, err := cluster.FreeAddresses(ip, n)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// recorder keeps the first megabytes of what is written to it.
type recorder struct {
	mu   sync.Mutex
	kept bytes.Buffer
}

// mostKept is enough for what tests look for; those that time a link send hundreds of megabytes after it.
const mostKept = 8 << 20

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept.Write(p[:min(len(p), mostKept-r.kept.Len())])
	return len(p), nil
}

func (r *recorder) contains(text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Contains(r.kept.Bytes(), []byte(text))
}

func (r *recorder) len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kept.Len()
}

// wiretap is what clients sent and servers answered on connections that were passed on.
type wiretap struct{ sent, answered recorder }

func (w *wiretap) contains(text string) bool {
	return w.sent.contains(text) || w.answered.contains(text)
}

// record passes connections on.
func record(t *testing.T, at, to string) *wiretap {
	t.Helper()
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	w := &wiretap{}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				_ = from.Close()
				continue
			}
			go func() { _, _ = io.Copy(from, io.TeeReader(server, &w.answered)); _ = from.Close() }()
			go func() { _, _ = io.Copy(server, io.TeeReader(from, &w.sent)); _ = server.Close() }()
		}
	}()
	return w
}

// certs runs tandem certs and returns what it prints.
func certs(t *testing.T, args ...string) string {
	t.Helper()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(filepath.Join(root, "bin", "tandem"), append([]string{"certs"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("tandem certs %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// TestSeveralHosts: a target at an address of the network joins with a token and serves with the same texts; nothing of
// a request can be read on the way, unless --plaintext says so. Who has no token, one that was used, or one for another
// role does not join.
func TestSeveralHosts(t *testing.T) {
	const marker = "a_word_that_is_nowhere_else"
	ip := ownAddress(t)
	ask := map[string]any{"messages": chat("Name a colour."), "max_tokens": 24, "response_format": map[string]any{
		"type": "json_schema", "json_schema": map[string]any{"name": "c", "schema": map[string]any{"type": "object",
			"properties": map[string]any{marker: map[string]any{"type": "integer"}}, "required": []string{marker}}}}}
	var texts []string
	for _, mode := range []string{"certificates", "plaintext"} {
		t.Run(mode, func(t *testing.T) {
			ports := freePorts(t, ip, 3)
			registry, serves, advertised := ports[0], ports[1], ports[2]
			file := filepath.Join(t.TempDir(), "token")
			authority := filepath.Join(t.TempDir(), "authority")
			args := []string{"--demo", "--registry-listen", registry, "--route", "load"}
			worker := []string{"--listen", serves, "--advertise", advertised}
			if mode == "plaintext" {
				args, worker = append(args, "--plaintext"), append(worker, "--plaintext")
			} else {
				args = append(args, "--authority", authority, "--join-token-output", file)
			}
			cl := start(t, args...)
			if mode == "certificates" {
				worker = append(worker, "--certs", filepath.Join(t.TempDir(), "own"), "--join-token",
					certs(t, "token", "target", "--authority", authority))
			}
			wire := record(t, advertised, serves)
			c := client.New(cl.HTTP)
			join(t, c, registry, "another", worker...) // the lowest name gets the request
			body, err := c.Post(t.Context(), "/v1/chat/completions", ask)
			if err != nil {
				t.Fatal(err)
			}
			var reply struct {
				Choices []struct{ Message struct{ Content string } }
			}
			if err := json.Unmarshal(body, &reply); err != nil || len(reply.Choices) != 1 {
				t.Fatalf("%s: %v", body, err)
			}
			texts = append(texts, reply.Choices[0].Message.Content)
			if wire.sent.len() < 1000 {
				t.Fatal("the request went another way")
			}
			if readable := wire.contains(marker); readable != (mode == "plaintext") {
				t.Errorf("the request can be read on the way: %v", readable)
			}
			if mode == "plaintext" {
				return
			}
			join(t, c, registry, "third", "--listen", net.JoinHostPort(ip, "0"), "--certs", t.TempDir(),
				"--join-token-file", file)
			used := worker[len(worker)-1]
			for name, args := range map[string][]string{
				"no certificate":      {"--plaintext"},
				"a used token":        {"--certs", t.TempDir(), "--join-token", used},
				"another role's":      {"--certs", t.TempDir(), "--join-token", certs(t, "token", "draft", "--authority", authority)},
				"the name of another": {"--certs", t.TempDir(), "--join-token", certs(t, "token", "--authority", authority)},
			} {
				id := map[bool]string{true: "another", false: "stranger"}[name == "the name of another"]
				stranger, err := cluster.Join(registry, id, append([]string{"--listen", net.JoinHostPort(ip, "0")}, args...)...)
				if err != nil {
					t.Fatal(err)
				}
				eventually(t, name+": it is told why", func() bool {
					log := stranger.Log()
					return strings.Contains(log, "not registered") || strings.Contains(log, "join token") ||
						strings.Contains(log, "has a certificate")
				})
				stranger.Close()
			}
			workers, err := c.Workers(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range workers {
				if w.ID == "stranger" {
					t.Error("a stranger joined")
				}
			}
			// The stranger without a certificate comes from the gateway's own address, from where a process may ask for its
			// health without one; elsewhere its connection would be refused.
			for _, line := range []string{"call refused", "certificate refused"} {
				if !strings.Contains(cl.Log(), line) {
					t.Errorf("the log does not say %q", line)
				}
			}
		})
	}
	if len(texts) == 2 && texts[0] != texts[1] {
		t.Errorf("texts differ: %q", texts)
	}
}
