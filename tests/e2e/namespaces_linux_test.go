package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
)

// ip runs ip with arguments.
func ip(args ...string) error {
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// hosts are network namespaces: that of the head is connected with one of each stage, and passes on what one stage
// sends the other while it is told to.
type hosts struct {
	t    *testing.T
	head string
}

// makeHosts makes them, or skips.
func makeHosts(t *testing.T) *hosts {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root makes network namespaces")
	}
	h := &hosts{t, fmt.Sprintf("tnd%d", os.Getpid())}
	names := []string{h.head, h.stage(2), h.stage(3)}
	for _, name := range names {
		if err := ip("netns", "add", name); err != nil {
			t.Skipf("no network namespaces here: %v", err)
		}
		t.Cleanup(func() { _ = ip("netns", "delete", name) })
	}
	do := func(args ...string) {
		t.Helper()
		if err := ip(args...); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range names {
		do("-n", name, "link", "set", "lo", "up")
	}
	for n := 2; n <= 3; n++ {
		stage, end := h.stage(n), fmt.Sprint("s", n)
		do("link", "add", end, "netns", h.head, "type", "veth", "peer", "name", "up0", "netns", stage)
		do("-n", h.head, "address", "add", fmt.Sprintf("10.231.%d.1/24", n), "dev", end)
		do("-n", h.head, "link", "set", end, "up")
		do("-n", stage, "address", "add", h.address(n)+"/24", "dev", "up0")
		do("-n", stage, "link", "set", "up0", "up")
		do("-n", stage, "route", "add", "default", "via", fmt.Sprintf("10.231.%d.1", n))
	}
	return h
}

func (h *hosts) stage(n int) string { return fmt.Sprint(h.head, "-", n) }

func (h *hosts) address(n int) string { return fmt.Sprintf("10.231.%d.2", n) }

// in calls f on a thread that is in a namespace: so are the processes that it starts and the sockets that it makes.
func (h *hosts) in(name string, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and ends with its thread
		file, err := os.Open(filepath.Join("/run/netns", name))
		if err == nil {
			defer file.Close()
			err = unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// dialer connects as a process in a namespace does.
func (h *hosts) dialer(name string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(_ context.Context, network, address string) (conn net.Conn, err error) {
		err = h.in(name, func() (err error) {
			conn, err = net.Dial(network, address)
			return err
		})
		return conn, err
	}
}

// without calls f on a thread in a namespace as in does, where a folder is empty: other hosts see no sockets.
func (h *hosts) without(folder, name string, f func() error) error {
	return h.in(name, func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("a namespace of mounts: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("mounts of one's own: %w", err)
		}
		if err := unix.Mount("tmpfs", folder, "tmpfs", 0, ""); err != nil {
			return fmt.Errorf("mount over %s: %w", folder, err)
		}
		return f()
	})
}

// forward says whether stages reach each other.
func (h *hosts) forward(on string) {
	h.t.Helper()
	// What /proc/sys/net shows is the network of the thread that opens it.
	err := h.in(h.head, func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte(on), 0o644) })
	if err != nil {
		h.t.Skipf("no forwarding between network namespaces here: %v", err)
	}
}

// TestStagesOnOtherHosts: head and two stages in network namespaces of their own, with certificates. Rows go straight
// from stage to stage, and through the head when a stage does not reach the next one; texts are those of one engine,
// and stay when a stage is killed.
func TestStagesOnOtherHosts(t *testing.T) {
	if device != "" {
		t.Skip("one card is not three devices")
	}
	needPrograms(t)
	h := makeHosts(t)
	_, whole := demo(t, "--threads", "1")
	want, err := whole.Do(t.Context(), longRequest())
	if err != nil {
		t.Fatal(err)
	}
	for _, way := range []string{"direct", "head"} {
		t.Run(way, func(t *testing.T) {
			h.t = t
			h.forward(map[string]string{"direct": "1", "head": "0"}[way])
			authority := filepath.Join(t.TempDir(), "authority")
			certs(t, "init", "--authority", authority)
			var addresses []string
			var last *cluster.Joined
			for n := 2; n <= 3; n++ {
				own := filepath.Join(t.TempDir(), "certs")
				certs(t, "issue", "target", fmt.Sprint("stage-", n), own, "--authority", authority)
				address := net.JoinHostPort(h.address(n), "9001")
				var stage *cluster.Joined
				err := h.in(h.stage(n), func() (err error) {
					stage, err = cluster.Stage(fmt.Sprint(n, "/3"), "--threads", "1", "--target-layer-split", "3,3,2",
						"--listen", address, "--certs", own)
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { end(t, fmt.Sprint("stage ", n), stage) })
				addresses, last = append(addresses, address), stage
			}
			var cl *cluster.Cluster
			log := &recorder{}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := h.in(h.head, func() (err error) {
				cl, err = cluster.Start(ctx, cluster.Options{Args: []string{"--demo", "--threads", "1", "--target-stages",
					strings.Join(addresses, ","), "--target-layer-split", "3,3,2", "--stage-transport", "grpc", "--authority",
					authority}, Log: log})
				return err
			}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(cl.Close)
			c := client.New(cl.HTTP)
			c.HTTP.Transport = &http.Transport{DialContext: h.dialer(h.head)}
			rowsGo(t, c, "direct", way)
			sameTexts(t, whole, c, 20)
			if said := log.contains("hidden rows pass this worker"); said != (way == "head") {
				t.Errorf("the log says that rows pass the head: %v", said)
			}
			pid := last.Find("tandem-engine")
			if pid == 0 {
				t.Fatal("the stage has no engine")
			}
			if got := killed(t, c, want.Text, pid); got.Gap > mostGap {
				t.Errorf("an engine was killed, and the stream stood still for %v", got.Gap)
			}
		})
	}
}
