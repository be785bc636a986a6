package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/tests/cluster"
	"github.com/tandem-inference/tandem/tests/faults/link"
)

// probes runs tandem probe, and what else of tandem, with the demonstration target.
type probes struct {
	t              *testing.T
	program, model string
}

func newProbes(t *testing.T) *probes {
	t.Helper()
	if device != "" {
		t.Skip("measures the processor")
	}
	needPrograms(t)
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	return &probes{t, filepath.Join(root, "bin", "tandem"), filepath.Join(root, "models",
		"tandem-tiny-target-q4_k_m.gguf")}
}

// run runs tandem to its end.
func (p *probes) run(args ...string) (out, errs string, err error) {
	var o, e bytes.Buffer
	cmd := exec.Command(p.program, args...)
	cmd.Stdout, cmd.Stderr = &o, &e
	err = cmd.Run()
	return o.String(), e.String(), err
}

// flags are those of a probe that measures as little as it can.
func (p *probes) flags(name string) []string {
	return []string{"--device", "cpu", "--model", p.model, "--threads", "1", "--host-name", name}
}

// ask measures this host, and the link to the one at an address.
func (p *probes) ask(address, name string, more ...string) (out, errs string, err error) {
	return p.run(append(append([]string{"probe", "--peer", address}, p.flags(name)...), more...)...)
}

// serve starts a host that gives its figures, and returns where.
func (p *probes) serve(listen, name string, more ...string) (address string) {
	p.t.Helper()
	host := exec.Command(p.program, append(append([]string{"probe", "--listen", listen}, p.flags(name)...), more...)...)
	host.Stderr = os.Stderr
	words, err := host.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := host.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		_ = host.Process.Signal(syscall.SIGTERM)
		if err := host.Wait(); err != nil {
			p.t.Errorf("the host that serves its figures: %v", err)
		}
	})
	reader := bufio.NewReader(words)
	line, err := reader.ReadString('\n')
	if err != nil {
		p.t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, reader) }()
	_, address, found := strings.Cut(strings.TrimSpace(line), "--peer ")
	if !found {
		p.t.Fatalf("%q names no address", line)
	}
	return address
}

// TestProbeOfTwoHosts: two processes, one of which serves its figures through a slow link, make one rig that tandem
// plan takes.
func TestProbeOfTwoHosts(t *testing.T) {
	p := newProbes(t)
	at := freePorts(t, "127.0.0.1", 1)[0]
	wire := record(t, at, p.serve("127.0.0.1:0", "box"))
	const delay = 150 * time.Millisecond
	slow, err := link.Listen("127.0.0.1:0", at, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(slow.Close)
	slow.Set(link.Disturbance{Delay: delay}, link.Disturbance{Delay: delay})
	file := filepath.Join(t.TempDir(), "rig.json")
	out, errs, err := p.ask(slow.Address(), "laptop", "--out", file)
	if err != nil || !strings.Contains(out, "laptop to box: ") {
		t.Fatalf("%v: %s\n%s", err, errs, out)
	}
	if !wire.contains(`"name":"box"`) {
		t.Error("without certificates the answer goes as it is, and was not recorded")
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var rig struct {
		Hosts []struct {
			Name, Address string
			Devices       []struct{ Name, Origin string }
		}
		Links []struct {
			A, B   string
			Origin string
			Trip   float64 `json:"round_trip_us"`
		}
	}
	if err := json.Unmarshal(data, &rig); err != nil {
		t.Fatal(err)
	}
	if len(rig.Hosts) != 2 || rig.Hosts[0].Name != "laptop" || rig.Hosts[0].Address != "127.0.0.1" ||
		rig.Hosts[1].Name != "box" || rig.Hosts[1].Address != "127.0.0.1" || len(rig.Hosts[1].Devices) != 1 ||
		rig.Hosts[1].Devices[0].Origin != "measured" || len(rig.Links) != 1 || rig.Links[0].Origin != "measured" {
		t.Fatalf("rig %s", data)
	}
	if trip, want := rig.Links[0].Trip, 2*float64(delay.Microseconds()); trip < want || trip > 1.2*want {
		t.Errorf("the round trip is %.0f µs, the link's delay %.0f µs", trip, want)
	}
	if out, errs, err := p.run("plan", p.model, "--rig", file, "--on", "cpu,box/cpu"); err != nil ||
		!strings.Contains(out, "box") {
		t.Errorf("a plan for both hosts: %v: %s\n%s", err, errs, out)
	}

	nobody := freePorts(t, "127.0.0.1", 1)[0]
	if _, errs, err := p.ask(nobody, "laptop"); err == nil ||
		!strings.Contains(errs, "peer "+nobody+": ") {
		t.Errorf("a peer that is not there: %v, %s", err, errs)
	}
	if _, errs, err := p.run("probe", "--peer", "192.0.2.1:9009"); err == nil || !strings.Contains(errs, "--certs") {
		t.Errorf("a peer elsewhere without certificates: %v, %s", err, errs)
	}
}

// TestProbeWithCertificates: hosts with certificates of one cluster get figures of each other, of which nothing can be
// read on the way. Who has none, or one that is no good, is told so before anything is measured, whichever side lacks
// it.
func TestProbeWithCertificates(t *testing.T) {
	const name = "a-name-that-is-nowhere-else"
	p, ip := newProbes(t), ownAddress(t)
	authority := func() string {
		dir := filepath.Join(t.TempDir(), "authority")
		certs(t, "init", "--authority", dir)
		return dir
	}
	issue := func(authority, role string, more ...string) string {
		dir := filepath.Join(t.TempDir(), "certs")
		certs(t, append([]string{"issue", role, "a-" + role, dir, "--authority", authority}, more...)...)
		return dir
	}
	ours, theirs := authority(), authority()
	own := issue(ours, "draft")
	box := p.serve(net.JoinHostPort(ip, "0"), name, "--certs", issue(ours, "target"))
	open := p.serve(net.JoinHostPort(ip, "0"), "open", "--plaintext")
	for what, c := range map[string]struct {
		address, want string
		flags         []string
	}{
		"no flag":               {box, "--certs", nil},
		"no certificate":        {box, "peer " + box + ": ", []string{"--plaintext"}},
		"one of another":        {box, "unknown authority", []string{"--certs", issue(theirs, "target")}},
		"one that has expired":  {box, "expired at ", []string{"--certs", issue(ours, "target", "--life", "1ns")}},
		"a folder without one":  {box, "--certs: ", []string{"--certs", t.TempDir()}},
		"a peer that lacks one": {open, "the other end has no certificate", []string{"--certs", own}},
	} {
		out, errs, err := p.ask(c.address, "laptop", c.flags...)
		if err == nil || !strings.Contains(errs, c.want) || strings.Contains(errs, "measuring") || out != "" {
			t.Errorf("%s: %v: %s%s, want %q", what, err, errs, out, c.want)
		}
		if what == "no certificate" && !strings.Contains(errs, "wants the certificate of a worker of this cluster") {
			t.Errorf("%s: %s", what, errs)
		}
	}

	at := freePorts(t, ip, 1)[0]
	wire := record(t, at, box)
	out, errs, err := p.ask(at, "laptop", "--certs", own)
	if err != nil || !strings.Contains(out, "laptop to "+name+": ") {
		t.Fatalf("%v: %s\n%s", err, errs, out)
	}
	// A link is timed with 16 MiB in each direction, so all that was said of the host went this way.
	if wire.sent.len() < mostKept || wire.answered.len() < mostKept {
		t.Fatalf("the figures went another way: %d bytes there and %d back", wire.sent.len(), wire.answered.len())
	}
	for _, text := range []string{name, `"devices"`} {
		if wire.contains(text) {
			t.Errorf("%q can be read on the way", text)
		}
	}
}
