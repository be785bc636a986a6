// Package host runs engines as processes of their own, by go-plugin over a unix socket: Host starts and watches a
// process, Supervisor restarts it, Remote is the engine in the worker, and Server is its other end in the engine
// program.
package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	enginev1 "github.com/tandem-inference/tandem/proto/tandem/engine/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/procwatch"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/telemetry"
)

// ParentPIDVariable tells an engine program whose death it must not survive.
const ParentPIDVariable = "TANDEM_PARENT_PID"

// Variables that tell an engine program where its spans go and the name of its worker in them.
const (
	OTLPVariable   = "TANDEM_OTLP_ENDPOINT"
	WorkerVariable = "TANDEM_WORKER_ID"
)

// HostConfig says how engine processes are started.
type HostConfig struct {
	Program string   // path of tandem-engine
	Library string   // path of libtandem_<backend>.so, handed over as --lib; empty = the program's own choice
	Args    []string // further arguments
	Env     []string // further variables, NAME=value
	// Dir is where a private 0700 directory for each engine's socket is made; empty = the system's temporary directory.
	Dir string
	// Logger receives go-plugin's and the engines' lines (telemetry.HCLog); nil = nothing.
	Logger hclog.Logger
	// StartTimeout until the handshake, 0 = 30 s. Loading the model has no limit but the context of Open.
	StartTimeout time.Duration
	// HangLimit is how long a process may show no sign of life before it is killed, see procwatch; 0 = its default,
	// negative = for ever.
	HangLimit time.Duration
	// Traces shows the spans of the engines with those of this process, and continues its traces in scorers; nil = none
	// of both.
	Traces *telemetry.Traces
	// StderrLines is how many of the last lines are kept for the post-mortem, 0 = 40.
	StderrLines int
}

// providers are where telemetry of calls goes.
func (c *HostConfig) providers() telemetry.Providers {
	if c.Traces == nil || !c.Traces.On() {
		return telemetry.Providers{}
	}
	return Providers(c.Traces.TracerProvider())
}

// Providers trace the calls of engines whose time shows nowhere else: those of the decode loop name their spans in the
// request, and control calls are too many.
func Providers(p trace.TracerProvider) telemetry.Providers {
	return telemetry.Providers{Tracer: p, Only: enginev1.ScoreService_Score_FullMethodName}
}

// Validate reports every problem of the configuration.
func (c *HostConfig) Validate() error {
	var errs []error
	if c.Program == "" {
		errs = append(errs, errors.New("engine program: is empty"))
	} else if s, err := os.Stat(c.Program); err != nil {
		errs = append(errs, fmt.Errorf("engine program: %w", err))
	} else if s.IsDir() || s.Mode()&0o111 == 0 {
		errs = append(errs, fmt.Errorf("engine program %s: is not executable", c.Program))
	}
	if c.StartTimeout < 0 {
		errs = append(errs, errors.New("start timeout: is negative"))
	}
	return errors.Join(errs...)
}

// Host opens engines, each in a process of its own that lives as long as the engine.
type Host struct{ cfg HostConfig }

// NewHost returns a Host. Nothing is started before Open.
func NewHost(cfg HostConfig) (*Host, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	if cfg.StartTimeout == 0 {
		cfg.StartTimeout = 30 * time.Second
	}
	if cfg.StderrLines == 0 {
		cfg.StderrLines = 40
	}
	return &Host{cfg}, nil
}

// TargetProcess, DraftProcess and ScorerProcess are engines in processes of their own.
type (
	TargetProcess struct {
		*Process
		sequenceCalls
		targetCalls
	}
	DraftProcess struct {
		*Process
		sequenceCalls
		draftCalls
	}
	ScorerProcess struct {
		*Process
		scorerCalls
	}
)

// Process is what they have in common.
type Process struct {
	*Remote
	client *goplugin.Client
	proc   atomic.Pointer[process]
	stderr *tail
	once   sync.Once
	wait   sync.WaitGroup

	causeMu sync.Mutex // guards cause
	cause   error      // why we killed it, nil when we did not
	opened  *Remote    // nil while it opens
}

// OpenTarget implements Opener, as do the methods below: it starts a process and opens the engine in it.
func (h *Host) OpenTarget(ctx context.Context, options engine.OpenOptions, p engine.Progress) (engine.Target, error) {
	proc, r, err := open(ctx, h, options, p, OpenTarget)
	if err != nil {
		return nil, err
	}
	return &TargetProcess{proc, r.sequenceCalls, r.targetCalls}, nil
}

// OpenDraft returns a *DraftProcess.
func (h *Host) OpenDraft(ctx context.Context, options engine.OpenOptions, p engine.Progress) (engine.Draft, error) {
	proc, r, err := open(ctx, h, options, p, OpenDraft)
	if err != nil {
		return nil, err
	}
	return &DraftProcess{proc, r.sequenceCalls, r.draftCalls}, nil
}

// OpenScorer returns a *ScorerProcess.
func (h *Host) OpenScorer(ctx context.Context, options engine.OpenOptions, p engine.Progress) (engine.Scorer, error) {
	proc, r, err := open(ctx, h, options, p, OpenScorer)
	if err != nil {
		return nil, err
	}
	return &ScorerProcess{proc, r.scorerCalls}, nil
}

// remote is a RemoteTarget, RemoteDraft or RemoteScorer.
type remote interface{ remote() *Remote }

func (r *Remote) remote() *Remote { return r }

// open starts a process and opens the engine in it with call.
func open[R remote](ctx context.Context, h *Host, options engine.OpenOptions, progress engine.Progress,
	call func(context.Context, grpc.ClientConnInterface, engine.OpenOptions, engine.Progress, func() error) (R, error),
) (p *Process, r R, err error) {
	if err := ctx.Err(); err != nil {
		return nil, r, rpcerr.From(err)
	}
	p = &Process{stderr: &tail{limit: h.cfg.StderrLines}}
	p.client = goplugin.NewClient(h.clientConfig(p))
	// Start blocks until the handshake; when ctx ends first, killing the process unblocks it.
	stop := context.AfterFunc(ctx, func() {
		if proc := p.proc.Load(); proc != nil {
			_ = proc.Kill(context.Background())
		}
	})
	protocol, err := p.client.Client()
	stop()
	if err != nil {
		_ = p.kill()
		if cause := ctx.Err(); cause != nil {
			return nil, r, rpcerr.From(cause)
		}
		return nil, r, rpcerr.EngineLost.With("start engine program: %v%s", err, p.lastLine())
	}
	raw, err := protocol.Dispense(pluginName)
	if err != nil {
		_ = p.kill()
		return nil, r, rpcerr.Internal("dispense engine: %v", err)
	}
	conn := raw.(*grpc.ClientConn)
	detach := h.cfg.Traces.Attach(conn)
	// The process may die at any time from now on.
	lost := make(chan struct{})
	var base *Remote
	var baseMu sync.Mutex
	p.wait.Add(1)
	go func() {
		defer p.wait.Done()
		<-p.proc.Load().exited
		detach()
		close(lost)
		baseMu.Lock()
		defer baseMu.Unlock()
		if base != nil {
			base.lose(p.postMortem())
		}
	}()
	p.wait.Add(1)
	go func() {
		defer p.wait.Done()
		p.watch(conn, h.cfg.HangLimit, lost)
	}()
	r, err = call(ctx, conn, options, progress, p.kill)
	if err != nil {
		died := diedOf(err, lost)
		_ = p.kill()
		p.wait.Wait()
		if cause := ctx.Err(); cause != nil {
			return nil, r, rpcerr.From(cause)
		}
		if died {
			return nil, r, p.postMortem()
		}
		return nil, r, err
	}
	opened := r.remote()
	p.causeMu.Lock()
	p.opened = opened
	p.causeMu.Unlock()
	baseMu.Lock()
	base = opened
	p.Remote = opened
	baseMu.Unlock()
	select {
	case <-lost:
		opened.lose(p.postMortem())
	default:
	}
	return p, r, nil
}

// diedOf reports whether a call failed with err because the process is gone, which lost says.
func diedOf(err error, lost <-chan struct{}) bool {
	select {
	case <-lost:
		return true
	default:
	}
	if !errors.Is(err, rpcerr.AnyUnavailable) {
		return false
	}
	// The connection breaks an instant before the exit is seen.
	select {
	case <-lost:
		return true
	case <-time.After(time.Second):
		return false
	}
}

func (h *Host) clientConfig(p *Process) *goplugin.ClientConfig {
	return &goplugin.ClientConfig{
		HandshakeConfig:  Handshake,
		Plugins:          PluginSet(nil),
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		Logger:           h.cfg.Logger,
		StartTimeout:     h.cfg.StartTimeout,
		Stderr:           p.stderr,
		GRPCDialOptions:  append(DialOptions(), telemetry.DialOptions(h.cfg.providers())...),
		UnixSocketConfig: &goplugin.UnixSocketConfig{TempDir: h.cfg.Dir},
		// With RunnerFunc go-plugin makes a private directory for the socket, mode 0700, and hands it to the child. No TLS
		// is needed behind it.
		RunnerFunc: func(_ hclog.Logger, spec *exec.Cmd, _ string) (runner.Runner, error) {
			args := append([]string(nil), h.cfg.Args...)
			if h.cfg.Library != "" {
				args = append(args, "--lib", h.cfg.Library)
			}
			cmd := exec.Command(h.cfg.Program, args...)
			cmd.Env = append(spec.Env, h.cfg.Env...)
			cmd.Env = append(cmd.Env, ParentPIDVariable+"="+strconv.Itoa(os.Getpid()))
			proc, err := newProcess(cmd)
			p.proc.Store(proc)
			return proc, err
		},
	}
}

// watch kills the process when it hangs, also while it loads a model.
func (p *Process) watch(conn *grpc.ClientConn, limit time.Duration, lost <-chan struct{}) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-lost:
			cancel()
		case <-ctx.Done():
		}
	}()
	client := enginev1.NewEngineServiceClient(conn)
	err := procwatch.Watch(ctx, procwatch.Config{PID: p.PID(), Limit: limit, Ping: func(ctx context.Context) error {
		_, err := client.ListHandles(ctx, &enginev1.ListHandlesRequest{})
		if rpcerr.Code(err) == codes.FailedPrecondition { // no engine is open yet, or any more
			return nil
		}
		return err
	}})
	if err != nil {
		p.Kill(rpcerr.EngineLost.With("the engine %v", err))
	}
}

// Kill ends the process at once, without its help; cause is what callers and the supervisor are told.
func (p *Process) Kill(cause error) {
	p.causeMu.Lock()
	if p.cause == nil {
		p.cause = cause
	}
	cause, opened := p.cause, p.opened
	p.causeMu.Unlock()
	if opened != nil {
		opened.lose(cause) // before its streams break, which would be the reason given otherwise
	}
	_ = p.proc.Load().Kill(context.Background())
}

// killAfter is how long a process that was asked to end may take. go-plugin waits for its answer without a limit.
const killAfter = 2 * time.Second

// kill asks the process to end, for two seconds, then ends it. It is the closer of the Remote.
func (p *Process) kill() error {
	p.once.Do(func() {
		timer := time.AfterFunc(killAfter, func() {
			if proc := p.proc.Load(); proc != nil {
				_ = proc.Kill(context.Background())
			}
		})
		defer timer.Stop()
		p.client.Kill()
	})
	return nil
}

// Close implements Engine: it frees the engine, ends the process and waits for it.
func (p *Process) Close() error {
	err := p.Remote.Close()
	p.wait.Wait()
	return err
}

// Stderr returns the last lines that the process wrote.
func (p *Process) Stderr() []string { return p.stderr.Lines() }

// PID of the process, 0 when it is not known.
func (p *Process) PID() int {
	if proc := p.proc.Load(); proc != nil {
		return proc.pid()
	}
	return 0
}

// postMortem says how the process ended. The lines it wrote stay out of the error, which may reach clients.
func (p *Process) postMortem() error {
	proc := p.proc.Load()
	<-proc.exited
	p.causeMu.Lock()
	defer p.causeMu.Unlock()
	if p.cause != nil {
		return p.cause
	}
	return rpcerr.EngineLost.With("the engine process ended: %s", proc.cmd.ProcessState)
}

func (p *Process) lastLine() string {
	if lines := p.stderr.Lines(); len(lines) > 0 {
		return "; last line: " + lines[len(lines)-1]
	}
	return ""
}
