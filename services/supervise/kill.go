package supervise

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// errNotRunning is the answer for a child that is between two lives.
var errNotRunning = errors.New("does not run at the moment")

// Kill kills a child at once, as a crash would; it is started again like after any end.
func (s *Supervisor) Kill(name string) error {
	return s.withProcess(name, func(p *os.Process) error { return p.Kill() })
}

// KillChildren kills the processes that a child has started: the engines of a worker. The child goes on.
func (s *Supervisor) KillChildren(name string) error {
	return s.withProcess(name, func(p *os.Process) error {
		var errs []error
		found := false
		eachProcess(func(pid, parent int, state string) {
			if parent == p.Pid && state != "Z" {
				found = true
				errs = append(errs, syscall.Kill(pid, syscall.SIGKILL))
			}
		})
		if !found {
			return fmt.Errorf("%s has no engine at the moment", name)
		}
		return errors.Join(errs...)
	})
}

// withProcess calls do with the process of a child, which nobody waits for meanwhile, so that its pid stays its own.
func (s *Supervisor) withProcess(name string, do func(*os.Process) error) error {
	known := false
	for _, spec := range s.specs {
		known = known || spec.Name == name
	}
	if !known {
		return fmt.Errorf("%q is no worker that this process started", name)
	}
	s.children.Lock()
	defer s.children.Unlock()
	p := s.processes[name]
	if p == nil {
		return fmt.Errorf("%s %w", name, errNotRunning)
	}
	return do(p)
}
