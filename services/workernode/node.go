package workernode

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/identity"
	"github.com/tandem-inference/tandem/services/inlet"
	"github.com/tandem-inference/tandem/services/registry"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/sdnotify"
	"github.com/tandem-inference/tandem/services/shmstream"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/services/tensorwire"
	"github.com/tandem-inference/tandem/services/unixsocket"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/protobuf/proto"
)

// Worker is what a role adds to a node.
type Worker interface {
	// Register adds the role's services.
	Register(s *grpc.Server)
	// Run does the role's background work until ctx ends.
	Run(ctx context.Context) error
	// Ready reports whether the worker can serve now.
	Ready() bool
	// Drain makes the worker refuse new work with UNAVAILABLE, reason DRAINING.
	Drain()
	// Heartbeat fills in lanes_busy, attached, engine_restarts and counters.
	Heartbeat(h *tandemv1.Heartbeat)
	// Lease hands over the gateway's latest lease. It must not block.
	Lease(l *tandemv1.Lease)
}

// Config of a node.
type Config struct {
	Flags *Flags
	Log   *zap.Logger
	// Registration without address, which the node fills in.
	Registration *tandemv1.Registration
	// Describe waits for what the registration lacks until the engine is open, fills it in and returns; the worker is in
	// the cluster meanwhile, as one that starts. Nil = it is complete. An error ends the node.
	Describe func(ctx context.Context, r *tandemv1.Registration) error
	// Again waits until the engine was opened since the last Describe or Again, and fills in what the registration says
	// of it: one that was lost may come back with other limits. Nil = it says nothing of an engine. It fails with ctx
	// only.
	Again func(ctx context.Context, r *tandemv1.Registration) error
	// Grace is how long work may take to finish after SIGTERM.
	Grace time.Duration
	// Alone says that no gateway leases the worker: a stage serves its head.
	Alone bool
	// Options of the server beyond ServerOptions.
	Options []grpc.ServerOption
}

// MaxRequestBytes bounds a message that a worker receives. The largest are prompts, some 4 bytes a token, and grammars;
// features and tables travel in pieces of about 1 MiB.
const MaxRequestBytes = 32 << 20

// callers are what gateways, peers and strangers may hold of a worker's port: connections are few, the streams of one
// are those of all slots.
var callers = inlet.Limits{Connections: 512, PerHost: 256, Streams: 8192, ArrivingBytes: 2 * MaxRequestBytes}

// ServerOptions are those of every worker's server.
func ServerOptions(log *zap.Logger) []grpc.ServerOption {
	// Stop waits for handlers: they free sequences, for which the engine must still be there.
	options := append(tensorwire.ServerOptions(), grpc.WaitForHandlers(true), grpc.MaxRecvMsgSize(MaxRequestBytes))
	options = append(options, rpcerr.ServerOptions(func(method string, value any, stack []byte) {
		log.Error("panic", zap.String(telemetry.KeyEndpoint, method), zap.Any(telemetry.KeyErr, value),
			zap.ByteString(telemetry.KeyStack, stack))
	})...)
	// Behind the others: it sees messages that they do not.
	return append(options, grpc.ChainStreamInterceptor(shmstream.ServerInterceptor(MaxRequestBytes,
		tandemv1.DraftService_Speculate_FullMethodName)))
}

// reconnect keeps the pauses of a lost peer short: a draft that is back is to be used within a second.
var reconnect = backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
	MaxDelay: 500 * time.Millisecond}

// Transports of the stream between target and draft: TransportAuto takes shared memory where both are on one host.
const (
	TransportAuto = "auto"
	TransportGRPC = "grpc"
)

// Dialer returns a function that connects to drafts, whose streams travel as transport says.
func Dialer(transport string, more ...grpc.DialOption) func(address string) (*grpc.ClientConn, error) {
	if transport != TransportGRPC {
		shared := shmstream.ClientInterceptor(tandemv1.DraftService_Speculate_FullMethodName)
		more = append(more, grpc.WithChainStreamInterceptor(shared))
	}
	return func(address string) (*grpc.ClientConn, error) { return Dial(address, more...) }
}

// Dial connects to another worker.
func Dial(address string, more ...grpc.DialOption) (*grpc.ClientConn, error) {
	options := append(tensorwire.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: 2 * time.Second}))
	options = append(options, rpcerr.DialOptions()...)
	return grpc.NewClient(unixsocket.DialTarget(address), append(options, more...)...)
}

// Run serves w until the process is told to end. It returns nil after an orderly end.
func Run(ctx context.Context, cfg Config, w Worker) error {
	listeners, err := listen(cfg.Flags)
	if err != nil {
		return err
	}
	defer func() {
		for _, l := range listeners {
			_ = l.Close() // the server has done so, if it came to that
		}
	}()
	for _, w := range cfg.Flags.Check() {
		cfg.Log.Warn(w.String())
	}
	n := &node{cfg: cfg, worker: w, log: cfg.Log, health: health.NewServer(), end: make(chan struct{})}
	if n.notify, err = sdnotify.FromEnvironment(); err != nil {
		return err
	}
	defer n.notify.Close()
	options := append(ServerOptions(cfg.Log), telemetry.ServerOptions(cfg.Flags.providers())...)
	port := inlet.New(callers, cfg.Log)
	for i, l := range listeners {
		listeners[i] = port.Listener(l)
	}
	options = append(options, port.ServerOptions(cfg.Flags.transport(cfg.Log).Server())...)
	options = append(options, identity.ServerOptions(cfg.Log)...)
	defer cfg.Flags.leave()
	n.server = grpc.NewServer(append(options, cfg.Options...)...)
	w.Register(n.server)
	if cfg.Flags.traces.On() {
		cfg.Flags.traces.Register(n.server)
	}
	defer cfg.Flags.flush()
	if err := n.openPages(); err != nil {
		return err
	}
	defer n.closePages()
	healthv1.RegisterHealthServer(n.server, n.health)
	reflection.Register(n.server)
	name(cfg.Registration, cfg.Flags, listeners)
	return n.run(ctx, listeners)
}

type node struct {
	cfg    Config
	worker Worker
	log    *zap.Logger
	server *grpc.Server
	health *health.Server
	client *registry.Membership
	// notify reaches whoever started the process; nil when nobody asked for it.
	notify   *sdnotify.Notifier
	pages    []page
	draining atomic.Bool
	// held: somebody asked a gateway that no new work comes here.
	held atomic.Bool
	// admissions are what gateways' newest leases say of it, by gateway. Of the caller of lease.
	admissions map[string]tandemv1.Admission
	// end is closed when somebody asked a gateway that this process ends.
	end     chan struct{}
	endOnce sync.Once
	// rounds of the loop that looks at the worker's health.
	rounds atomic.Int64
	// complete says that the registration lacks nothing: only then may work come.
	complete atomic.Bool
}

func (n *node) ready() bool { return n.complete.Load() && n.worker.Ready() }

// run serves until a signal, ctx or a part that failed ends it, and returns after all parts did.
func (n *node) run(ctx context.Context, listeners []net.Listener) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	defer signal.Stop(signals)

	if err := n.connect(); err != nil {
		return err
	}
	n.complete.Store(n.cfg.Describe == nil) // before a part reads it
	parts := n.parts(listeners[0])
	ended := make(chan struct{}, len(parts))
	for _, p := range parts {
		go func() {
			if err := p.run(ctx); err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("%s: %w", p.name, err))
			}
			ended <- struct{}{}
		}()
	}
	serving := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { serving <- n.server.Serve(l) }()
	}
	n.notify.Send(sdnotify.Ready)
	n.log.Info("worker is up", addresses(n.cfg.Registration)...)

	select {
	case s := <-signals:
		n.log.Info("draining", zap.Stringer(telemetry.KeySignal, s))
		n.drain(signals)
		cancel(nil)
	case <-n.end:
		n.log.Info("draining, to end on request")
		n.drain(signals)
		cancel(nil)
	case <-ctx.Done():
	case err := <-serving:
		cancel(err)
	}
	n.server.Stop()
	for range parts {
		<-ended
	}
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// connect makes the client of the gateway's registry, where there is a gateway.
func (n *node) connect() error {
	gateways := n.cfg.Flags.Gateway
	if len(gateways) == 0 || n.cfg.Alone {
		return nil
	}
	var err error
	n.client, err = registry.NewMembership(dialTargets(gateways), registry.ClientConfig{
		Registration: n.cfg.Registration, Heartbeat: n.heartbeat, OnLease: n.lease,
		Logger: n.log.Named("registry"), Credentials: n.cfg.Flags.transport(n.log).Client(identity.Gateway),
	})
	return err
}

// part is a loop of the node; an error that it returns ends the node.
type part struct {
	name string
	run  func(context.Context) error
}

// parts are the loops that the flags and the role ask for.
func (n *node) parts(listener net.Listener) []part {
	parts := []part{
		{"worker", n.worker.Run},
		{"health", n.watchHealth},
		{"notify", func(ctx context.Context) error { return n.reportLife(ctx, listener.Addr()) }},
	}
	if pid := n.cfg.Flags.ParentPid; pid > 0 {
		parts = append(parts, part{"parent", func(ctx context.Context) error { return watchParent(ctx, pid) }})
	}
	if n.client != nil {
		parts = append(parts, part{"registry", n.client.Run})
	}
	if m := n.cfg.Flags.member; m != nil {
		parts = append(parts, part{"certificates", m.Run})
	}
	for _, p := range n.pages {
		parts = append(parts, part{p.flag, func(ctx context.Context) error {
			return telemetry.Serve(ctx, p.listener, p.handler)
		}})
	}
	if n.cfg.Describe != nil || n.cfg.Again != nil {
		parts = append(parts, part{"engine", n.describe})
	}
	return parts
}

// describe completes the registration when the engine is open, and keeps it true of those that are opened later.
func (n *node) describe(ctx context.Context) error {
	r := proto.Clone(n.cfg.Registration).(*tandemv1.Registration)
	if n.cfg.Describe != nil {
		if err := n.cfg.Describe(ctx, r); err != nil {
			return err
		}
		n.described(r)
		n.complete.Store(true)
	}
	for n.cfg.Again != nil {
		before := proto.Clone(r)
		if err := n.cfg.Again(ctx, r); err != nil {
			return err
		}
		if !proto.Equal(before, r) {
			n.described(r)
		}
	}
	return nil
}

// described tells log and gateway what the registration says now.
func (n *node) described(r *tandemv1.Registration) {
	n.log.Info("engine is described", zap.String(telemetry.KeyModel, r.Model.GetName()),
		zap.String(telemetry.KeyDevice, r.Device),
		zap.String(telemetry.KeyContract, r.Contract), zap.String("numerics", r.Numerics),
		zap.Int32("lanes", r.GetLimits().GetLanes()))
	if n.client != nil {
		n.client.Update(r)
	}
}

// drain lets calls in progress finish, up to the grace; another signal ends the wait.
func (n *node) drain(signals <-chan os.Signal) {
	n.beginDrain()
	done := make(chan struct{})
	go func() {
		n.server.GracefulStop()
		close(done)
	}()
	timer := time.NewTimer(n.cfg.Grace)
	defer timer.Stop()
	select {
	case <-done:
		return
	case <-timer.C:
		n.log.Warn("calls in progress are cut off", zap.Duration("grace", n.cfg.Grace))
	case <-signals:
		n.log.Warn("second signal, calls in progress are cut off")
	}
	n.server.Stop()
	<-done
}

func (n *node) beginDrain() {
	if n.draining.Swap(true) {
		return
	}
	n.notify.Send(sdnotify.Stopping)
	n.worker.Drain()
	n.health.Shutdown()
	if n.client != nil {
		n.client.Notify()
	}
}

// healthPoll is how often readiness is looked at for the health service.
const healthPoll = 100 * time.Millisecond

func (n *node) watchHealth(ctx context.Context) error {
	ticker := time.NewTicker(healthPoll)
	defer ticker.Stop()
	was := false
	for first := true; ; first = false {
		n.rounds.Add(1)
		if ready := n.ready(); ready != was || first {
			was = ready
			status := healthv1.HealthCheckResponse_NOT_SERVING
			if ready {
				status = healthv1.HealthCheckResponse_SERVING
			}
			n.health.SetServingStatus("", status)
			n.notify.Send(map[bool]string{true: sdnotify.Serving, false: sdnotify.Loading}[ready])
			if n.client != nil && !first {
				n.client.Notify()
			}
		} else if n.client != nil && !n.complete.Load() {
			n.client.Notify() // somebody may be watching how far the model is loaded
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (n *node) heartbeat() *tandemv1.Heartbeat {
	h := &tandemv1.Heartbeat{State: registry.StateStarting}
	switch {
	case n.draining.Load(), n.held.Load():
		h.State = registry.StateDraining
	case n.ready():
		h.State = registry.StateReady
	}
	n.worker.Heartbeat(h)
	return h
}

func (n *node) lease(l *tandemv1.Lease) {
	n.admit(l.GetGateway(), l.GetAdmission())
	n.worker.Lease(l)
}

// admit does what somebody asked of this worker at a gateway, once: leases repeat it, and another gateway may have been
// asked otherwise since. A gateway that says nothing of it, as one that the worker has just joined, changes nothing.
func (n *node) admit(gateway string, a tandemv1.Admission) {
	if n.admissions[gateway] == a {
		return
	}
	if n.admissions == nil {
		n.admissions = map[string]tandemv1.Admission{}
	}
	n.admissions[gateway] = a
	switch a {
	case tandemv1.Admission_ADMISSION_HOLD, tandemv1.Admission_ADMISSION_OPEN:
		hold := a == tandemv1.Admission_ADMISSION_HOLD
		if n.held.Swap(hold) != hold {
			n.log.Info(map[bool]string{true: "no new work is taken, on request", false: "work is taken again"}[hold])
			n.client.Notify()
		}
	case tandemv1.Admission_ADMISSION_END:
		n.endOnce.Do(func() { close(n.end) })
	}
}
