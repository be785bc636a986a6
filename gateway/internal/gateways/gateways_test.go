package gateways

import (
	"net"
	"path/filepath"
	"testing"

	"go.uber.org/zap"
)

// TestGone: a gateway whose address another one has, or where nothing listens, is gone, whatever its session says. One
// that accepts, and one that cannot be asked from here, are not.
func TestGone(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	nowhere := closed.Addr().String()
	socket := "unix://" + filepath.Join(t.TempDir(), "registry")
	for name, c := range map[string]struct {
		self, address string // where workers join
		replaced      bool
		want          bool
	}{
		"it accepts":                    {"127.0.0.1:1", l.Addr().String(), false, false},
		"nothing listens":               {"127.0.0.1:1", nowhere, false, true},
		"no socket":                     {"127.0.0.1:1", socket, false, true},
		"replaced at its address":       {"127.0.0.1:1", l.Addr().String(), true, true},
		"replaced by this one":          {l.Addr().String(), l.Addr().String(), false, true},
		"loopback of another host":      {"gateway-2:8104", nowhere, false, false},
		"a socket of another host":      {"gateway-2:8104", socket, false, false},
		"a name that nobody knows":      {"gateway-2:8104", "gateway-1.invalid:8104", false, false},
		"an address that is no address": {"gateway-2:8104", "gateway-1", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := New(Info{ID: "b", Workers: c.self, Began: 2}, Deps{Logger: zap.NewNop()})
			n.known["a"] = Info{ID: "a", Workers: c.address, Began: 1}
			if c.replaced {
				n.known["c"] = Info{ID: "c", Workers: c.address, Began: 3}
			}
			if got := n.Gone(t.Context(), "a"); got != c.want {
				t.Errorf("gone: %v", got)
			}
			if n.Gone(t.Context(), "b") || n.Gone(t.Context(), "never heard of") {
				t.Error("the gateway itself, or one that has no session, was judged by its address")
			}
		})
	}
}
