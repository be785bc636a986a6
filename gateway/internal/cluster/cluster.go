package cluster

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/registry"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/services/unixsocket"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// Registry is what the cluster reads of services/registry.
type Registry interface {
	Workers() []registry.Worker
	Watch() (<-chan struct{}, func())
}

// Config sets up a Cluster.
type Config struct {
	Targets PoolConfig
	Scorers PoolConfig
}

// Deps of a Cluster.
type Deps struct {
	Registry Registry
	Logger   *zap.Logger
	// DialOptions of the connections to workers.
	DialOptions []grpc.DialOption
	// Credentials of connections to workers of a role; nil = DialOptions have them.
	Credentials func(role string) credentials.TransportCredentials
}

// Cluster follows the registry and owns the pools.
type Cluster struct {
	// Targets generate, Scorers rate prompts for compression.
	Targets, Scorers *Pool

	reg  Registry
	log  *zap.Logger
	dial []grpc.DialOption
	cred func(role string) credentials.TransportCredentials

	mu      sync.Mutex // guards the following; never held together with Pool.mu
	active  *tandemv1.ModelInfo
	scorer  *tandemv1.ModelInfo
	changed chan struct{} // closed and replaced when active or scorer change
	odd     map[string]bool
}

// New returns a cluster that knows nobody until Run.
func New(cfg Config, deps Deps) *Cluster {
	if deps.Logger == nil {
		deps.Logger = zap.NewNop()
	}
	c := &Cluster{
		Targets: NewPool(cfg.Targets), Scorers: NewPool(cfg.Scorers), reg: deps.Registry,
		log: deps.Logger, dial: deps.DialOptions, cred: deps.Credentials,
		changed: make(chan struct{}), odd: map[string]bool{},
	}
	c.Targets.lastReady, c.Scorers.lastReady = time.Now(), time.Now()
	return c
}

// Run follows the registry until ctx is done, then closes the connections.
func (c *Cluster) Run(ctx context.Context) error {
	ch, stop := c.reg.Watch()
	defer stop()
	defer c.Targets.close()
	defer c.Scorers.close()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ch:
			c.update(c.reg.Workers())
		}
	}
}

// loads reports whether a worker still loads its model and has not said yet what it is.
func loads(w registry.Worker) bool {
	return w.State == registry.StateStarting && w.Registration.GetModel().GetVocab() == 0
}

// update brings pools and models in line with the registry.
func (c *Cluster) update(workers []registry.Worker) {
	c.forgetOdd(workers)
	workers = slices.DeleteFunc(slices.Clone(workers), loads)
	active := c.choose(workers)
	var targets, scorers []registry.Worker
	var scorer *tandemv1.ModelInfo
	for _, w := range workers {
		if w.State == registry.StateLost {
			continue
		}
		switch w.Registration.GetRole() {
		case tandemv1.Role_ROLE_TARGET:
			if sameModel(active, w.Registration.GetModel()) {
				targets = append(targets, w)
			} else {
				c.warnOdd(w)
			}
		case tandemv1.Role_ROLE_PREFILL:
			// Scorers are exchangeable only among themselves: prompts are cut in the scorer's own tokens.
			if scorer == nil {
				scorer = w.Registration.GetModel()
			}
			if sameModel(scorer, w.Registration.GetModel()) {
				scorers = append(scorers, w)
			}
		}
	}
	c.Targets.update(targets, c.connect)
	c.Scorers.update(scorers, c.connect)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.active != active || c.scorer != scorer {
		c.active, c.scorer = active, scorer
		close(c.changed)
		c.changed = make(chan struct{})
	}
}

// choose returns the model that is served: the one served so far while a target with it is alive, else that of the
// target that joined first.
func (c *Cluster) choose(workers []registry.Worker) *tandemv1.ModelInfo {
	c.mu.Lock()
	old := c.active
	c.mu.Unlock()
	var first *registry.Worker
	for i, w := range workers {
		if w.Registration.GetRole() != tandemv1.Role_ROLE_TARGET || w.State == registry.StateLost {
			continue
		}
		if old != nil && sameModel(old, w.Registration.GetModel()) {
			return old
		}
		if first == nil || w.Joined.Before(first.Joined) {
			first = &workers[i]
		}
	}
	if first == nil {
		return old
	}
	return first.Registration.GetModel()
}

// sameModel compares by content; models without a digest by name. Targets of one model may have unlike contract ids:
// all serve new requests, and a generation that loses its worker stays within its own id (Demand.Contract).
func sameModel(a, b *tandemv1.ModelInfo) bool {
	return a.GetDigest() == b.GetDigest() && (a.GetDigest() != "" || a.GetName() == b.GetName())
}

// forgetOdd drops those who were warned of and are no longer in the registry's table.
func (c *Cluster) forgetOdd(workers []registry.Worker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.odd {
		if !slices.ContainsFunc(workers, func(w registry.Worker) bool { return w.ID == id }) {
			delete(c.odd, id)
		}
	}
}

func (c *Cluster) warnOdd(w registry.Worker) {
	c.mu.Lock()
	seen := c.odd[w.ID]
	c.odd[w.ID] = true
	c.mu.Unlock()
	if !seen {
		c.log.Warn("target has another model than the one served and gets no requests",
			zap.String(telemetry.KeyWorker, w.ID), zap.String(telemetry.KeyModel, w.Registration.GetModel().GetName()))
	}
}

// Connect opens a connection of its own to a worker, for the caller to close.
func (c *Cluster) Connect(w registry.Worker) (*grpc.ClientConn, error) {
	options := c.dial
	if c.cred != nil {
		creds := grpc.WithTransportCredentials(c.cred(registry.RoleName(w.Registration.GetRole())))
		options = append(options[:len(options):len(options)], creds)
	}
	return grpc.NewClient(unixsocket.DialTarget(registry.Reach(w.Registration)), options...)
}

func (c *Cluster) connect(w registry.Worker) *grpc.ClientConn {
	conn, err := c.Connect(w)
	if err != nil {
		c.log.Error("worker address cannot be used", zap.String(telemetry.KeyWorker, w.ID), zap.Error(err))
		return nil
	}
	return conn
}

// Active returns the model that is served, nil before the first target joined, and a channel that is closed when it or
// the scorer's model changes.
func (c *Cluster) Active() (target, scorer *tandemv1.ModelInfo, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.active, c.scorer, c.changed
}

// Workers returns the registry's list.
func (c *Cluster) Workers() []registry.Worker { return c.reg.Workers() }

// update replaces the workers of the pool.
func (p *Pool) update(list []registry.Worker, connect func(registry.Worker) *grpc.ClientConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.anyReady() {
		p.lastReady = now
	}
	seen := make(map[string]bool, len(list))
	for _, info := range list {
		w := p.workers[info.ID]
		if w != nil && w.info.Epoch != info.Epoch {
			p.remove(w)
			w = nil
		}
		if w == nil {
			conn := connect(info)
			if conn == nil {
				continue
			}
			w = &worker{conn: conn, lease: make(chan struct{}), running: map[*Slot]struct{}{}}
			p.workers[info.ID] = w
			// Connect at once: the first request should not pay for it.
			conn.Connect()
		}
		w.pace.observe(info.Heartbeat.GetCounters())
		if info.LastHeartbeat.After(w.info.LastHeartbeat) {
			w.trips.observe(info.Heartbeat)
		}
		lim := info.Registration.GetLimits()
		w.info, w.slots, w.maxCtx = info, max(1, int(lim.GetLanes())), int(lim.GetMaxContext())
		if w.kv = int(lim.GetKvTokens()); w.kv > 0 {
			w.maxCtx = min(cmp.Or(w.maxCtx, w.kv), w.kv)
		}
		if n := int(lim.GetMaxScoreTokens()); n > 0 && info.Registration.GetRole() == tandemv1.Role_ROLE_PREFILL {
			w.maxCtx = n
		}
		seen[info.ID] = true
	}
	for id, w := range p.workers {
		if !seen[id] {
			p.remove(w)
		}
	}
	if p.anyReady() {
		p.known, p.lastReady, p.lastCtx = true, now, p.longest()
	}
	p.attend(now)
	p.dispatch(now)
}

// remove forgets a worker; its connection closes when nobody uses it. A worker whose lease broke may still be serving.
func (p *Pool) remove(w *worker) {
	w.gone = true
	close(w.lease)
	delete(p.workers, w.info.ID)
	if w.busy == 0 {
		_ = w.conn.Close()
	}
}

// close ends all connections.
func (p *Pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, timer := range []*time.Timer{p.wake, p.absence} {
		if timer != nil {
			timer.Stop()
		}
	}
	for _, w := range p.workers {
		w.gone = true
		_ = w.conn.Close()
	}
	clear(p.workers)
}
