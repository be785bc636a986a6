package identity

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/tandem-inference/tandem/services/telemetry"
	"go.uber.org/zap"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// Source is the pair of a process, which may change while connections are made.
type Source struct{ pair atomic.Pointer[Pair] }

// NewSource returns a source that has p.
func NewSource(p *Pair) *Source {
	s := &Source{}
	s.pair.Store(p)
	return s
}

// Pair returns the present pair.
func (s *Source) Pair() *Pair { return s.pair.Load() }

// Set replaces the pair. Open connections keep theirs.
func (s *Source) Set(p *Pair) { s.pair.Store(p) }

// Transport makes connections of gRPC. The zero value has no certificate: it leaves connections on this machine alone,
// and refuses others.
type Transport struct {
	Source *Source
	// Plaintext leaves connections to other hosts alone as well, where there is no Source.
	Plaintext bool
	Logger    *zap.Logger
}

// errBare is a connection to another host without certificate.
var errBare = errors.New("the other end is on another host, and this process has no certificate: a join token " +
	"(--join-token) or a folder (--certs) gives it one, --plaintext does without")

// errOtherBare is a server that does not speak TLS.
var errOtherBare = errors.New("the other end has no certificate, it talks in plain text")

// Info is what is known of the other end of a connection.
type Info struct {
	credentials.CommonAuthInfo
	Identity // of its certificate
	// Trusted is an end that needs no certificate: on a unix socket, or where this process has none itself.
	Trusted bool
}

// AuthType implements credentials.AuthInfo.
func (i Info) AuthType() string {
	if i.SecurityLevel == credentials.PrivacyAndIntegrity {
		return "tls"
	}
	return "plaintext"
}

// FromContext returns what is known of the caller of an RPC. ok is false where the server is not one of this package.
func FromContext(ctx context.Context) (info Info, ok bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return Info{}, false
	}
	info, ok = p.AuthInfo.(Info)
	return info, ok
}

func trusted() Info {
	return Info{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.NoSecurity}, Trusted: true}
}

func private(who Identity) Info {
	return Info{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, Identity: who}
}

// Client returns the credentials of connections to processes of a role; "" = any.
func (t Transport) Client(role string) credentials.TransportCredentials {
	return &transport{Transport: t, role: role}
}

// Server returns the credentials of a server.
func (t Transport) Server() credentials.TransportCredentials { return &transport{Transport: t} }

// transport implements credentials.TransportCredentials for both ends.
type transport struct {
	Transport
	role string
}

// ClientHandshake implements credentials.TransportCredentials.
func (t *transport) ClientHandshake(ctx context.Context, _ string, raw net.Conn) (net.Conn, credentials.AuthInfo,
	error) {
	if bare, err := t.bare(raw); bare || err != nil {
		return raw, trusted(), err
	}
	var who Identity
	cfg := t.config()
	pair := t.Source.Pair()
	cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair.Cert, nil }
	cfg.InsecureSkipVerify = true // what VerifyConnection does instead
	cfg.VerifyConnection = func(s tls.ConnectionState) (err error) {
		if who, err = verify(raws(s), pair.pool(), time.Now()); err == nil && t.role != "" && who.Role != t.role {
			err = fmt.Errorf("the other end is %s, not a %s", who, t.role)
		}
		return err
	}
	conn := tls.Client(raw, cfg)
	if err := conn.HandshakeContext(ctx); err != nil {
		if other := (tls.RecordHeaderError{}); errors.As(err, &other) {
			err = fmt.Errorf("%w: %w", errOtherBare, err)
		}
		return nil, nil, fmt.Errorf("%s: %w", raw.RemoteAddr(), err)
	}
	return conn, private(who), nil
}

// handshakeTimeout bounds how long a server waits for the first bytes of a connection and for its certificate.
const handshakeTimeout = 10 * time.Second

// ServerHandshake implements credentials.TransportCredentials. A client without certificate is nobody: the rules let it
// ask for one. A client on this machine may also speak without TLS, which tells it whether the process is healthy.
func (t *transport) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if bare, err := t.bare(raw); bare || err != nil {
		t.refused(raw, err)
		return raw, trusted(), err
	}
	if err := raw.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return nil, nil, err
	}
	if onHost(raw) || toItself(raw) {
		first := make([]byte, 1)
		if _, err := raw.Read(first); err != nil {
			return nil, nil, err
		}
		raw = &begun{Conn: raw, first: bytes.NewReader(first)}
		if first[0] != recordHandshake {
			return raw, Info{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.NoSecurity}}, nil
		}
	}
	var who Identity
	cfg := t.config()
	pair := t.Source.Pair()
	own := pair.Cert
	for _, root := range pair.Roots { // so that who has a token, which names an authority, sees it
		own.Certificate = append(own.Certificate[:len(own.Certificate):len(own.Certificate)], root.Raw)
	}
	cfg.Certificates = []tls.Certificate{own}
	cfg.ClientAuth = tls.RequestClientCert
	cfg.VerifyConnection = func(s tls.ConnectionState) (err error) {
		if len(s.PeerCertificates) > 0 {
			who, err = verify(raws(s), pair.pool(), time.Now())
		}
		return err
	}
	conn := tls.Server(raw, cfg)
	if err := conn.Handshake(); err != nil {
		t.refused(raw, err)
		return nil, nil, err
	}
	return conn, private(who), nil
}

// recordHandshake begins a TLS connection.
const recordHandshake = 22

// begun is a connection whose first bytes have been read.
type begun struct {
	net.Conn
	first *bytes.Reader
}

func (b *begun) Read(p []byte) (int, error) {
	if b.first.Len() > 0 {
		return b.first.Read(p)
	}
	return b.Conn.Read(p)
}

// bare says whether a connection is left alone; an error that it must not be.
func (t *transport) bare(raw net.Conn) (bool, error) {
	switch {
	case raw.RemoteAddr().Network() == "unix":
		return true, nil
	case t.Source != nil:
		return false, nil
	case onHost(raw) || t.Plaintext:
		return true, nil
	}
	return false, fmt.Errorf("%s: %w", raw.RemoteAddr(), errBare)
}

// onHost says that both ends have loopback addresses.
func onHost(raw net.Conn) bool {
	return loopback(raw.RemoteAddr()) && loopback(raw.LocalAddr())
}

// toItself says that both ends have one address, as where a worker asks itself for its health at the address of the
// network that it listens on. The kernel takes no packet from elsewhere that comes from an address of its own.
func toItself(raw net.Conn) bool {
	from, ok := raw.RemoteAddr().(*net.TCPAddr)
	to, same := raw.LocalAddr().(*net.TCPAddr)
	return ok && same && from.IP.Equal(to.IP)
}

func loopback(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return !ok || tcp.IP.IsLoopback() // others are in memory
}

// config is what both ends share. Certificates are checked for every connection.
func (t *transport) config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}, SessionTicketsDisabled: true,
		DynamicRecordSizingDisabled: true} // messages are longer than a packet
}

// refused tells the log of a connection that was not taken.
func (t *transport) refused(raw net.Conn, err error) {
	if err != nil && t.Logger != nil {
		t.Logger.Warn("connection refused", zap.Stringer(telemetry.KeyAddress, raw.RemoteAddr()),
			zap.NamedError(telemetry.KeyErr, err))
	}
}

func raws(s tls.ConnectionState) (chain [][]byte) {
	for _, c := range s.PeerCertificates {
		chain = append(chain, c.Raw)
	}
	return chain
}

// Info implements credentials.TransportCredentials.
func (t *transport) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials.
func (t *transport) Clone() credentials.TransportCredentials {
	c := *t
	return &c
}

// OverrideServerName implements credentials.TransportCredentials. Names of hosts are not compared.
func (t *transport) OverrideServerName(string) error { return nil }
