package registry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/bounds"
	"github.com/tandem-inference/tandem/services/pause"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Defaults of ClientConfig.
const (
	DefaultMinBackoff = 100 * time.Millisecond
	DefaultMaxBackoff = 5 * time.Second
)

// warnAfter is how long a worker is without a lease before it warns.
const warnAfter = 2 * time.Second

// goodbyeTimeout bounds the wait for the gateway's end of a stream that the worker has ended.
const goodbyeTimeout = 500 * time.Millisecond

// joinTimeout bounds the wait for the first lease of a stream.
const joinTimeout = 10 * time.Second

// ClientConfig sets up a Client.
type ClientConfig struct {
	// Gateway is the registry's address: host:port or unix:///path.
	Gateway string
	// Registration is what the worker says of itself. ProtocolVersion is filled in when 0.
	Registration *tandemv1.Registration
	// Heartbeat returns the worker's present state; the client sets seq and rtt_ms. Called from Run's goroutine.
	Heartbeat func() *tandemv1.Heartbeat
	// OnLease is told every lease message whose content changed (heartbeat_seq aside) in order, and the first one of every
	// stream. Called from Run's goroutine: it must not block. Nil = not wanted.
	OnLease func(*tandemv1.Lease)
	// OnDisconnect is told when a joined stream ended, with its error. Nil = not wanted.
	OnDisconnect func(error)
	Logger       *zap.Logger
	// Credentials of the connection; nil = plaintext.
	Credentials credentials.TransportCredentials
	// DialOptions replace the defaults (Credentials, keepalive) when not empty.
	DialOptions []grpc.DialOption
	// Waits between attempts: doubled from Min to Max, with jitter. Zero = defaults.
	MinBackoff, MaxBackoff time.Duration
}

// Client keeps one worker registered.
type Client struct {
	cfg    ClientConfig
	log    *zap.Logger
	kick   chan struct{}
	joined atomic.Bool
	// prefixes is the version of those in the stream's last heartbeat. Of Run's goroutine.
	prefixes uint64
	// failed is told of every attempt that brought no lease, from Run's goroutine; nil = not wanted.
	failed func()

	mu           sync.Mutex // guards registration
	registration *tandemv1.Registration
	updated      chan struct{} // registration changed; capacity 1
}

// NewClient checks cfg and returns a client that does nothing until Run.
func NewClient(cfg ClientConfig) (*Client, error) {
	switch {
	case cfg.Gateway == "":
		return nil, errors.New("registry client: gateway address is empty")
	case cfg.Registration == nil:
		return nil, errors.New("registry client: registration is missing")
	case cfg.Heartbeat == nil:
		return nil, errors.New("registry client: heartbeat function is missing")
	}
	if cfg.Registration.ProtocolVersion == 0 {
		cfg.Registration.ProtocolVersion = ProtocolVersion
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	if cfg.MinBackoff <= 0 {
		cfg.MinBackoff = DefaultMinBackoff
	}
	if cfg.MaxBackoff < cfg.MinBackoff {
		cfg.MaxBackoff = max(DefaultMaxBackoff, cfg.MinBackoff)
	}
	if cfg.Credentials == nil {
		cfg.Credentials = insecure.NewCredentials()
	}
	if len(cfg.DialOptions) == 0 {
		cfg.DialOptions = []grpc.DialOption{
			// As in tensorwire: a TXT query would hold a worker for 10 s on a network without a way out.
			grpc.WithDisableServiceConfig(),
			grpc.WithTransportCredentials(cfg.Credentials),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second,
				PermitWithoutStream: true}),
		}
	}
	c := &Client{cfg: cfg, log: cfg.Logger, kick: make(chan struct{}, 1), updated: make(chan struct{}, 1)}
	c.registration = proto.Clone(cfg.Registration).(*tandemv1.Registration)
	return c, nil
}

// Update replaces what the worker says of itself, now and at later joins. Id and role stay as they were.
func (c *Client) Update(r *tandemv1.Registration) {
	r = proto.Clone(r).(*tandemv1.Registration)
	c.mu.Lock()
	r.WorkerId, r.Role, r.ProtocolVersion = c.registration.WorkerId, c.registration.Role, c.registration.ProtocolVersion
	c.registration = r
	c.mu.Unlock()
	select {
	case c.updated <- struct{}{}:
	default:
	}
}

// registering is the message that carries the present registration. An update that it covers is no longer one.
func (c *Client) registering() *tandemv1.JoinRequest {
	select {
	case <-c.updated:
	default:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return &tandemv1.JoinRequest{Message: &tandemv1.JoinRequest_Registration{Registration: c.registration}}
}

// Joined reports whether the worker holds a lease now.
func (c *Client) Joined() bool { return c.joined.Load() }

// Notify sends a heartbeat at once, for a change of state that should not wait for the next one.
func (c *Client) Notify() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// Run joins the registry and stays joined, with back-off after every failure and without end, until ctx is done. It
// returns ctx's error, or an error of the gateway address that can never work.
func (c *Client) Run(ctx context.Context) error {
	conn, err := grpc.NewClient(c.cfg.Gateway, c.cfg.DialOptions...)
	if err != nil {
		return fmt.Errorf("registry client: gateway address %q: %w", c.cfg.Gateway, err)
	}
	defer conn.Close()
	api := tandemv1.NewRegistryServiceClient(conn)
	wait := c.cfg.MinBackoff
	alone, warned := time.Now(), false // since when there is no lease
	for {
		joined, err := c.session(ctx, api)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if joined {
			wait, alone, warned = c.cfg.MinBackoff, time.Now(), false
		} else if c.failed != nil {
			c.failed()
		}
		// A gateway that starts may do so after its workers: that is no news.
		level := zap.DebugLevel
		if status.Code(err) == codes.FailedPrecondition || !warned && time.Since(alone) >= warnAfter {
			level, warned = zap.WarnLevel, true
		}
		c.log.Log(level, "not registered, will try again", zap.Duration("wait", wait), zap.NamedError(telemetry.KeyErr, err))
		if !pause.For(ctx, jitter(wait)) {
			return ctx.Err()
		}
		wait = min(2*wait, c.cfg.MaxBackoff)
	}
}

// session is one stream: it registers, then sends heartbeats until the stream or ctx ends. joined says whether a lease
// came. A worker that ends says goodbye: it sends its last state and closes the stream, instead of breaking it.
func (c *Client) session(ctx context.Context, api tandemv1.RegistryServiceClient) (joined bool, err error) {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx)) // outlives ctx for the goodbye
	defer cancel()
	// A gateway that accepts the connection and never answers must not hold the worker.
	first := time.AfterFunc(joinTimeout, cancel)
	defer first.Stop()
	early := context.AfterFunc(ctx, cancel) // until there is a lease
	defer early()
	stream, err := api.Join(own)
	if err != nil {
		return false, err
	}
	if err := stream.Send(c.registering()); err != nil {
		return false, recvError(stream, err)
	}
	leases := make(chan *tandemv1.Lease)
	ended := make(chan error, 1)
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			if err := bounds.Check(m); err != nil {
				ended <- status.Error(codes.InvalidArgument, "the gateway's lease: "+err.Error())
				return
			}
			select {
			case leases <- m.GetLease():
			case <-own.Done():
				ended <- own.Err()
				return
			}
		}
	}()
	// The receiver is waited for: nothing outlives Run.
	done := false
	defer func() {
		cancel()
		if !done {
			<-ended
		}
	}()

	select {
	case l := <-leases:
		first.Stop()
		if !early() {
			return true, ctx.Err()
		}
		c.joined.Store(true)
		return true, c.serve(ctx, stream, l, leases, ended, &done)
	case err := <-ended:
		done = true
		return false, err
	}
}

// serve runs a joined stream to its end.
func (c *Client) serve(ctx context.Context, stream tandemv1.RegistryService_JoinClient, l *tandemv1.Lease,
	leases <-chan *tandemv1.Lease, ended <-chan error, done *bool) (err error) {
	defer func() {
		c.joined.Store(false)
		if c.cfg.OnDisconnect != nil {
			c.cfg.OnDisconnect(err)
		}
	}()
	c.log.Info("registered at the gateway", zap.Uint64(telemetry.KeyEpoch, l.GetEpoch()),
		zap.Int("peers", len(l.GetPeers())))
	c.tell(l)
	var (
		seq    uint64
		sent   time.Time
		rtt    time.Duration
		period = beatPeriod(l)
		timer  = time.NewTimer(0)
	)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-c.kick:
		case <-c.updated:
			if stream.Send(c.registering()) != nil {
				*done = true
				return ending(leases, ended)
			}
		case n := <-leases:
			if n.GetHeartbeatSeq() == seq && seq > 0 && !sent.IsZero() {
				rtt, sent = time.Since(sent), time.Time{}
			}
			if !sameLease(l, n) {
				c.tell(n)
			}
			l, period = n, beatPeriod(n)
			continue
		case err := <-ended:
			*done = true
			return err
		case <-ctx.Done():
			*done = c.goodbye(stream, seq+1, leases, ended)
			return ctx.Err()
		}
		seq++
		sent = time.Now()
		if stream.Send(c.heartbeat(seq, rtt)) != nil {
			*done = true
			return ending(leases, ended)
		}
		timer.Reset(period)
	}
}

// ending returns the status of a stream that has failed. The receiver may still hold leases that came before its end.
func ending(leases <-chan *tandemv1.Lease, ended <-chan error) error {
	for {
		select {
		case <-leases:
		case err := <-ended:
			return err
		}
	}
}

// heartbeat asks for the present state.
func (c *Client) heartbeat(seq uint64, rtt time.Duration) *tandemv1.JoinRequest {
	hb := c.cfg.Heartbeat()
	if hb == nil {
		hb = &tandemv1.Heartbeat{State: StateStarting}
	}
	hb.Seq, hb.RttMs = seq, float64(rtt.Microseconds())/1000
	if p := hb.GetPrefixes(); p != nil {
		if seq > 1 && p.GetVersion() == c.prefixes {
			hb.Prefixes = &tandemv1.Prefixes{Version: p.GetVersion(), DiskTokenMs: p.GetDiskTokenMs()}
		}
		c.prefixes = p.GetVersion()
	}
	return &tandemv1.JoinRequest{Message: &tandemv1.JoinRequest_Heartbeat{Heartbeat: hb}}
}

// goodbye ends a stream in order; done reports that ended was read.
func (c *Client) goodbye(stream tandemv1.RegistryService_JoinClient, seq uint64, leases <-chan *tandemv1.Lease,
	ended <-chan error) (done bool) {
	if stream.Send(c.heartbeat(seq, 0)) != nil || stream.CloseSend() != nil {
		return false
	}
	timer := time.NewTimer(goodbyeTimeout)
	defer timer.Stop()
	for {
		select {
		case <-leases: // answers on their way
		case err := <-ended:
			c.log.Debug("left the gateway", zap.NamedError(telemetry.KeyErr, err))
			return true
		case <-timer.C:
			return false
		}
	}
}

func (c *Client) tell(l *tandemv1.Lease) {
	if c.cfg.OnLease != nil {
		c.cfg.OnLease(l)
	}
}

// recvError returns the status behind a failed Send, which itself only says EOF.
func recvError(stream tandemv1.RegistryService_JoinClient, err error) error {
	if _, rerr := stream.Recv(); rerr != nil {
		return rerr
	}
	return err
}

// beatPeriod is a third of the lease, at least 10 ms.
func beatPeriod(l *tandemv1.Lease) time.Duration {
	return max(time.Duration(l.GetLeaseTtlMs())*time.Millisecond/3, 10*time.Millisecond)
}

// sameLease compares leases without heartbeat_seq, which changes with every message.
func sameLease(a, b *tandemv1.Lease) bool {
	if a.GetEpoch() != b.GetEpoch() || a.GetLeaseTtlMs() != b.GetLeaseTtlMs() ||
		a.GetAdmission() != b.GetAdmission() || len(a.GetPeers()) != len(b.GetPeers()) ||
		a.GetGateway() != b.GetGateway() || !sameGateways(a.GetGateways(), b.GetGateways()) {
		return false
	}
	for i, p := range a.GetPeers() {
		q := b.GetPeers()[i]
		if p.GetWorkerId() != q.GetWorkerId() || p.GetAddress() != q.GetAddress() ||
			p.GetRemoteAddress() != q.GetRemoteAddress() || p.GetSocketMadeUnixNs() != q.GetSocketMadeUnixNs() ||
			p.GetModel().GetDigest() != q.GetModel().GetDigest() {
			return false
		}
	}
	return true
}

// jitter spreads waits over 50 to 100 %, so that workers do not return in step.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }
