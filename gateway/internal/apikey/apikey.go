// Package apikey holds the API keys of a gateway: the keys, their names, and which of them may set priorities.
package apikey

import (
	"bufio"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
)

// trustedMark follows a name in a file of keys.
const trustedMark = "trusted"

// Key is an API key. Only its digest is kept.
type Key struct {
	// Name is the label of metrics and logs, empty when the key has none.
	Name string
	// Trusted keys may set the priority of their requests.
	Trusted bool
	digest  [sha256.Size]byte
}

// New makes a key.
func New(name, secret string) Key { return Key{Name: name, digest: sha256.Sum256([]byte(secret))} }

// Scope tells a key from others without revealing it.
func (k Key) Scope() string { return hex.EncodeToString(k.digest[:]) }

// ReadFile reads a file of keys, one a line: "KEY", "NAME:KEY" or "NAME,trusted:KEY". Blank lines and lines that start
// with # are skipped. A file without keys is an error: it must not open the server.
func ReadFile(path string) ([]Key, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var keys []Key
	lines := bufio.NewScanner(f)
	for number := 1; lines.Scan(); number++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		k, err := parse(line)
		if err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", path, number, err)
		}
		keys = append(keys, k)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%s holds no key", path)
	}
	return keys, nil
}

// parse reads one line. Its errors never show the key.
func parse(line string) (Key, error) {
	label, secret, ok := strings.Cut(line, ":")
	if !ok {
		label, secret = "", line
	}
	name, mark, marked := strings.Cut(label, ",")
	name, mark = strings.TrimSpace(name), strings.TrimSpace(mark)
	if marked && mark != trustedMark {
		return Key{}, fmt.Errorf("%q after the name %q is not %q", mark, name, trustedMark)
	}
	if secret = strings.TrimSpace(secret); secret == "" {
		return Key{}, fmt.Errorf("the key of %q is empty", name)
	}
	k := New(name, secret)
	k.Trusted = marked
	return k, nil
}

// Ring is the set of valid keys. It can be replaced while requests are checked. A nil Ring and one without keys ask
// for none.
type Ring struct{ keys atomic.Pointer[[]Key] }

// NewRing returns a ring of keys.
func NewRing(keys ...Key) *Ring {
	r := &Ring{}
	r.Set(keys)
	return r
}

// Set replaces the keys.
func (r *Ring) Set(keys []Key) { r.keys.Store(&keys) }

func (r *Ring) list() []Key {
	if r == nil {
		return nil
	}
	if keys := r.keys.Load(); keys != nil {
		return *keys
	}
	return nil
}

// Open reports whether no key is asked for.
func (r *Ring) Open() bool { return len(r.list()) == 0 }

// Find returns the key that one of secrets is. All keys are compared with all secrets, each in constant time.
func (r *Ring) Find(secrets []string) (found Key, ok bool) {
	for _, secret := range secrets {
		if secret == "" {
			continue
		}
		digest := sha256.Sum256([]byte(secret))
		for _, k := range r.list() {
			if subtle.ConstantTimeCompare(digest[:], k.digest[:]) == 1 {
				found, ok = k, true
			}
		}
	}
	return found, ok
}

// Presented collects the secrets that a client sent as "Authorization: Bearer KEY", "x-api-key: KEY" or "api-key: KEY".
// Clients and proxies may send several; one that is valid suffices. values returns the values of a header.
func Presented(values func(name string) []string) []string {
	out := append([]string(nil), values("x-api-key")...)
	out = append(out, values("api-key")...)
	for _, v := range values("authorization") {
		if scheme, token, ok := strings.Cut(v, " "); ok && strings.EqualFold(scheme, "Bearer") {
			out = append(out, strings.TrimSpace(token))
		}
	}
	return out
}
