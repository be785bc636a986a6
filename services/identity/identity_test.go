package identity

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/identity/identitytest"
	"github.com/tandem-inference/tandem/services/testwait"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// decoder answers Decode with the caller's identity as an error.
type decoder struct {
	tandemv1.UnimplementedTargetServiceServer
}

func (decoder) Decode(_ *tandemv1.DecodeRequest, s tandemv1.TargetService_DecodeServer) error {
	info, _ := FromContext(s.Context())
	return status.Errorf(codes.Aborted, "called by %s, trusted %v", info.Identity, info.Trusted)
}

// cluster is a gateway's authority and a server with a few services.
type cluster struct {
	t         *testing.T
	authority *Authority
	head      *Head
	address   string
	logs      *observer.ObservedLogs
}

func newCluster(t *testing.T, lifetime time.Duration) *cluster {
	t.Helper()
	a, err := OpenOrInit(filepath.Join(t.TempDir(), "ca"), "gw", lifetime)
	if err != nil {
		t.Fatal(err)
	}
	head, err := NewHead(a, "gw", zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, authority: a, head: head}
	c.address, c.logs = serve(t, Transport{Source: head.Source()}, a, false)
	return c
}

// serve starts a server.
func serve(t *testing.T, transport Transport, a *Authority, far bool) (address string, logs *observer.ObservedLogs) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	core, logs := observer.New(zap.InfoLevel)
	transport.Logger = zap.New(core)
	s := grpc.NewServer(append(ServerOptions(transport.Logger), grpc.Creds(transport.Server()))...)
	tandemv1.RegisterTargetServiceServer(s, decoder{})
	tandemv1.RegisterCertificateServiceServer(s, &Issuer{Authority: a, Logger: transport.Logger})
	healthv1.RegisterHealthServer(s, health.NewServer())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if far {
			_ = s.Serve(identitytest.Listener{Listener: lis})
			return
		}
		_ = s.Serve(lis)
	}()
	t.Cleanup(func() { s.Stop(); <-ended })
	return lis.Addr().String(), logs
}

// call asks for Decode and Check and returns their errors.
func call(t *testing.T, address string, client Transport, role string, far bool) (decode, check error) {
	t.Helper()
	options := []grpc.DialOption{grpc.WithTransportCredentials(client.Client(role))}
	if far {
		options = append(options, grpc.WithContextDialer(identitytest.Dial))
	}
	conn, err := grpc.NewClient("passthrough:///"+address, options...)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), testwait.Limit)
	defer cancel()
	stream, decode := tandemv1.NewTargetServiceClient(conn).Decode(ctx, &tandemv1.DecodeRequest{})
	if decode == nil {
		_, decode = stream.Recv()
	}
	_, check = healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
	return decode, check
}

func (c *cluster) token(j JoinToken) string {
	c.t.Helper()
	if j.TTL == 0 {
		j.TTL = time.Hour
	}
	if j.Uses == 0 {
		j.Uses = 1
	}
	token, err := c.authority.NewToken(j)
	if err != nil {
		c.t.Fatal(err)
	}
	return token
}

// join makes a member in a new folder.
func (c *cluster) join(role, id, token string) (*Member, error) {
	c.t.Helper()
	m, err := Join(c.t.Context(), c.member(role, id, token, c.t.TempDir()))
	if err == nil {
		c.t.Cleanup(m.Close)
	}
	return m, err
}

func (c *cluster) member(role, id, token, dir string) MemberConfig {
	return MemberConfig{Dir: dir, Gateways: []string{c.address}, Role: role, ID: id, Poll: time.Millisecond,
		Retry: time.Millisecond, NewID: func() string { return role + "-" + rand.Text() },
		Token: func() (string, error) { return token, nil }}
}

func TestJoinTokens(t *testing.T) {
	c := newCluster(t, time.Hour)
	once := c.token(JoinToken{Role: Draft})
	m, err := c.join(Draft, "box", once)
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Source().Pair().Identity(); got != (Identity{Draft, "box"}) {
		t.Errorf("identity %v", got)
	}
	for name, bad := range map[string]struct{ role, id, token, want string }{
		"used":           {Draft, "other", once, "has been used"},
		"of another":     {Draft, "other", c.token(JoinToken{Role: Draft, ID: "third"}), `for worker "third"`},
		"wrong role":     {Target, "other", c.token(JoinToken{Role: Draft}), "for role draft, not for target"},
		"name is taken":  {Draft, "box", c.token(JoinToken{Role: Draft}), "has a certificate that has not expired"},
		"taken by role":  {Target, "box", c.token(JoinToken{}), "has a certificate that has not expired"},
		"expired":        {Draft, "other", c.token(JoinToken{Role: Draft, TTL: time.Nanosecond}), "expired"},
		"no token":       {Draft, "other", "hello", "this is no join token"},
		"wrong secret":   {Draft, "other", altered(c.token(JoinToken{}), 2), "unknown"},
		"other cluster":  {Draft, "other", altered(c.token(JoinToken{}), 3), "not of the cluster"},
		"nothing at all": {Draft, "other", "", "--join-token"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		_, err := Join(ctx, c.member(bad.role, bad.id, bad.token, t.TempDir()))
		cancel()
		if err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for range 3 {
		many := c.token(JoinToken{Uses: ManyUses})
		for range 2 {
			if _, err := c.join(Prefill, "", many); err != nil {
				t.Error(err)
			}
		}
	}
	first := c.token(JoinToken{Label: "one", Uses: ManyUses})
	second := c.token(JoinToken{Label: "one", Uses: ManyUses})
	if _, err := c.join(Prefill, "", first); err == nil || !strings.Contains(err.Error(), "unknown") {
		t.Errorf("a token that another one replaced: %v", err)
	}
	if _, err := c.join(Prefill, "", second); err != nil {
		t.Error(err)
	}
	replaced, err := c.join(Draft, "box", c.token(JoinToken{ID: "box"}))
	if err != nil {
		t.Fatal(err)
	}
	// The folder is enough from now on.
	dir := replaced.cfg.Dir
	_, err = Join(t.Context(), c.member(Draft, "", "", dir))
	if err == nil || !strings.Contains(err.Error(), "another worker") {
		t.Errorf("a folder that is in use: %v", err)
	}
	replaced.Close()
	_, err = Join(t.Context(), c.member(Target, "", "", dir))
	if err == nil || !strings.Contains(err.Error(), "role draft") {
		t.Errorf("a folder of another role: %v", err)
	}
	again, err := Join(t.Context(), c.member(Draft, "", "", dir))
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
	for path, mode := range map[string]os.FileMode{pairFile: 0o600, rootsFile: 0o600} {
		if st, err := os.Stat(filepath.Join(dir, path)); err != nil || st.Mode().Perm() != mode {
			t.Errorf("%s: %v %v", path, st.Mode(), err)
		}
	}
	data, err := os.ReadFile(filepath.Join(c.authority.Dir(), ledgerFile))
	if err != nil || bytes.Contains(data, []byte(strings.Split(once, ".")[2])) {
		t.Errorf("the ledger holds the secret of a token, or %v", err)
	}
}

// altered changes a part of a token.
func altered(token string, part int) string {
	parts := strings.Split(token, ".")
	parts[part] = strings.Repeat("A", len(parts[part]))
	return strings.Join(parts, ".")
}

// TestLostAnswer: a worker whose answer got lost gets its certificate with the same token, another does not.
func TestLostAnswer(t *testing.T) {
	c := newCluster(t, time.Hour)
	secret, _, err := splitToken(c.token(JoinToken{Role: Draft}))
	if err != nil {
		t.Fatal(err)
	}
	request := func() []byte {
		key, err := newKey()
		if err != nil {
			t.Fatal(err)
		}
		csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
		if err != nil {
			t.Fatal(err)
		}
		return csr
	}
	mine := request()
	for range 2 {
		if _, _, err := c.authority.Redeem(mine, secret, Identity{Draft, "a"}); err != nil {
			t.Error(err)
		}
	}
	if _, _, err := c.authority.Redeem(request(), secret, Identity{Draft, "b"}); err == nil {
		t.Error("another key used the token as well")
	}
	bent := slices.Clone(mine)
	bent[len(bent)-1] ^= 1
	if _, _, err := c.authority.Redeem(bent, secret, Identity{Draft, "a"}); err == nil {
		t.Error("a request with a wrong signature was answered")
	}
}

func TestTransport(t *testing.T) {
	ours, theirs := newCluster(t, time.Hour), newCluster(t, time.Hour)
	pair := func(c *cluster, role string) Transport {
		p, err := c.authority.IssuePair(Identity{role, role + "-1"}, t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		return Transport{Source: NewSource(p)}
	}
	target := pair(ours, Target)
	brief := *ours.authority
	brief.lifetime = -time.Minute
	old, err := brief.IssuePair(Identity{Draft, "old"}, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	bare, open := Transport{}, Transport{Plaintext: true}
	for _, test := range []struct {
		name           string
		server, client Transport
		role           string
		far            bool
		decode         codes.Code
		says           string
		check          codes.Code
	}{
		{"gateway to target", target, pair(ours, Gateway), Target, true, codes.Aborted, "called by gateway/gateway-1",
			codes.OK},
		{"on one host", target, pair(ours, Gateway), Target, false, codes.Aborted, "called by gateway/gateway-1",
			codes.OK},
		{"another role", target, pair(ours, Draft), "", true, codes.PermissionDenied, "not for the role draft", codes.OK},
		{"server of another role", pair(ours, Draft), pair(ours, Gateway), Target, true, codes.Unavailable,
			"not a target", codes.Unavailable},
		{"client of another cluster", target, pair(theirs, Gateway), "", true, codes.Unavailable, "", codes.Unavailable},
		{"expired client", target, Transport{Source: NewSource(old)}, "", true, codes.Unavailable, "", codes.Unavailable},
		{"expired server", Transport{Source: NewSource(old)}, pair(ours, Gateway), "", true, codes.Unavailable, "expired",
			codes.Unavailable},
		{"bare client elsewhere", target, bare, "", true, codes.Unavailable, "--join-token", codes.Unavailable},
		{"open client elsewhere", target, open, "", true, codes.Unavailable, "", codes.Unavailable},
		{"bare client here", target, bare, "", false, codes.Unauthenticated, "--join-token", codes.OK},
		{"bare server elsewhere", bare, pair(ours, Gateway), "", true, codes.Unavailable, "", codes.Unavailable},
		{"open server elsewhere", open, pair(ours, Gateway), "", true, codes.Unavailable, "in plain text", codes.Unavailable},
		{"bare both here", bare, bare, "", false, codes.Aborted, "trusted true", codes.OK},
		{"open both elsewhere", open, open, "", true, codes.Aborted, "trusted true", codes.OK},
	} {
		t.Run(test.name, func(t *testing.T) {
			address, logs := serve(t, test.server, nil, test.far)
			decode, check := call(t, address, test.client, test.role, test.far)
			if status.Code(decode) != test.decode || !strings.Contains(decode.Error(), test.says) {
				t.Errorf("Decode: %v", decode)
			}
			if status.Code(check) != test.check {
				t.Errorf("Check: %v", check)
			}
			refusedHere := test.decode == codes.PermissionDenied || test.decode == codes.Unauthenticated
			if refusedHere && logs.FilterMessage("call refused").Len() == 0 {
				t.Error("the log does not tell")
			}
			if strings.HasSuffix(test.name, "client") && logs.FilterMessage("connection refused").Len() == 0 {
				t.Error("the log does not tell of the connection")
			}
		})
	}
}

// TestNobodyElse: a connection without a certificate gets nothing but an answer to a token, and what is no TLS nothing.
func TestNobodyElse(t *testing.T) {
	c := newCluster(t, time.Hour)
	p, err := c.authority.IssuePair(Identity{Target, "t"}, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	address, logs := serve(t, Transport{Source: NewSource(p)}, nil, true)
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{}); err == nil {
		t.Error("a connection without TLS from another host was answered")
	}
	testwait.Until(t, "a line in the log", func() bool { return logs.FilterMessage("connection refused").Len() > 0 })
	raw, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	raw.Close()
	// With TLS and without a certificate it may ask for one, and for nothing else.
	nobody, err := grpc.NewClient(c.address, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		InsecureSkipVerify: true, NextProtos: []string{"h2"}})))
	if err != nil {
		t.Fatal(err)
	}
	defer nobody.Close()
	for _, req := range []*tandemv1.IssueCertificateRequest{
		{}, {Role: Draft, WorkerId: "d"}, {JoinToken: "a.b", Role: Draft, WorkerId: "d"},
		{Request: make([]byte, mostRequest+1)}, {JoinToken: "a.b", Role: "king", WorkerId: "../../etc"},
	} {
		if _, err := tandemv1.NewCertificateServiceClient(nobody).IssueCertificate(t.Context(), req); err == nil {
			t.Errorf("a certificate for %v", req)
		}
	}
	stream, err := tandemv1.NewTargetServiceClient(nobody).Decode(t.Context(), &tandemv1.DecodeRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("Decode: %v", err)
	}
}

// network is a listener whose connections seem to come in at an address of the network, from this host itself or from
// another one.
type network struct {
	net.Listener
	from net.IP
}

func (l network) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return ends{c, l.from}, err
}

type ends struct {
	net.Conn
	from net.IP
}

func (ends) LocalAddr() net.Addr    { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 7), Port: 7} }
func (e ends) RemoteAddr() net.Addr { return &net.TCPAddr{IP: e.from, Port: 8} }

// TestHealthOfItself: a worker that listens at an address of the network tells this host without TLS whether it is
// healthy, and nothing else: its supervisor kills it where it does not. Another host gets no answer.
func TestHealthOfItself(t *testing.T) {
	c := newCluster(t, time.Hour)
	p, err := c.authority.IssuePair(Identity{Target, "t"}, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		from          net.IP
		check, decode codes.Code
	}{
		{net.IPv4(10, 0, 0, 7), codes.OK, codes.Unauthenticated},
		{net.IPv4(10, 0, 0, 8), codes.Unavailable, codes.Unavailable},
	} {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := grpc.NewServer(append(ServerOptions(zap.NewNop()),
			grpc.Creds(Transport{Source: NewSource(p), Logger: zap.NewNop()}.Server()))...)
		tandemv1.RegisterTargetServiceServer(s, decoder{})
		healthv1.RegisterHealthServer(s, health.NewServer())
		ended := make(chan struct{})
		go func() { _ = s.Serve(network{lis, test.from}); close(ended) }()
		t.Cleanup(func() { s.Stop(); <-ended })
		decode, check := call(t, lis.Addr().String(), Transport{}, "", false)
		if status.Code(check) != test.check || status.Code(decode) != test.decode {
			t.Errorf("from %v: health %v, Decode %v", test.from, check, decode)
		}
	}
}

func TestRotate(t *testing.T) {
	c := newCluster(t, time.Hour)
	target, err := c.join(Target, "t", c.token(JoinToken{}))
	if err != nil {
		t.Fatal(err)
	}
	before := target.Source().Pair()
	early := c.token(JoinToken{Role: Draft})
	if err := c.authority.Rotate("gw", false); err != nil {
		t.Fatal(err)
	}
	read := ""
	if err := c.head.look(&read); err != nil {
		t.Fatal(err)
	}
	if c.head.Source().Pair().Roots[0].Equal(before.Roots[0]) {
		t.Fatal("the authority is the old one")
	}
	// The worker knows only the old authority, the gateway's certificate is of the new one.
	try := func(what string, worker *Pair, want codes.Code) {
		t.Helper()
		address, _ := serve(t, Transport{Source: NewSource(worker)}, nil, true)
		if err, _ := call(t, address, Transport{Source: c.head.Source()}, Target, true); status.Code(err) != want {
			t.Errorf("%s: %v", what, err)
		}
	}
	try("old worker", before, codes.Aborted)
	// A token from before still works: it names the old authority.
	if _, err := c.join(Draft, "d", early); err != nil {
		t.Error(err)
	}
	renewed, err := target.renew(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !renewed.Roots[0].Equal(c.head.Source().Pair().Roots[0]) || len(renewed.Roots) != 2 {
		t.Errorf("%d authorities", len(renewed.Roots))
	}
	try("renewed worker", renewed, codes.Aborted)
	if err := c.authority.Rotate("gw", true); err != nil {
		t.Fatal(err)
	}
	if err := c.head.look(&read); err != nil {
		t.Fatal(err)
	}
	try("after the old ones were dropped", renewed, codes.Unavailable)
}

// TestRenewals: a member replaces its certificate in time, and the gateway its own and those of its machine.
func TestRenewals(t *testing.T) {
	c := newCluster(t, 2*time.Second) // less than the allowance for clocks: always due
	m, err := c.join(Draft, "d", c.token(JoinToken{}))
	if err != nil {
		t.Fatal(err)
	}
	first := m.Source().Pair()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- m.Run(ctx) }()
	c.head.poll = time.Millisecond
	dir := t.TempDir()
	if err := c.head.Own(Identity{Target, "here"}, dir); err != nil {
		t.Fatal(err)
	}
	local, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	gateway := c.head.Source().Pair()
	go func() { ended <- c.head.Run(ctx) }()
	testwait.Until(t, "a new certificate of the member", func() bool { return m.Source().Pair() != first })
	testwait.Until(t, "a new certificate of the gateway", func() bool { return c.head.Source().Pair() != gateway })
	testwait.Until(t, "a new certificate of its worker", func() bool {
		p, err := Load(dir)
		return err == nil && !p.Cert.Leaf.Equal(local.Cert.Leaf)
	})
	stop()
	for range 2 {
		if err := testwait.For(t, ended, "the end"); err != nil {
			t.Error(err)
		}
	}
	if stored, err := Load(m.cfg.Dir); err != nil || !stored.Cert.Leaf.Equal(m.Source().Pair().Cert.Leaf) {
		t.Errorf("the folder has another certificate: %v", err)
	}
}

// TestAnotherCluster: a worker whose token is for another cluster than its certificate changes over, and a token that
// may replace certificates does.
func TestAnotherCluster(t *testing.T) {
	old, next := newCluster(t, time.Hour), newCluster(t, time.Hour)
	token := old.token(JoinToken{})
	cfg := old.member(Draft, "d", "", t.TempDir())
	var mu sync.Mutex
	cfg.Token = func() (string, error) {
		mu.Lock()
		defer mu.Unlock()
		return token, nil
	}
	m, err := Join(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	first := m.Source().Pair()
	if _, err := next.join(Draft, "d", next.token(JoinToken{})); err != nil {
		t.Fatal(err)
	}
	m.cfg.Gateways = []string{next.address}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	mu.Lock()
	token = next.token(JoinToken{Uses: ManyUses, Replace: true})
	mu.Unlock()
	testwait.Until(t, "a certificate of the other cluster", func() bool {
		return !m.Source().Pair().Roots[0].Equal(first.Roots[0])
	})
	stop()
	if err := testwait.For(t, ended, "the end"); err != nil {
		t.Error(err)
	}
}

// TestOthersWrite: a member on the gateway's machine takes the certificate that the gateway writes.
func TestOthersWrite(t *testing.T) {
	c := newCluster(t, time.Hour)
	dir := t.TempDir()
	if _, err := c.authority.IssuePair(Identity{Target, "here"}, dir); err != nil {
		t.Fatal(err)
	}
	cfg := c.member(Target, "", "", dir)
	cfg.Gateways = []string{"unix:///nobody"}
	m, err := Join(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	if err := os.WriteFile(filepath.Join(dir, pairFile), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	next, err := c.authority.IssuePair(Identity{Target, "here"}, dir)
	if err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the new certificate", func() bool { return m.Source().Pair().Cert.Leaf.Equal(next.Cert.Leaf) })
	stop()
	if err := testwait.For(t, ended, "the end"); err != nil {
		t.Error(err)
	}
}

// TestEveryServiceHasARule: nobody may call a service that has none, so a new one wants its line.
func TestEveryServiceHasARule(t *testing.T) {
	for _, d := range []*grpc.ServiceDesc{
		&tandemv1.CertificateService_ServiceDesc, &tandemv1.RegistryService_ServiceDesc, &tandemv1.TargetService_ServiceDesc,
		&tandemv1.DraftService_ServiceDesc, &tandemv1.PrefillService_ServiceDesc, &tandemv1.PeerService_ServiceDesc,
		&tandemv1.StageService_ServiceDesc, &tandemv1.TelemetryService_ServiceDesc,
	} {
		if len(rules[d.ServiceName]) == 0 {
			t.Errorf("%s has no rule", d.ServiceName)
		}
	}
	for service, roles := range rules {
		for _, r := range roles {
			if r != anyone && r != Gateway && CheckRole(r) != nil {
				t.Errorf("%s: %q is no role", service, r)
			}
		}
	}
}
