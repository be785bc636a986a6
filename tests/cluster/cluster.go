// Package cluster starts the real programs in bin/ for tests and measurements and looks at their processes.
package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Programs that a cluster needs, in bin/.
var Programs = []string{"tandem", "worker-target", "worker-draft", "worker-prefill",
	"tandem-engine", "libtandem_cpu.so"}

// Root is the folder of the checkout: the nearest one above the working directory that holds go.work.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("not inside a checkout: no go.work above the working directory")
		}
	}
}

// Missing names the programs that are not built; nil = all are there.
func Missing(root string) []string {
	var missing []string
	for _, name := range Programs {
		if _, err := os.Stat(filepath.Join(root, "bin", name)); err != nil {
			missing = append(missing, name)
		}
	}
	return missing
}

// Options of Start.
type Options struct {
	// Args follow "serve"; default --demo. Ports are always free ones.
	Args []string
	// Programs is the folder of the programs; default bin of the checkout.
	Programs string
	// Env is added to the environment.
	Env []string
	// Log receives what the cluster writes to stderr; nil = dropped, but the end of it is part of errors.
	Log io.Writer
}

// Cluster is a running "tandem serve".
type Cluster struct {
	// HTTP is the base URL, GRPC host:port.
	HTTP, GRPC string
	// Ready is the time from start to the ready message.
	Ready time.Duration
	// Dir is the temporary directory of the cluster's processes, so that leftovers can be seen.
	Dir string

	cmd   *exec.Cmd
	tail  *tail
	ended chan struct{}
	err   error
}

var (
	httpLine = regexp.MustCompile(`HTTP +(http://\S+)`)
	grpcLine = regexp.MustCompile(`gRPC +(\S+)`)
)

// Start runs "tandem serve" and returns when it says that it is ready. The context bounds the start only.
func Start(ctx context.Context, opts Options) (*Cluster, error) {
	root, err := Root()
	if err != nil {
		return nil, err
	}
	if len(opts.Args) == 0 {
		opts.Args = []string{"--demo"}
	}
	dir, err := os.MkdirTemp("", "tandem-e2e-")
	if err != nil {
		return nil, err
	}
	c := &Cluster{Dir: dir, tail: &tail{next: opts.Log}, ended: make(chan struct{})}
	args := append([]string{"serve", "--port", "0", "--grpc-port", "0"}, opts.Args...)
	if opts.Programs == "" {
		opts.Programs = filepath.Join(root, "bin")
	}
	c.cmd = exec.Command(filepath.Join(opts.Programs, "tandem"), args...)
	c.cmd.Env = append(os.Environ(), "TMPDIR="+dir, "XDG_CACHE_HOME="+filepath.Join(dir, "cache"))
	c.cmd.Env = append(c.cmd.Env, opts.Env...)
	c.cmd.Stderr = c.tail
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	start := time.Now()
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	ready := make(chan struct{})
	go func() {
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			if m := httpLine.FindStringSubmatch(lines.Text()); m != nil && c.HTTP == "" {
				c.HTTP = m[1]
			}
			if m := grpcLine.FindStringSubmatch(lines.Text()); m != nil && c.GRPC == "" {
				c.GRPC = m[1]
				close(ready)
			}
		}
		c.err = c.cmd.Wait()
		close(c.ended)
	}()
	select {
	case <-ready:
		c.Ready = time.Since(start)
		return c, nil
	case <-c.ended:
		return nil, fmt.Errorf("tandem serve ended: %w\n%s", c.err, c.tail)
	case <-ctx.Done():
		c.Kill()
		return nil, fmt.Errorf("tandem serve is not ready: %w\n%s", ctx.Err(), c.tail)
	}
}

// PID of the process tandem.
func (c *Cluster) PID() int { return c.cmd.Process.Pid }

// Log is the end of what the cluster wrote to stderr.
func (c *Cluster) Log() string { return c.tail.String() }

// Stop sends SIGTERM and waits until the process has ended, at most as long as ctx lives. The error is that of
// the process.
func (c *Cluster) Stop(ctx context.Context) error {
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.ended:
		return c.err
	case <-ctx.Done():
		c.Kill()
		return fmt.Errorf("tandem serve did not end: %w\n%s", ctx.Err(), c.tail)
	}
}

// Kill ends the process tandem with SIGKILL.
func (c *Cluster) Kill() {
	_ = c.cmd.Process.Kill()
	<-c.ended
}

// Close kills what may still run, waits until it is gone and removes the directory. For defer and t.Cleanup after Stop.
// Workers end a moment after the process that started them, and until then write to folders of the test.
func (c *Cluster) Close() {
	c.Kill()
	for range 500 {
		left := c.Processes()
		if len(left) == 0 {
			break
		}
		for _, p := range left {
			_ = syscall.Kill(p.PID, syscall.SIGKILL)
		}
		time.Sleep(10 * time.Millisecond)
	}
	_ = os.RemoveAll(c.Dir)
}

// Process is a process of the cluster.
type Process struct {
	PID, Parent int
	Name        string
}

// Processes lists all processes whose environment names the cluster's directory: also orphans.
func (c *Cluster) Processes() []Process { return ProcessesOf(c.Dir) }

// ProcessesOf lists all processes whose environment names a directory as TMPDIR.
func ProcessesOf(dir string) []Process {
	var out []Process
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		env, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "environ"))
		if err != nil || !strings.Contains(string(env), "TMPDIR="+dir) {
			continue
		}
		p := Process{PID: pid}
		stat, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "stat"))
		if err != nil {
			continue
		}
		// pid (name) state ppid …; the name may hold spaces and brackets.
		text := string(stat)
		end := strings.LastIndexByte(text, ')')
		fields := strings.Fields(text[end+1:])
		if end < 0 || len(fields) < 2 || fields[0] == "Z" {
			continue
		}
		p.Parent, _ = strconv.Atoi(fields[1])
		if exe, err := os.Readlink(filepath.Join("/proc", entry.Name(), "exe")); err == nil {
			p.Name = filepath.Base(exe)
		}
		out = append(out, p)
	}
	return out
}

// Find returns the pid of the first process of the cluster with that name, 0 when there is none.
func (c *Cluster) Find(name string) int {
	for _, p := range c.Processes() {
		if p.Name == name {
			return p.PID
		}
	}
	return 0
}

// Sizes of one process.
type Sizes struct {
	RSSBytes int64
	Files    int
	Threads  int
}

// SizesOf reads the sizes of a process.
func SizesOf(pid int) (Sizes, error) {
	var s Sizes
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return s, err
	}
	for line := range strings.Lines(string(status)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		n, _ := strconv.ParseInt(fields[1], 10, 64)
		switch fields[0] {
		case "VmRSS:":
			s.RSSBytes = n << 10
		case "Threads:":
			s.Threads = int(n)
		}
	}
	files, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return s, err
	}
	s.Files = len(files)
	return s, nil
}

// tail keeps the last bytes of a log.
type tail struct {
	next io.Writer
	mu   sync.Mutex // guards data
	data []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, p...)
	if cut := len(t.data) - 16<<10; cut > 0 {
		t.data = t.data[cut:]
	}
	if t.next != nil {
		return t.next.Write(p)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.data)
}

// clockTick is the unit of processor times in /proc on Linux.
const clockTick = 10 * time.Millisecond

// ProcessorTime is what a process has used so far, in user and system mode, on all processors.
func ProcessorTime(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, err
	}
	// pid (name) state ppid … utime is the 12th and stime the 13th field after the name.
	text := string(stat)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	ticks := int64(0)
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/%d/stat: %w", pid, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * clockTick, nil
}
