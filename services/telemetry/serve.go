package telemetry

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/tandem-inference/tandem/services/config"
	"go.uber.org/zap"
)

// Listen opens a port for metrics or administration: host:port, of this machine only where no host is named.
func Listen(address string) (net.Listener, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if host == "" {
		host = "127.0.0.1"
	}
	return net.Listen("tcp", net.JoinHostPort(host, port))
}

// ExposedWarning warns of an address for Listen that other machines reach.
func ExposedWarning(flag, address string) (config.Warning, bool) {
	host, _, err := net.SplitHostPort(address)
	if err != nil || host == "" || !config.Exposed(address) {
		return config.Warning{}, false
	}
	return config.Warning{Flag: flag, Text: address + " is reachable from other machines and asks for no key; keep it on " +
		"a network of your own"}, true
}

// Serve answers requests until ctx ends.
func Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// MetricsPage serves metrics at /metrics.
func MetricsPage(m *Metrics) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", m.Handler())
	return mux
}

// AdminPage serves profiles at /debug/pprof/, and the level of logs at /log/level: GET shows it, PUT with
// {"level":"debug"} changes it.
func AdminPage(level zap.AtomicLevel) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.Handle("/log/level", level)
	return mux
}
