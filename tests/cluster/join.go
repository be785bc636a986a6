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
	return join(append([]string{"--gateway", registry, "--worker-id", id}, args...)...)
}

// Stage starts a worker that serves a stage of the demonstration target, K/N, at Address. It is started again when it
// is killed.
func Stage(place string, args ...string) (*Joined, error) {
	return join(append([]string{"--stage", place, "--supervise"}, args...)...)
}

func join(args ...string) (*Joined, error) {
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
		"--model", filepath.Join(root, "models", "tandem-tiny-target-q4_k_m.gguf"),
		"--listen", "unix://" + filepath.Join(dir, "s"), "--parent-pid", fmt.Sprint(os.Getpid()),
	}, args...)...)
	j.cmd.Env = append(os.Environ(), "TMPDIR="+dir, "XDG_CACHE_HOME="+filepath.Join(dir, "cache"))
	j.cmd.Stdout, j.cmd.Stderr = j.tail, j.tail
	if err := j.cmd.Start(); err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	return j, nil
}

// Address is where the worker serves.
func (j *Joined) Address() string { return "unix://" + filepath.Join(j.dir, "s") }

// PID is that of the worker.
func (j *Joined) PID() int { return j.cmd.Process.Pid }

// Find returns the pid of the worker's first child with that name, at any depth; 0 when there is none.
func (j *Joined) Find(name string) int {
	for _, p := range ProcessesOf(j.dir) {
		if p.Name == name && p.PID != j.cmd.Process.Pid {
			return p.PID
		}
	}
	return 0
}

// Log is the end of what the worker wrote.
func (j *Joined) Log() string { return j.tail.String() }

// Wait waits until the worker has ended by itself; the error tells a status other than 0.
func (j *Joined) Wait() error { return j.cmd.Wait() }

// Close ends the worker and removes its directory.
func (j *Joined) Close() {
	_ = j.cmd.Process.Signal(syscall.SIGTERM)
	stuck := time.AfterFunc(20*time.Second, func() { _ = j.cmd.Process.Kill() })
	_ = j.cmd.Wait()
	stuck.Stop()
	_ = os.RemoveAll(j.dir)
}
