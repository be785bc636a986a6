package identity

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/pause"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/services/wholefile"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

// MemberConfig sets up a Member.
type MemberConfig struct {
	// Dir is the folder of the worker's certificate.
	Dir string
	// Gateways are addresses of the registry, which also issues certificates, as gRPC dials it: of all gateways of the
	// cluster, each of which will do.
	Gateways []string
	// Role and ID of the worker; "" = the ID that its certificate has.
	Role, ID string
	// NewID makes the ID of a first certificate, where ID is "".
	NewID func() string
	// Token returns the join token, "" = none; it is called where the folder holds no certificate.
	Token  func() (string, error)
	Logger *zap.Logger
	// Poll is how often the folder's files are looked at, Retry the longest pause between attempts to get a certificate.
	// Zero = defaults.
	Poll, Retry time.Duration
}

// Defaults of MemberConfig.
const (
	defaultPoll  = 5 * time.Second
	defaultRetry = 30 * time.Second
	issueTimeout = 10 * time.Second
)

// Member keeps the certificate of a worker.
type Member struct {
	cfg    MemberConfig
	source *Source
	read   string // stamp of the file that was read last
	lock   *os.File
	// key of the first certificate: who lost the answer asks again with the same one.
	key *ecdsa.PrivateKey
}

// Join reads the worker's certificate or gets one for its join token, and tries until ctx ends while the gateway does
// not answer. What the gateway refuses is an error at once.
func Join(ctx context.Context, cfg MemberConfig) (*Member, error) {
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	if cfg.Poll <= 0 {
		cfg.Poll = defaultPoll
	}
	if cfg.Retry <= 0 {
		cfg.Retry = defaultRetry
	}
	m := &Member{cfg: cfg}
	if err := m.hold(); err != nil {
		return nil, err
	}
	pair, err := m.first(ctx)
	if err != nil {
		m.Close()
		return nil, err
	}
	m.source = NewSource(pair)
	return m, nil
}

// hold keeps other workers from using the folder.
func (m *Member) hold() error {
	if err := os.MkdirAll(m.cfg.Dir, 0o700); err != nil {
		return fmt.Errorf("--certs: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(m.cfg.Dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("--certs: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		return fmt.Errorf("--certs: another worker uses %s; give each a folder or a --worker-id", m.cfg.Dir)
	}
	m.lock = lock
	return nil
}

// Close lets others use the folder.
func (m *Member) Close() {
	if m.lock != nil {
		m.lock.Close()
	}
}

// Source has the certificate, also later ones.
func (m *Member) Source() *Source { return m.source }

// first returns the certificate to begin with.
func (m *Member) first(ctx context.Context) (*Pair, error) {
	for wait := 200 * time.Millisecond; ; wait = min(2*wait, m.cfg.Retry) {
		m.read = stamp(m.cfg.Dir)
		pair, err := Load(m.cfg.Dir)
		switch {
		case err == nil:
			if err := m.check(pair); err != nil {
				return nil, err
			}
			if time.Now().Before(pair.Cert.Leaf.NotAfter) && !m.elsewhere(pair) {
				return pair, nil
			}
			err = fmt.Errorf("the certificate in %s expired at %s, or is of another cluster than the join token", m.cfg.Dir,
				pair.Cert.Leaf.NotAfter.Format(time.RFC3339))
		case !missing(err):
			return nil, fmt.Errorf("--certs: %w", err)
		}
		token, terr := m.cfg.Token()
		if terr != nil && !missing(terr) {
			return nil, fmt.Errorf("--join-token-file: %w", terr)
		}
		if token != "" {
			if pair, err = m.join(ctx, token); err == nil {
				return pair, nil
			}
			if final(err) {
				return nil, fmt.Errorf("--join-token: %w", err)
			}
		} else if terr == nil {
			return nil, fmt.Errorf("--certs: %w; a join token (--join-token) gets one", err)
		} else {
			err = terr // a file that the gateway will write
		}
		if ctx.Err() != nil {
			return nil, err
		}
		m.cfg.Logger.Warn("no certificate yet, will try again", zap.Duration("wait", wait),
			zap.NamedError(telemetry.KeyErr, err))
		if !pause.For(ctx, wait) {
			return nil, ctx.Err()
		}
	}
}

// elsewhere says that the join token is for another cluster than a certificate: the gateway lost its authority, or the
// worker is to change over.
func (m *Member) elsewhere(pair *Pair) bool {
	token, err := m.cfg.Token()
	if err != nil || token == "" {
		return false
	}
	_, pin, err := splitToken(token)
	return err == nil && !known(pin, pair.Roots)
}

// check compares a certificate with what the worker is.
func (m *Member) check(pair *Pair) error {
	who := pair.Identity()
	if who.Role != m.cfg.Role {
		return fmt.Errorf("--certs: the certificate in %s is for the role %s, not for %s", m.cfg.Dir, who.Role, m.cfg.Role)
	}
	if m.cfg.ID != "" && who.ID != m.cfg.ID {
		return fmt.Errorf("--worker-id: the certificate in %s is for %q, not for %q", m.cfg.Dir, who.ID, m.cfg.ID)
	}
	return nil
}

// final says that asking again will not help.
func final(err error) bool {
	switch status.Code(err) {
	case codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument, codes.Unimplemented:
		return true
	}
	return errors.Is(err, errToken)
}

// errToken is a token that cannot be used.
var errToken = errors.New("join token")

// join gets the first certificate. The gateway is known by the authority that the token names.
func (m *Member) join(ctx context.Context, text string) (*Pair, error) {
	secret, pin, err := splitToken(text)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errToken, err)
	}
	if m.cfg.ID == "" {
		m.cfg.ID = m.cfg.NewID() // also when this has to be tried again
	}
	var other error
	pair, err := m.ask(ctx, credentials.NewTLS(pinned(pin, &other)), &tandemv1.IssueCertificateRequest{JoinToken: secret,
		Role: m.cfg.Role, WorkerId: m.cfg.ID})
	if err != nil && other != nil {
		return nil, fmt.Errorf("%w: %w", errToken, other)
	}
	return pair, err
}

// pinned is the configuration of a client without certificate, which knows an authority's digest. other is set when
// the other end is of another cluster.
func pinned(pin string, other *error) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}, InsecureSkipVerify: true, // VerifyConnection does it
		VerifyConnection: func(s tls.ConnectionState) error {
			for _, c := range s.PeerCertificates {
				if sum := sha256.Sum256(c.Raw); base.EncodeToString(sum[:]) != pin {
					continue
				}
				roots := x509.NewCertPool()
				roots.AddCert(c)
				who, err := verify(raws(s), roots, time.Now())
				if err == nil && who.Role != Gateway {
					err = fmt.Errorf("the other end is %s, not the gateway", who)
				}
				return err
			}
			*other = errors.New("the gateway is not of the cluster that it is for")
			return *other
		},
	}
}

// renew gets a certificate for the present one.
func (m *Member) renew(ctx context.Context) (*Pair, error) {
	return m.ask(ctx, Transport{Source: m.source}.Client(Gateway), &tandemv1.IssueCertificateRequest{})
}

// ask sends a request for a certificate with a new key and keeps what comes.
func (m *Member) ask(ctx context.Context, creds credentials.TransportCredentials, req *tandemv1.IssueCertificateRequest,
) (*Pair, error) {
	key := m.key
	if key == nil {
		var err error
		if key, err = newKey(); err != nil {
			return nil, err
		}
	}
	m.key = nil
	if req.GetJoinToken() != "" {
		m.key = key
	}
	var err error
	if req.Request, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key); err != nil {
		return nil, err
	}
	reply, err := m.issue(ctx, creds, req)
	if err != nil {
		return nil, err
	}
	var roots []*x509.Certificate
	for _, der := range reply.GetRoots() {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("the gateway's authority: %w", err)
		}
		roots = append(roots, c)
	}
	pair, err := pairOf(reply.GetChain(), key, roots)
	if err != nil {
		return nil, fmt.Errorf("the gateway's certificate: %w", err)
	}
	if err := m.check(pair); err != nil {
		return nil, err
	}
	if err := pair.Save(m.cfg.Dir); err != nil {
		return nil, fmt.Errorf("--certs: %w", err)
	}
	m.read = stamp(m.cfg.Dir)
	return pair, nil
}

// issue asks the gateways, one after the other, until one answers.
func (m *Member) issue(ctx context.Context, creds credentials.TransportCredentials,
	req *tandemv1.IssueCertificateRequest,
) (reply *tandemv1.IssueCertificateResponse, err error) {
	for _, gateway := range m.cfg.Gateways {
		if reply, err = issueAt(ctx, gateway, creds, req); err == nil || !away(err) || ctx.Err() != nil {
			return reply, err
		}
	}
	return nil, err
}

// away says that a gateway did not decide: another one may.
func away(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted:
		return true
	}
	return false
}

func issueAt(ctx context.Context, gateway string, creds credentials.TransportCredentials,
	req *tandemv1.IssueCertificateRequest,
) (*tandemv1.IssueCertificateResponse, error) {
	conn, err := grpc.NewClient(gateway, grpc.WithTransportCredentials(creds), grpc.WithDisableServiceConfig())
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, issueTimeout)
	defer cancel()
	return tandemv1.NewCertificateServiceClient(conn).IssueCertificate(ctx, req)
}

// Run renews the certificate when a third of its life is left, and reads the folder's files when somebody changed them,
// until ctx ends.
func (m *Member) Run(ctx context.Context) error {
	next := m.source.Pair().renewAt()
	for pause.For(ctx, m.cfg.Poll) {
		if now := stamp(m.cfg.Dir); now != m.read {
			m.read = now
			pair, err := Load(m.cfg.Dir)
			if err == nil {
				err = m.check(pair)
			}
			if err != nil {
				m.cfg.Logger.Warn("the folder's certificate is not used", zap.NamedError(telemetry.KeyErr, err))
				continue
			}
			m.use(pair)
			next = pair.renewAt()
		}
		if m.elsewhere(m.source.Pair()) {
			pair, err := m.first(ctx)
			if err != nil {
				if ctx.Err() != nil {
					return nil
				}
				m.cfg.Logger.Warn("no certificate of the join token's cluster, will try again",
					zap.NamedError(telemetry.KeyErr, err))
				continue
			}
			m.use(pair)
			next = pair.renewAt()
		}
		if len(m.cfg.Gateways) == 0 || strings.HasPrefix(m.cfg.Gateways[0], "unix:") || time.Now().Before(next) {
			continue // on this machine the gateway writes the folder
		}
		pair, err := m.renew(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			left := time.Until(m.source.Pair().Cert.Leaf.NotAfter)
			m.cfg.Logger.Warn("the certificate was not renewed, will try again",
				zap.Duration("left", left.Round(time.Second)), zap.NamedError(telemetry.KeyErr, err))
			next = time.Now().Add(min(m.cfg.Retry, max(left/10, m.cfg.Poll)))
			continue
		}
		m.use(pair)
		next = pair.renewAt()
	}
	return nil
}

func (m *Member) use(pair *Pair) {
	m.source.Set(pair)
	m.cfg.Logger.Info("new certificate", zap.Time("expires", pair.Cert.Leaf.NotAfter))
}

// stamp tells versions of a folder's certificate apart.
func stamp(dir string) string { return wholefile.Stamp(filepath.Join(dir, pairFile)) }
