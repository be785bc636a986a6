package identity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/tandem-inference/tandem/services/wholefile"
)

// Files of a folder of certificates. Keys have mode 0600 like all of them.
const (
	rootsFile = "ca.crt"   // the authorities that are trusted, the newest first
	pairFile  = "cert.pem" // the process's certificate with its chain, and its key: one file, so that they always match
)

// Pair is a process's certificate and the authorities that it trusts.
type Pair struct {
	Cert  tls.Certificate // Leaf is set
	Roots []*x509.Certificate
}

// Identity of the certificate.
func (p *Pair) Identity() Identity {
	i, _ := of(p.Cert.Leaf) // was checked when the pair was made
	return i
}

// renewAt is when a third of the certificate's life is left.
func (p *Pair) renewAt() time.Time {
	leaf := p.Cert.Leaf
	return leaf.NotAfter.Add(-leaf.NotAfter.Sub(leaf.NotBefore) / 3)
}

func (p *Pair) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	for _, c := range p.Roots {
		pool.AddCert(c)
	}
	return pool
}

// newKey makes the key of a certificate.
func newKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

// pairOf checks that chain, key and roots belong together.
func pairOf(chain [][]byte, key crypto.Signer, roots []*x509.Certificate) (*Pair, error) {
	if len(chain) == 0 || len(roots) == 0 {
		return nil, errors.New("certificate or authority is missing")
	}
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		return nil, err
	}
	if public, ok := leaf.PublicKey.(*ecdsa.PublicKey); !ok || !public.Equal(key.Public()) {
		return nil, errors.New("certificate is for another key")
	}
	if _, err := of(leaf); err != nil {
		return nil, err
	}
	p := &Pair{Cert: tls.Certificate{Certificate: chain, PrivateKey: key, Leaf: leaf}, Roots: roots}
	if _, err := verify(chain, p.pool(), leaf.NotBefore); err != nil {
		return nil, err
	}
	return p, nil
}

// verify checks a chain at a time and returns whose it is.
func verify(chain [][]byte, roots *x509.CertPool, at time.Time) (Identity, error) {
	if len(chain) == 0 {
		return Identity{}, errors.New("no certificate")
	}
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		return Identity{}, err
	}
	between := x509.NewCertPool()
	for _, der := range chain[1:] {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return Identity{}, err
		}
		between.AddCert(c)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, CurrentTime: at,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return Identity{}, err
	}
	return of(leaf)
}

// Load reads the certificate of a folder. The error is fs.ErrNotExist when it has none.
func Load(dir string) (*Pair, error) {
	data, err := os.ReadFile(filepath.Join(dir, pairFile))
	if err != nil {
		return nil, err
	}
	var chain [][]byte
	var key *ecdsa.PrivateKey
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		switch block.Type {
		case "CERTIFICATE":
			chain = append(chain, block.Bytes)
		case "PRIVATE KEY":
			if key, err = parseKey(pem.EncodeToMemory(block)); err != nil {
				return nil, fmt.Errorf("%s: %w", filepath.Join(dir, pairFile), err)
			}
		}
	}
	if key == nil {
		return nil, fmt.Errorf("%s: has no key", filepath.Join(dir, pairFile))
	}
	roots, err := readRoots(dir)
	if err != nil {
		return nil, err
	}
	p, err := pairOf(chain, key, roots)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, pairFile), err)
	}
	return p, nil
}

// readRoots reads the authorities that a folder trusts.
func readRoots(dir string) ([]*x509.Certificate, error) {
	return readCertificates(filepath.Join(dir, rootsFile))
}

// readCertificates reads a file of certificates, at least one.
func readCertificates(path string) ([]*x509.Certificate, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var roots []*x509.Certificate
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		roots = append(roots, c)
	}
	if len(roots) == 0 {
		return nil, fmt.Errorf("%s: holds no certificate", path)
	}
	return roots, nil
}

// Save writes the pair into a folder, which is made where it is missing. The authorities go first: a certificate is
// never there without them.
func (p *Pair) Save(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := writeRoots(dir, p.Roots); err != nil {
		return err
	}
	key, err := x509.MarshalPKCS8PrivateKey(p.Cert.PrivateKey)
	if err != nil {
		return err
	}
	data := encode("CERTIFICATE", p.Cert.Certificate...)
	return wholefile.Write(filepath.Join(dir, pairFile), append(data, encode("PRIVATE KEY", key)...))
}

func writeRoots(dir string, roots []*x509.Certificate) error {
	var ders [][]byte
	for _, c := range roots {
		ders = append(ders, c.Raw)
	}
	return wholefile.Write(filepath.Join(dir, rootsFile), encode("CERTIFICATE", ders...))
}

func encode(kind string, ders ...[]byte) (out []byte) {
	for _, der := range ders {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})...)
	}
	return out
}

// missing says that an error is about a file that is not there.
func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
