package registry

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/racetest"
	"google.golang.org/protobuf/proto"
)

// TestReach: a worker is reached at its socket where that is, elsewhere at the address for other hosts.
func TestReach(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const remote = "192.0.2.1:7"
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	made := info.ModTime().UnixNano()
	for _, c := range []struct {
		address, remote string
		made            int64
		want            string
		here            bool
	}{
		{"unix://" + path, remote, made, "unix://" + path, true},
		{"unix://" + path, remote, made + 1, remote, false}, // that of another host at the same path
		{"unix://" + path, remote, 0, "unix://" + path, true},
		{"unix:///of/another/host", remote, made, remote, false},
		{"unix:///of/another/host", "", made, "unix:///of/another/host", false},
		{"192.0.2.2:8", "", 0, "192.0.2.2:8", true},
	} {
		w := &tandemv1.Peer{Address: c.address, RemoteAddress: c.remote, SocketMadeUnixNs: c.made}
		if got := Reach(w); got != c.want || Here(w) != c.here {
			t.Errorf("%s, %q: %s, here %v", c.address, c.remote, got, Here(w))
		}
		if !ReachedAt(w, c.address) || c.remote != "" && !ReachedAt(w, c.remote) || ReachedAt(w, "") {
			t.Errorf("%s, %q: is reached elsewhere", c.address, c.remote)
		}
	}
}

// TestRemoteAddressIsTold: targets hear where other hosts reach drafts, who wants a model where they reach targets.
func TestRemoteAddressIsTold(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		h := newHub(ServerConfig{})
		defer h.stop()
		d, served := draft("d"), target("t") // of this host, and one on another
		d.Address, d.RemoteAddress, d.SocketMadeUnixNs = "unix:///d", "192.0.2.1:1", 1
		served.Address, served.RemoteAddress, served.SocketMadeUnixNs = "unix:///t", "192.0.2.1:2", 2
		draft := join(t, h, d)
		defer draft.stop()
		w := join(t, h, served)
		defer w.stop()
		linger()
		told := func() []*tandemv1.Peer {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.leases[len(w.leases)-1].GetPeers()
		}
		if p := told(); len(p) != 1 || p[0].GetRemoteAddress() != d.RemoteAddress || p[0].GetSocketMadeUnixNs() != 1 {
			t.Errorf("drafts of the lease: %v", p)
		}
		moved := proto.Clone(d).(*tandemv1.Registration)
		moved.RemoteAddress = "192.0.2.1:3"
		draft.Update(moved)
		linger()
		if p := told(); len(p) != 1 || p[0].GetRemoteAddress() != moved.RemoteAddress {
			t.Errorf("drafts of the lease when one has moved: %v", p)
		}
		list, err := h.srv.ListTargets(context.Background(), &tandemv1.ListTargetsRequest{})
		if err != nil || len(list.GetTargets()) != 1 || list.GetTargets()[0].GetRemoteAddress() != served.RemoteAddress ||
			list.GetTargets()[0].GetSocketMadeUnixNs() != 2 {
			t.Errorf("targets: %v, %v", list, err)
		}
	})
}

// TestMembershipOfServedWorkers: a worker at a socket joins gateways of other hosts if these reach it at another
// address.
func TestMembershipOfServedWorkers(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		c := cluster{"a": newHub(ServerConfig{}), "b": newHub(ServerConfig{})}
		c.tell("a", "b")
		alone, served := target("alone"), target("served")
		alone.Address, served.Address, served.RemoteAddress = "unix:///1", "unix:///2", "192.0.2.1:2"
		for _, r := range []*tandemv1.Registration{alone, served} {
			defer visit(t, c, r, "a").stop()
		}
		linger()
		if all := states(c["a"].srv); len(all) != 2 {
			t.Errorf("at the gateway of their host: %v", all)
		}
		if all := states(c["b"].srv); len(all) != 1 || all["served"] != StateReady {
			t.Errorf("at the other host's gateway: %v", all)
		}
		c["a"].stop()
		c["b"].stop()
	})
}
