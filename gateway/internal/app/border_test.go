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
		{"default", nil, "https://any.example", "*", ""},
		{"list, member", func(c *Config) { c.CORSOrigin = []string{"https://a.example", "https://b.example"} }, "https://b.example", "https://b.example", "Origin"},
		{"list, stranger", func(c *Config) { c.CORSOrigin = []string{"https://a.example"} }, "https://b.example", "", "Origin"},
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

// certificate writes a certificate of 127.0.0.1 that signs itself, and its key.
func certificate(t *testing.T) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotAfter: time.Now().Add(time.Hour)}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: raw}, key: {Type: "PRIVATE KEY", Bytes: secret}} {
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
			if a := r.do("GET", "/health", "", "X-Long", strings.Repeat("a", 70<<10)); a.status != 431 || at(a.json(t), "error", "code") != "headers_too_large" {
				t.Errorf("long headers: %d %s", a.status, a.body)
			}
			if a := r.do("GET", "/"+strings.Repeat("a", 17<<10), ""); a.status != 414 {
				t.Errorf("long URL: %d %s", a.status, a.body)
			}
		})
	}
	// What is refused before there is a request.
	for send, want := range map[string]string{
		"GET /health HTTP/1.1\r\nHost: x\r\nX-Half":                                         "408 Request Timeout",
		"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + strings.Repeat("a", 1<<20) + "\r\n": "431 Request Header Fields Too Large",
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
	if resp, err := http.Get(strings.Replace(r.url, "https:", "http:", 1) + "/health"); err != nil || resp.StatusCode != http.StatusBadRequest {
		t.Errorf("plain HTTP: %v, %v", resp, err)
	} else {
		resp.Body.Close()
	}
	http.DefaultClient.CloseIdleConnections()
}
