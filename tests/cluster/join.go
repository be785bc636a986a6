package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// Joined is a worker-target of the demonstration model beside those of a cluster.
type Joined struct {
	cmd  *exec.Cmd
	dir  string
	tail *tail
}

// Join starts a target that joins the gateway whose registry listens at an address. It serves at a socket in a
// directory of its own.
func Join(registry, id string, args ...string) (*Joined, error) {
	root, err := Root()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "tandem-join-")
	if err != nil {
		return nil, err
	}
	j := &Joined{dir: dir, tail: &tail{}}
	j.cmd = exec.Command(filepath.Join(root, "bin", "worker-target"), append([]string{
		"--model", filepath.Join(root, "models", "tandem-tiny-target-q4_k_m.gguf"), "--gateway", registry,
		"--listen", "unix://" + filepath.Join(dir, "s"), "--worker-id", id, "--parent-pid", fmt.Sprint(os.Getpid()),
	}, args...)...)
	j.cmd.Env = append(os.Environ(), "TMPDIR="+dir, "XDG_CACHE_HOME="+filepath.Join(dir, "cache"))
	j.cmd.Stdout, j.cmd.Stderr = j.tail, j.tail
	if err := j.cmd.Start(); err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	return j, nil
}

// Log is the end of what the worker wrote.
func (j *Joined) Log() string { return j.tail.String() }

// Close ends the worker and removes its directory.
func (j *Joined) Close() {
	_ = j.cmd.Process.Signal(syscall.SIGTERM)
	stuck := time.AfterFunc(20*time.Second, func() { _ = j.cmd.Process.Kill() })
	_ = j.cmd.Wait()
	stuck.Stop()
	_ = os.RemoveAll(j.dir)
}
