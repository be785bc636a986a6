// Package app is the gateway as a whole: its configuration, the wiring of its parts, start and shutdown.
package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/apikey"
	"github.com/tandem-inference/tandem/gateway/internal/bodybudget"
	"github.com/tandem-inference/tandem/gateway/internal/cluster"
	"github.com/tandem-inference/tandem/gateway/internal/gateways"
	"github.com/tandem-inference/tandem/gateway/internal/httpapi"
	"github.com/tandem-inference/tandem/gateway/internal/live"
	"github.com/tandem-inference/tandem/gateway/internal/model"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/gateway/internal/responses"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
	"github.com/tandem-inference/tandem/gateway/internal/traces"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
	"github.com/tandem-inference/tandem/services/identity"
	"github.com/tandem-inference/tandem/services/registry"
	"github.com/tandem-inference/tandem/services/shared"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/services/tokenizer"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
)

// finishGrace is how long cancelled requests may take to send their error event.
const finishGrace = 2 * time.Second

// Deps are the gateway's injected dependencies; nil members get defaults.
type Deps struct {
	Logger *zap.Logger
	// Level is that of Logger, for --admin-listen to change; nil = it stays.
	Level *zap.AtomicLevel
	// Metrics serves /metrics; nil = Prometheus.
	Metrics *telemetry.Metrics
	// Traces of the process; nil = what the configuration says. The app shuts them down.
	Traces *telemetry.Traces
	// Version of the build, for /props and the like.
	Version string
	// Kill kills a worker that this process started, or its engine, for the page at /ui; nil = it may not.
	Kill func(worker string, engine bool) error
	// Store replaces that of --registry, for tests. The app closes it.
	Store shared.Store
	// Listeners replace the addresses of the configuration, for tests and for parents that pass sockets on. The app
	// closes them.
	HTTP, GRPC, Registry net.Listener
}

// App is a gateway with its ports open.
type App struct {
	cfg  Config
	deps Deps
	log  *zap.Logger

	httpLis, grpcLis, registryLis net.Listener
	adminLis                      net.Listener // nil when nothing is served there

	keys           *apikey.Ring
	bodies         *bodybudget.Budget
	cert           servedCertificate
	filesRead      []string   // stamps of the files of both when they were first read
	rpcHealth      *rpcHealth // nil when the gRPC port is off
	registry       *registry.Server
	cluster        *cluster.Cluster
	models         *models
	traces         *traces.Service
	live           *live.Service // nil when the page is off
	turns          *turn.Service
	api            *httpapi.Server
	httpServer     *http.Server
	grpcServer     *grpc.Server // nil when the port is off
	registryServer *grpc.Server

	link      *shared.Link   // to what the gateways share; nil = this one is alone
	node      *gateways.Node // of this gateway among them
	memory    *toolcall.Memory
	responses *responses.Service
	store     shared.Store // nil = this gateway is alone

	head *identity.Head // of the cluster's certificates; nil = there are none

	// leaving is set when the gateway is told to end, draining when it takes no new work any more.
	leaving, draining atomic.Bool
	// requests is the parent of every request's context; cancelRequests ends them with a cause.
	requests       context.Context
	cancelRequests context.CancelCauseFunc
}

// New checks cfg, opens the ports and builds the gateway; Run serves.
func New(cfg Config, deps Deps) (_ *App, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Logger == nil {
		deps.Logger = zap.NewNop()
	}
	if deps.Level == nil {
		deps.Level = new(zap.NewAtomicLevelAt(deps.Logger.Level()))
	}
	process := telemetry.Process{Service: "tandem-gateway", Version: deps.Version, Warn: telemetry.WarnTo(deps.Logger)}
	if deps.Metrics == nil {
		if deps.Metrics, err = telemetry.OpenMetrics(context.Background(), process, &cfg.TraceFlags); err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
	}
	if deps.Traces == nil {
		if deps.Traces, err = telemetry.OpenTraces(context.Background(), process, &cfg.TraceFlags); err != nil {
			return nil, fmt.Errorf("traces: %w", err)
		}
	}
	a := &App{cfg: cfg, deps: deps, log: deps.Logger}
	a.requests, a.cancelRequests = context.WithCancelCause(context.Background())
	defer func() {
		if err != nil {
			a.closeListeners()
			a.closeStore()
			a.cancelRequests(err)
		}
	}()
	if err := a.listen(); err != nil {
		return nil, err
	}
	if a.store, err = a.openStore(); err != nil {
		return nil, err
	}
	if a.store != nil {
		a.link = shared.NewLink(a.store, a.log.Named("gateways"))
	}
	if err := a.certify(); err != nil {
		return nil, err
	}
	if err := a.wire(); err != nil {
		return nil, err
	}
	return a, nil
}

// Parts are what a test of the whole gateway looks at from outside the package; see gatewaytest/rig.
type Parts struct {
	Cluster *cluster.Cluster
	Bodies  *bodybudget.Budget
	// Model and ScorerTokenizer fail, or are nil, until a worker brought what they return.
	Model           func() (*model.Model, error)
	ScorerTokenizer func() *tokenizer.Tokenizer
	Draining        func() bool
}

// Parts returns those of a gateway.
func (a *App) Parts() Parts {
	return Parts{Cluster: a.cluster, Bodies: a.bodies, Model: a.models.served,
		ScorerTokenizer: a.models.scorerTokenizer, Draining: a.draining.Load}
}

// HTTPAddr is the address of the HTTP port.
func (a *App) HTTPAddr() net.Addr { return a.httpLis.Addr() }

// GRPCAddr is the address of the public gRPC port, nil when it is off.
func (a *App) GRPCAddr() net.Addr {
	if a.grpcLis == nil {
		return nil
	}
	return a.grpcLis.Addr()
}

// RegistryAddr is the address at which workers join.
func (a *App) RegistryAddr() net.Addr { return a.registryLis.Addr() }

// Loading tells how far the workers are that load a model now: bytes of weights in their engines and in all.
func (a *App) Loading() (done, total uint64) {
	for _, w := range a.registry.Workers() {
		if w.State == registry.StateStarting {
			done += w.Heartbeat.GetLoadedBytes()
			total += w.Heartbeat.GetLoadBytes()
		}
	}
	return done, total
}

// Run serves until ctx is done, then drains: new requests are refused, running ones may finish within the grace time,
// then they are cancelled. It returns nil after an orderly shutdown.
func (a *App) Run(ctx context.Context) error {
	a.log.Info("gateway serves", zap.Stringer("http", a.HTTPAddr()), zap.Stringer("registry", a.RegistryAddr()),
		zap.String(telemetry.KeyVersion, a.deps.Version))
	for _, w := range a.cfg.Check() {
		a.log.Warn(w.String())
	}
	// The parts outlive ctx: they serve while the gateway drains.
	parts, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	grp, failed := errgroup.WithContext(parts)
	grp.Go(func() error { return a.cluster.Run(parts) })
	grp.Go(func() error { return a.traces.Run(parts) })
	if a.live != nil {
		grp.Go(func() error { return a.live.Run(parts) })
	}
	if a.adminLis != nil {
		grp.Go(func() error { return telemetry.Serve(parts, a.adminLis, telemetry.AdminPage(*a.deps.Level)) })
	}
	grp.Go(func() error { return a.models.run(parts) })
	grp.Go(func() error { return a.turns.RunAhead(parts) })
	grp.Go(func() error { return a.serveHTTP() })
	grp.Go(func() error { return serveGRPC(a.registryServer, a.registryLis) })
	if a.grpcServer != nil {
		grp.Go(func() error { return serveGRPC(a.grpcServer, a.grpcLis) })
		grp.Go(func() error { return a.rpcHealth.run(parts) })
	}
	grp.Go(func() error { return a.watchFiles(parts) })
	if a.head != nil {
		grp.Go(func() error { return a.head.Run(parts) })
	}
	if a.node != nil {
		grp.Go(func() error { return a.node.Run(parts) })
		grp.Go(func() error { return a.responses.Run(parts) })
		grp.Go(func() error { return a.shareTools(parts) })
	}
	grp.Go(func() error {
		select {
		case <-ctx.Done():
		case <-failed.Done():
		}
		a.leave(failed)
		a.shutdown()
		stop()
		return nil
	})
	err := grp.Wait()
	a.closeListeners()
	a.closeStore()
	flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishGrace)
	defer cancel()
	if lost := a.deps.Traces.Shutdown(flush); lost != nil {
		a.log.Warn("the last spans could not be sent", zap.NamedError(telemetry.KeyErr, lost))
	}
	if lost := a.deps.Metrics.Shutdown(flush); lost != nil {
		a.log.Warn("the last measurements could not be sent", zap.NamedError(telemetry.KeyErr, lost))
	}
	return err
}

// serveGRPC serves until the server is stopped, which may be before it begins: then there is nothing to serve and
// no fault.
func serveGRPC(server *grpc.Server, listener net.Listener) error {
	if err := server.Serve(listener); !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

func (a *App) serveHTTP() error {
	listener := httpapi.Listener(a.httpLis)
	if a.cfg.TLSCert != "" {
		listener = httpapi.TLSListener(a.httpLis, a.cert.config("h2", "http/1.1"), seconds(a.cfg.StallTimeoutS))
	}
	if err := a.httpServer.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// leave serves on for a moment while health checks and the ends of connections send clients elsewhere, unless a part of
// the gateway failed.
func (a *App) leave(failed context.Context) {
	a.leaving.Store(true)
	if a.cfg.ShutdownDelayS == 0 || failed.Err() != nil {
		return
	}
	a.log.Info("gateway leaves", zap.Float64("delay_s", a.cfg.ShutdownDelayS))
	select {
	case <-time.After(seconds(a.cfg.ShutdownDelayS)):
	case <-failed.Done():
	}
}

// shutdown ends the ports in order: no new work, running work within the grace time, cancelled work within a moment.
func (a *App) shutdown() {
	a.draining.Store(true)
	a.cluster.Targets.Drain()
	a.cluster.Scorers.Drain()
	a.log.Info("gateway drains", zap.Float64("grace_s", a.cfg.ShutdownGraceS))
	grpcDone := make(chan struct{})
	go func() {
		defer close(grpcDone)
		if a.grpcServer != nil {
			a.grpcServer.GracefulStop()
		}
	}()
	grace, cancel := context.WithTimeout(context.Background(), seconds(a.cfg.ShutdownGraceS))
	defer cancel()
	if a.api.Wait(grace) != nil {
		a.log.Warn("requests are cancelled, the grace time is over")
	}
	select {
	case <-grpcDone:
	case <-grace.Done():
	}
	a.responses.Wait(grace)
	a.cancelRequests(reqerr.Draining())
	if a.grpcServer != nil {
		a.grpcServer.Stop()
	}
	<-grpcDone
	last, cancelLast := context.WithTimeout(context.Background(), finishGrace)
	defer cancelLast()
	if a.httpServer.Shutdown(last) != nil {
		_ = a.httpServer.Close()
	}
	a.responses.Wait(last)
	a.registry.Ends()
	a.registryServer.Stop()
}

func (a *App) closeStore() {
	if a.store != nil {
		_ = a.store.Close()
	}
}

func (a *App) closeListeners() {
	for _, l := range []net.Listener{a.httpLis, a.grpcLis, a.registryLis, a.adminLis} {
		if l != nil {
			_ = l.Close()
		}
	}
}
