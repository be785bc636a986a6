package supervise

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tandem-inference/tandem/services/testwait"
)

// The test program is its own child: TANDEM_TEST_CHILD chooses what it does.
func TestMain(m *testing.M) {
	if kind := os.Getenv("TANDEM_TEST_CHILD"); kind != "" {
		child(kind)
		return
	}
	goleak.VerifyTestMain(m)
}

func child(kind string) {
	fmt.Println("pid", os.Getpid())
	switch kind {
	case "fail":
		fmt.Println("model file is broken")
		os.Exit(1)
	case "usage":
		os.Exit(2)
	case "unfit":
		if os.Getenv("TANDEM_TEST_PID") != "" {
			fmt.Printf("unfit: the model does not fit, %d bytes are there\n", os.Getpid())
			os.Exit(2)
		}
		fmt.Println("unfit: the model does not fit")
		os.Exit(2)
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		grandchild := exec.Command("sleep", "600")
		if err := grandchild.Start(); err != nil {
			os.Exit(3)
		}
		fmt.Println("pid", grandchild.Process.Pid)
	case "worker":
		engine := exec.Command("sleep", "600")
		if err := engine.Start(); err != nil {
			os.Exit(3)
		}
		fmt.Println("pid", engine.Process.Pid)
	case "litter":
		for range 5 {
			shell := exec.Command("sh", "-c", "sleep 0.01 & echo pid $!") // leaves a process behind
			shell.Stdout = os.Stdout
			if err := shell.Run(); err != nil {
				os.Exit(5)
			}
		}
	case "answers":
		l, err := net.Listen("unix", os.Getenv("TANDEM_TEST_SOCKET"))
		if err != nil {
			os.Exit(4)
		}
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = conn.Write([]byte("x"))
				_ = conn.Close()
			}
		}()
	case "parent":
		// A supervisor of its own, to be killed.
		s := New(Config{Output: os.Stdout}, zap.NewNop(), spec("wait"))
		_ = s.Run(context.Background())
		return
	}
	stop := make(chan os.Signal, 1)
	if kind != "stubborn" {
		signal.Notify(stop, syscall.SIGTERM)
	}
	<-stop
}

func spec(kind string) Spec {
	return Spec{Name: kind, Path: os.Args[0], Env: append(os.Environ(), "TANDEM_TEST_CHILD="+kind), Essential: true}
}

// output collects child lines and hands out pids as they appear.
type output struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	pids chan int
}

func newOutput() *output { return &output{pids: make(chan int, 100)} }

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for line := range strings.Lines(string(p)) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), "pid "); ok {
			pid, _ := strconv.Atoi(text)
			o.pids <- pid
		}
	}
	return o.buf.Write(p)
}

func (o *output) pid(t *testing.T) int {
	t.Helper()
	return testwait.For(t, o.pids, "a child starts")
}

var errRuns = errors.New("the supervisor does not stop")

func start(t *testing.T, cfg Config, specs ...Spec) (*Supervisor, func() error) {
	t.Helper()
	s := New(cfg, zap.NewNop(), specs...)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop := sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(testwait.Limit):
			return errRuns
		}
	})
	t.Cleanup(func() {
		if err := stop(); errors.Is(err, errRuns) {
			t.Error(err)
		}
	})
	return s, stop
}

func gone(t *testing.T, pid int) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for syscall.Kill(pid, 0) == nil && !zombie(pid) {
		if time.Now().After(deadline) {
			t.Fatalf("process %d is still there", pid)
		}
		time.Sleep(time.Millisecond) // poll: the kernel tells nobody else when a stranger's child is gone
	}
}

// zombie: orphans of a test run may wait for an init that reaps lazily.
func zombie(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(data), ") Z ")
}

// TestHungChild: a child that is stopped is killed and started again; one that is not watched stays as it is.
func TestHungChild(t *testing.T) {
	for _, limit := range []time.Duration{300 * time.Millisecond, -1} {
		out := newOutput()
		restarts := make(chan string, 10)
		answers := spec("answers")
		answers.Socket = filepath.Join(t.TempDir(), "s")
		answers.Env = append(answers.Env, "TANDEM_TEST_SOCKET="+answers.Socket)
		answered := make(chan struct{}, 1)
		answers.Ping = func(ctx context.Context) error {
			var d net.Dialer
			conn, err := d.DialContext(ctx, "unix", answers.Socket)
			if err != nil {
				return err
			}
			defer conn.Close()
			if deadline, ok := ctx.Deadline(); ok {
				_ = conn.SetDeadline(deadline)
			}
			if _, err = conn.Read(make([]byte, 1)); err == nil {
				select {
				case answered <- struct{}{}:
				default:
				}
			}
			return err
		}
		_, stop := start(t, Config{Output: out, HangLimit: limit, FirstBackoff: time.Millisecond,
			OnRestart: func(n string) { restarts <- n }}, answers)
		pid := out.pid(t)
		if limit > 0 {
			testwait.For(t, answered, "a first sign of life")
			testwait.For(t, answered, "a second one") // the watcher has taken note of the first
		}
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		if limit > 0 {
			if again := out.pid(t); again == pid {
				t.Error("the same process")
			}
			gone(t, pid)
		} else {
			select {
			case <-restarts:
				t.Error("a child was restarted although the watch is off")
			case <-time.After(time.Second):
			}
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	}
}

func TestRestartAndStop(t *testing.T) {
	out := newOutput()
	restarts := make(chan string, 10)
	s, stop := start(t, Config{Output: out, FirstBackoff: time.Millisecond, OnRestart: func(n string) { restarts <- n }},
		spec("wait"))
	first := out.pid(t)
	if err := s.WaitReady(t.Context(), "wait"); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	second := out.pid(t)
	if name := testwait.For(t, restarts, "a restart"); name != "wait" {
		t.Errorf("OnRestart(%q)", name)
	}
	if first == second {
		t.Error("same process")
	}
	if err := stop(); err != nil {
		t.Errorf("Run = %v after an ordered stop", err)
	}
	gone(t, second)
}

func TestStopKillsStubbornGroup(t *testing.T) {
	out := newOutput()
	_, stop := start(t, Config{Output: out, Grace: 50 * time.Millisecond}, spec("stubborn"))
	child, grandchild := out.pid(t), out.pid(t)
	if err := stop(); err != nil {
		t.Error(err)
	}
	gone(t, child)
	gone(t, grandchild)
}

func TestEssentialFailure(t *testing.T) {
	for _, c := range []struct{ kind, want string }{
		{"fail", "model file is broken"},
		{"usage", "exit status 2"},
	} {
		t.Run(c.kind, func(t *testing.T) {
			sp := spec(c.kind)
			sp.Probe = func(context.Context) error { return errors.New("never") }
			s := New(Config{Output: newOutput(), FirstBackoff: time.Millisecond}, zap.NewNop(), sp, spec("wait"))
			err := s.Run(context.Background())
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.kind) {
				t.Errorf("Run = %v, want it to say %q", err, c.want)
			}
		})
	}
}

// TestReasonIsSaidOnce: what a program says about its end is in the error, not in the output beside it, and it is not
// started again.
func TestReasonIsSaidOnce(t *testing.T) {
	out := newOutput()
	sp := spec("unfit")
	sp.Probe = func(context.Context) error { return errors.New("never") }
	err := New(Config{Output: out, FirstBackoff: time.Millisecond}, zap.NewNop(), sp).Run(context.Background())
	var unfit *StartError
	if !errors.As(err, &unfit) || err.Error() != "unfit does not start: the model does not fit" || unfit.Status != 2 {
		t.Errorf("Run = %v", err)
	}
	if text := out.buf.String(); strings.Contains(text, "does not fit") || strings.Count(text, "pid ") != 1 {
		t.Errorf("output %q", text)
	}
}

func TestMissingProgram(t *testing.T) {
	s := New(Config{FirstBackoff: time.Millisecond}, zap.NewNop(),
		Spec{Name: "x", Path: "/nonexistent/program", Essential: true})
	if err := s.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "/nonexistent/program") {
		t.Errorf("Run = %v", err)
	}
}

func TestChildrenDieWithParent(t *testing.T) {
	out := newOutput()
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), "TANDEM_TEST_CHILD=parent")
	parent.Stdout = out
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	parentPid, childPid := out.pid(t), out.pid(t)
	if err := syscall.Kill(parentPid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	gone(t, childPid)
	_ = parent.Wait()
}

func TestWaitReadyEndsWithContext(t *testing.T) {
	s := New(Config{}, zap.NewNop())
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.WaitReady(ctx, "x"); err == nil || !strings.Contains(err.Error(), "x is not ready") {
		t.Error(err)
	}
}

func TestRunDir(t *testing.T) {
	base := t.TempDir()
	t.Setenv("TMPDIR", base)
	done := exec.Command("true")
	if err := done.Run(); err != nil {
		t.Fatal(err)
	}
	stale := filepath.Join(base, fmt.Sprintf("tandem-%d-123", done.Process.Pid))
	other := filepath.Join(base, "tandem-notes-1")
	for _, dir := range []string{stale, other} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := RunDir()
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v %v", info, err)
	}
	if _, err := os.Stat(stale); !os.IsNotExist(err) {
		t.Error("the directory of a dead process is still there")
	}
	if _, err := os.Stat(other); err != nil {
		t.Error("a directory that is not ours was removed")
	}
}

// TestUnfitChild: a child that others can do without and that no restart cures is tried ever more rarely, and its
// reason is said once.
func TestUnfitChild(t *testing.T) {
	out := newOutput()
	logs, entries := observer.New(zap.DebugLevel)
	unfit := spec("unfit")
	unfit.Essential = false
	unfit.Env = append(unfit.Env, "TANDEM_TEST_PID=1")
	unfit.Probe = func(context.Context) error { return errors.New("never") }
	ended := make(chan time.Time, 100)
	s := New(Config{Output: out, FirstBackoff: time.Millisecond, MaxBackoff: 20 * time.Millisecond,
		UnfitBackoff: 160 * time.Millisecond, OnRestart: func(string) { ended <- time.Now() }}, zap.New(logs), unfit)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	var at []time.Time
	for range 6 {
		at = append(at, testwait.For(t, ended, "an end of the child"))
	}
	cancel()
	if err := testwait.For(t, done, "the supervisor"); err != nil {
		t.Error(err)
	}
	for i, least := range []time.Duration{20, 40, 80, 160, 160} {
		if pause := at[i+1].Sub(at[i]); pause < least*time.Millisecond {
			t.Errorf("started again after %v, want at least %d ms", pause, least)
		}
	}
	said := entries.FilterMessage("worker does not start, going on without it").All()
	if len(said) != 1 || !strings.HasPrefix(fmt.Sprint(said[0].ContextMap()["reason"]), "the model does not fit, ") {
		t.Errorf("said %v", said)
	}
	if n := entries.FilterLevelExact(zap.WarnLevel).Len(); n != 0 {
		t.Errorf("%d warnings besides", n)
	}
	out.mu.Lock()
	defer out.mu.Unlock()
	if strings.Contains(out.buf.String(), "does not fit") {
		t.Errorf("said again: %s", out.buf.String())
	}
}

// TestKillOnDemand: a worker that is killed is started again. Its engine can be killed alone; nothing else can be.
func TestKillOnDemand(t *testing.T) {
	out := newOutput()
	s, stop := start(t, Config{Output: out, FirstBackoff: time.Millisecond}, spec("worker"))
	worker, engine := out.pid(t), out.pid(t)
	if err := s.KillChildren("worker"); err != nil {
		t.Fatal(err)
	}
	ended := func(pid int) bool { return syscall.Kill(pid, 0) != nil || zombie(pid) }
	testwait.Until(t, "the engine is gone", func() bool { return ended(engine) })
	if ended(worker) {
		t.Error("the worker was killed with its engine")
	}
	if err := s.KillChildren("worker"); err == nil {
		t.Error("a worker without an engine lost one")
	}
	if err := s.Kill("worker"); err != nil {
		t.Fatal(err)
	}
	out.pid(t) // another life
	out.pid(t)
	for _, err := range []error{s.Kill("init"), s.KillChildren("init")} {
		if err == nil || !strings.Contains(err.Error(), `"init"`) {
			t.Errorf("a stranger: %v", err)
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if err := s.Kill("worker"); !errors.Is(err, errNotRunning) {
		t.Errorf("after the end: %v", err)
	}
}
