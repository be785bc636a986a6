package workernode

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/unixsocket"
)

func TestListen(t *testing.T) {
	dir, err := os.MkdirTemp("", "listen") // short: socket paths are limited to some hundred bytes
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "s")
	address := "unix://" + path
	l, err := Listen(address)
	if err != nil {
		t.Fatal(err)
	}
	if got := Address(l); got != address || unixsocket.DialTarget(got) != "unix:"+path {
		t.Errorf("address %q, target %q", got, unixsocket.DialTarget(got))
	}
	l.Close()
	tcp, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	if got := Address(tcp); got != tcp.Addr().String() || unixsocket.DialTarget(got) != got {
		t.Errorf("address %q", got)
	}
	wild, err := Listen("0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer wild.Close()
	if got := Address(wild); strings.HasPrefix(got, "0.0.0.0") {
		t.Errorf("peers cannot reach %q", got)
	}
}

// TestRemoteListen: a worker at a socket that also serves other hosts says both addresses.
func TestRemoteListen(t *testing.T) {
	dir, err := os.MkdirTemp("", "listen")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket := "unix://" + filepath.Join(dir, "s")
	for advertise, want := range map[string]string{"": "127.0.0.1:", "box:7": "box:7"} {
		f := &Flags{Listen: socket, RemoteListen: "127.0.0.1:0", Advertise: advertise}
		listeners, err := listen(f)
		if err != nil {
			t.Fatal(err)
		}
		r := &tandemv1.Registration{}
		name(r, f, listeners)
		if r.Address != socket || !strings.HasPrefix(r.RemoteAddress, want) || strings.HasSuffix(r.RemoteAddress, ":0") {
			t.Errorf("--advertise %q: %q and %q", advertise, r.Address, r.RemoteAddress)
		}
		for _, l := range listeners {
			l.Close()
		}
	}
	if _, err := listen(&Flags{Listen: socket, RemoteListen: "127.0.0.1:x"}); err == nil ||
		!strings.Contains(err.Error(), "--remote-listen") {
		t.Errorf("%v", err)
	}
	if again, err := Listen(socket); err != nil {
		t.Errorf("the socket stays open when the port cannot be had: %v", err)
	} else {
		again.Close()
	}
	alone := &tandemv1.Registration{}
	l, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if name(alone, &Flags{Advertise: "box:7"}, []net.Listener{l}); alone.Address != "box:7" || alone.RemoteAddress != "" {
		t.Errorf("one address: %q and %q", alone.Address, alone.RemoteAddress)
	}
}

func TestFlags(t *testing.T) {
	f := Flags{Threads: -1, Lanes: -1, Device: "abacus 7"}
	err := f.Validate()
	for _, flag := range []string{"--threads", "--lanes", "--device"} {
		if err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s is not named in %v", flag, err)
		}
	}
	if a, b := f.ID("target"), f.ID("target"); a == b || !strings.HasPrefix(a, "target-") {
		t.Errorf("ids %q and %q", a, b)
	}
	f.WorkerID = "mine"
	if f.ID("target") != "mine" {
		t.Error("the given id is not taken")
	}
	f.Engine = filepath.Join(t.TempDir(), "tandem-engine")
	if _, _, err := f.EnginePaths(); err == nil || !strings.Contains(err.Error(), "--engine") {
		t.Errorf("a missing engine: %v", err)
	}

	if err := os.WriteFile(f.Engine, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	f.Device = "hip:1"
	if _, _, err := f.EnginePaths(); err == nil ||
		!strings.Contains(err.Error(), "--device: device hip:1 needs libtandem_hip.so") {
		t.Errorf("a missing library: %v", err)
	}
	want := filepath.Join(filepath.Dir(f.Engine), "libtandem_hip.so")
	if err := os.WriteFile(want, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, library, err := f.EnginePaths(); err != nil || library != want {
		t.Errorf("library %q, %v", library, err)
	}
	f.Device = "cpu"
	if _, library, err := f.EnginePaths(); err != nil || library != "" {
		t.Errorf("an engine program of one's own without a library: %q, %v", library, err)
	}
}
