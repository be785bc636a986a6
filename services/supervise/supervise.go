// Package supervise runs the worker processes of a local cluster: it starts them, waits until they are ready, restarts
// what dies with back-off, forwards their logs, and leaves no process behind.
//
// Three nets catch the children when this process ends: an orderly end asks each with SIGTERM and kills its process
// group after the grace; a sudden end (kill -9) makes the kernel send SIGTERM to the children (parent-death signal);
// and workers are told our pid, watch it and exit by themselves.
package supervise

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tandem-inference/tandem/services/pause"
	"github.com/tandem-inference/tandem/services/procwatch"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.uber.org/zap"
)

// Spec describes one child.
type Spec struct {
	// Name in logs, also the key of OnRestart.
	Name string
	// Path of the program and its arguments.
	Path string
	Args []string
	// Env is the child's environment; nil = ours.
	Env []string
	// Socket is removed before each start, so that a new child can listen; empty = none.
	Socket string
	// Probe says whether the child is ready; nil = as soon as it runs. It is asked again until it returns nil.
	Probe func(ctx context.Context) error
	// Ping says whether the child answers at all, ready or not: one that hangs is killed and started again, see procwatch.
	// Nil = it is not watched.
	Ping func(ctx context.Context) error
	// Essential children that fail MaxFailures times in a row before they were ever ready end Run with an error.
	Essential bool
}

// Config of a Supervisor. The zero value of a field stands for its default.
type Config struct {
	// FirstBackoff is the pause before the first restart, doubled up to MaxBackoff. Defaults 100 ms, 10 s.
	FirstBackoff, MaxBackoff time.Duration
	// UnfitBackoff bounds the pause after an end that no restart cures (exit status 2 before the child was ready: a model
	// that does not fit, for one), which begins at MaxBackoff. Default 5 minutes.
	UnfitBackoff time.Duration
	// Stable is how long a child must have been ready for its back-off to start over. Default 30 s.
	Stable time.Duration
	// Grace is the time between SIGTERM and SIGKILL when stopping. Default 10 s.
	Grace time.Duration
	// HangLimit of procwatch, 0 = its default, negative = children may hang.
	HangLimit time.Duration
	// MaxFailures of an essential child before Run gives up. Default 3.
	MaxFailures int
	// Reap waits for orphans that the kernel hands to this process, as process 1 of a container must.
	Reap bool
	// Output receives what children print, whole lines. Default os.Stderr.
	Output io.Writer
	// OnReady and OnRestart are told the child's name; they must not block.
	OnReady, OnRestart func(name string)
}

// Supervisor runs a fixed set of children.
type Supervisor struct {
	cfg   Config
	log   *zap.Logger
	specs []Spec
	out   sync.Mutex // guards cfg.Output

	mu    sync.Mutex // guards ready
	ready map[string]bool
	waits chan struct{} // closed and replaced when ready changes

	children  sync.Mutex // guards pids and processes, and is held while a child is started
	pids      map[int]bool
	processes map[string]*os.Process // of the children that run, by name
}

// New checks the settings.
func New(cfg Config, log *zap.Logger, specs ...Spec) *Supervisor {
	setDefault(&cfg.FirstBackoff, 100*time.Millisecond)
	setDefault(&cfg.MaxBackoff, 10*time.Second)
	setDefault(&cfg.UnfitBackoff, 5*time.Minute)
	setDefault(&cfg.Stable, 30*time.Second)
	setDefault(&cfg.Grace, 10*time.Second)
	setDefault(&cfg.MaxFailures, 3)
	if cfg.Output == nil {
		cfg.Output = os.Stderr
	}
	return &Supervisor{cfg: cfg, log: log, specs: specs, ready: map[string]bool{}, waits: make(chan struct{}),
		pids: map[int]bool{}, processes: map[string]*os.Process{}}
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Run starts the children and keeps them running until ctx ends; then it stops them. It returns nil after an ordered
// stop and an error when an essential child cannot be started.
func (s *Supervisor) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if s.cfg.Reap {
		defer s.reap()()
	}
	var group sync.WaitGroup
	for _, spec := range s.specs {
		group.Go(func() {
			// A parent-death signal is sent when the *thread* that made the child ends, so one thread per child stays.
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			if err := s.keep(ctx, spec); err != nil {
				cancel(err)
			}
		})
	}
	group.Wait()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) &&
		!errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// WaitReady returns when all children named have become ready at the same time, or when ctx ends.
func (s *Supervisor) WaitReady(ctx context.Context, names ...string) error {
	for {
		s.mu.Lock()
		missing := ""
		for _, name := range names {
			if !s.ready[name] {
				missing = name
				break
			}
		}
		changed := s.waits
		s.mu.Unlock()
		if missing == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w", missing, context.Cause(ctx))
		case <-changed:
		}
	}
}

func (s *Supervisor) setReady(name string, ready bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ready[name] != ready {
		s.ready[name] = ready
		close(s.waits)
		s.waits = make(chan struct{})
	}
}

// keep runs one child again and again until ctx ends.
func (s *Supervisor) keep(ctx context.Context, spec Spec) error {
	log := s.log.With(zap.String(telemetry.KeyWorker, spec.Name))
	backoff := s.cfg.FirstBackoff
	everReady, failures, told := false, 0, ""
	for {
		lines := &lineWriter{supervisor: s, program: spec.Name}
		readyFor, err := s.once(ctx, spec, log, lines)
		if ctx.Err() != nil {
			lines.flush()
			return nil
		}
		everReady = everReady || readyFor > 0
		if readyFor == 0 {
			failures++
		} else {
			failures = 0
		}
		if spec.Essential && !everReady && (failures >= s.cfg.MaxFailures || exitStatus(err) == 2) {
			if reason, said := strings.CutPrefix(lines.reason(), spec.Name+": "); said {
				return &StartError{Name: spec.Name, Reason: reason, Status: exitStatus(err)}
			}
			lines.flush()
			return fmt.Errorf("%s does not start (%w); its last words:\n%s", spec.Name, err, lines.tailText())
		}
		if readyFor >= s.cfg.Stable {
			backoff = s.cfg.FirstBackoff
		}
		limit := s.cfg.MaxBackoff
		reason, said := strings.CutPrefix(lines.reason(), spec.Name+": ")
		if unfit := said && readyFor == 0 && exitStatus(err) == 2; unfit {
			// Its files or settings must change first: it is tried again, ever more rarely, and the reason is said once.
			limit = max(limit, s.cfg.UnfitBackoff)
			backoff = max(backoff, s.cfg.MaxBackoff)
			lines.drop()
			if words := withoutDigits(reason); words != told {
				told = words
				log.Error("worker does not start, going on without it", zap.String(telemetry.KeyReason, reason),
					zap.Int64(telemetry.KeyDurationMS, backoff.Milliseconds()))
			}
		} else {
			lines.flush()
			told = ""
			log.Warn("worker ended, restarting", zap.NamedError(telemetry.KeyErr, err),
				zap.Int(telemetry.KeyAttempt, failures), zap.Int64(telemetry.KeyDurationMS, backoff.Milliseconds()))
		}
		if s.cfg.OnRestart != nil {
			s.cfg.OnRestart(spec.Name)
		}
		if !pause.For(ctx, backoff) {
			return nil
		}
		backoff = min(backoff*2, limit)
	}
}

// withoutDigits leaves numbers out, such as the memory that is free at the moment.
func withoutDigits(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, text)
}

// once runs a child until it ends, or stops it when ctx ends. It returns for how long the child was ready and how
// it ended.
func (s *Supervisor) once(ctx context.Context, spec Spec, log *zap.Logger, lines *lineWriter) (time.Duration, error) {
	if spec.Socket != "" {
		_ = os.Remove(spec.Socket)
	}
	cmd := exec.Command(spec.Path, spec.Args...) // not CommandContext: we stop it ourselves, gently first
	cmd.Env = spec.Env
	cmd.Stdout, cmd.Stderr = lines, lines
	// A grandchild that keeps the pipe open must not hold us up after the child has gone.
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := s.launch(spec.Name, cmd); err != nil {
		return 0, err
	}
	pid := cmd.Process.Pid
	defer s.forget(spec.Name, pid)
	log.Debug("worker started", zap.Int(telemetry.KeyPID, pid))

	ended := make(chan struct{})
	var waitErr error
	go func() {
		waitErr = cmd.Wait()
		close(ended)
	}()

	var readySince time.Time
	probed := make(chan struct{})
	probeCtx, stopProbe := context.WithCancel(ctx)
	go func() {
		defer close(probed)
		if waitProbe(probeCtx, spec.Probe) == nil {
			readySince = time.Now()
			s.setReady(spec.Name, true)
			log.Debug("worker ready")
			if s.cfg.OnReady != nil {
				s.cfg.OnReady(spec.Name)
			}
		}
	}()

	watched := make(chan struct{})
	go func() {
		defer close(watched)
		s.watch(probeCtx, spec, pid, log)
	}()

	select {
	case <-ended:
	case <-ctx.Done():
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(s.cfg.Grace):
			log.Warn("worker did not stop in time, killing it", zap.Int64(telemetry.KeyDurationMS, s.cfg.Grace.Milliseconds()))
		}
	}
	stopProbe()
	// Whatever the child left behind in its process group goes too: an engine whose worker was killed, for one.
	_ = syscall.Kill(-pid, syscall.SIGKILL)
	<-ended
	<-probed
	<-watched
	s.setReady(spec.Name, false)
	if spec.Socket != "" {
		_ = os.Remove(spec.Socket)
	}
	readyFor := time.Duration(0)
	if !readySince.IsZero() {
		readyFor = max(time.Since(readySince), 1)
	}
	if waitErr == nil {
		waitErr = errors.New("exit status 0")
	}
	return readyFor, waitErr
}

// watch kills a child that hangs, and its process group with it. Its end is then seen like any other.
func (s *Supervisor) watch(ctx context.Context, spec Spec, pid int, log *zap.Logger) {
	if spec.Ping == nil {
		return
	}
	if err := procwatch.Watch(ctx, procwatch.Config{PID: pid, Limit: s.cfg.HangLimit, Ping: spec.Ping}); err != nil {
		log.Error("worker hangs, killing it", zap.NamedError(telemetry.KeyErr, err))
		_ = syscall.Kill(-pid, syscall.SIGKILL)
	}
}

// waitProbe asks probe until it says yes or ctx ends.
func waitProbe(ctx context.Context, probe func(context.Context) error) error {
	if probe == nil {
		return nil
	}
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		attempt, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := probe(attempt)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// StartError is the end of an essential child that gave its reason.
type StartError struct {
	Name, Reason string
	Status       int // its exit status, -1 when a signal ended it
}

func (e *StartError) Error() string { return e.Name + " does not start: " + e.Reason }

func exitStatus(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return -1
}

// lineWriter forwards whole lines to the supervisor's output and keeps the last ones. A line "program: …", which is how
// programs say why they end, is held back until another one follows or flush: the supervisor may say it itself.
type lineWriter struct {
	supervisor *Supervisor
	program    string
	mu         sync.Mutex // guards the rest; Stdout and Stderr are the same value, but Wait may race with tailText
	partial    []byte
	tail       []string
	held       string
}

const tailLines = 20

// Write never fails: a full disk or closed terminal must not stop a worker.
func (w *lineWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.partial = append(w.partial, p...)
	for {
		i := strings.IndexByte(string(w.partial), '\n')
		if i < 0 {
			break
		}
		line := string(w.partial[:i])
		w.partial = w.partial[i+1:]
		w.tail = append(w.tail, line)
		if len(w.tail) > tailLines {
			w.tail = w.tail[1:]
		}
		w.forward()
		if strings.HasPrefix(line, w.program+": ") {
			w.held = line + "\n"
			continue
		}
		w.print(line + "\n")
	}
	return len(p), nil
}

func (w *lineWriter) print(text string) {
	w.supervisor.out.Lock()
	defer w.supervisor.out.Unlock()
	_, _ = io.WriteString(w.supervisor.cfg.Output, text)
}

// forward prints the line that is held back; the caller holds mu.
func (w *lineWriter) forward() {
	if w.held != "" {
		w.print(w.held)
		w.held = ""
	}
}

func (w *lineWriter) flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forward()
}

// drop forgets the line that is held back.
func (w *lineWriter) drop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = ""
}

// reason is the line with which the program ended, "" when it gave none.
func (w *lineWriter) reason() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.TrimSuffix(w.held, "\n")
}

func (w *lineWriter) tailText() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	lines := w.tail
	if len(w.partial) > 0 {
		lines = append(lines, string(w.partial))
	}
	return strings.Join(lines, "\n")
}
