package probe

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/tandem-inference/tandem/gateway/internal/placement"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/identity"
	"github.com/tandem-inference/tandem/services/identity/identitytest"
	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/workernode"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func described() *placement.Host {
	return &placement.Host{Name: "box", Devices: []placement.Device{{Name: "cuda:0", Card: "RTX 3060"}}}
}

// serve starts what answers tandem probe --peer, measured or about to be, at a listener.
func serve(t *testing.T, l net.Listener, s *Server, transport identity.Transport) {
	t.Helper()
	g := s.GRPC(transport, zap.NewNop())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = g.Serve(l)
	}()
	t.Cleanup(func() {
		g.Stop()
		<-ended
	})
}

func loopback(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func dialer(transport identity.Transport) func(string) (*grpc.ClientConn, error) {
	return func(address string) (*grpc.ClientConn, error) {
		return workernode.Dial(address, grpc.WithTransportCredentials(transport.Client("")))
	}
}

// TestPeer: what one host says of itself reaches another, with the link between them.
func TestPeer(t *testing.T) {
	l, s := loopback(t), NewServer()
	serve(t, l, s, identity.Transport{})
	if err := Reach(t.Context(), l.Addr().String(), dialer(identity.Transport{})); err != nil {
		t.Error(err)
	}
	go s.Measured(described(), nil) // the caller waits for it
	p, err := AskPeer(t.Context(), l.Addr().String(), dialer(identity.Transport{}))
	if err != nil {
		t.Fatal(err)
	}
	if p.Host.Name != "box" || p.Host.Address != "127.0.0.1" || p.Own != "127.0.0.1" || len(p.Host.Devices) != 1 ||
		p.Host.Devices[0].Origin != placement.Table {
		t.Errorf("host %+v, own address %s", p.Host, p.Own)
	}
	if p.Link.Origin != placement.Measured || p.Link.RoundTripUS <= 0 || p.Link.GBs <= 0 {
		t.Errorf("link %+v", p.Link)
	}
}

// TestReach: who may not ask a host is told why before anything is measured, and who may does not wait for others that
// time their links.
func TestReach(t *testing.T) {
	member := func(name string) identity.Transport {
		a, err := identity.Init(filepath.Join(t.TempDir(), "authority"), "gateway", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		p, err := a.IssuePair(identity.Identity{Role: identity.Target, ID: name}, t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		return identity.Transport{Source: identity.NewSource(p)}
	}
	box := member("box")
	for name, c := range map[string]struct {
		far    bool
		client identity.Transport
		want   string // of the error, "" = none
	}{
		"with a certificate":          {client: box},
		"without, on the host":        {want: "--certs names one"},
		"without, elsewhere":          {far: true, client: identity.Transport{Plaintext: true}, want: "wants a certificate"},
		"with one of another cluster": {client: member("laptop"), want: "unknown authority"},
	} {
		t.Run(name, func(t *testing.T) {
			l, s := loopback(t), NewServer()
			address := l.Addr().String()
			if c.far {
				l = identitytest.Listener{Listener: l}
			}
			serve(t, l, s, box)
			s.turn <- struct{}{} // somebody times a link
			err := Reach(t.Context(), address, func(address string) (*grpc.ClientConn, error) {
				options := []grpc.DialOption{grpc.WithTransportCredentials(c.client.Client(""))}
				if c.far {
					options = append(options, grpc.WithContextDialer(identitytest.Dial))
				}
				return workernode.Dial(address, options...)
			})
			if c.want == "" && err != nil {
				t.Error(err)
			}
			if c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), "peer "+address+": ") ||
				!strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}

	l, g := loopback(t), grpc.NewServer() // a worker, for one, has a port with other services
	healthv1.RegisterHealthServer(g, health.NewServer())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = g.Serve(l)
	}()
	defer func() { g.Stop(); <-ended }()
	if err := Reach(t.Context(), l.Addr().String(), dialer(identity.Transport{})); err == nil ||
		!strings.Contains(err.Error(), "ProbeService") {
		t.Errorf("a port of something else: %v", err)
	}
}

// link is a way with a delay and a rate in each direction, from a client to the connections that a listener returns.
type link struct {
	delay       time.Duration
	there, back float64 // bytes a second
	accepted    chan net.Conn
	closed      chan struct{}
	carriers    sync.WaitGroup
}

func (l *link) Accept() (net.Conn, error) {
	select {
	case c := <-l.accepted:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *link) Close() error {
	close(l.closed)
	return nil
}

func (l *link) Addr() net.Addr { return &net.UnixAddr{Name: "link", Net: "unix"} }

// local says that a connection in memory needs no certificate.
type local struct{ net.Conn }

func (local) RemoteAddr() net.Addr { return &net.UnixAddr{Name: "link", Net: "unix"} }

func (l *link) dial(context.Context, string) (net.Conn, error) {
	client, near := net.Pipe()
	far, server := net.Pipe()
	l.carriers.Go(func() { l.carry(far, near, l.there) })
	l.carriers.Go(func() { l.carry(near, far, l.back) })
	l.accepted <- local{server}
	return local{client}, nil
}

// carry moves bytes at a rate and hands them over after the delay.
func (l *link) carry(to, from net.Conn, rate float64) {
	defer to.Close()
	type piece struct {
		data []byte
		due  time.Time
	}
	under := make(chan piece, 1<<12) // way
	go func() {
		defer close(under)
		free := time.Now()
		for {
			data := make([]byte, 64<<10)
			n, err := from.Read(data)
			if err != nil {
				return
			}
			if now := time.Now(); now.After(free) {
				free = now
			}
			free = free.Add(time.Duration(float64(n) / rate * float64(time.Second)))
			time.Sleep(time.Until(free)) // the next bytes wait until these are on the way
			under <- piece{data[:n], free.Add(l.delay)}
		}
	}()
	for p := range under {
		time.Sleep(time.Until(p.due))
		if _, err := to.Write(p.data); err != nil {
			from.Close()
		}
	}
}

// TestLinkIsMeasured: the figures follow delay and rate of the link, of which the slower direction counts.
func TestLinkIsMeasured(t *testing.T) {
	for name, l := range map[string]*link{
		"1 GbE":      {delay: 150 * time.Microsecond, there: 117e6, back: 117e6},
		"over a sea": {delay: 40 * time.Millisecond, there: 50e6, back: 50e6},
		"slow back":  {delay: time.Millisecond, there: 1000e6, back: 12e6},
		"slow there": {delay: time.Millisecond, there: 12e6, back: 1000e6},
	} {
		t.Run(name, func(t *testing.T) {
			racetest.Bubble(t, func(t *testing.T) {
				l.accepted, l.closed = make(chan net.Conn), make(chan struct{})
				t.Cleanup(l.carriers.Wait) // no time passes after the test
				s := NewServer()
				s.Measured(described(), nil)
				serve(t, l, s, identity.Transport{})
				p, err := AskPeer(t.Context(), "passthrough:///link", func(address string) (*grpc.ClientConn, error) {
					return workernode.Dial(address, grpc.WithContextDialer(l.dial),
						grpc.WithTransportCredentials(identity.Transport{}.Client("")))
				})
				if err != nil {
					t.Fatal(err)
				}
				near := func(what string, got, want float64) {
					t.Helper()
					if got < 0.8*want || got > 1.2*want {
						t.Errorf("%s is %v, want %v within 20 %%", what, got, want)
					}
				}
				near("round_trip_us", p.Link.RoundTripUS, 2*float64(l.delay.Microseconds()))
				near("gb_s", p.Link.GBs, min(l.there, l.back)/1e9)
			})
		})
	}
}

// liar answers in ways that a Server never does.
type liar struct {
	tandemv1.UnimplementedProbeServiceServer
	host string
	echo func(stream tandemv1.ProbeService_EchoServer) error
}

func (l *liar) GetHost(context.Context, *tandemv1.GetHostRequest) (*tandemv1.GetHostResponse, error) {
	return &tandemv1.GetHostResponse{Host: l.host}, nil
}

func (l *liar) Echo(stream tandemv1.ProbeService_EchoServer) error { return l.echo(stream) }

// TestBadPeers: whatever is wrong with a peer, the error names it.
func TestBadPeers(t *testing.T) {
	const good = `{"name":"box","devices":[{"name":"cuda:0","card":"RTX 3060"}]}`
	for want, l := range map[string]*liar{
		"invalid character":                  {host: "none"},
		`hosts[0].devices[0].card: "abacus"`: {host: `{"name":"box","devices":[{"name":"cpu","card":"abacus"}]}`},
		"hosts[0].devices: there are none":   {host: `{"name":"box"}`},
		"it ended the measurement": {host: good, echo: func(stream tandemv1.ProbeService_EchoServer) error {
			return nil
		}},
		"it answered with 3 bytes instead of 0": {host: good, echo: func(stream tandemv1.ProbeService_EchoServer) error {
			if _, err := stream.Recv(); err != nil {
				return err
			}
			_ = stream.Send(&tandemv1.EchoResponse{Payload: []byte("abc")})
			_, err := stream.Recv()
			return err
		}},
		"busy": {host: good, echo: func(tandemv1.ProbeService_EchoServer) error {
			return rpcerr.ResourceExhausted("busy")
		}},
	} {
		listener := loopback(t)
		g := grpc.NewServer(workernode.ServerOptions(zap.NewNop())...)
		tandemv1.RegisterProbeServiceServer(g, l)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = g.Serve(listener)
		}()
		address := listener.Addr().String()
		_, err := AskPeer(t.Context(), address, dialer(identity.Transport{}))
		if err == nil || !strings.HasPrefix(err.Error(), "peer "+address+": ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q of peer %s", err, want, address)
		}
		g.Stop()
		<-ended
	}

	l := loopback(t)
	address := l.Addr().String()
	_ = l.Close()
	if _, err := AskPeer(t.Context(), address, dialer(identity.Transport{})); err == nil ||
		!strings.HasPrefix(err.Error(), "peer "+address+": ") {
		t.Errorf("nobody listens: %v", err)
	}
	if err := Reach(t.Context(), address, dialer(identity.Transport{})); err == nil ||
		!strings.HasPrefix(err.Error(), "peer "+address+": ") {
		t.Errorf("nobody is reached: %v", err)
	}

	l, s := loopback(t), NewServer()
	serve(t, l, s, identity.Transport{})
	s.Measured(nil, errors.New("device cuda:0: no driver"))
	if _, err := AskPeer(t.Context(), l.Addr().String(), dialer(identity.Transport{})); err == nil ||
		!strings.Contains(err.Error(), "device cuda:0: no driver") {
		t.Errorf("a host that cannot be measured: %v", err)
	}
	conn, err := dialer(identity.Transport{})(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, n := range []int64{-1, 1<<20 + 1, 1 << 60} {
		stream, err := tandemv1.NewProbeServiceClient(conn).Echo(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&tandemv1.EchoRequest{AnswerBytes: n}); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err == nil || errors.Is(err, io.EOF) || !strings.Contains(err.Error(), "answer_bytes") {
			t.Errorf("%d bytes asked for: %v", n, err)
		}
	}
}
