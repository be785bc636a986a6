package httpapi

import (
	"net/http"
	"slices"

	"github.com/tandem-inference/tandem/gateway/internal/apikey"
)

// authorized reports whether the request may use a route.
func (s *Server) authorized(r *http.Request, a access) bool {
	if s.cfg.Keys.Open() || a == accessOpen || (a == accessIntrospect && !s.cfg.ProtectIntrospection) {
		return true
	}
	return s.hasKey(r)
}

// hasKey reports whether the request carries a valid key.
func (s *Server) hasKey(r *http.Request) bool {
	_, ok := s.key(r)
	return ok
}

// key returns the request's valid key.
func (s *Server) key(r *http.Request) (apikey.Key, bool) {
	return s.cfg.Keys.Find(apikey.Presented(r.Header.Values))
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
