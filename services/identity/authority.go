package identity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/tandem-inference/tandem/services/wholefile"
)

// Files that only the authority's folder has.
const (
	keyFile    = "ca.key"
	crossFile  = "ca-cross.crt" // the newest authority, signed by the one before: who knows only that one trusts it
	ledgerFile = "issued.json"
	lockFile   = "lock"
)

const (
	// DefaultLifetime of workers' certificates. They are renewed after two thirds of it.
	DefaultLifetime = 24 * time.Hour
	authorityLife   = 10 * 365 * 24 * time.Hour
	// skew is how far clocks may be apart.
	skew = 5 * time.Minute
)

// Authority issues the certificates of a cluster. Its folder may be used by several processes at a time: a gateway, and
// the commands of tandem certs.
type Authority struct {
	dir      string
	lifetime time.Duration
	shared   SharedLedger // nil = the folder is all
}

// issued is what the ledger knows of a worker's name.
type issued struct {
	Role     string    `json:"role"`
	Key      string    `json:"key"` // digest of the public key, hex
	NotAfter time.Time `json:"not_after"`
}

// ledger is what the authority remembers.
type ledger struct {
	Tokens []*token          `json:"tokens"`
	Issued map[string]issued `json:"issued"`
	// Superseded is until when an older authority is still trusted, by digest.
	Superseded map[string]time.Time `json:"superseded,omitempty"`
}

// Init makes an authority in a folder, which must have none, and a certificate for the gateway `name`.
func Init(dir, name string, lifetime time.Duration) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	a := &Authority{dir: dir, lifetime: lifetime}
	err := a.locked(func(l *ledger) error {
		if _, err := os.Stat(filepath.Join(dir, keyFile)); err == nil {
			return fmt.Errorf("%s has an authority already; tandem certs rotate replaces it", dir)
		}
		key, err := newKey()
		if err != nil {
			return err
		}
		root, err := newRoot(key)
		if err != nil {
			return err
		}
		return a.install(key, []*x509.Certificate{root}, nil)
	})
	if err != nil {
		return nil, err
	}
	_, err = a.IssueGateway(name)
	return a, err
}

// Open opens the authority of a folder. The error is fs.ErrNotExist when it has none.
func Open(dir string, lifetime time.Duration) (*Authority, error) {
	a := &Authority{dir: dir, lifetime: lifetime}
	_, _, err := a.signer()
	return a, err
}

// OpenOrInit opens the authority of a folder, or makes one.
func OpenOrInit(dir, name string, lifetime time.Duration) (*Authority, error) {
	a, err := Open(dir, lifetime)
	if !missing(err) {
		return a, err
	}
	return Init(dir, name, lifetime)
}

// Dir is the authority's folder. It is also that of the gateway's own certificate.
func (a *Authority) Dir() string { return a.dir }

// newRoot makes the certificate of an authority with a key.
func newRoot(key *ecdsa.PrivateKey) (*x509.Certificate, error) {
	now := time.Now()
	root := &x509.Certificate{
		Subject:   pkix.Name{CommonName: "Tandem cluster " + rand.Text()[:6]},
		NotBefore: now.Add(-skew), NotAfter: now.Add(authorityLife),
	}
	return signRoot(root, root, key.Public(), key)
}

// signRoot makes the certificate of an authority that has the subject, times and key id of `root`, signed by parent.
func signRoot(root, parent *x509.Certificate, public crypto.PublicKey, signer crypto.Signer) (
	*x509.Certificate, error,
) {
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial(), Subject: root.Subject, NotBefore: root.NotBefore, NotAfter: root.NotAfter,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, SubjectKeyId: root.SubjectKeyId,
	}, parent, public, signer)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// serial is a random number of 126 bits.
func serial() *big.Int {
	n, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 126)) // the reader never fails
	return n
}

// install writes a new authority. The caller holds the lock.
func (a *Authority) install(key *ecdsa.PrivateKey, roots []*x509.Certificate, cross *x509.Certificate) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	path := filepath.Join(a.dir, crossFile)
	if cross != nil {
		err = wholefile.Write(path, encode("CERTIFICATE", cross.Raw))
	} else if err = os.Remove(path); missing(err) {
		err = nil
	}
	if err != nil {
		return err
	}
	if err := writeRoots(a.dir, roots); err != nil {
		return err
	}
	return wholefile.Write(filepath.Join(a.dir, keyFile), encode("PRIVATE KEY", der))
}

// signer reads the newest authority and its key.
func (a *Authority) signer() ([]*x509.Certificate, *ecdsa.PrivateKey, error) {
	path := filepath.Join(a.dir, keyFile)
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	key, err := parseKey(data)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	roots, err := readRoots(a.dir)
	if err != nil {
		return nil, nil, err
	}
	if public, ok := roots[0].PublicKey.(*ecdsa.PublicKey); !ok || !public.Equal(key.Public()) {
		return nil, nil, fmt.Errorf("%s: is not the key of the first certificate in %s", path, rootsFile)
	}
	return roots, key, nil
}

// Rotate replaces the authority. Workers learn of the new one when they renew their certificates, and trust it before
// that because the old one signed it; the old one stays trusted until the last of its certificates has expired. With
// drop it is not trusted any more, and neither are the certificates that it issued: for keys that others may have.
func (a *Authority) Rotate(gateway string, drop bool) error {
	err := a.locked(func(l *ledger) error {
		old, oldKey, err := a.signer()
		if err != nil {
			return err
		}
		key, err := newKey()
		if err != nil {
			return err
		}
		root, err := newRoot(key)
		if err != nil {
			return err
		}
		if drop {
			l.Issued, l.Superseded = map[string]issued{}, nil
			return a.install(key, []*x509.Certificate{root}, nil)
		}
		cross, err := signRoot(root, old[0], root.PublicKey, oldKey)
		if err != nil {
			return err
		}
		if l.Superseded == nil {
			l.Superseded = map[string]time.Time{}
		}
		last := time.Now().Add(a.lifetime)
		for _, was := range l.Issued {
			if was.NotAfter.After(last) {
				last = was.NotAfter
			}
		}
		l.Superseded[digest(old[0].Raw)] = last.Add(skew)
		return a.install(key, a.trusted(l, append([]*x509.Certificate{root}, old...)), cross)
	})
	if err != nil {
		return err
	}
	_, err = a.IssueGateway(gateway)
	return err
}

// trusted leaves out roots whose time is over.
func (a *Authority) trusted(l *ledger, roots []*x509.Certificate) (kept []*x509.Certificate) {
	for i, c := range roots {
		until, old := l.Superseded[digest(c.Raw)]
		if i == 0 || old && time.Now().Before(until) {
			kept = append(kept, c)
			continue
		}
		delete(l.Superseded, digest(c.Raw))
	}
	return kept
}

// IssueGateway makes a certificate for the gateway of this folder and keeps it there.
func (a *Authority) IssueGateway(name string) (*Pair, error) {
	if CheckID(name) != nil {
		name = Gateway
	}
	return a.IssuePair(Identity{Gateway, name}, a.dir)
}

// IssuePair makes a key and a certificate for a process and writes them into a folder.
func (a *Authority) IssuePair(who Identity, dir string) (*Pair, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	var p *Pair
	err = a.locked(func(l *ledger) error {
		chain, roots, err := a.sign(l, who, key.Public())
		if err != nil {
			return err
		}
		if p, err = pairOf(chain, key, roots); err != nil {
			return err
		}
		return p.Save(dir)
	})
	return p, err
}

// Redeem answers a request for a worker's first certificate. A name whose certificate has not expired is refused,
// unless the token may replace it. secret is what splitToken returns.
func (a *Authority) Redeem(csr []byte, secret string, who Identity) (chain [][]byte, roots []*x509.Certificate,
	err error) {
	public, err := requested(csr)
	if err != nil {
		return nil, nil, err
	}
	if err := CheckRole(who.Role); err != nil {
		return nil, nil, fmt.Errorf("role: %w", err)
	}
	if err := CheckID(who.ID); err != nil {
		return nil, nil, fmt.Errorf("worker_id: %w", err)
	}
	err = a.lockedFor(true, func(l *ledger) error {
		t, err := l.find(secret, digestOf(public))
		if err != nil {
			return err
		}
		if t.Role != "" && t.Role != who.Role {
			return fmt.Errorf("the join token is for role %s, not for %s", t.Role, who.Role)
		}
		if t.ID != "" && t.ID != who.ID {
			return fmt.Errorf("the join token is for worker %q, not for %q", t.ID, who.ID)
		}
		if was, ok := l.Issued[who.ID]; ok && !t.Replace && time.Now().Before(was.NotAfter) &&
			was.Key != digestOf(public) {
			return fmt.Errorf("worker %q has a certificate that has not expired; a token of "+
				"tandem certs token %s %s replaces it", who.ID, who.Role, who.ID)
		}
		if chain, roots, err = a.sign(l, who, public); err != nil {
			return err
		}
		t.spend(digestOf(public))
		return nil
	})
	return chain, roots, err
}

// Holder is somebody who has a certificate that has not expired.
type Holder struct {
	Identity
	NotAfter time.Time
}

// Holders returns the workers that have certificates, by name, and the tokens that can still be used.
func (a *Authority) Holders() (holders []Holder, tokens []JoinToken, err error) {
	err = a.locked(func(l *ledger) error {
		for name, was := range l.Issued {
			if time.Now().Before(was.NotAfter) {
				holders = append(holders, Holder{Identity{was.Role, name}, was.NotAfter})
			}
		}
		for _, t := range l.Tokens {
			if left := time.Until(t.Expires); left > 0 && t.Uses != 0 {
				tokens = append(tokens, JoinToken{Role: t.Role, ID: t.ID, TTL: left, Uses: t.Uses, Label: t.Label})
			}
		}
		return nil
	})
	slices.SortFunc(holders, func(x, y Holder) int { return strings.Compare(x.String(), y.String()) })
	return holders, tokens, err
}

// Renew answers a request of a worker that has a certificate.
func (a *Authority) Renew(csr []byte, who Identity) (chain [][]byte, roots []*x509.Certificate, err error) {
	public, err := requested(csr)
	if err != nil {
		return nil, nil, err
	}
	err = a.locked(func(l *ledger) error {
		chain, roots, err = a.sign(l, who, public)
		return err
	})
	return chain, roots, err
}

// requested returns the key of a request, whose owner has signed it.
func requested(csr []byte) (crypto.PublicKey, error) {
	r, err := x509.ParseCertificateRequest(csr)
	if err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	if err := r.CheckSignature(); err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	switch r.PublicKey.(type) {
	case *ecdsa.PublicKey, ed25519.PublicKey:
		return r.PublicKey, nil
	}
	return nil, errors.New("request: the key must be ECDSA or Ed25519")
}

// sign makes a certificate and notes it. The caller holds the lock.
func (a *Authority) sign(l *ledger, who Identity, public crypto.PublicKey) ([][]byte, []*x509.Certificate, error) {
	roots, key, err := a.signer()
	if err != nil {
		return nil, nil, err
	}
	if kept := a.trusted(l, roots); len(kept) < len(roots) {
		if err := writeRoots(a.dir, kept); err != nil {
			return nil, nil, err
		}
		roots = kept
	}
	now := time.Now()
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: who.ID}, URIs: []*url.URL{who.uri()},
		NotBefore: now.Add(-skew), NotAfter: now.Add(a.lifetime), BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, roots[0], public, key)
	if err != nil {
		return nil, nil, err
	}
	chain := [][]byte{der}
	if len(roots) > 1 {
		cross, err := readCertificates(filepath.Join(a.dir, crossFile))
		switch {
		case err == nil:
			chain = append(chain, cross[0].Raw)
		case !missing(err):
			return nil, nil, err
		}
	}
	if who.Role != Gateway {
		for name, was := range l.Issued {
			if now.After(was.NotAfter) {
				delete(l.Issued, name)
			}
		}
		l.Issued[who.ID] = issued{Role: who.Role, Key: digestOf(public), NotAfter: now.Add(a.lifetime)}
	}
	return chain, roots, nil
}

// locked runs f with the ledger while no other process has it, and writes the ledger when f succeeds.
func (a *Authority) locked(f func(*ledger) error) error { return a.lockedFor(false, f) }

// lockedFor is locked. What has to be sure fails when it cannot be told what other gateways did.
func (a *Authority) lockedFor(sure bool, f func(*ledger) error) error {
	lock, err := os.OpenFile(filepath.Join(a.dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	path := filepath.Join(a.dir, ledgerFile)
	l := &ledger{Issued: map[string]issued{}}
	data, err := os.ReadFile(path)
	switch {
	case missing(err):
	case err != nil:
		return err
	default:
		if err := json.Unmarshal(data, l); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	if err := a.together(l, sure, f); err != nil {
		return err
	}
	if data, err = json.MarshalIndent(l, "", " "); err != nil {
		return err
	}
	return wholefile.Write(path, append(data, '\n'))
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func digestOf(public crypto.PublicKey) string {
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return ""
	}
	return digest(der)
}

func parseKey(data []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("holds no key")
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	key, ok := k.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New("holds no ECDSA key")
	}
	return key, nil
}
