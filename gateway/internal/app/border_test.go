package app

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
)

func TestCORS(t *testing.T) {
	const headers = "Access-Control-Allow-Origin Access-Control-Allow-Methods Access-Control-Allow-Headers Access-Control-Expose-Headers"
	for _, c := range []struct {
		name   string
		change func(*Config)
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
		{"all", func(c *Config) { c.CORSOrigin = []string{"*"} }, "https://any.example", "*", ""},
		{"local and one more", func(c *Config) { c.CORSOrigin = []string{"local", "https://a.example"} }, "https://a.example",
			"https://a.example", "Origin"},
		{"list, member", func(c *Config) { c.CORSOrigin = []string{"https://a.example", "https://b.example"} },
			"https://b.example", "https://b.example", "Origin"},
		{"list, stranger", func(c *Config) { c.CORSOrigin = []string{"https://a.example"} },
			"https://b.example", "", "Origin"},
		{"off", func(c *Config) { c.NoCORS = true }, "https://any.example", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t, func(cfg *Config) {
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
				a := r.do(call.method, call.path, "", "Origin", c.origin, "Access-Control-Request-Method", "POST")
				if a.status != call.status {
					t.Errorf("%s %s: %d, want %d", call.method, call.path, a.status, call.status)
				}
				if got := a.header.Get("Access-Control-Allow-Origin"); got != c.want || a.header.Get("Vary") != c.vary {
					t.Errorf("%s %s: allows %q, varies by %q", call.method, call.path, got, a.header.Get("Vary"))
				}
				for _, name := range strings.Fields(headers) {
					if (a.header.Get(name) != "") != (c.want != "") {
						t.Errorf("%s %s: %s is %q", call.method, call.path, name, a.header.Get(name))
					}
				}
				if call.method != "OPTIONS" {
					continue
				}
				if len(a.body) > 0 || (a.header.Get("Access-Control-Max-Age") == "86400") != (c.want != "") {
					t.Errorf("%s: %q, %v", call.path, a.body, a.header)
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
		change       func(*Config)
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
		{"allowed name", func(c *Config) { c.AllowedHost = []string{"llm.example"} }, "LLM.example:8000",
			"http://llm.example:8000", 200},
		{"allowed origin", func(c *Config) { c.CORSOrigin = []string{"https://ui.example"} }, "", "https://ui.example", 200},
		{"all origins", func(c *Config) { c.CORSOrigin = []string{"*"} }, "", "https://evil.example", 200},
		{"without CORS", func(c *Config) { c.NoCORS = true }, "", "https://evil.example", 403},
		{"with a key", func(c *Config) { c.APIKey = append(c.APIKey, "secret") }, "llm.example", "https://evil.example", 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t, c.change)
			r.target(gatewaytest.WorkerOptions{Decode: r.reply("ok", 1)})
			for _, path := range []string{"/v1/chat/completions", "/props", "/health"} {
				method, body := "GET", ""
				if path == "/v1/chat/completions" {
					method, body = "POST", chatBody("")
				}
				req, err := http.NewRequestWithContext(t.Context(), method, r.url+path, strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Content-Type", "text/plain") // what a page may send without asking first
				req.Header.Set("x-api-key", "secret")
				if c.origin != "" {
					req.Header.Set("Origin", c.origin)
				}
				req.Host = c.host
				resp, err := r.client.Do(req)
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

// certificate writes a certificate of 127.0.0.1 that signs itself, and its key.
func certificate(t *testing.T) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotAfter: time.Now().Add(time.Hour)}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: raw},
		key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	parsed, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	pool = x509.NewCertPool()
	pool.AddCert(parsed)
	return cert, key, pool
}

// TestTLS: streams, errors and limits are the same behind TLS, over HTTP/1.1 and HTTP/2.
func TestTLS(t *testing.T) {
	cert, key, pool := certificate(t)
	r := start(t, func(c *Config) { c.TLSCert, c.TLSKey, c.StallTimeoutS = cert, key, 1 })
	r.target(gatewaytest.WorkerOptions{Decode: r.reply("behind a lock", 1)})
	r.url = strings.Replace(r.url, "http:", "https:", 1)
	for major, http2 := range map[int]bool{1: false, 2: true} {
		t.Run(fmt.Sprintf("HTTP/%d", major), func(t *testing.T) {
			var p http.Protocols
			p.SetHTTP1(!http2)
			p.SetHTTP2(http2)
			r.client = &http.Client{Transport: &http.Transport{Protocols: &p, TLSClientConfig: &tls.Config{RootCAs: pool}}}
			defer r.client.CloseIdleConnections()
			resp, err := r.client.Get(r.url + "/health")
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != 200 || resp.ProtoMajor != major {
				t.Errorf("%s over %s", resp.Status, resp.Proto)
			}
			a := r.post("/v1/chat/completions", chatBody(`"stream":true`))
			if c, _ := readChat(t, a.body, 1, true); c[0].Content != "behind a lock" {
				t.Errorf("%d %s", a.status, a.body)
			}
			if a := r.do("GET", "/health", "", "X-Long", strings.Repeat("a", 70<<10)); a.status != 431 ||
				at(a.json(t), "error", "code") != "headers_too_large" {
				t.Errorf("long headers: %d %s", a.status, a.body)
			}
			if a := r.do("GET", "/"+strings.Repeat("a", 17<<10), ""); a.status != 414 {
				t.Errorf("long URL: %d %s", a.status, a.body)
			}
		})
	}
	// What is refused before there is a request.
	for send, want := range map[string]string{
		"GET /health HTTP/1.1\r\nHost: x\r\nX-Half": "408 Request Timeout",
		"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + strings.Repeat("a",
			1<<20) + "\r\n": "431 Request Header Fields Too Large",
	} {
		conn, err := tls.Dial("tcp", strings.TrimPrefix(r.url, "https://"), &tls.Config{RootCAs: pool})
		if err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.WriteString(conn, send) }()
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		conn.Close()
		if resp.Status != want || !strings.HasPrefix(string(body), `{"error":`) {
			t.Errorf("%s %s, want %s", resp.Status, body, want)
		}
	}
	// A client that does not know about TLS is told.
	if resp, err := http.Get(strings.Replace(r.url, "https:", "http:", 1) + "/health"); err != nil ||
		resp.StatusCode != http.StatusBadRequest {
		t.Errorf("plain HTTP: %v, %v", resp, err)
	} else {
		resp.Body.Close()
	}
	http.DefaultClient.CloseIdleConnections()
}
