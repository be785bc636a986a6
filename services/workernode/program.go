package workernode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/alecthomas/kong"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/bounds"
	"github.com/tandem-inference/tandem/services/config"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/gguf"
	"github.com/tandem-inference/tandem/services/identity"
	"github.com/tandem-inference/tandem/services/registry"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// Main parses args into cli and runs the chosen command, whose Run method takes the program's streams. It returns the
// exit status.
func Main(cli any, name, description string, args []string, stdout, stderr io.Writer) int {
	result := config.Parse(cli, name, description, args, config.Streams{Out: stdout, Err: stderr},
		kong.Bind(Streams{stdout, stderr}))
	if result.Done {
		return result.Exit
	}
	run := func() error { return result.Context.Run() }
	if f := supervised(result.Context); f != nil {
		run = func() error { return f.supervise(name, args, Streams{stdout, stderr}) }
	}
	if err := run(); err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		if e := (ended{}); errors.As(err, &e) {
			return e.status()
		}
		if u := (unopened{}); errors.As(err, &u) {
			return config.ExitUsage
		}
		return config.ExitError
	}
	return config.ExitOK
}

// Streams are the outputs of a command.
type Streams struct {
	Out, Err io.Writer
}

// Logger builds the process's logger.
func (f *Flags) Logger(s Streams) (*zap.Logger, error) {
	log, level, err := telemetry.NewLeveled(telemetry.ChooseLevel(f.LogLevel, s.Err),
		telemetry.ChooseFormat(f.LogFormat, s.Err), s.Err)
	f.level = &level
	return log, err
}

// Opened is what a worker has before its engine opens.
type Opened struct {
	Log  *zap.Logger
	File *gguf.File // of the model; the caller closes it

	flags *Flags
	role  tandemv1.Role
	id    string
}

// Open makes the logger of a worker and opens its model's file. cacheDir is the worker's --cache-dir.
func (f *Flags) Open(s Streams, role tandemv1.Role, cacheDir string) (*Opened, error) {
	return f.OpenAfter(s, role, cacheDir, nil)
}

// OpenAfter is Open for a worker whose file may be missing: then fetch makes it. Its context ends with the parent that
// --parent-pid names.
func (f *Flags) OpenAfter(s Streams, role tandemv1.Role, cacheDir string,
	fetch func(ctx context.Context, o *Opened) error) (*Opened, error) {
	log, err := f.Logger(s)
	if err != nil {
		return nil, err
	}
	RememberDigests(cacheDir, log)
	file, err := gguf.Open(f.Model)
	absent := fetch != nil && errors.Is(err, os.ErrNotExist)
	if err != nil && !absent {
		return nil, err
	}
	name := registry.RoleName(role)
	id, err := f.join(context.Background(), name, log.Named("worker."+name))
	if err != nil {
		if !absent {
			_ = file.Close()
		}
		return nil, err
	}
	f.WorkerID = id // a name that was made up is the process's for good
	log = log.Named("worker." + name).With(zap.String(telemetry.KeyWorker, id))
	if absent {
		if err := f.whileParentLives(func(ctx context.Context) error {
			return f.whileRenewed(ctx, func(ctx context.Context) error {
				return fetch(ctx, &Opened{Log: log, flags: f, role: role, id: id})
			})
		}); err != nil {
			return nil, err
		}
		if file, err = gguf.Open(f.Model); err != nil {
			return nil, err
		}
	}
	process := telemetry.Process{
		Service: "tandem-worker-" + name, Version: config.Version(), Worker: id, Warn: telemetry.WarnTo(log),
	}
	if err := f.openTelemetry(process); err != nil {
		_ = file.Close()
		return nil, err
	}
	return &Opened{Log: log, File: file, flags: f, role: role, id: id}, nil
}

// whileParentLives runs do, whose context ends with the process that --parent-pid names.
func (f *Flags) whileParentLives(do func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancelCause(context.Background())
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel(nil)
	if f.ParentPid > 0 {
		watch.Go(func() {
			if err := watchParent(ctx, f.ParentPid); err != nil {
				cancel(err)
			}
		})
	}
	return do(ctx)
}

// Targets asks the gateways, one after the other until one answers, for the targets of their cluster. --gateway must be
// set.
func (o *Opened) Targets(ctx context.Context) (list []*tandemv1.TargetEntry, err error) {
	for _, gateway := range o.flags.Gateway {
		if list, err = o.targetsOf(ctx, gateway); err == nil || ctx.Err() != nil {
			break
		}
	}
	return list, err
}

func (o *Opened) targetsOf(ctx context.Context, gateway string) ([]*tandemv1.TargetEntry, error) {
	conn, err := Dial(gateway, grpc.WithTransportCredentials(o.Credentials(identity.Gateway)))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	m, err := tandemv1.NewRegistryServiceClient(conn).ListTargets(ctx, &tandemv1.ListTargetsRequest{})
	if err != nil {
		return nil, err
	}
	if err := bounds.Check(m); err != nil {
		return nil, fmt.Errorf("%s: list of targets: %w", gateway, err)
	}
	return m.GetTargets(), nil
}

// openTelemetry opens what the flags ask for.
func (f *Flags) openTelemetry(p telemetry.Process) (err error) {
	if f.traces, err = telemetry.OpenTraces(context.Background(), p, &f.TraceFlags); err != nil {
		return fmt.Errorf("traces: %w", err)
	}
	if f.metrics, err = telemetry.OpenMetrics(context.Background(), p, &f.TraceFlags); err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}

// Meter is where the worker's measurements go.
func (o *Opened) Meter() metric.MeterProvider { return o.flags.metrics.MeterProvider() }

// Tracer is where the worker's spans go.
func (o *Opened) Tracer() trace.TracerProvider { return o.flags.traces.TracerProvider() }

// DialOptions have the calls on a connection to another worker continue the traces of their requests.
func (o *Opened) DialOptions() []grpc.DialOption { return telemetry.DialOptions(o.flags.providers()) }

// providers are where telemetry of RPCs goes.
func (f *Flags) providers() telemetry.Providers {
	if !f.traces.On() {
		return telemetry.Providers{}
	}
	return telemetry.Providers{Tracer: f.traces.TracerProvider()}
}

// Registration describes the worker to a gateway as far as flags and file say. It reads the whole file where its digest
// is not kept yet.
func (o *Opened) Registration(ctx context.Context) (*tandemv1.Registration, error) {
	return Registration(ctx, o.flags, o.id, o.role, o.File, config.Version())
}

// flushTimeout bounds the wait for a collector at the end.
const flushTimeout = 2 * time.Second

// flush sends the last spans and measurements. Lost ones are no fault.
func (f *Flags) flush() {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	if f.traces != nil {
		_ = f.traces.Shutdown(ctx)
	}
	if f.metrics != nil {
		_ = f.metrics.Shutdown(ctx)
	}
}

// RunWithEngine serves w while keeper keeps its engine open. The worker is in the cluster from the start and reports
// how far its model is loaded; describe completes the registration from the open engine, and again from each that
// follows it.
func RunWithEngine[E engine.Engine](ctx context.Context, cfg Config, w Worker, keeper *Keeper[E],
	describe func(r *tandemv1.Registration, info engine.Info)) error {
	var seen uint64 // generation of the engine that was described
	cfg.Describe = func(ctx context.Context, r *tandemv1.Registration) error {
		engine, generation, err := keeper.supervisor.Engine(ctx)
		if err != nil {
			return err
		}
		seen = generation
		describe(r, engine.Info())
		return nil
	}
	cfg.Again = func(ctx context.Context, r *tandemv1.Registration) error {
		engine, generation, err := keeper.Next(ctx, seen)
		if err != nil {
			return err
		}
		seen = generation
		describe(r, engine.Info())
		return nil
	}
	return withEngine(ctx, keeper.Run, func(ctx context.Context) error {
		return Run(ctx, cfg, loading{w, keeper.Heartbeat, keeper.Measure})
	})
}

// loading adds to heartbeats what the keeper knows of its engine.
type loading struct {
	Worker
	keeper  func(*tandemv1.Heartbeat)
	measure func(context.Context) EngineState
}

// Heartbeat implements Worker.
func (l loading) Heartbeat(h *tandemv1.Heartbeat) {
	l.Worker.Heartbeat(h)
	l.keeper(h)
}

// Measure implements Measured.
func (l loading) Measure(ctx context.Context) EngineState { return l.measure(ctx) }

// withEngine runs body while the keeper keeps the engine open; the first error ends both.
func withEngine(ctx context.Context, run func(context.Context) error, body func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		err := run(ctx)
		cancel()
		ended <- err
	}()
	err := body(ctx)
	cancel()
	if rerr := <-ended; rerr != nil && !errors.Is(rerr, context.Canceled) {
		return rerr
	}
	return err
}

// Exit ends the process with Main's status.
func Exit(cli any, name, description string) {
	os.Exit(Main(cli, name, description, os.Args[1:], os.Stdout, os.Stderr))
}
