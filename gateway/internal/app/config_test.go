package app

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
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
	cfg := Defaults()
	cfg.Port, cfg.GRPCPort, cfg.RegistryListen, cfg.APIKeyFile = 0, 0, "127.0.0.1:0", path
	if _, err := New(cfg, Deps{}); err == nil || !strings.Contains(err.Error(), "--api-key-file") {
		t.Errorf("New = %v", err)
	}
}

func TestUnreadableModelServesNobody(t *testing.T) {
	r := start(t, nil)
	gatewaytest.Join(t, r.app.RegistryAddr().String(),
		gatewaytest.WorkerOptions{ID: "t", Role: tandemv1.Role_ROLE_TARGET, Lanes: 1,
			Model: &tandemv1.ModelInfo{Name: "m", Digest: "d", Path: gatewaytest.ModelPath(t, gatewaytest.Target), Vocab: 5}})
	r.eventually("worker is ready", func() bool { return r.ready("t") })
	if a := r.post("/v1/chat/completions", chatBody("")); a.status != 503 ||
		at(a.json(t), "error", "code") != "no_worker" {
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

// TestTakenPortsSayWhatToTry opens each port twice: the message names the flag and a value that works.
func TestTakenPortsSayWhatToTry(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := taken.Addr().(*net.TCPAddr).Port
	for flag, set := range map[string]func(c *Config, port int){
		"--port":            func(c *Config, port int) { c.Port = port },
		"--grpc-port":       func(c *Config, port int) { c.GRPCPort = port },
		"--registry-listen": func(c *Config, port int) { c.RegistryListen = fmt.Sprint("127.0.0.1:", port) },
	} {
		cfg := Defaults()
		cfg.Port, cfg.GRPCPort, cfg.RegistryListen = 0, 0, "127.0.0.1:0"
		set(&cfg, port)
		_, err := New(cfg, Deps{})
		try := regexp.MustCompile(flag + `: another program uses port ` + strconv.Itoa(port) + `; try ` + flag +
			` (?:127\.0\.0\.1:)?(\d+)`)
		if err == nil || try.FindStringSubmatch(err.Error()) == nil {
			t.Errorf("%s: New = %v", flag, err)
			continue
		}
		free, _ := strconv.Atoi(try.FindStringSubmatch(err.Error())[1])
		set(&cfg, free)
		a, err := New(cfg, Deps{})
		if err != nil {
			t.Errorf("%s: what was proposed does not work: %v", flag, err)
			continue
		}
		a.closeListeners()
		a.cancelRequests(nil)
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
	d := Defaults()
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

// TestWarnings: every listener that other machines reach without protection is named, and what is safe is not.
func TestWarnings(t *testing.T) {
	key := func(c *Config) { c.APIKey = append(c.APIKey, "k") }
	for _, c := range []struct {
		name   string
		change []func(*Config)
		want   []string // flags
	}{
		{"defaults", nil, nil},
		{"a name of this machine", []func(*Config){func(c *Config) { c.Host = "localhost" }}, nil},
		{"all addresses", []func(*Config){func(c *Config) { c.Host = "0.0.0.0" }}, []string{"host: no key"}},
		{"an address", []func(*Config){func(c *Config) { c.Host = "192.168.1.2" }}, []string{"host: no key"}},
		{"all addresses of IPv6", []func(*Config){func(c *Config) { c.Host = "::" }}, []string{"host: no key"}},
		{"with a key", []func(*Config){key, func(c *Config) { c.Host = "0.0.0.0" }}, []string{"host: without TLS"}},
		{"with a key and TLS", []func(*Config){key, func(c *Config) { c.Host, c.TLSCert, c.TLSKey = "0.0.0.0", "c", "k" }},
			nil},
		{"registry", []func(*Config){func(c *Config) { c.RegistryListen = "0.0.0.0:9100" }},
			[]string{"registry-listen: join as a worker"}},
		{"registry on a socket", []func(*Config){func(c *Config) { c.RegistryListen = "unix:///run/x" }}, nil},
		{"all origins", []func(*Config){func(c *Config) { c.CORSOrigin = []string{"*"} }},
			[]string{"cors-origin: every web page"}},
		{"all origins with a key", []func(*Config){key, func(c *Config) { c.CORSOrigin = []string{"*"} }}, nil},
	} {
		cfg := Defaults()
		for _, change := range c.change {
			change(&cfg)
		}
		got := cfg.Check()
		if len(got) != len(c.want) {
			t.Errorf("%s: %v", c.name, got)
			continue
		}
		for i, w := range got {
			flag, words, _ := strings.Cut(c.want[i], ": ")
			if w.Flag != flag || !strings.Contains(strings.ReplaceAll(w.Text, "no key is asked for", "no key"), words) {
				t.Errorf("%s: %v, want %q", c.name, w, c.want[i])
			}
		}
	}
}

// TestWarningsAreLogged: a gateway says at its start what Check found.
func TestWarningsAreLogged(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	cfg := Defaults()
	cfg.Host, cfg.Port, cfg.GRPCPort, cfg.RegistryListen = "0.0.0.0", 0, -1, "127.0.0.1:0"
	a, err := New(cfg, Deps{Logger: zap.New(core)})
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
