package supervise

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/tandem-inference/tandem/services/testwait"
)

// TestReap: orphans that fall to this process do not stay as zombies, and children keep their exit status.
func TestReap(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Skipf("orphans of this process go elsewhere: %v", err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) }()
	out := newOutput()
	_, stop := start(t, Config{Output: out, Reap: true}, spec("litter"))
	out.pid(t)
	for range 5 {
		pid := out.pid(t)
		for deadline := time.Now().Add(testwait.Limit); syscall.Kill(pid, 0) == nil; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("process %d is still there", pid)
			}
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	usage := spec("usage")
	usage.Probe = func(context.Context) error { return errors.New("never") }
	for range 20 {
		s := New(Config{Output: out, Reap: true, FirstBackoff: time.Millisecond}, zap.NewNop(), usage)
		if err := s.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "exit status 2") {
			t.Fatalf("Run = %v", err)
		}
	}
}

// TestSignal: a signal reaches the children.
func TestSignal(t *testing.T) {
	out := newOutput()
	restarts := make(chan string, 10)
	s, _ := start(t, Config{Output: out, FirstBackoff: time.Millisecond, OnRestart: func(n string) { restarts <- n }},
		spec("wait"))
	pid := out.pid(t)
	if err := s.WaitReady(t.Context(), "wait"); err != nil {
		t.Fatal(err)
	}
	s.Signal(syscall.SIGKILL)
	testwait.For(t, restarts, "the end of the child")
	gone(t, pid)
}
