package faults

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"sync"
	"syscall"
	"time"
)

// balancer is a proxy before gateways, as every load balancer is one: requests go to the gateways that are ready, in
// turn, and to the next one where a gateway cannot be reached or says that it cannot serve.
type balancer struct {
	base      string
	listener  net.Listener
	transport *http.Transport

	mu       sync.Mutex // guards the following
	gateways []*upstream
	next     int
}

// upstream is a gateway behind the balancer.
type upstream struct {
	address string
	ready   bool
}

// healthTime is the pause between two health checks.
const healthTime = 100 * time.Millisecond

// newBalancer serves until ctx ends. It keeps connections, or makes one for each request: a gateway that does not tell
// beforehand that it ends closes idle ones, perhaps while a request is on its way.
func newBalancer(ctx context.Context, keep bool) (*balancer, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	b := &balancer{base: "http://" + l.Addr().String(), listener: l, transport: &http.Transport{DisableKeepAlives: !keep}}
	proxy := &httputil.ReverseProxy{Transport: b, FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Scheme = "http" }}
	server := &http.Server{Handler: proxy, ReadHeaderTimeout: silence}
	go func() { _ = server.Serve(l) }()
	go func() {
		for ctx.Err() == nil {
			b.check(ctx)
			select {
			case <-time.After(healthTime):
			case <-ctx.Done():
			}
		}
		_ = server.Close()
		b.transport.CloseIdleConnections()
	}()
	return b, nil
}

// keeps tells whether connections to gateways are kept.
func (b *balancer) keeps() bool { return !b.transport.DisableKeepAlives }

// add takes a gateway in.
func (b *balancer) add(address string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gateways = append(b.gateways, &upstream{address: address})
}

// check asks all gateways whether they are ready.
func (b *balancer) check(ctx context.Context) {
	b.mu.Lock()
	all := append([]*upstream(nil), b.gateways...)
	b.mu.Unlock()
	for _, u := range all {
		ready := b.ready(ctx, u.address)
		b.mu.Lock()
		u.ready = ready
		b.mu.Unlock()
	}
}

func (b *balancer) ready(ctx context.Context, address string) bool {
	ctx, stop := context.WithTimeout(ctx, 2*time.Second)
	defer stop()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/health/ready", nil)
	if err != nil {
		return false
	}
	reply, err := b.transport.RoundTrip(r)
	if err != nil {
		return false
	}
	defer reply.Body.Close()
	_, _ = io.Copy(io.Discard, reply.Body)
	return reply.StatusCode == http.StatusOK
}

// order is the gateways that a request tries: those that are ready in turn, then the others.
func (b *balancer) order() (first []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next++
	var rest []string
	for i := range b.gateways {
		if u := b.gateways[(b.next+i)%len(b.gateways)]; u.ready {
			first = append(first, u.address)
		} else {
			rest = append(rest, u.address)
		}
	}
	return append(first, rest...)
}

// RoundTrip implements http.RoundTripper.
func (b *balancer) RoundTrip(r *http.Request) (reply *http.Response, err error) {
	var body []byte
	if r.Body != nil {
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	err = errors.New("no gateway")
	addresses := b.order()
	for i, address := range addresses {
		again := r.Clone(r.Context())
		again.URL.Host, again.Body = address, io.NopCloser(bytes.NewReader(body))
		reply, err = b.transport.RoundTrip(again)
		last := i == len(addresses)-1
		switch {
		case err != nil && (last || !errors.Is(err, syscall.ECONNREFUSED)):
			return nil, err
		case err == nil && (last || reply.StatusCode != http.StatusServiceUnavailable):
			return reply, nil
		case err == nil:
			_ = reply.Body.Close()
		}
	}
	return nil, err
}
