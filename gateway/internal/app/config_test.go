package app_test

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func TestDefaultsAreTheFlagsDefaults(t *testing.T) {
	var cfg app.Config
	p, err := kong.New(&cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Parse(nil); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(app.Defaults(), cfg); d != "" {
		t.Error(d)
	}
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
}

func TestValidateNamesEveryFlag(t *testing.T) {
	c := app.Defaults()
	c.Port, c.GRPCPort, c.MaxN, c.MaxQueue = 70000, -2, 0, -1
	c.QueueTimeoutS, c.SSEKeepaliveS, c.PrefillKeepRatio, c.PrefillCompression = -1, 0, 2, "some"
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
	cfg := app.Defaults()
	cfg.Port, cfg.GRPCPort, cfg.RegistryListen, cfg.APIKeyFile = 0, 0, "127.0.0.1:0", path
	if _, err := app.New(cfg, app.Deps{}); err == nil || !strings.Contains(err.Error(), "--api-key-file") {
		t.Errorf("New = %v", err)
	}
}

func TestUnreadableModelServesNobody(t *testing.T) {
	r := rig.Start(t, nil)
	gatewaytest.Join(t, r.App.RegistryAddr().String(),
		gatewaytest.WorkerOptions{ID: "t", Role: tandemv1.Role_ROLE_TARGET, Slots: 1,
			Model: &tandemv1.ModelInfo{Name: "m", Digest: "d", Path: gatewaytest.ModelPath(t, gatewaytest.Target), Vocab: 5}})
	r.Eventually("worker is ready", func() bool { return r.Ready("t") })
	if a := r.Post("/v1/chat/completions", rig.ChatBody("")); a.Status != 503 ||
		rig.At(a.JSON(t), "error", "code") != "no_worker" {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	if a := r.Do("GET", "/health", ""); a.Status != 503 {
		t.Errorf("health %d %s", a.Status, a.Body)
	}
}

func TestHTTP2WithoutTLS(t *testing.T) {
	r := rig.Start(t, nil)
	r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("over h2", 1)})
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	r.Client = &http.Client{Transport: &http.Transport{Protocols: &p}}
	a := r.Post("/v1/chat/completions", rig.ChatBody(`"stream":true`))
	if c, _ := rig.ReadChat(t, a.Body, 1, true); c[0].Content != "over h2" {
		t.Errorf("%d %s", a.Status, a.Body)
	}
}

// TestDefaultPortsAreNobodysElse keeps the defaults off ports that common services have: a machine that is monitored or
// stores objects runs them already.
func TestDefaultPortsAreNobodysElse(t *testing.T) {
	theirs := map[int]string{
		8001: "kubectl proxy", 8002: "Triton", 8005: "Tomcat", 8009: "AJP", 8080: "HTTP proxies", 8081: "HTTP proxies",
		8086: "InfluxDB", 8088: "Superset", 8200: "Vault", 8300: "Consul", 8443: "HTTPS", 8500: "Consul", 8883: "MQTT",
		8888: "Jupyter", 9000: "MinIO, Portainer, PHP-FPM", 9001: "MinIO", 9042: "Cassandra", 9090: "Prometheus",
		9091: "Pushgateway", 9092: "Kafka", 9093: "Alertmanager", 9100: "node_exporter", 9200: "Elasticsearch",
		9300: "Elasticsearch", 9400: "DCGM exporter", 11434: "Ollama", 50051: "gRPC examples",
	}
	d := app.Defaults()
	_, registry, err := net.SplitHostPort(d.RegistryListen)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(registry)
	if err != nil {
		t.Fatal(err)
	}
	for flag, port := range map[string]int{"--port": d.Port, "--grpc-port": d.GRPCPort, "--registry-listen": port} {
		if theirs[port] != "" {
			t.Errorf("%s %d is the port of %s", flag, port, theirs[port])
		}
	}
}

// TestWarningsAreLogged: a gateway says at its start what Check found.
func TestWarningsAreLogged(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	cfg := app.Defaults()
	cfg.Host, cfg.Port, cfg.GRPCPort, cfg.RegistryListen = "0.0.0.0", 0, -1, "127.0.0.1:0"
	a, err := app.New(cfg, app.Deps{Logger: zap.New(core)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.Run(ctx); err != nil {
		t.Error(err)
	}
	if n := logs.Filter(func(e observer.LoggedEntry) bool {
		return strings.Contains(e.Message, "--host: 0.0.0.0 is reachable")
	}).Len(); n != 1 {
		t.Errorf("%d warnings: %v", n, logs.All())
	}
}
