package httpapi

import (
	"net/http"

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
