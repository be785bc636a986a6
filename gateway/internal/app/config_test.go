package app

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
)

func TestDefaultsAreTheFlagsDefaults(t *testing.T) {
	var cfg Config
	p, err := kong.New(&cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Parse(nil); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(Defaults(), cfg); d != "" {
		t.Error(d)
	}
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
}

func TestValidateNamesEveryFlag(t *testing.T) {
	c := Defaults()
	c.Port, c.GRPCPort, c.MaxN, c.MaxQueue, c.QueueTimeoutS, c.SSEKeepaliveS, c.PrefillKeepRatio, c.PrefillCompression = 70000, -2, 0, -1, -1, 0, 2, "some"
	c.RegistryListen, c.TLSCert, c.Model = "nowhere", "cert", "missing.gguf"
	err := c.Validate()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, flag := range strings.Fields(`port grpc-port max-n max-queue queue-timeout-s sse-keepalive-s prefill-keep-ratio prefill-compression
		registry-listen tls-cert model`) {
		if !strings.Contains(err.Error(), "--"+flag+":") {
			t.Errorf("%q lacks --%s", err, flag)
		}
	}
}

func TestEmptyKeyFileDoesNotOpenTheServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, []byte("# none\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := Defaults()
	cfg.Port, cfg.GRPCPort, cfg.RegistryListen, cfg.APIKeyFile = 0, 0, "127.0.0.1:0", path
	if _, err := New(cfg, Deps{}); err == nil || !strings.Contains(err.Error(), "--api-key-file") {
		t.Errorf("New = %v", err)
	}
}

func TestUnreadableModelServesNobody(t *testing.T) {
	r := start(t, nil)
	gatewaytest.Join(t, r.app.RegistryAddr().String(), gatewaytest.WorkerOptions{ID: "t", Role: tandemv1.Role_ROLE_TARGET, Lanes: 1,
		Model: &tandemv1.ModelInfo{Name: "m", Digest: "d", Path: gatewaytest.ModelPath(t, gatewaytest.Target), Vocab: 5}})
	r.eventually("worker is ready", func() bool { return r.ready("t") })
	if a := r.post("/v1/chat/completions", chatBody("")); a.status != 503 || at(a.json(t), "error", "code") != "no_worker" {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := r.do("GET", "/health", ""); a.status != 503 {
		t.Errorf("health %d %s", a.status, a.body)
	}
}

func TestHTTP2WithoutTLS(t *testing.T) {
	r := start(t, nil)
	r.target(gatewaytest.WorkerOptions{Decode: r.reply("over h2", 1)})
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	r.client = &http.Client{Transport: &http.Transport{Protocols: &p}}
	a := r.post("/v1/chat/completions", chatBody(`"stream":true`))
	if c, _ := readChat(t, a.body, 1, true); c[0].Content != "over h2" {
		t.Errorf("%d %s", a.status, a.body)
	}
}
