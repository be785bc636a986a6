package e2e

import (
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
)

// processOf finds a worker, or its engine.
func processOf(t *testing.T, cl *cluster.Cluster, worker string, engine bool) int {
	t.Helper()
	pid := cl.Find(worker)
	if pid == 0 {
		t.Fatalf("no %s among %v", worker, cl.Processes())
	}
	if !engine {
		return pid
	}
	for _, p := range cl.Processes() {
		if p.Name == "tandem-engine" && p.Parent == pid {
			return p.PID
		}
	}
	t.Fatalf("no engine of %s among %v", worker, cl.Processes())
	return 0
}

// gone reports whether a process has ended.
func gone(pid int) bool { return syscall.Kill(pid, 0) == syscall.ESRCH }

// TestStoppedProcesses: a worker or an engine that is stopped in the middle of a stream is found, killed and replaced;
// the text stays the same. On an idle machine the stream of a target goes on after about 4 s; the bounds are wide, for
// a busy one.
func TestStoppedProcesses(t *testing.T) {
	cl := start(t, "--demo")
	c := client.New(cl.HTTP)
	want, err := c.Stream(t.Context(), longRequest(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		worker string
		engine bool
		gap    time.Duration // longest pause of the stream
	}{
		{"worker-target", true, 20 * time.Second},
		{"worker-target", false, 25 * time.Second},
		{"worker-draft", true, 5 * time.Second},
		{"worker-draft", false, 5 * time.Second},
		{"worker-prefill", true, 5 * time.Second},
		{"worker-prefill", false, 5 * time.Second},
	} {
		name := test.worker
		if test.engine {
			name += "'s engine"
		}
		pid := processOf(t, cl, test.worker, test.engine)
		var stop sync.Once
		var stopped time.Time
		seen := 0
		got, err := c.Stream(t.Context(), longRequest(), func(text string) {
			seen += len(text)
			if seen > len(want.Text)/4 {
				stop.Do(func() { stopped = time.Now(); _ = syscall.Kill(pid, syscall.SIGSTOP) })
			}
		})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got.Text != want.Text {
			t.Errorf("%s: the text changed:\n got %q\nwant %q", name, got.Text, want.Text)
		}
		if got.Gap > test.gap {
			t.Errorf("%s: the stream stood still for %v", name, got.Gap)
		}
		eventually(t, name+" is killed", func() bool { return gone(pid) })
		t.Logf("%s: longest pause %v, process gone after %v", name, got.Gap, time.Since(stopped))
		eventually(t, "all workers are ready", func() bool {
			workers, err := c.Workers(t.Context())
			ready := 0
			for _, w := range workers {
				if w.State == "ready" {
					ready++
				}
			}
			return err == nil && ready == 3
		})
	}
}

// TestStoppedTargetShows: while nothing is asked, a stopped engine of the target is found, /health tells, and it
// comes back.
func TestStoppedTargetShows(t *testing.T) {
	cl := start(t, "--demo")
	c := client.New(cl.HTTP)
	pid := processOf(t, cl, "worker-target", true)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	eventually(t, "/health says that nobody is ready", func() bool {
		_, err := c.Get(t.Context(), "/health/ready")
		return err != nil
	})
	t.Logf("not ready after %v", time.Since(start))
	eventually(t, "the target serves again", func() bool {
		reply, err := c.Do(t.Context(), client.Request{Messages: chat("What is DDTree?"), MaxTokens: 8})
		return err == nil && reply.Text != ""
	})
	if !gone(pid) {
		t.Error("the stopped process is still there")
	}
}
