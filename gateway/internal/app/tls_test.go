package app_test

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

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
)

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
	r := rig.Start(t, func(c *app.Config) { c.TLSCert, c.TLSKey, c.StallTimeoutS = cert, key, 1 })
	r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("behind a lock", 1)})
	r.URL = strings.Replace(r.URL, "http:", "https:", 1)
	for major, http2 := range map[int]bool{1: false, 2: true} {
		t.Run(fmt.Sprintf("HTTP/%d", major), func(t *testing.T) {
			var p http.Protocols
			p.SetHTTP1(!http2)
			p.SetHTTP2(http2)
			r.Client = &http.Client{Transport: &http.Transport{Protocols: &p, TLSClientConfig: &tls.Config{RootCAs: pool}}}
			defer r.Client.CloseIdleConnections()
			resp, err := r.Client.Get(r.URL + "/health")
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != 200 || resp.ProtoMajor != major {
				t.Errorf("%s over %s", resp.Status, resp.Proto)
			}
			a := r.Post("/v1/chat/completions", rig.ChatBody(`"stream":true`))
			if c, _ := rig.ReadChat(t, a.Body, 1, true); c[0].Content != "behind a lock" {
				t.Errorf("%d %s", a.Status, a.Body)
			}
			if a := r.Do("GET", "/health", "", "X-Long", strings.Repeat("a", 70<<10)); a.Status != 431 ||
				rig.At(a.JSON(t), "error", "code") != "headers_too_large" {
				t.Errorf("long headers: %d %s", a.Status, a.Body)
			}
			if a := r.Do("GET", "/"+strings.Repeat("a", 17<<10), ""); a.Status != 414 {
				t.Errorf("long URL: %d %s", a.Status, a.Body)
			}
		})
	}
	// What is refused before there is a request.
	for send, want := range map[string]string{
		"GET /health HTTP/1.1\r\nHost: x\r\nX-Half": "408 Request Timeout",
		"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + strings.Repeat("a",
			1<<20) + "\r\n": "431 Request Header Fields Too Large",
	} {
		conn, err := tls.Dial("tcp", strings.TrimPrefix(r.URL, "https://"), &tls.Config{RootCAs: pool})
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
	if resp, err := http.Get(strings.Replace(r.URL, "https:", "http:", 1) + "/health"); err != nil ||
		resp.StatusCode != http.StatusBadRequest {
		t.Errorf("plain HTTP: %v, %v", resp, err)
	} else {
		resp.Body.Close()
	}
	http.DefaultClient.CloseIdleConnections()
}
