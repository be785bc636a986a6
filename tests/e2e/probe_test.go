package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
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

// TestProbeOfTwoHosts: two processes, one of which serves its figures through a slow link, make one rig that tandem
// plan takes.
func TestProbeOfTwoHosts(t *testing.T) {
	if device != "" {
		t.Skip("measures the processor")
	}
	needPrograms(t)
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	program, model := filepath.Join(root, "bin", "tandem"), filepath.Join(root, "models", "tandem-tiny-target-q4_k_m.gguf")
	run := func(args ...string) (out, errs string, err error) {
		var o, e bytes.Buffer
		cmd := exec.Command(program, args...)
		cmd.Stdout, cmd.Stderr = &o, &e
		err = cmd.Run()
		return o.String(), e.String(), err
	}
	box := exec.Command(program, "probe", "--listen", "127.0.0.1:0", "--device", "cpu", "--model", model, "--host-name",
		"box", "--threads", "1")
	box.Stderr = os.Stderr
	words, err := box.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := box.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = box.Process.Signal(syscall.SIGTERM)
		if err := box.Wait(); err != nil {
			t.Errorf("the host that serves its figures: %v", err)
		}
	})
	reader := bufio.NewReader(words)
	line, err := reader.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, reader) }()
	_, address, found := strings.Cut(strings.TrimSpace(line), "--peer ")
	if !found {
		t.Fatalf("%q names no address", line)
	}
	const delay = 150 * time.Millisecond
	slow, err := link.Listen("127.0.0.1:0", address, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(slow.Close)
	slow.Set(link.Disturbance{Delay: delay}, link.Disturbance{Delay: delay})
	file := filepath.Join(t.TempDir(), "rig.json")
	out, errs, err := run("probe", "--peer", slow.Address(), "--device", "cpu", "--model", model, "--host-name", "laptop",
		"--threads", "1", "--out", file)
	if err != nil || !strings.Contains(out, "laptop to box: ") {
		t.Fatalf("%v: %s\n%s", err, errs, out)
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
	if out, errs, err := run("plan", model, "--rig", file, "--on", "cpu,box/cpu"); err != nil ||
		!strings.Contains(out, "box") {
		t.Errorf("a plan for both hosts: %v: %s\n%s", err, errs, out)
	}

	nobody := freePorts(t, "127.0.0.1", 1)[0]
	if _, errs, err := run("probe", "--peer", nobody, "--device", "cpu", "--model", model, "--threads", "1"); err == nil ||
		!strings.Contains(errs, "peer "+nobody+": ") {
		t.Errorf("a peer that is not there: %v, %s", err, errs)
	}
	if _, errs, err := run("probe", "--peer", "192.0.2.1:9009"); err == nil || !strings.Contains(errs, "--certs") {
		t.Errorf("a peer elsewhere without certificates: %v, %s", err, errs)
	}
}
