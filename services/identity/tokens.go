package identity

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/base32"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// ManyUses is the Uses of a token that works until it expires.
const ManyUses = -1

// token is a join token as the authority keeps it: without its secret.
type token struct {
	Name    string    `json:"name"` // begins the token
	Hash    string    `json:"hash"` // digest of the secret
	Role    string    `json:"role"` // "" = any
	ID      string    `json:"worker_id,omitempty"`
	Label   string    `json:"label,omitempty"`
	Replace bool      `json:"replace,omitempty"`
	Expires time.Time `json:"expires"`
	Uses    int       `json:"uses"`           // that are left
	Keys    []string  `json:"keys,omitempty"` // digests of those that got a certificate with it: they may ask again
}

// JoinToken is what a token is for.
type JoinToken struct {
	// Role of the worker: target, draft or prefill; "" = the worker's choice.
	Role string
	// ID of the worker; "" = any that no other worker has.
	ID string
	// TTL is how long the token may be used.
	TTL time.Duration
	// Uses is how often it may be used, ManyUses = without limit.
	Uses int
	// Replace lets the token's certificates take the place of those of the same name, as one for an ID does.
	Replace bool
	// Label of a token of which there is one: a new one takes the place of the one before. "" = none.
	Label string
}

// prefix begins every token, so that it is recognised where it should not be.
const prefix = "tandem-join"

var base = base32.StdEncoding.WithPadding(base32.NoPadding)

// NewToken makes a join token. It also names the authority, so that a worker knows whom it asks for a certificate.
func (a *Authority) NewToken(t JoinToken) (string, error) {
	if t.Role != "" {
		if err := CheckRole(t.Role); err != nil {
			return "", fmt.Errorf("role: %w", err)
		}
	}
	if t.ID != "" {
		if err := CheckID(t.ID); err != nil {
			return "", fmt.Errorf("name: %w", err)
		}
	}
	if t.TTL <= 0 {
		return "", fmt.Errorf("ttl: must be above 0, got %v", t.TTL)
	}
	if t.Uses != ManyUses && t.Uses < 1 {
		return "", fmt.Errorf("uses: must be at least 1, got %d", t.Uses)
	}
	name, secret := strings.ToLower(rand.Text()[:10]), rand.Text()
	var pin string
	err := a.locked(func(l *ledger) error {
		roots, _, err := a.signer()
		if err != nil {
			return err
		}
		pin = pinOf(roots[0])
		l.Tokens = slices.DeleteFunc(l.Tokens, func(old *token) bool {
			return time.Now().After(old.Expires) || t.Label != "" && old.Label == t.Label
		})
		l.Tokens = append(l.Tokens, &token{Name: name, Hash: digest([]byte(secret)), Role: t.Role, ID: t.ID,
			Label: t.Label, Replace: t.Replace || t.ID != "", Expires: time.Now().Add(t.TTL), Uses: t.Uses})
		return nil
	})
	return strings.Join([]string{prefix, name, secret, pin}, "."), err
}

// pinOf is the digest of an authority's certificate, as tokens have it.
func pinOf(root *x509.Certificate) string {
	sum := sha256.Sum256(root.Raw)
	return base.EncodeToString(sum[:])
}

// known says that a token's authority is among roots.
func known(pin string, roots []*x509.Certificate) bool {
	return slices.ContainsFunc(roots, func(c *x509.Certificate) bool { return pinOf(c) == pin })
}

// splitToken returns the secret part of a token, which the authority is told, and the authority's digest.
func splitToken(text string) (secret, pin string, err error) {
	parts := strings.Split(strings.TrimSpace(text), ".")
	if len(parts) != 4 || parts[0] != prefix {
		return "", "", errors.New("this is no join token: tandem certs token makes one")
	}
	return parts[1] + "." + parts[2], parts[3], nil
}

// find returns the token that a secret part is of. key is the digest of the key that is to get a certificate.
func (l *ledger) find(secret, key string) (*token, error) {
	name, rest, _ := strings.Cut(secret, ".")
	for _, t := range l.Tokens {
		if t.Name != name || subtle.ConstantTimeCompare([]byte(t.Hash), []byte(digest([]byte(rest)))) != 1 {
			continue
		}
		switch {
		case time.Now().After(t.Expires):
			return nil, fmt.Errorf("the join token %s expired at %s", name, t.Expires.Format(time.RFC3339))
		case t.Uses == 0 && !slices.Contains(t.Keys, key):
			return nil, fmt.Errorf("the join token %s has been used", name)
		}
		return t, nil
	}
	return nil, errors.New("the join token is unknown: it has expired, or is of another cluster")
}

// spend notes a use. Whoever lost the answer may ask again for the same key.
func (t *token) spend(key string) {
	if slices.Contains(t.Keys, key) {
		return
	}
	if t.Uses > 0 {
		t.Uses--
	}
	if t.Uses != ManyUses {
		t.Keys = append(t.Keys, key)
	}
}
