package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/services/unixsocket"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
)

const (
	// settle is how long a worker waits for gateways that it was told of to answer before it joins those that other
	// gateways name: they may be the same ones.
	settle = 500 * time.Millisecond
	// standIn is how long a gateway may be without a lease under one address before another address of it is used.
	standIn = 3 * time.Second
	// afterAll is the order of addresses that gateways name.
	afterAll = 1 << 20
)

// Membership keeps one worker registered at all gateways of its cluster: at those that it was told of, and at those
// that these name. The drafts of a target are those that one of them assigns, the same for all workers: the gateway
// that is there longest.
type Membership struct {
	cfg  ClientConfig
	log  *zap.Logger
	kick chan struct{} // something changed; capacity 1

	telling sync.Mutex // held while OnLease is called, taken before mu
	beating sync.Mutex // held while Heartbeat is called

	mu           sync.Mutex // guards the following and the members' fields
	registration *tandemv1.Registration
	members      map[string]*member // by address
	began        time.Time
	peersOf      string // address of the member whose lease's drafts were told last
}

// member is one address of a gateway.
type member struct {
	address string
	// order is the place among the addresses that the worker was told of; those that gateways name come after them.
	order int
	named bool // a gateway named it

	client *Client            // nil = none runs
	stop   context.CancelFunc // of client

	gateway string          // id that its last lease told
	lease   *tandemv1.Lease // nil = it holds none
	tried   bool            // a lease came, or it failed
	lost    time.Time       // when the last lease ended
}

// NewMembership checks cfg, whose Gateway is not used, and returns a membership that does nothing until Run.
func NewMembership(gateways []string, cfg ClientConfig) (*Membership, error) {
	m := &Membership{kick: make(chan struct{}, 1), members: map[string]*member{}}
	for i, address := range gateways {
		cfg.Gateway = address
		if _, err := NewClient(cfg); err != nil {
			return nil, err
		}
		if m.members[address] == nil {
			m.members[address] = &member{address: address, order: i}
		}
	}
	if len(m.members) == 0 {
		return nil, errors.New("registry client: no gateway's address is given")
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	m.cfg, m.log, m.registration = cfg, cfg.Logger, proto.Clone(cfg.Registration).(*tandemv1.Registration)
	return m, nil
}

// Update replaces what the worker says of itself, now and at later joins. Id and role stay as they were.
func (m *Membership) Update(r *tandemv1.Registration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r = proto.Clone(r).(*tandemv1.Registration)
	r.WorkerId, r.Role, r.ProtocolVersion = m.registration.WorkerId, m.registration.Role, m.registration.ProtocolVersion
	m.registration = r
	for _, x := range m.members {
		if x.client != nil {
			x.client.Update(r)
		}
	}
}

// Notify sends heartbeats at once, for a change of state that should not wait for the next ones.
func (m *Membership) Notify() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, x := range m.members {
		if x.client != nil {
			x.client.Notify()
		}
	}
}

// Gateways is the number of gateways at which the worker holds a lease now.
func (m *Membership) Gateways() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.held())
}

// Run joins the gateways and stays joined until ctx is done. It returns ctx's error, or an error of an address that the
// worker was told of and that can never work.
func (m *Membership) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var clients sync.WaitGroup
	defer clients.Wait()
	defer cancel(nil)
	m.mu.Lock()
	m.began = time.Now()
	m.mu.Unlock()
	ticker := time.NewTicker(settle)
	defer ticker.Stop()
	for {
		m.arrange(ctx, cancel, &clients)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-m.kick:
		case <-ticker.C:
		}
	}
}

// held are the members with leases in the order of their addresses; the caller holds mu.
func (m *Membership) held() []*member {
	var list []*member
	for _, x := range m.sorted() {
		if x.lease != nil {
			list = append(list, x)
		}
	}
	return list
}

// sorted are all members in the order of their addresses; the caller holds mu.
func (m *Membership) sorted() []*member {
	list := make([]*member, 0, len(m.members))
	for _, x := range m.members {
		list = append(list, x)
	}
	slices.SortFunc(list, func(a, b *member) int {
		return cmp.Or(cmp.Compare(a.order, b.order), strings.Compare(a.address, b.address))
	})
	return list
}

// arrange starts and ends clients, so that there is one for each gateway.
func (m *Membership) arrange(ctx context.Context, fail context.CancelCauseFunc, clients *sync.WaitGroup) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.learn(now)
	covered := map[string]bool{} // gateways that an address before stands for
	for _, x := range m.sorted() {
		if x.gateway != "" && covered[x.gateway] {
			if x.client != nil {
				m.log.Info("another address is of the same gateway", zap.String(telemetry.KeyAddress, x.address))
				x.end()
			}
			continue
		}
		if x.lease != nil || x.gateway != "" && (x.lost.IsZero() || now.Sub(x.lost) < standIn) {
			covered[x.gateway] = true
		}
		if x.client == nil {
			m.start(ctx, x, fail, clients)
		}
	}
}

// learn takes up gateways that others name, and forgets those that nobody names any more and that are away; the caller
// holds mu.
func (m *Membership) learn(now time.Time) {
	named := map[string]string{} // address by id
	held := m.held()
	for _, x := range held {
		for _, g := range x.lease.GetGateways() {
			named[g.GetId()] = unixsocket.DialTarget(g.GetAddress())
		}
	}
	if len(held) == 0 {
		return
	}
	settled := now.Sub(m.began) >= settle
	if !settled {
		settled = !slices.ContainsFunc(m.sorted(), func(x *member) bool { return !x.named && !x.tried })
	}
	for id, address := range named {
		known := slices.ContainsFunc(held, func(x *member) bool { return x.gateway == id })
		if address == "" || known || !settled || m.members[address] != nil {
			continue
		}
		if hostOnly(m.registration.GetAddress()) && m.registration.GetRemoteAddress() == "" && !hostOnly(address) {
			continue // it could not reach this worker
		}
		m.members[address] = &member{address: address, order: afterAll, named: true, gateway: id}
	}
	for address, x := range m.members {
		if x.named && x.lease == nil && named[x.gateway] != address {
			x.end()
			delete(m.members, address)
		}
	}
}

// start runs a client for an address; the caller holds mu.
func (m *Membership) start(ctx context.Context, x *member, fail context.CancelCauseFunc, clients *sync.WaitGroup) {
	cfg := m.cfg
	cfg.Gateway, cfg.Registration = x.address, m.registration
	cfg.Heartbeat = m.heartbeat
	cfg.Logger = m.log.With(zap.String(telemetry.KeyAddress, x.address))
	client, err := NewClient(cfg)
	if err != nil {
		m.log.Warn("a gateway's address cannot be used", zap.String(telemetry.KeyAddress, x.address), zap.Error(err))
		return
	}
	client.cfg.OnLease = func(l *tandemv1.Lease) { m.heard(x, client, l) }
	client.cfg.OnDisconnect = func(err error) { m.left(x, client, err) }
	client.failed = func() { m.attempted(x) }
	ctx, x.stop = context.WithCancel(ctx)
	x.client = client
	clients.Go(func() {
		err := client.Run(ctx)
		if ctx.Err() != nil {
			return
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if x.named {
			m.log.Warn("a gateway's address cannot be used", zap.String(telemetry.KeyAddress, x.address), zap.Error(err))
			return
		}
		fail(fmt.Errorf("gateway %s: %w", x.address, err))
	})
}

// end stops a member's client; the caller holds mu.
func (x *member) end() {
	if x.client != nil {
		x.stop()
		x.client, x.lease = nil, nil
	}
}

// heartbeat asks the worker for its state, for one client at a time.
func (m *Membership) heartbeat() *tandemv1.Heartbeat {
	m.beating.Lock()
	defer m.beating.Unlock()
	return m.cfg.Heartbeat()
}

// attempted notes that a first attempt has failed.
func (m *Membership) attempted(x *member) {
	m.mu.Lock()
	x.tried = true
	m.mu.Unlock()
	m.wake()
}

// heard takes a lease of a member's client.
func (m *Membership) heard(x *member, from *Client, l *tandemv1.Lease) {
	m.telling.Lock()
	defer m.telling.Unlock()
	m.mu.Lock()
	if x.client != from { // its address is not used any more
		m.mu.Unlock()
		return
	}
	x.lease, x.tried, x.gateway, x.lost = l, true, l.GetGateway(), time.Time{}
	// Whatever else it says, drafts are those of the gateway that decides.
	out := proto.Clone(l).(*tandemv1.Lease)
	first := m.first()
	out.Peers, m.peersOf = first.lease.GetPeers(), first.address
	m.mu.Unlock()
	m.wake()
	if m.cfg.OnLease != nil {
		m.cfg.OnLease(out)
	}
}

// left notes that a member lost its lease. When it was the one that decides, the next one does.
func (m *Membership) left(x *member, from *Client, err error) {
	m.telling.Lock()
	defer m.telling.Unlock()
	m.mu.Lock()
	if x.client == from {
		x.lease, x.lost = nil, time.Now()
	}
	var out *tandemv1.Lease
	if first := m.first(); first != nil && first.address != m.peersOf {
		out, m.peersOf = first.lease, first.address
	}
	m.mu.Unlock()
	m.wake()
	if out != nil && m.cfg.OnLease != nil {
		m.cfg.OnLease(out)
	}
	if m.cfg.OnDisconnect != nil {
		m.cfg.OnDisconnect(err)
	}
}

// first is the member whose gateway decides about drafts: of those with leases the one that is in the cluster longest.
// The caller holds mu.
func (m *Membership) first() *member {
	held := m.held()
	for _, x := range held {
		for _, g := range x.lease.GetGateways() {
			if i := slices.IndexFunc(held, func(y *member) bool { return y.gateway == g.GetId() }); i >= 0 {
				return held[i]
			}
		}
	}
	if len(held) == 0 {
		return nil
	}
	return held[0]
}

// hostOnly reports whether an address is reached from its own host alone.
func hostOnly(address string) bool {
	if _, ok := unixsocket.Path(address); ok {
		return true
	}
	host, _, err := net.SplitHostPort(address)
	return err == nil && (host == "localhost" || net.ParseIP(host).IsLoopback())
}

func (m *Membership) wake() {
	select {
	case m.kick <- struct{}{}:
	default:
	}
}
