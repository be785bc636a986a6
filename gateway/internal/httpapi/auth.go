package httpapi

import (
	"bufio"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
)

// Key is an API key. Only its digest is kept.
type Key struct {
	// Name is the label of metrics, empty when the key has none.
	Name   string
	digest [sha256.Size]byte
}

// NewKey makes a key.
func NewKey(name, secret string) Key { return Key{Name: name, digest: sha256.Sum256([]byte(secret))} }

// ReadKeys reads a file of keys: one a line, optionally "name:" in front. Blank lines and lines starting with # are skipped.
func ReadKeys(path string) ([]Key, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var keys []Key
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		line := strings.TrimSpace(sc.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, secret, ok := strings.Cut(line, ":")
		if !ok {
			name, secret = "", line
		}
		if secret = strings.TrimSpace(secret); secret == "" {
			return nil, fmt.Errorf("%s: key %q is empty", path, name)
		}
		keys = append(keys, NewKey(strings.TrimSpace(name), secret))
	}
	return keys, sc.Err()
}

// authorized reports whether the request may use a route.
func (s *Server) authorized(r *http.Request, a access) bool {
	if len(s.cfg.Keys) == 0 || a == accessOpen || (a == accessIntrospect && !s.cfg.ProtectIntrospection) {
		return true
	}
	return s.hasKey(r)
}

// hasKey reports whether the request carries a valid key.
func (s *Server) hasKey(r *http.Request) bool { return Match(s.cfg.Keys, secretOf(r)) }

// scope names the key of an authorized request; empty when there are no keys.
func (s *Server) scope(r *http.Request) string {
	if len(s.cfg.Keys) == 0 {
		return ""
	}
	return Scope(secretOf(r))
}

// Scope names a key without telling it.
func Scope(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

// keyName is the name of the request's key, empty for an unknown key and for one without a name.
func (s *Server) keyName(r *http.Request) string {
	secret := secretOf(r)
	for _, k := range s.cfg.Keys {
		if k.Name != "" && Match([]Key{k}, secret) {
			return k.Name
		}
	}
	return ""
}

func secretOf(r *http.Request) string {
	secret := r.Header.Get("X-Api-Key")
	if auth := r.Header.Get("Authorization"); auth != "" {
		if scheme, token, ok := strings.Cut(auth, " "); ok && strings.EqualFold(scheme, "Bearer") {
			secret = strings.TrimSpace(token)
		}
	}
	return secret
}

// Match reports whether secret is one of keys. All keys are compared, each in constant time.
func Match(keys []Key, secret string) bool {
	if secret == "" {
		return false
	}
	got, found := sha256.Sum256([]byte(secret)), 0
	for _, k := range keys {
		found |= subtle.ConstantTimeCompare(got[:], k.digest[:])
	}
	return found == 1
}

// cors sets the headers that let browsers call the server.
func (s *Server) cors(w http.ResponseWriter, r *http.Request) {
	if len(s.cfg.CORSOrigins) == 0 {
		return
	}
	h := w.Header()
	if slices.Contains(s.cfg.CORSOrigins, "*") {
		h.Set("Access-Control-Allow-Origin", "*")
	} else {
		h.Add("Vary", "Origin")
		origin := r.Header.Get("Origin")
		if !slices.Contains(s.cfg.CORSOrigins, origin) {
			return
		}
		h.Set("Access-Control-Allow-Origin", origin)
	}
	h.Set("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS")
	h.Set("Access-Control-Allow-Headers", "*, Authorization")
	h.Set("Access-Control-Expose-Headers", "x-request-id, request-id, retry-after")
	if r.Method == http.MethodOptions {
		h.Set("Access-Control-Max-Age", "86400")
	}
}
