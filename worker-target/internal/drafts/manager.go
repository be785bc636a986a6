package drafts

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// DefaultRingRows is how many positions of features are kept per sequence for a draft that comes back. Drafts look back
// 2048 positions in their sliding layers; more helps the full ones a little.
const DefaultRingRows = 4096

// Engine is what the manager needs of the target's engine.
type Engine interface {
	Info() engine.Info
	SetCapture(ctx context.Context, layers []int32) error
	LoadFuse(ctx context.Context, path string) error
}

// Config of a manager.
type Config struct {
	// Engine returns the engine that is open now; UNAVAILABLE while it restarts.
	Engine func() (Engine, error)
	// TablesDigest of the target's embedding and head (workernode.TablesDigest), and TablesFile that holds them, which is
	// only asked for when a draft lacks them.
	TablesDigest func(ctx context.Context) (string, error)
	TablesFile   func(ctx context.Context) (string, error)
	// TokenizerDigest of the target, "" = not compared.
	TokenizerDigest string
	// CacheDir receives the drafts' projections.
	CacheDir string
	// Dial connects to a peer; the connection should carry the options of services/tensorwire and services/rpcerr.
	Dial func(address string) (*grpc.ClientConn, error)
	// LinkMeasure gets how long questions and answers were on their way; nil = nobody.
	LinkMeasure metric.Float64Histogram
	Log         *zap.Logger
}

// linkBounds are in seconds: shared memory takes some 20 µs, a network milliseconds.
var linkBounds = []float64{.00001, .000025, .00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25}

// NewLinkMeasure makes Config.LinkMeasure.
func NewLinkMeasure(p metric.MeterProvider) (metric.Float64Histogram, error) {
	return p.Meter("github.com/tandem-inference/tandem/worker-target").Float64Histogram("tandem.target.link",
		metric.WithUnit("s"), metric.WithExplicitBucketBoundaries(linkBounds...),
		metric.WithDescription("Time of a proposal that was not the draft's own work: on the way, or in its queue."))
}

// Capture says what features the engine delivers, for which draft.
type Capture struct {
	Encoding engine.FeatureEncoding
	Width    int // bytes per row
	// Block of the draft as far as it is used, anchor included: 2 to auto.MaxBlock.
	Block int

	draftDigest string
	layers      []int32
	fuseDigest  string // as the draft reports it
	fusePath    string // "" = raw
}

// Key names what a row of features is, in 32 bytes: rows of equal keys may stand for each other, also after a restart.
func (c *Capture) Key() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %d %v %s %s", c.Encoding, c.Width, c.layers, c.draftDigest, c.fuseDigest))
	return hex.EncodeToString(sum[:16])
}

// same reports whether features and blocks of c are those that a draft with the description of next expects. A draft
// whose projection could not be used gets raw features, whose width follows from the layers.
func (c *Capture) same(next *Capture) bool {
	return c.draftDigest == next.draftDigest && c.Block == next.Block && slices.Equal(c.layers, next.layers) &&
		c.fuseDigest == next.fuseDigest && (c.fusePath == "" || c.Width == next.Width)
}

// Manager attaches drafts and hands them to links.
type Manager struct {
	cfg Config

	// captureMu serialises changes of the engine's capture; taken before mu.
	captureMu sync.Mutex

	mu      sync.Mutex
	ctx     context.Context // set by Run
	peers   map[string]*peer
	static  []string
	changed chan struct{} // closed and replaced when a peer's state changes
	current *Capture
	links   int
	refused int
	group   sync.WaitGroup
}

// NewManager returns a manager without peers; static addresses are attached by Run and never dropped.
func NewManager(cfg Config, static []string) *Manager {
	if cfg.Log == nil {
		cfg.Log = zap.NewNop()
	}
	return &Manager{cfg: cfg, peers: map[string]*peer{}, static: static, changed: make(chan struct{})}
}

// Run attaches drafts until ctx ends, then waits for everything it started.
func (m *Manager) Run(ctx context.Context) error {
	m.mu.Lock()
	m.ctx = ctx
	for _, address := range m.static {
		m.addLocked(address)
	}
	for _, p := range m.peers {
		m.startLocked(p)
	}
	m.mu.Unlock()
	<-ctx.Done()
	m.group.Wait()
	return ctx.Err()
}

// SetPeers replaces the peers of the lease.
func (m *Manager) SetPeers(addresses []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for address, p := range m.peers {
		if !slices.Contains(addresses, address) && !slices.Contains(m.static, address) {
			p.stop()
			delete(m.peers, address)
		}
	}
	for _, address := range addresses {
		if p := m.addLocked(address); p != nil && m.ctx != nil {
			m.startLocked(p)
		}
	}
	m.notifyLocked()
}

// addLocked returns the new peer, nil when the address is known.
func (m *Manager) addLocked(address string) *peer {
	if m.peers[address] != nil {
		return nil
	}
	p := newPeer(m, address)
	m.peers[address] = p
	return p
}

func (m *Manager) startLocked(p *peer) {
	if m.ctx.Err() != nil {
		return
	}
	ctx := p.start(m.ctx)
	m.group.Go(func() { p.run(ctx) })
}

// Known reports whether any draft was ever named: without one, speculation is not degraded but absent.
func (m *Manager) Known() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.peers) > 0
}

// Attached lists the worker ids of drafts that are ready.
func (m *Manager) Attached() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var ids []string
	for _, p := range m.peers {
		if ready, _ := p.state(); ready {
			ids = append(ids, p.name())
		}
	}
	slices.Sort(ids)
	return ids
}

// Refused is how many drafts were turned down because they do not match.
func (m *Manager) Refused() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.refused
}

// Refusal is a draft that cannot be used because it does not match.
type Refusal struct{ Address, Reason string }

// RefusedNow lists the drafts that cannot be used at present, by address.
func (m *Manager) RefusedNow() []Refusal {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []Refusal
	for _, address := range m.addressesLocked() {
		p := m.peers[address]
		p.mu.Lock()
		if p.refusal != "" {
			list = append(list, Refusal{Address: address, Reason: p.refusal})
		}
		p.mu.Unlock()
	}
	return list
}

// Capture returns what the engine captures now, nil before the first draft is attached.
func (m *Manager) Capture() *Capture {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.current
}

// Restore gives a restarted engine its capture again.
func (m *Manager) Restore(ctx context.Context, engine Engine) error {
	m.captureMu.Lock()
	defer m.captureMu.Unlock()
	c := m.Capture()
	if c == nil {
		return nil
	}
	if c.fusePath != "" {
		return engine.LoadFuse(ctx, c.fusePath)
	}
	return engine.SetCapture(ctx, c.layers)
}

// Open starts the link of a request whose features, of kind capture, go to ring. vocab is the target's. A draft gets
// nothing of a held request before the first question; then it gets the rows that the ring holds.
func (m *Manager) Open(ctx context.Context, id string, ring *Ring, capture *Capture, vocab int, held bool) *Link {
	m.mu.Lock()
	m.links++
	m.mu.Unlock()
	return newLink(ctx, linkConfig{id: id, ring: ring, manager: m, capture: capture, vocab: vocab,
		held: held, log: m.cfg.Log})
}

// closed takes note of a link's end.
func (m *Manager) closed() {
	m.mu.Lock()
	m.links--
	m.mu.Unlock()
}

// acquire waits for a ready draft with the features of capture and takes the least busy one.
func (m *Manager) acquire(ctx context.Context, capture *Capture) (*peer, error) {
	for {
		m.mu.Lock()
		changed := m.changed
		var best *peer
		now := time.Now()
		for _, address := range m.addressesLocked() {
			p := m.peers[address]
			if ready, digest := p.state(); !ready || digest != capture.draftDigest {
				continue
			}
			if best == nil || p.better(best, now) {
				best = p
			}
		}
		if best != nil {
			best.links++
		}
		m.mu.Unlock()
		if best != nil {
			return best, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// available reports whether acquire would return at once.
func (m *Manager) available(capture *Capture) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.peers {
		if ready, digest := p.state(); ready && digest == capture.draftDigest {
			return true
		}
	}
	return false
}

func (m *Manager) release(p *peer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p.links--
}

// addressesLocked lists peers in a fixed order, so that ties are always broken alike.
func (m *Manager) addressesLocked() []string {
	list := make([]string, 0, len(m.peers))
	for address := range m.peers {
		list = append(list, address)
	}
	slices.Sort(list)
	return list
}

func (m *Manager) notify() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.notifyLocked()
}

func (m *Manager) notifyLocked() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// measure measures an answer that took so long.
func (m *Manager) measure(took time.Duration, r *tandemv1.SpeculateResponse) {
	if m.cfg.LinkMeasure == nil {
		return
	}
	m.cfg.LinkMeasure.Record(context.Background(), max(0, took-work(r)).Seconds())
}

// work is the time that an answer took at the draft.
func work(r *tandemv1.SpeculateResponse) time.Duration {
	return time.Duration(r.AppendUs+r.ForwardUs+r.BuildUs) * time.Microsecond
}
