// Package inlet bounds what callers may hold of a gRPC port before a handler has read anything of theirs: connections,
// streams, headers, and the bytes of messages that have not arrived completely. gRPC bounds each of them for one stream
// or one connection at most, so that many of them take all memory.
package inlet

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-inference/tandem/services/telemetry"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// Limits of a port.
type Limits struct {
	// Connections are open at a time, of one host at most PerHost. Sockets in the file system count as no host.
	Connections, PerHost int
	// Streams of a connection are open at a time; callers wait before they open more.
	Streams uint32
	// ArrivingBytes are those of incomplete messages, of all connections together. Beyond it the connection that holds
	// most is closed, of the host that holds most.
	ArrivingBytes int64
}

const (
	// handshakeTime is how long a connection may take until gRPC can be spoken on it: longer keeps more half-open ones.
	handshakeTime = 10 * time.Second
	// pingTime is the silence after which a caller is pinged, and pongTime how long it may take to answer. A frame that
	// arrives byte by byte is silence.
	pingTime, pongTime = 20 * time.Second, 10 * time.Second
	// headerBytes of a request: names of methods, keys, ids of traces.
	headerBytes = 64 << 10
	// pause between two lines of the log about the same: an attacker shall not fill the disk.
	pause = time.Second
)

// Port holds callers to its limits.
type Port struct {
	limits   Limits
	log      *zap.Logger
	arriving atomic.Int64

	mu    sync.Mutex // guards the following
	hosts map[string]int
	total int
	open  map[*conn]struct{}
	// refused connections since the last line about them, and when that was.
	refused int
	told    time.Time
}

// New returns a port with limits; log may be nil.
func New(limits Limits, log *zap.Logger) *Port {
	if log == nil {
		log = zap.NewNop()
	}
	return &Port{limits: limits, log: log, hosts: map[string]int{}, open: map[*conn]struct{}{}}
}

// ServerOptions are those of the port's server, whose connections creds make; nil = they are plain.
func (p *Port) ServerOptions(creds credentials.TransportCredentials) []grpc.ServerOption {
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	return []grpc.ServerOption{
		grpc.Creds(&handshake{creds, p}), grpc.ConnectionTimeout(handshakeTime),
		grpc.MaxConcurrentStreams(p.limits.Streams), grpc.MaxHeaderListSize(headerBytes),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingTime, Timeout: pongTime}),
	}
}

// Listener closes connections beyond the limits as they come.
func (p *Port) Listener(l net.Listener) net.Listener { return &listener{l, p} }

type listener struct {
	net.Listener
	port *Port
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		host := hostOf(c.RemoteAddr())
		if l.port.admit(host) {
			return &admitted{Conn: c, leave: sync.OnceFunc(func() { l.port.leave(host) })}, nil
		}
		_ = c.Close()
	}
}

// hostOf is the address of the other end without its port, empty for a socket in the file system.
func hostOf(a net.Addr) string {
	if tcp, ok := a.(*net.TCPAddr); ok {
		return tcp.IP.String()
	}
	return ""
}

// admitted is a connection that is counted until it is closed.
type admitted struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (a *admitted) Close() error {
	a.leave()
	return a.Conn.Close()
}

// admit counts a connection of a host, if there is room for it.
func (p *Port) admit(host string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.total < p.limits.Connections && (host == "" || p.hosts[host] < p.limits.PerHost) {
		p.total++
		p.hosts[host]++
		return true
	}
	p.refused++
	if now := time.Now(); now.Sub(p.told) >= pause {
		p.log.Warn("connections refused: too many are open", zap.String(telemetry.KeyAddress, host),
			zap.Int("refused", p.refused), zap.Int("open", p.total), zap.Int("open_of_address", p.hosts[host]))
		p.refused, p.told = 0, now
	}
	return false
}

func (p *Port) leave(host string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total--
	if p.hosts[host]--; p.hosts[host] == 0 {
		delete(p.hosts, host)
	}
}

// handshake makes connections whose messages are watched as they arrive.
type handshake struct {
	credentials.TransportCredentials
	port *Port
}

// ServerHandshake implements credentials.TransportCredentials.
func (h *handshake) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := h.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return secured, info, err
	}
	c := &conn{Conn: secured, port: h.port, streams: map[uint32]*message{}}
	c.in = scanner{skip: len(preface), begin: c.arrives, data: c.data, over: c.arrived}
	c.out = scanner{begin: c.leaves}
	h.port.mu.Lock()
	h.port.open[c] = struct{}{}
	h.port.mu.Unlock()
	return c, info, nil
}

// Clone implements credentials.TransportCredentials.
func (h *handshake) Clone() credentials.TransportCredentials {
	return &handshake{h.TransportCredentials.Clone(), h.port}
}

// shed closes connections until incomplete messages are within the limit.
func (p *Port) shed() {
	for p.arriving.Load() > p.limits.ArrivingBytes {
		victim, held, ofHost := p.largest()
		if victim == nil {
			return
		}
		p.log.Warn("connection closed: the messages that are arriving take too much memory",
			zap.Stringer(telemetry.KeyAddress, victim.RemoteAddr()), zap.Int64("bytes", held),
			zap.Int64("bytes_of_address", ofHost), zap.Int64("limit", p.limits.ArrivingBytes))
		_ = victim.end()
	}
}

// largest takes the connection that holds most off the list, of the host that holds most; nil = nobody holds anything.
func (p *Port) largest() (victim *conn, held, ofHost int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	byHost := map[string]int64{}
	for c := range p.open {
		byHost[hostOf(c.RemoteAddr())] += c.held.Load()
	}
	for c := range p.open {
		n, all := c.held.Load(), byHost[hostOf(c.RemoteAddr())]
		if n > 0 && (all > ofHost || all == ofHost && n > held) {
			victim, held, ofHost = c, n, all
		}
	}
	delete(p.open, victim)
	return victim, held, ofHost
}

// forget drops a connection that is over.
func (p *Port) forget(c *conn) {
	p.mu.Lock()
	delete(p.open, c)
	p.mu.Unlock()
}
