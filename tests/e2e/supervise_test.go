package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/tests/cluster"
)

// service is a program that runs alone, as containers and units start it.
type service struct {
	cmd   *exec.Cmd
	all   *cluster.Cluster // finds its processes
	log   *lockedBuffer
	ended chan error
}

// run starts a program of bin/ behind the command line before, nil = none.
func run(t *testing.T, env, before []string, program string, args ...string) *service {
	t.Helper()
	needPrograms(t)
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	line := append(append(slices.Clone(before), filepath.Join(root, "bin", program)), args...)
	dir := t.TempDir()
	s := &service{cmd: exec.Command(line[0], line[1:]...), all: &cluster.Cluster{Dir: dir}, log: &lockedBuffer{},
		ended: make(chan error, 1)}
	s.cmd.Env = append(append(os.Environ(), "TMPDIR="+dir, "XDG_CACHE_HOME="+dir), env...)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	s.cmd.WaitDelay = time.Second
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		s.ended <- s.cmd.Wait()
		close(s.ended)
	}()
	t.Cleanup(func() {
		for _, p := range s.all.Processes() {
			_ = syscall.Kill(p.PID, syscall.SIGKILL)
		}
		<-s.ended
		if t.Failed() {
			t.Logf("log of %s:\n%s", program, s.log)
		}
	})
	return s
}

// target is the command line of a target that serves the demonstration model at a socket.
func target(t *testing.T, socket string) []string {
	t.Helper()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	return []string{"--model", filepath.Join(root, "models", "tandem-tiny-target-q4_k_m.gguf"), "--listen",
		"unix://" + socket, "--max-ctx", "512", "--lanes", "1", "--threads", "1", "--hang-timeout", "1s"}
}

// serves reports whether the worker at a socket says that it serves.
func serves(t *testing.T, socket string) bool {
	t.Helper()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	return exec.Command(filepath.Join(root, "bin", "worker-target"), "health", "--timeout", "1s", "--address",
		"unix://"+socket).Run() == nil
}

// find returns the process called name whose parent is called parent.
func (s *service) find(name, parent string) int {
	processes := s.all.Processes()
	for _, p := range processes {
		if p.Name == name && slices.ContainsFunc(processes,
			func(q cluster.Process) bool { return q.PID == p.Parent && q.Name == parent }) {
			return p.PID
		}
	}
	return 0
}

// zombies counts ended children of a process that nobody has waited for.
func zombies(parent int) (count int) {
	paths, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range paths {
		text, _ := os.ReadFile(path)
		_, rest, _ := strings.Cut(string(text), ") ")
		if strings.HasPrefix(rest, fmt.Sprintf("Z %d ", parent)) {
			count++
		}
	}
	return count
}

// TestSupervisedWorker: a worker under --supervise, as containers run it, that is stopped or killed is replaced;
// SIGTERM to the supervisor ends everything in order. Once as any process, and once as process 1 of a namespace, which
// has orphans to wait for.
func TestSupervisedWorker(t *testing.T) {
	for name, before := range map[string][]string{"process": nil,
		"process 1": {"unshare", "--pid", "--fork", "--kill-child", "--mount-proc"}} {
		t.Run(name, func(t *testing.T) {
			if before != nil {
				if out, err := exec.Command(before[0], append(before[1:], "true")...).CombinedOutput(); err != nil {
					t.Skipf("no namespaces of processes: %v: %s", err, out)
				}
			}
			socket := filepath.Join(t.TempDir(), "s")
			s := run(t, nil, before, "worker-target", append([]string{"--supervise"}, target(t, socket)...)...)
			eventually(t, "the worker serves", func() bool { return serves(t, socket) })
			for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} {
				pid := s.find("worker-target", "worker-target")
				if pid == 0 {
					t.Fatalf("no worker below its supervisor: %v", s.all.Processes())
				}
				engine := s.find("tandem-engine", "worker-target")
				stopped := time.Now()
				if err := syscall.Kill(pid, sig); err != nil {
					t.Fatal(err)
				}
				eventually(t, "the worker and its engine are gone", func() bool { return gone(pid) && gone(engine) })
				t.Logf("%v: gone after %v", sig, time.Since(stopped))
				eventually(t, "another serves", func() bool {
					again := s.find("worker-target", "worker-target")
					return again != 0 && again != pid && serves(t, socket)
				})
			}
			supervisor := s.cmd.Process.Pid
			if before != nil {
				supervisor = s.find("worker-target", "unshare")
			}
			eventually(t, "nobody waits to be waited for", func() bool { return zombies(supervisor) == 0 })
			if err := syscall.Kill(supervisor, syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-s.ended:
				if err != nil {
					t.Errorf("after SIGTERM: %v", err)
				}
			case <-time.After(patience):
				t.Fatal("SIGTERM does not end it")
			}
			eventually(t, "no process is left", func() bool { return len(s.all.Processes()) == 0 })
			if !strings.Contains(s.log.String(), "draining") {
				t.Error("the worker was not asked to end")
			}
		})
	}
}

// TestSupervisedUnfit: what no restart cures ends the supervisor with the worker's words and status.
func TestSupervisedUnfit(t *testing.T) {
	s := run(t, nil, nil, "worker-target", append([]string{"--supervise", "--memory-cap", "1MiB"},
		target(t, filepath.Join(t.TempDir(), "s"))...)...)
	select {
	case <-s.ended:
	case <-time.After(patience):
		t.Fatal("it does not end")
	}
	if status := s.cmd.ProcessState.ExitCode(); status != 2 || strings.Count(s.log.String(), "does not fit") != 1 {
		t.Errorf("status %d", status)
		t.Log(s.log)
	}
}

// manager plays systemd: the variables that it gives a service, and what the service says.
func manager(t *testing.T, limit time.Duration) (env []string, messages <-chan string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	out := make(chan string, 1000)
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		buffer := make([]byte, 1000)
		for {
			n, err := conn.Read(buffer)
			if err != nil {
				return
			}
			select {
			case out <- string(buffer[:n]):
			default:
			}
		}
	}()
	return []string{"NOTIFY_SOCKET=" + path, fmt.Sprintf("WATCHDOG_USEC=%d", limit.Microseconds())}, out
}

// await waits for a message among others.
func await(t *testing.T, messages <-chan string, want string) {
	t.Helper()
	for deadline := time.After(patience); ; {
		select {
		case m := <-messages:
			if m == want {
				return
			}
		case <-deadline:
			t.Fatalf("no %s within %v", want, patience)
		}
	}
}

// TestServiceManager: what units run says that it is up, goes on saying that it is alive, says nothing more once it is
// stopped, and says that it ends.
func TestServiceManager(t *testing.T) {
	const limit = 2 * time.Second
	for name, start := range map[string]func(t *testing.T, env []string) *service{
		"worker-target": func(t *testing.T, env []string) *service {
			return run(t, env, nil, "worker-target", target(t, filepath.Join(t.TempDir(), "s"))...)
		},
		"gateway": func(t *testing.T, env []string) *service {
			return run(t, env, nil, "tandem", "gateway", "--port", "0", "--grpc-port=-1", "--registry-listen",
				"unix://"+filepath.Join(t.TempDir(), "r"))
		},
		"serve": func(t *testing.T, env []string) *service {
			return run(t, env, nil, "tandem", "serve", "--demo", "--port", "0", "--grpc-port=-1")
		},
	} {
		t.Run(name, func(t *testing.T) {
			env, messages := manager(t, limit)
			s := start(t, env)
			await(t, messages, "READY=1")
			if name == "worker-target" {
				await(t, messages, "STATUS=serving")
			}
			for range 5 {
				await(t, messages, "WATCHDOG=1")
			}
			if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			// What was sent before comes first; then there is silence for longer than a manager bears.
			for silent := false; !silent; {
				select {
				case <-messages:
				case <-time.After(limit):
					silent = true
				}
			}
			if err := s.cmd.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			await(t, messages, "WATCHDOG=1")
			if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			await(t, messages, "STOPPING=1")
			select {
			case <-s.ended:
			case <-time.After(patience):
				t.Fatal("it does not end")
			}
		})
	}
}
