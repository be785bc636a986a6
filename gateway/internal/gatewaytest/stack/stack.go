// Package stack runs the gateway below its borders for tests: a registry that scripted workers join, and the pools that
// follow it. Tests put the part under test on top.
package stack

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/cluster"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/metrics"
	"github.com/tandem-inference/tandem/gateway/internal/model"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/registry"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/services/tensorwire"
	"github.com/tandem-inference/tandem/services/testwait"
	"github.com/tandem-inference/tandem/services/tokenizer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// Stack is a registry on a free port, its pools and their instruments. It ends with the test.
type Stack struct {
	Cluster *cluster.Cluster
	Metrics *metrics.Set
	// Model is the demonstration target under the name "tiny", Tokenizer its tokenizer.
	Model     *model.Model
	Tokenizer *tokenizer.Tokenizer

	tb       testing.TB
	registry *registry.Server
	address  string
	exported *telemetry.Metrics
}

// Start runs a stack without workers. grace is how long requests wait for the last ready worker to come back.
func Start(tb testing.TB, grace time.Duration) *Stack {
	tb.Helper()
	s := &Stack{tb: tb, Tokenizer: gatewaytest.Tokenizer(tb), registry: registry.NewServer(registry.ServerConfig{})}
	var err error
	s.Model, err = model.Load(model.Options{Path: gatewaytest.ModelPath(tb, gatewaytest.Target), Name: "tiny"})
	if err != nil {
		tb.Fatal(err)
	}
	if s.exported, err = telemetry.NewPrometheus("tandem-gateway", "test"); err != nil {
		tb.Fatal(err)
	}
	options := append(tensorwire.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	s.Cluster = cluster.New(cluster.Config{Targets: cluster.PoolConfig{MaxQueue: 64, Grace: grace}},
		cluster.Deps{Registry: s.registry, DialOptions: options})
	s.Metrics, err = metrics.New(s.exported.MeterProvider(), metrics.Sources{
		QueueDepth: s.Cluster.Targets.Queued, Workers: s.Cluster.Workers, Busy: s.Cluster.Targets.Busy,
		Tokens: s.Cluster.Targets.Tokens,
	})
	if err != nil {
		tb.Fatal(err)
	}
	server := grpc.NewServer(append(rpcerr.ServerOptions(nil), grpc.MaxRecvMsgSize(registry.MaxMessageBytes))...)
	tandemv1.RegisterRegistryServiceServer(server, s.registry)
	s.address = Serve(tb, server)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Cluster.Run(ctx) }()
	tb.Cleanup(func() {
		stop()
		if err := errors.Join(<-done, s.exported.Shutdown(context.Background())); err != nil {
			tb.Error(err)
		}
	})
	return s
}

// Serve runs a gRPC server on a free port of loopback until the test ends, and returns its address.
func Serve(tb testing.TB, server *grpc.Server) string {
	tb.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(lis)
	}()
	tb.Cleanup(func() {
		server.Stop()
		<-done
	})
	return lis.Addr().String()
}

// Target joins a scripted target and waits until the pool gives out its lanes. Without a number it has 4 lanes and a
// context of 32768 tokens.
func (s *Stack) Target(opt gatewaytest.WorkerOptions) *gatewaytest.Worker {
	s.tb.Helper()
	opt.Role = tandemv1.Role_ROLE_TARGET
	if opt.ID == "" {
		opt.ID = "t1"
	}
	if opt.Slots == 0 {
		opt.Slots = 4
	}
	if opt.MaxContext == 0 {
		opt.MaxContext = 32768
	}
	w := gatewaytest.Join(s.tb, s.address, opt)
	testwait.Until(s.tb, opt.ID+" is ready", func() bool {
		_, _, joined := s.Cluster.Targets.Busy(opt.ID)
		return joined && s.ready(opt.ID)
	})
	return w
}

func (s *Stack) ready(id string) bool {
	for _, w := range s.registry.Workers() {
		if w.ID == id {
			return w.State == registry.StateReady
		}
	}
	return false
}

// Page returns the metrics as Prometheus reads them.
func (s *Stack) Page() string {
	w := httptest.NewRecorder()
	s.exported.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return w.Body.String()
}
