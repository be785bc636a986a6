package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/anthropic"
	"github.com/tandem-inference/tandem/gateway/internal/apikey"
	"github.com/tandem-inference/tandem/gateway/internal/bodybudget"
	"github.com/tandem-inference/tandem/gateway/internal/cluster"
	"github.com/tandem-inference/tandem/gateway/internal/compress"
	"github.com/tandem-inference/tandem/gateway/internal/generate"
	"github.com/tandem-inference/tandem/gateway/internal/grpcapi"
	"github.com/tandem-inference/tandem/gateway/internal/httpapi"
	"github.com/tandem-inference/tandem/gateway/internal/live"
	"github.com/tandem-inference/tandem/gateway/internal/metrics"
	"github.com/tandem-inference/tandem/gateway/internal/openai"
	"github.com/tandem-inference/tandem/gateway/internal/responses"
	"github.com/tandem-inference/tandem/gateway/internal/seal"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
	"github.com/tandem-inference/tandem/gateway/internal/traces"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/config"
	"github.com/tandem-inference/tandem/services/identity"
	"github.com/tandem-inference/tandem/services/inlet"
	"github.com/tandem-inference/tandem/services/registry"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/services/tensorwire"
	"github.com/tandem-inference/tandem/services/tokenizer"
	"github.com/tandem-inference/tandem/services/unixsocket"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
)

// maxRequestBytes bounds messages of the public gRPC port, like the body limit of HTTP.
const maxRequestBytes = 64 << 20

// What callers may hold of the gRPC ports. Each message that arrives may be as long as the port takes, so clients' need
// room for some; a registry has as many connections as workers, of which one host has few.
var (
	clientLimits   = inlet.Limits{Connections: 4096, PerHost: 1024, Streams: 1024, ArrivingBytes: 4 * maxRequestBytes}
	registryLimits = inlet.Limits{Connections: 1024, PerHost: 128, Streams: 128, ArrivingBytes: 8 << 20}
)

// listen opens every listener that the caller did not supply.
func (a *App) listen() (err error) {
	a.httpLis, a.grpcLis, a.registryLis = a.deps.HTTP, a.deps.GRPC, a.deps.Registry
	if a.httpLis == nil {
		if a.httpLis, err = listenTCP("--port", a.cfg.Host, a.cfg.Port,
			func(free int) string { return fmt.Sprintf("--port %d", free) }); err != nil {
			return err
		}
	}
	if a.grpcLis == nil && a.cfg.GRPCPort >= 0 {
		if a.grpcLis, err = listenTCP("--grpc-port", a.cfg.Host, a.cfg.GRPCPort, func(free int) string {
			return fmt.Sprintf("--grpc-port %d, or --grpc-port=-1 for none", free)
		}); err != nil {
			return err
		}
	}
	if a.registryLis == nil {
		if a.registryLis, err = listenRegistry(a.cfg.RegistryListen); err != nil {
			return err
		}
	}
	if a.cfg.AdminListen != "" {
		if a.adminLis, err = telemetry.Listen(a.cfg.AdminListen); err != nil {
			return fmt.Errorf("--admin-listen: %w", err)
		}
	}
	return nil
}

func listenRegistry(address string) (net.Listener, error) {
	network, addr, err := splitListen(address)
	if err != nil {
		return nil, fmt.Errorf("--registry-listen: %w", err)
	}
	if network == "tcp" {
		host, text, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, fmt.Errorf("--registry-listen: %w", err)
		}
		if port, err := strconv.Atoi(text); err == nil {
			return listenTCP("--registry-listen", host, port, func(free int) string {
				return "--registry-listen " + net.JoinHostPort(host, strconv.Itoa(free))
			})
		}
	}
	listen := unixsocket.Listen
	if network == "tcp" { // with a port by name
		listen = func(addr string) (net.Listener, error) { return net.Listen(network, addr) }
	}
	l, err := listen(addr)
	if err != nil {
		return nil, fmt.Errorf("--registry-listen: %w", err)
	}
	return l, nil
}

// listenTCP opens a port. The error for a taken one says what to try: instead writes that for a port that is free.
func listenTCP(flag, host string, port int, instead func(free int) string) (net.Listener, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err == nil {
		return l, nil
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		if free := freePort(host, port); free > 0 {
			return nil, fmt.Errorf("%s: another program uses port %d; try %s", flag, port, instead(free))
		}
	}
	return nil, fmt.Errorf("%s: %w", flag, err)
}

// freePort returns the first port above a taken one that nobody has now, or 0. The defaults of the other ports are
// left out.
func freePort(host string, taken int) int {
	d := Defaults()
	for port := taken + 1; port <= min(taken+50, 65535); port++ {
		if port == d.Port || port == d.GRPCPort || strings.HasSuffix(d.RegistryListen, ":"+strconv.Itoa(port)) {
			continue
		}
		if l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port))); err == nil {
			_ = l.Close()
			return port
		}
	}
	return 0
}

// wire builds the parts and connects them. Direction of use:
//
//	httpapi → openai, responses, anthropic → turn → generate, compress → cluster → registry
//	grpcapi ─────────────────────────────────┘
//	                         → model (tokenizer and template of the served model)
func (a *App) wire() error {
	cfg := a.cfg
	a.registry = registry.NewServer(registry.ServerConfig{LeaseTTL: seconds(cfg.LeaseTTLS),
		Logger: a.log.Named("registry")})
	a.joinGateways()
	failover := seconds(cfg.FailoverTimeoutS)
	a.cluster = cluster.New(cluster.Config{
		Targets: cluster.PoolConfig{MaxQueue: cfg.MaxQueue, QueueTimeout: seconds(cfg.QueueTimeoutS), Grace: failover,
			Absence: seconds(cfg.NoWorkerTimeoutS), ByPrefix: cfg.Route == "prefix"},
		Scorers: cluster.PoolConfig{MaxQueue: cfg.MaxQueue},
	}, cluster.Deps{Registry: a.registry, Logger: a.log.Named("cluster"), DialOptions: a.workerDialOptions(),
		Credentials: a.transport().Client})
	a.traces = traces.New(traces.Config{Slow: cfg.Slow()}, traces.Deps{Traces: a.deps.Traces, Workers: a.cluster.Workers,
		Connect: a.cluster.Connect, Logger: a.log.Named("traces")})
	a.models = newModels(cfg, a.deps.Version, a.cluster, a.log.Named("model"))
	if err := a.models.loadConfigured(); err != nil {
		return err
	}
	set, err := metrics.New(a.deps.Metrics.MeterProvider(), metrics.Sources{
		QueueDepth: a.cluster.Targets.Queued, Workers: a.cluster.Workers, Busy: a.cluster.Targets.Busy,
		Tokens: a.cluster.Targets.Tokens, Routed: a.cluster.Targets.Routed, Store: a.link,
	})
	if err != nil {
		return err
	}
	limits := newBudgets(cfg, a.cluster.Targets.MaxContext, a.log.Named("model"))
	board := a.openPage()
	gen := generate.New(generate.Config{
		MaxTokensCeiling: cfg.MaxTokensCeiling, StrictContext: cfg.StrictContext, FailoverTimeout: failover,
		QueueTimeout: seconds(cfg.QueueTimeoutS), FailoverAny: cfg.FailoverAny, Watchdog: cfg.DegenerateWatchdog,
	}, generate.Deps{Targets: a.cluster.Targets, Metrics: set, Tracer: a.deps.Traces.TracerProvider(),
		Board: board, Logger: a.log.Named("generate")})
	curve, err := compress.ParseCurve(cfg.PrefillKeepCurve)
	if err != nil {
		return fmt.Errorf("--prefill-keep-curve: %w", err)
	}
	pflash := compress.New(compress.Config{
		Curve: curve, Mode: cfg.PrefillCompression, Threshold: cfg.PrefillThreshold, KeepRatio: cfg.PrefillKeepRatio,
		MinChunks: cfg.PrefillMinChunks, Timeout: seconds(cfg.PflashTimeoutS), AllowOverride: cfg.PflashRequestOverride,
	}, compress.Deps{Scorers: a.cluster.Scorers, Metrics: set, Tokenizer: a.models.scorerTokenizer,
		Logger: a.log.Named("pflash")})
	a.keys = apikey.NewRing()
	a.bodies = bodybudget.New(int64(cfg.BodyMemoryMB) << 20)
	a.filesRead = stamps(a.secretFiles())
	if err := a.load(); err != nil {
		return err
	}
	a.memory = toolcall.NewMemory()
	turns := turn.New(turn.Config{
		MaxN: cfg.MaxN, DefaultThinking: cfg.DefaultThinking, StrictModel: cfg.StrictModel,
		Keepalive: seconds(cfg.SSEKeepaliveS), RequestTimeout: seconds(cfg.RequestTimeoutS),
		QueuedHeaders: seconds(cfg.QueuedHeadersS), ImagePlaceholder: cfg.ImagePolicy == imagesReplaced,
		IsolateCache: cfg.CacheIsolation == cacheByKey, ReadAhead: cfg.ReadAhead == "on",
	}, turn.Deps{Model: a.models.served, Await: a.models.await, Generator: gen, Compressor: pflash, Budgets: limits,
		Memory: a.memory, Ahead: a.cluster.Targets, Logger: a.log.Named("turn")})
	a.turns = turns
	dialect := openai.New(openai.Config{StreamUsageDefault: cfg.StreamUsageDefault}, openai.Deps{Turn: turns})
	secret, err := a.sealKey()
	if err == nil {
		secret, err = a.sharedSeal(secret)
	}
	if err != nil {
		return err
	}
	a.responses = responses.New(responses.Config{StoreBytes: cfg.ResponseStoreMB << 20, Key: secret},
		responses.Deps{Turn: turns, Node: a.node, Base: a.requests, Logger: a.log.Named("responses")})
	a.api, err = httpapi.New(httpapi.Config{
		Keys: a.keys, ProtectIntrospection: cfg.ProtectIntrospection, CORSOrigins: cfg.CORSOrigin, NoCORS: cfg.NoCORS,
		LocalHosts:   !config.Exposed(a.httpLis.Addr().String()) || a.httpLis.Addr().Network() == "unix",
		AllowedHosts: cfg.AllowedHost, Stall: seconds(cfg.StallTimeoutS), Page: a.live != nil,
		Props: httpapi.Props{
			Version: a.deps.Version, MaxQueue: cfg.MaxQueue, DefaultThinking: cfg.DefaultThinking,
			PflashMode: cfg.PrefillCompression, PflashThreshold: cfg.PrefillThreshold, PflashKeepRatio: cfg.PrefillKeepRatio,
		},
	}, httpapi.Deps{
		Turns: turns, OpenAI: dialect,
		Responses: a.responses, StoreAway: a.storeAway,
		Anthropic: anthropic.New(anthropic.Config{InputTotal: cfg.AnthropicInputTotal, Key: secret},
			anthropic.Deps{Turn: turns, Logger: a.log.Named("anthropic")}),
		Cluster: a.cluster, Targets: a.cluster.Targets, Memory: a.memory, Model: a.models.served,
		Envelope: limits.Envelope, Metrics: set, Scrape: a.deps.Metrics.Handler(), Logger: a.log.Named("http"),
		Tracer: a.deps.Traces.TracerProvider(), Traces: a.traces, Live: a.live, Kill: a.deps.Kill,
		Admission: a.registry, Bodies: a.bodies,
		Leaving: a.leaving.Load, Draining: a.draining.Load, ScorerReady: a.cluster.Scorers.Ready,
	})
	if err != nil {
		return err
	}
	a.httpServer = a.newHTTPServer()
	a.newRegistryServer()
	if a.grpcLis != nil {
		a.newGRPCServer(grpcapi.Deps{Turn: turns, Cluster: a.cluster, Targets: a.cluster.Targets, Metrics: set,
			Keys: a.keys, Bodies: a.bodies, Logger: a.log.Named("grpc"), Draining: a.draining.Load,
			ScorerReady: a.cluster.Scorers.Ready})
	}
	return nil
}

// openPage makes what the live page shows, and returns the list that generations write into; nil when the page is off.
func (a *App) openPage() *live.Board {
	if a.cfg.UI != "on" {
		return nil
	}
	board := live.NewBoard()
	a.live = live.New(live.Deps{
		Board: board, Workers: a.cluster.Workers, Connect: a.cluster.Connect, Logger: a.log.Named("live"),
		Tokenizer: func() *tokenizer.Tokenizer {
			m, err := a.models.served()
			if err != nil {
				return nil
			}
			return m.Tokenizer
		},
	})
	return board
}

// newRegistryServer makes the server that workers join.
func (a *App) newRegistryServer() {
	log := a.log.Named("registry")
	port := inlet.New(registryLimits, log)
	a.registryLis = port.Listener(a.registryLis)
	opts := append(a.serverOptions(), grpc.MaxRecvMsgSize(registry.MaxMessageBytes))
	opts = append(opts, port.ServerOptions(a.transport().Server())...)
	a.registryServer = grpc.NewServer(append(opts, identity.ServerOptions(log)...)...)
	tandemv1.RegisterRegistryServiceServer(a.registryServer, a.registry)
	issuer := &identity.Issuer{Logger: log}
	if a.head != nil {
		issuer.Authority = a.head.Authority()
	}
	tandemv1.RegisterCertificateServiceServer(a.registryServer, issuer)
	always := health.NewServer()
	always.SetServingStatus("", grpc_health_v1.HealthCheckResponse_SERVING)
	grpc_health_v1.RegisterHealthServer(a.registryServer, always)
	reflection.Register(a.registryServer)
}

// newGRPCServer makes the server of the public gRPC port.
func (a *App) newGRPCServer(deps grpcapi.Deps) {
	service := grpcapi.New(grpcapi.Config{
		StrictModel: a.cfg.StrictModel, RequestTimeout: seconds(a.cfg.RequestTimeoutS),
	}, deps)
	port := inlet.New(clientLimits, a.log.Named("grpc"))
	a.grpcLis = port.Listener(a.grpcLis)
	var creds credentials.TransportCredentials
	if a.cfg.TLSCert != "" {
		creds = credentials.NewTLS(a.cert.config("h2"))
	}
	opts := append(a.serverOptions(), grpc.MaxRecvMsgSize(maxRequestBytes))
	opts = append(opts, port.ServerOptions(creds)...)
	a.grpcServer = grpc.NewServer(append(opts, service.ServerOptions()...)...)
	service.Register(a.grpcServer)
	a.rpcHealth = &rpcHealth{Server: health.NewServer(), serving: a.api.Serving}
	grpc_health_v1.RegisterHealthServer(a.grpcServer, a.rpcHealth)
	reflection.Register(a.grpcServer)
}

// newHTTPServer serves HTTP/1.1 and HTTP/2, also without TLS.
func (a *App) newHTTPServer() *http.Server {
	var p http.Protocols
	p.SetHTTP1(true)
	p.SetHTTP2(true)
	p.SetUnencryptedHTTP2(true)
	h := &http.Server{
		Handler: a.api, Protocols: &p, MaxHeaderBytes: httpapi.ReadHeaderBytes,
		ReadHeaderTimeout: seconds(a.cfg.StallTimeoutS), IdleTimeout: 2 * time.Minute,
		BaseContext: func(net.Listener) context.Context { return a.requests }, ErrorLog: zap.NewStdLog(a.log.Named("http")),
	}
	httpapi.Attend(h)
	return h
}

// workerDialOptions are for connections to workers.
func (a *App) workerDialOptions() []grpc.DialOption {
	return append(tensorwire.DialOptions(), telemetry.DialOptions(a.providers())...)
}

// serverOptions are for both gRPC servers.
func (a *App) serverOptions() []grpc.ServerOption {
	opts := rpcerr.ServerOptions(func(method string, value any, stack []byte) {
		a.log.Error("handler panicked", zap.String(telemetry.KeyEndpoint, method), zap.Any(telemetry.KeyReason, value),
			zap.ByteString(telemetry.KeyStack, stack))
	})
	opts = append(opts, telemetry.ServerOptions(a.providers())...)
	// Clients may ping as often as the project's own clients do.
	return append(opts, grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second,
		PermitWithoutStream: true}))
}

// providers are where telemetry of RPCs goes.
func (a *App) providers() telemetry.Providers {
	p := telemetry.Providers{Meter: a.deps.Metrics.MeterProvider()}
	if a.deps.Traces.On() {
		p.Tracer = a.deps.Traces.TracerProvider()
	}
	return p
}

// sealKey is the secret under which the gateway seals what clients keep for it. Without a file it lasts as long as the
// process: later gateways leave out what this one sealed.
func (a *App) sealKey() (seal.Key, error) {
	if a.cfg.SealKeyFile == "" {
		return seal.NewKey(), nil
	}
	k, err := seal.ReadOrCreate(a.cfg.SealKeyFile)
	if err != nil {
		return k, fmt.Errorf("--seal-key-file: %w", err)
	}
	return k, nil
}
