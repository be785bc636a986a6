package peers

import (
	"maps"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/worker-target/internal/prefix"
)

const (
	// firstRate is what a peer is expected to send before that was measured, in bytes per second: half of a 10-Gbit
	// network. A larger one tries more fetches that are given up.
	firstRate = 600e6
	// firstLatency is the time until the header arrives, before it was measured.
	firstLatency = 5 * time.Millisecond
	// newest is the share of the newest measurement in a mean.
	newest = 0.5
	// forgotten is how long a measurement holds: a network that was busy is tried again.
	forgotten = time.Minute
	// avoided is how long a peer that did not answer is left alone.
	avoided = 5 * time.Second
	// mostLinks bounds the connections to peers.
	mostLinks = 32
)

// Reasons of failed fetches.
const (
	Missing = "missing" // the peer does not hold the state any more
	Refused = "refused" // another contract id, or it sends no states
	Busy    = "busy"    // it sends enough states already
	Lost    = "lost"    // it does not answer, or left in the middle
	Slow    = "slow"    // reading turned out to be faster
	Damaged = "damaged" // what came is not what was asked for
	Local   = "local"   // the worker's own engine had no room, or failed
)

// Reasons lists them.
var Reasons = []string{Missing, Refused, Busy, Lost, Slow, Damaged, Local}

// Config of a Client.
type Config struct {
	Dial func(address string) (*grpc.ClientConn, error)
	// Read is the expected time of reading a prompt's tokens from one position to another, 0 = not known.
	Read func(info engine.Info, from, to int) time.Duration
	// Window is engine.OpenOptions.AttentionWindow of the worker: pages before it are not sent.
	Window int
	// MaxRowBytes bounds the rows of features of a state.
	MaxRowBytes uint64
	Log         *zap.Logger
}

// Stats of a Client since its start.
type Stats struct {
	Fetched  uint64 // states
	Tokens   uint64 // that fetched states saved reading
	Bytes    uint64 // received for states, those included that failed
	Seconds  float64
	Skipped  uint64 // hints that were not followed: reading was expected to be faster
	Failures map[string]uint64
}

// Client fetches states. It is safe for concurrent use. A nil Client fetches none.
type Client struct {
	cfg Config

	mu    sync.Mutex // guards the fields below and those of links
	links map[string]*link
	stats Stats
}

// link is the connection to a peer and what was measured of it.
type link struct {
	conn     *grpc.ClientConn
	users    int
	used     time.Time
	rate     float64 // bytes per second
	latency  time.Duration
	measured time.Time
	avoid    time.Time // not asked before
}

// NewClient returns a client.
func NewClient(cfg Config) *Client {
	if cfg.Log == nil {
		cfg.Log = zap.NewNop()
	}
	return &Client{cfg: cfg, links: map[string]*link{}, stats: Stats{Failures: map[string]uint64{}}}
}

// Close ends all connections.
func (c *Client) Close() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.links {
		_ = l.conn.Close()
	}
	clear(c.links)
}

// Stats returns the counters.
func (c *Client) Stats() Stats {
	if c == nil {
		return Stats{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Failures = maps.Clone(s.Failures)
	return s
}

// At returns the peer of a hint for a request of a contract id and isolation, nil when there is none.
func (c *Client) At(hint *tandemv1.PeerHint, contract, isolation string) prefix.Peer {
	if c == nil || hint.GetAddress() == "" {
		return nil
	}
	return &peer{client: c, hint: hint, contract: contract, isolation: isolation}
}

// link returns the connection to an address, in use until leave; nil when it cannot be used now.
func (c *Client) link(address string) *link {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	l := c.links[address]
	if l == nil {
		conn, err := c.cfg.Dial(address)
		if err != nil {
			c.cfg.Log.Warn("the address of a peer cannot be used", zap.String(telemetry.KeyPeer, address),
				zap.NamedError(telemetry.KeyErr, err))
			return nil
		}
		c.makeRoom()
		l = &link{conn: conn, rate: firstRate, latency: firstLatency}
		c.links[address] = l
	}
	if now.Before(l.avoid) {
		return nil
	}
	if now.Sub(l.measured) > forgotten {
		l.rate, l.latency = max(l.rate, firstRate), min(l.latency, firstLatency)
	}
	l.users++
	l.used = now
	return l
}

// makeRoom closes the connection that was used longest ago when there are enough. The caller holds mu.
func (c *Client) makeRoom() {
	if len(c.links) < mostLinks {
		return
	}
	oldest := ""
	for address, l := range c.links {
		if l.users == 0 && (oldest == "" || l.used.Before(c.links[oldest].used)) {
			oldest = address
		}
	}
	if oldest != "" {
		_ = c.links[oldest].conn.Close()
		delete(c.links, oldest)
	}
}

// leave ends a use of a connection.
func (c *Client) leave(l *link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l.users--
}

// expected is how long a fetch of so many bytes is expected to take.
func (c *Client) expected(l *link, bytes uint64) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return l.latency + time.Duration(float64(bytes)/l.rate*float64(time.Second))
}

// answered notes when a header came, or that it did not come until then.
func (c *Client) answered(l *link, after time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l.latency = time.Duration((1-newest)*float64(l.latency) + newest*float64(after))
	l.measured = time.Now()
}

// received notes what came in a time after the header.
func (c *Client) received(l *link, bytes uint64, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Bytes += bytes
	c.stats.Seconds += took.Seconds()
	if bytes == 0 || took <= 0 {
		return
	}
	l.rate = (1-newest)*l.rate + newest*float64(bytes)/took.Seconds()
	l.measured = time.Now()
}

func (c *Client) skip() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Skipped++
}

func (c *Client) succeeded(tokens int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Fetched++
	c.stats.Tokens += uint64(tokens)
}

// failed counts a fetch that was a miss.
func (c *Client) failed(l *link, hint *tandemv1.PeerHint, reason string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Failures[reason]++
	if reason == Lost {
		l.avoid = time.Now().Add(avoided)
	}
	level := zap.DebugLevel
	if reason == Damaged {
		level = zap.WarnLevel
	}
	c.cfg.Log.Log(level, "a state was not fetched", zap.String(telemetry.KeyPeer, hint.GetWorkerId()),
		zap.String(telemetry.KeyReason, reason), zap.NamedError(telemetry.KeyErr, err))
}
