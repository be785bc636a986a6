package host

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
)

// process runs an engine program for go-plugin and says when it has ended.
type process struct {
	cmd            *exec.Cmd
	stdout, stderr io.ReadCloser
	exited         chan struct{} // closed when the process was waited for
	once           sync.Once
	waitErr        error

	mu     sync.Mutex  // guards the fields below: Kill may come while Start runs, or before it
	proc   *os.Process // nil before Start
	doomed bool        // killed before Start
}

func newProcess(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, exited: make(chan struct{})}
	var err error
	if p.stdout, err = cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	if p.stderr, err = cmd.StderrPipe(); err != nil {
		return nil, err
	}
	return p, nil
}

// Start implements runner.Runner, as do the methods below.
func (p *process) Start(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.doomed {
		return errors.New("the start was called off")
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	p.proc = p.cmd.Process
	return nil
}

// Diagnose has nothing to add to the error of Start.
func (p *process) Diagnose(context.Context) string { return "" }

func (p *process) Stdout() io.ReadCloser { return p.stdout }
func (p *process) Stderr() io.ReadCloser { return p.stderr }
func (p *process) Name() string          { return p.cmd.Path }

// Wait waits for the end of the process; any number of callers may.
func (p *process) Wait(context.Context) error {
	p.once.Do(func() {
		p.waitErr = p.cmd.Wait()
		close(p.exited)
	})
	<-p.exited
	return p.waitErr
}

// Kill ends the process at once.
func (p *process) Kill(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.proc == nil {
		p.doomed = true
		return nil
	}
	return p.proc.Kill()
}

// ID is the process id, empty before Start.
func (p *process) ID() string {
	if pid := p.pid(); pid != 0 {
		return strconv.Itoa(pid)
	}
	return ""
}

func (p *process) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.proc == nil {
		return 0
	}
	return p.proc.Pid
}

func (p *process) PluginToHost(network, address string) (string, string, error) {
	return network, address, nil
}

func (p *process) HostToPlugin(network, address string) (string, string, error) {
	return network, address, nil
}

// tail keeps the last lines that were written to it.
type tail struct {
	mu    sync.Mutex // guards the fields below
	limit int
	lines []string
	part  []byte
}

// maxLineBytes bounds a line that never ends.
const maxLineBytes = 8 << 10

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range p {
		if c != '\n' && len(t.part) < maxLineBytes {
			t.part = append(t.part, c)
			continue
		}
		if c != '\n' {
			continue
		}
		if line := strings.TrimSpace(string(t.part)); line != "" {
			if len(t.lines) >= t.limit {
				t.lines = append(t.lines[:0], t.lines[1:]...)
			}
			t.lines = append(t.lines, line)
		}
		t.part = t.part[:0]
	}
	return len(p), nil
}

// Lines returns what was kept, oldest first.
func (t *tail) Lines() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.lines...)
}
