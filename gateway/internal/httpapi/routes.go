package httpapi

import (
	"net/http"
	"strings"
)

// idMark stands for an id in the path of a route.
const idMark = "{id}"

// pattern is a path with an id in it.
type pattern struct {
	path, prefix, suffix string
	rt                   *route
}

// match takes the id out of a path.
func (p *pattern) match(path string) (id string, ok bool) {
	rest, ok := strings.CutPrefix(path, p.prefix)
	if !ok {
		return "", false
	}
	id, ok = strings.CutSuffix(rest, p.suffix)
	// Names of models may hold slashes, made ids do not.
	return id, ok && id != "" && (!strings.Contains(id, "/") || strings.HasSuffix(p.prefix, "/models/"))
}

func (s *Server) add(method, path string, a access, work bool, h handler) {
	rt := s.routes[path]
	if rt == nil {
		rt = &route{access: a, work: work, methods: map[string]handler{}}
		s.routes[path] = rt
		if prefix, suffix, ok := strings.Cut(path, idMark); ok {
			s.patterns = append(s.patterns, &pattern{path: path, prefix: prefix, suffix: suffix, rt: rt})
		}
	}
	rt.methods[method] = h
}

// find resolves a path; name is the route's name for metrics, id the id in the path.
func (s *Server) find(path string) (rt *route, name, id string) {
	if rt := s.routes[path]; rt != nil && !strings.Contains(path, idMark) {
		return rt, strings.TrimPrefix(path, "/v1"), ""
	}
	for _, p := range s.patterns {
		if id, ok := p.match(path); ok {
			return p.rt, strings.TrimPrefix(p.path, "/v1"), id
		}
	}
	return nil, "", ""
}

// anthropicShape reports whether errors of a request have Anthropic's shape: on the paths of that dialect, and on those
// of models for clients that speak it.
func anthropicShape(r *http.Request) bool {
	path := strings.TrimPrefix(r.URL.Path, "/v1")
	return path == "/messages" || strings.HasPrefix(path, "/messages/") ||
		(anthropicClient(r) && (path == "/models" || strings.HasPrefix(path, "/models/")))
}

// anthropicClient reports whether the client speaks Anthropic's dialect.
func anthropicClient(r *http.Request) bool { return r.Header.Get("Anthropic-Version") != "" }
