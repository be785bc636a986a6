// Package identity gives every process of a cluster a certificate, and connections between hosts encryption and a
// known other end.
//
// The gateway holds a certificate authority in a folder (Authority). A worker gets its first certificate for a join
// token (Tokens), which names a role, expires, and works once; later ones for the certificate that it has. A
// certificate names role and worker (Identity) as a URI, tandem://draft/box-1: addresses change, so names of hosts are
// not compared.
//
// Connections (Transport) over unix sockets, and over loopback where a process has no certificate, are left alone.
// All others are TLS 1.3 with certificates on both sides, unless both were told to do without. The rules say which
// roles may call which service.
package identity

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Roles that certificates name.
const (
	Gateway = "gateway"
	Target  = "target"
	Draft   = "draft"
	Prefill = "prefill"
)

// Roles are those that a join token may be for.
var Roles = []string{Target, Draft, Prefill}

// Identity is what a certificate says of its owner; the zero value is nobody.
type Identity struct {
	Role, ID string
}

// scheme of the URI in certificates.
const scheme = "tandem"

var id = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// CheckID says what is wrong with the name of a worker that is to get a certificate.
func CheckID(name string) error {
	if !id.MatchString(name) {
		return fmt.Errorf("%q: must be 1 to 128 letters, digits, dots, dashes or underscores, and begin with a letter or digit",
			name)
	}
	return nil
}

// CheckRole says what is wrong with the role of a worker.
func CheckRole(role string) error {
	if !slices.Contains(Roles, role) {
		return fmt.Errorf("%q: must be %s or %s", role, strings.Join(Roles[:len(Roles)-1], ", "), Roles[len(Roles)-1])
	}
	return nil
}

// String is role/id, for logs.
func (i Identity) String() string { return i.Role + "/" + i.ID }

func (i Identity) uri() *url.URL { return &url.URL{Scheme: scheme, Host: i.Role, Path: "/" + i.ID} }

// of reads the identity of a certificate.
func of(cert *x509.Certificate) (Identity, error) {
	for _, u := range cert.URIs {
		if u.Scheme != scheme {
			continue
		}
		i := Identity{Role: u.Host, ID: strings.TrimPrefix(u.Path, "/")}
		if i.Role != Gateway && CheckRole(i.Role) != nil || CheckID(i.ID) != nil {
			return Identity{}, fmt.Errorf("certificate names %q, which is no role and worker", u)
		}
		return i, nil
	}
	return Identity{}, errors.New("certificate names no role and worker of a cluster")
}
