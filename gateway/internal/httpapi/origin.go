package httpapi

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/tandem-inference/tandem/gateway/internal/apierror"
)

// Words that stand for many origins.
const (
	// OriginLocal: pages that this machine serves, and apps that have a scheme of their own, which no web page can take.
	OriginLocal = "local"
	OriginAny   = "*"
)

// appSchemes are those of desktop apps and editors that are built on a browser.
var appSchemes = []string{"app", "capacitor", "tauri", "vscode-file", "vscode-webview"}

// CheckOrigin tells what is wrong with an allowed origin.
func CheckOrigin(origin string) error {
	if origin == OriginLocal || origin == OriginAny {
		return nil
	}
	u, err := url.Parse(origin)
	if err != nil || u.Scheme == "" || u.Host == "" || u.Path != "" || u.RawQuery != "" ||
		u.Fragment != "" || u.User != nil {
		return fmt.Errorf("%q is not local, * or an origin such as https://ui.example.com:8443", origin)
	}
	return nil
}

// mayUse reports whether pages of origin may use the server.
func (s *Server) mayUse(origin string) bool {
	for _, allowed := range s.cfg.CORSOrigins {
		if allowed == OriginAny || strings.EqualFold(allowed, origin) || allowed == OriginLocal && localOrigin(origin) {
			return true
		}
	}
	return false
}

func localOrigin(origin string) bool {
	u, err := url.Parse(origin)
	if err != nil {
		return false
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return slices.Contains(appSchemes, u.Scheme)
	}
	name := strings.ToLower(u.Hostname())
	ip := net.ParseIP(name)
	return ip.IsLoopback() || name == "localhost" || strings.HasSuffix(name, ".localhost")
}

// cors sets the headers that let pages of allowed origins call the server.
func (s *Server) cors(w http.ResponseWriter, r *http.Request) {
	if s.cfg.NoCORS {
		return
	}
	h := w.Header()
	if slices.Contains(s.cfg.CORSOrigins, OriginAny) {
		h.Set("Access-Control-Allow-Origin", "*")
	} else {
		h.Add("Vary", "Origin")
		origin := r.Header.Get("Origin")
		if !s.mayUse(origin) {
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

// foreign refuses what a web page of another site sends by a user's browser to a server that asks for no key. CORS
// alone does not do: it hides answers, but a plain POST is sent all the same, and a name that the site points to this
// machine passes for its own.
func (s *Server) foreign(r *http.Request, a access) error {
	if !s.cfg.Keys.Open() || a == accessOpen {
		return nil
	}
	if s.cfg.LocalHosts && !s.localHost(r.Host) {
		return apierror.Transport(http.StatusForbidden,
			"the host name %q is not one of this machine: use its address or localhost, set a key, or allow the name by "+
				"--allowed-host", r.Host)
	}
	origin := r.Header.Get("Origin")
	if origin == "" || s.mayUse(origin) {
		return nil
	}
	if u, err := url.Parse(origin); err == nil && u.Host != "" && strings.EqualFold(u.Host, r.Host) {
		return nil // a page of this server's own, or of the proxy in front of it
	}
	return apierror.Transport(http.StatusForbidden,
		"pages of the origin %q may not use this server: set a key, or allow the origin by --cors-origin", origin)
}

// reservedNames are suffixes that nobody can register on the Internet.
var reservedNames = []string{".localhost", ".local", ".internal", ".home.arpa"}

// localHost reports whether a Host header can only mean a machine that the client's user chose: an address, or a name
// that no stranger can point anywhere.
func (s *Server) localHost(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.ToLower(strings.TrimSuffix(strings.Trim(name, "[]"), "."))
	if net.ParseIP(name) != nil || !strings.Contains(name, ".") {
		return true
	}
	for _, suffix := range reservedNames {
		if strings.HasSuffix(name, suffix) {
			return true
		}
	}
	own, err := os.Hostname()
	return err == nil && strings.EqualFold(own, name) ||
		slices.ContainsFunc(s.cfg.AllowedHosts, func(allowed string) bool { return strings.EqualFold(allowed, name) })
}
