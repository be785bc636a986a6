package registry

import (
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
)

const (
	// mostWorkers bounds the table, lost workers included; a cluster on people's desks has a dozen. More make each
	// update dearer.
	mostWorkers = 256
	// mostStreams of one host are open at a time.
	mostStreams = 64
	// burst and refill bound how often one host may join: burst times at once, refill times a second in the long run.
	burst, refill = 100, 10
	// mostHosts are remembered; the one seen longest ago is forgotten.
	mostHosts = 1024
)

// limits keeps one host from taking all of the registry. Safe for concurrent use.
type limits struct {
	mu    *sync.Mutex
	hosts map[string]*host
}

// host is what one address does; guarded by limits.mu.
type host struct {
	streams int
	tokens  float64 // joins that it may make now
	seen    time.Time
}

func newLimits() limits { return limits{mu: &sync.Mutex{}, hosts: map[string]*host{}} }

// peerHost is the address of a stream's other end without its port; processes of this machine that come through a
// socket file share one.
func peerHost(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	if name, _, err := net.SplitHostPort(p.Addr.String()); err == nil {
		return name
	}
	return p.Addr.Network()
}

// admit counts a stream of a host; release ends it.
func (l *limits) admit(name string, now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.hosts[name]
	if h == nil {
		l.prune()
		h = &host{tokens: burst, seen: now}
		l.hosts[name] = h
	}
	h.tokens = min(burst, h.tokens+refill*now.Sub(h.seen).Seconds())
	h.seen = now
	switch {
	case h.streams >= mostStreams:
		return reasonError(codes.ResourceExhausted, "TOO_MANY_WORKERS", "too many workers have joined from this address")
	case h.tokens < 1:
		return reasonError(codes.ResourceExhausted, "TOO_MANY_JOINS", "workers join too often from this address")
	}
	h.tokens--
	h.streams++
	return nil
}

func (l *limits) release(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hosts[name].streams--
}

// prune makes room for another host; the caller holds mu. Hosts with streams stay.
func (l *limits) prune() {
	for len(l.hosts) >= mostHosts {
		oldest := ""
		for name, h := range l.hosts {
			if h.streams == 0 && (oldest == "" || h.seen.Before(l.hosts[oldest].seen)) {
				oldest = name
			}
		}
		if oldest == "" {
			return
		}
		delete(l.hosts, oldest)
	}
}

// room makes room in the table for a worker: a lost one goes before a new one is refused. The caller holds mu.
func (s *Server) room(id string) error {
	if s.workers[id] != nil || len(s.workers) < mostWorkers {
		return nil
	}
	oldest := ""
	for id, e := range s.workers {
		if e.w.State == StateLost && (oldest == "" || e.lostAt.Before(s.workers[oldest].lostAt)) {
			oldest = id
		}
	}
	if oldest == "" {
		return reasonError(codes.ResourceExhausted, "TOO_MANY_WORKERS", "the cluster has as many workers as it takes")
	}
	s.forget(oldest)
	return nil
}
