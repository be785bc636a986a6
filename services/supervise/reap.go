package supervise

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
)

// launch starts a child; no orphan is waited for meanwhile, so that the child is never taken for one.
func (s *Supervisor) launch(name string, cmd *exec.Cmd) error {
	s.children.Lock()
	defer s.children.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	s.pids[cmd.Process.Pid], s.processes[name] = true, cmd.Process
	return nil
}

func (s *Supervisor) forget(name string, pid int) {
	s.children.Lock()
	defer s.children.Unlock()
	delete(s.pids, pid)
	delete(s.processes, name)
}

// Signal sends sig to every child.
func (s *Supervisor) Signal(sig syscall.Signal) {
	s.children.Lock()
	defer s.children.Unlock()
	for pid := range s.pids {
		_ = syscall.Kill(pid, sig)
	}
}

// reap waits for orphans until the returned function is called.
func (s *Supervisor) reap() (stop func()) {
	ended := make(chan os.Signal, 1) // one is enough: a look takes every orphan
	signal.Notify(ended, syscall.SIGCHLD)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			s.reapOrphans()
			select {
			case <-ended:
			case <-quit:
				return
			}
		}
	}()
	return func() {
		signal.Stop(ended)
		close(quit)
		<-done
		s.reapOrphans()
	}
}

// reapOrphans waits for every ended process that is our child and that we did not start. Waiting for any child would
// take the exit status of those that we started.
func (s *Supervisor) reapOrphans() {
	s.children.Lock()
	defer s.children.Unlock()
	eachProcess(func(pid, parent int, state string) {
		if state == "Z" && parent == os.Getpid() && !s.pids[pid] {
			_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
		}
	})
}

// eachProcess calls do for every process of the machine.
func eachProcess(do func(pid, parent int, state string)) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	for _, entry := range entries {
		var pid, parent int
		var state string
		text, err := os.ReadFile("/proc/" + entry.Name() + "/stat")
		if err != nil {
			continue // no process, or gone by now
		}
		// pid (name) state parent …; the name may hold spaces and brackets.
		if _, err := fmt.Sscan(entry.Name(), &pid); err != nil {
			continue
		}
		if _, err := fmt.Sscan(string(text[strings.LastIndexByte(string(text), ')')+1:]), &state, &parent); err != nil {
			continue
		}
		do(pid, parent, state)
	}
}
