package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/services/config"
	"github.com/tandem-inference/tandem/services/device"
	"github.com/tandem-inference/tandem/services/identity"
	"github.com/tandem-inference/tandem/services/procwatch"
	"github.com/tandem-inference/tandem/services/sdnotify"
	"github.com/tandem-inference/tandem/services/supervise"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/services/unixsocket"
	"go.uber.org/zap"
)

// Names of the worker programs, of their sockets, and in logs.
const (
	workerTarget  = "worker-target"
	workerDraft   = "worker-draft"
	workerPrefill = "worker-prefill"
)

// roles of the programs, as certificates name them.
var roles = map[string]string{
	workerTarget: identity.Target, workerDraft: identity.Draft, workerPrefill: identity.Prefill,
}

// workerGrace is how long workers get to drain and close their engines, after the gateway has drained.
const workerGrace = 8 * time.Second

// draftPatience is how long the start waits for drafts once the target can serve.
const draftPatience = time.Minute

type clusterConfig struct {
	models              trio
	workers             WorkerFlags
	gateway             app.Config
	demo                bool // the page may kill workers and engines
	private             bool // every port is a unix socket in the private directory
	logLevel, logFormat string
	log                 *zap.Logger
	level               *zap.AtomicLevel // of log; nil = it stays
	output              io.Writer
	onReady             func(worker string)
}

// cluster is a gateway in this process and workers in processes of their own, joined by unix sockets in a
// private directory.
type cluster struct {
	cfg     clusterConfig
	dir     string
	gateway *app.App
	workers *supervise.Supervisor
	names   []string
}

// newCluster opens the gateway's ports and prepares the workers; run starts them.
func newCluster(cfg clusterConfig) (_ *cluster, err error) {
	c := &cluster{cfg: cfg}
	if c.dir, err = supervise.RunDir(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(c.dir)
		}
	}()
	gateway := cfg.gateway
	gateway.Model, gateway.PrefillDrafter = cfg.models.target, cfg.models.prefill
	gateway.SealKeyFile = sealKeyFile(gateway.SealKeyFile, cfg.log)
	// A local cluster needs no port for its workers, unless others are to join.
	if gateway.RegistryListen == app.Defaults().RegistryListen {
		gateway.RegistryListen = "unix://" + c.socket("registry")
	}
	// Stages on other hosts want to know who the target is.
	if gateway.Authority == "" && !gateway.Plaintext && slices.ContainsFunc(cfg.workers.TargetStages, config.Exposed) {
		if gateway.Authority, err = app.AuthorityDir(""); err != nil {
			return nil, err
		}
	}
	deps := app.Deps{Logger: cfg.log.Named("gateway"), Level: cfg.level, Version: config.Version()}
	if cfg.private {
		gateway.GRPCPort = -1
		if deps.HTTP, err = unixsocket.Listen(c.socket("http")); err != nil {
			return nil, err
		}
	}
	if cfg.demo {
		deps.Kill = c.kill
	}
	if c.gateway, err = app.New(gateway, deps); err != nil {
		return nil, err
	}
	specs, err := c.specs()
	if err != nil {
		return nil, err
	}
	for _, spec := range specs {
		c.names = append(c.names, spec.Name)
	}
	hang, err := procwatch.ParseLimit(cfg.workers.HangTimeout)
	if err != nil {
		return nil, fmt.Errorf("--hang-timeout: %w", err)
	}
	c.workers = supervise.New(supervise.Config{Grace: workerGrace, HangLimit: hang, Output: cfg.output,
		OnReady: cfg.onReady}, cfg.log.Named("supervisor"), specs...)
	return c, nil
}

// kill kills a worker, or its engine: both are started again. Requests that come before the workers are started, and
// there is nothing to kill yet, find none.
func (c *cluster) kill(worker string, engine bool) error {
	switch {
	case c.workers == nil:
		return errors.New("no worker was started yet")
	case engine:
		return c.workers.KillChildren(worker)
	}
	return c.workers.Kill(worker)
}

// endpoint is where the gateway's HTTP API is.
func (c *cluster) endpoint() endpoint {
	return endpoint{c.gateway.HTTPAddr(), c.cfg.gateway.TLSCert != ""}
}

func (c *cluster) socket(name string) string { return filepath.Join(c.dir, name+".sock") }

// specs describes the worker processes of the cluster.
func (c *cluster) specs() ([]supervise.Spec, error) {
	programs, err := c.cfg.workers.programs()
	if err != nil {
		return nil, err
	}
	w, models := c.cfg.workers, c.cfg.models
	draftThreads := w.DraftThreads
	if draftThreads == 0 {
		draftThreads = w.Threads
	}
	target := []string{"--model", models.target, "--threads", strconv.Itoa(w.Threads), "--cache-type-k", w.CacheTypeK,
		"--cache-type-v", w.CacheTypeV}
	target = optional(target, "--max-ctx", int(w.MaxCtx))
	target = optional(target, "--lanes", w.Lanes)
	target = optional(target, "--kv-positions", w.KVPositions)
	target = optional(target, "--ddtree-budget", w.DDTreeBudget)
	target = optional(target, "--chunk", w.Chunk)
	target = optional(target, "--max-token-gap-ms", w.MaxTokenGapMS)
	target = optional(target, "--fa-window", w.FAWindow)
	target = append(target, "--prefix-cache-ram-mb", strconv.Itoa(w.PrefixCacheRAMMB),
		"--prefix-cache-slots", strconv.Itoa(w.PrefixCacheSlots), "--peer-fetch", w.PeerFetch)
	if w.KVCacheDir != "" {
		target = append(target, "--kv-cache-dir", w.KVCacheDir, "--kv-cache-budget", strconv.Itoa(w.KVCacheBudget),
			"--kv-cache-interval", strconv.Itoa(w.KVCacheInterval), "--kv-cache-cold-max", strconv.Itoa(w.KVCacheColdMax),
			"--kv-cache-min-tokens", strconv.Itoa(w.KVCacheMinTokens))
	}
	if len(w.TargetDevices) > 0 {
		target = append(target, "--target-devices", strings.Join(w.TargetDevices, ","))
	}
	if len(w.TargetStages) > 0 {
		target = append(target, "--target-stages", strings.Join(w.TargetStages, ","), "--stage-transport", w.StageTransport)
	}
	if len(w.TargetDevices)+len(w.TargetStages) > 0 {
		target = append(target, "--target-layer-split", w.TargetLayerSplit, "--stage-row-type", w.StageRowType)
	}
	if !w.Lookup {
		target = append(target, "--no-lookup")
	}
	if w.MemoryCap > 0 {
		target = append(target, "--memory-cap", w.MemoryCap.String())
	}
	var specs []supervise.Spec
	add := func(name string, args []string) error {
		spec, err := c.spec(programs, name, args)
		specs = append(specs, spec)
		return err
	}
	if err := add(workerTarget, target); err != nil {
		return nil, err
	}
	specs[0].Essential = true
	if models.draft != "" {
		args := []string{"--model", models.draft, "--tables", models.target, "--threads", strconv.Itoa(draftThreads),
			"--cache-type-k", w.DraftCache, "--cache-type-v", w.DraftCache}
		args = optional(args, "--max-ctx", int(w.MaxCtx))
		args = optional(args, "--lanes", w.Lanes)
		args = optional(args, "--kv-positions", w.KVPositions)
		if w.LazyDraft {
			args = append(args, "--lazy-draft")
		}
		if err := add(workerDraft, args); err != nil {
			return nil, err
		}
	}
	if models.prefill != "" {
		args := []string{"--model", models.prefill, "--threads", strconv.Itoa(draftThreads)}
		if err := add(workerPrefill, args); err != nil {
			return nil, err
		}
	}
	for _, spec := range specs {
		if err := w.checkProgram(programs, spec.Name); err != nil {
			return nil, err
		}
	}
	return specs, nil
}

// programs is the folder of the worker programs.
func (w *WorkerFlags) programs() (string, error) {
	if w.Programs != "" {
		return w.Programs, nil
	}
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	return filepath.Dir(exe), nil
}

// checkProgram finds out whether a worker program, its engine and the library of its device are there.
func (w *WorkerFlags) checkProgram(programs, name string) error {
	engines := programs
	if w.Engine != "" {
		if _, err := os.Stat(w.Engine); err != nil {
			return fmt.Errorf("--engine: %w", err)
		}
		engines = filepath.Dir(w.Engine)
	}
	// The cpu's library is the engine program's own business: one of the user's choice may need none.
	for _, one := range w.devices(name) {
		if d, err := device.Parse(one); err != nil {
			return err
		} else if d.Backend != "cpu" {
			if _, err := device.FindLibrary(engines, d); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	path := filepath.Join(programs, name)
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("the worker program %s is missing: build it (make build) or name its folder by --programs", path)
	}
	return nil
}

// verify checks the programs that models need.
func (w *WorkerFlags) verify(models trio) error {
	programs, err := w.programs()
	if err != nil {
		return err
	}
	var problems []error
	for _, p := range []struct{ name, model string }{{workerTarget, models.target}, {workerDraft, models.draft},
		{workerPrefill, models.prefill}} {
		if p.model != "" {
			problems = append(problems, w.checkProgram(programs, p.name))
		}
	}
	return errors.Join(problems...)
}

func (c *cluster) spec(programs, name string, args []string) (supervise.Spec, error) {
	socket := c.socket(name)
	address := "unix://" + socket
	args = append(args, c.remote(name)...)
	args = append(args,
		"--gateway", registryTarget(c.gateway.RegistryAddr()), "--listen", address, "--worker-id", name,
		"--device", c.cfg.workers.device(name), "--parent-pid", strconv.Itoa(os.Getpid()),
		"--hang-timeout", c.cfg.workers.HangTimeout, "--log-level", c.cfg.logLevel, "--log-format", c.cfg.logFormat)
	if w := c.cfg.workers; w.ParkAfter > 0 && !(name == workerPrefill && w.PrefillSkipPark) {
		args = append(args, "--park-after", w.ParkAfter.String())
	}
	args = append(args, c.cfg.gateway.TraceFlags.Arguments()...)
	certs := filepath.Join(c.dir, name+".certs")
	made, err := c.gateway.Certificate(roles[name], name, certs)
	switch {
	case err != nil:
		return supervise.Spec{}, fmt.Errorf("--authority: %w", err)
	case made:
		args = append(args, "--certs", certs)
	case c.cfg.gateway.Plaintext:
		args = append(args, "--plaintext")
	}
	if c.cfg.workers.Engine != "" {
		args = append(args, "--engine", c.cfg.workers.Engine)
	}
	if c.cfg.workers.CacheDir != "" {
		args = append(args, "--cache-dir", c.cfg.workers.CacheDir)
	}
	return supervise.Spec{
		Name: name, Path: filepath.Join(programs, name), Args: args, Socket: socket,
		// Temporary files of workers and the sockets of their engines go where nobody else looks, and go away with us.
		Env:   append(workerEnvironment(), "TMPDIR="+c.dir),
		Probe: func(ctx context.Context) error { return supervise.Healthy(ctx, address) },
		Ping:  func(ctx context.Context) error { return supervise.Answers(ctx, address) },
	}, nil
}

// remote are the flags with which a worker also serves other hosts, where these can join: they are given targets for
// their models and states, and drafts. A scorer is of use to other gateways only.
func (c *cluster) remote(name string) []string {
	at := registryTarget(c.gateway.RegistryAddr())
	alone := c.cfg.gateway.Registry == app.RegistryEmbedded
	if !config.Exposed(at) || name == workerPrefill && alone {
		return nil
	}
	host, _, err := net.SplitHostPort(at)
	if err != nil {
		return nil // no address of a network
	}
	return []string{"--remote-listen", net.JoinHostPort(host, "0")}
}

// workerEnvironment is ours without the variables that stand for flags, since everything a worker is to know is on its
// command line, and without those of the service manager, which watches this process alone. Those of engines stay.
func workerEnvironment() []string {
	return sdnotify.Without(slices.DeleteFunc(os.Environ(), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return strings.HasPrefix(name, config.EnvPrefix+"_") && !config.OfEngines(name)
	}))
}

// unheeded warns of variables that stand for flags of workers, but for none of tandem serve: what its workers do is
// said by its own flags alone, and one port or name would not do for three of them.
func unheeded(own []*kong.Flag, environ []string) []config.Warning {
	var out []config.Warning
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if value == "" || !config.OfWorkers(name) ||
			slices.ContainsFunc(own, func(f *kong.Flag) bool { return slices.Contains(f.Envs, name) }) {
			continue
		}
		out = append(out, config.Warning{Flag: config.FlagOf(name), Text: "is a flag of workers, and " + name +
			" does not reach those of tandem serve: start the workers by themselves to set it"})
	}
	return out
}

func optional(args []string, flag string, value int) []string {
	if value == 0 {
		return args
	}
	return append(args, flag, strconv.Itoa(value))
}

// registryTarget writes a listener's address in the form that workers dial.
func registryTarget(addr net.Addr) string {
	if addr.Network() == "unix" {
		return "unix://" + addr.String()
	}
	return addr.String()
}

// run serves until ctx ends, calls ready once when the gateway can serve, and cleans up.
func (c *cluster) run(ctx context.Context, ready func()) error {
	defer os.RemoveAll(c.dir)
	stopReports, err := reportLife(ctx, c.endpoint())
	if err != nil {
		return err
	}
	defer stopReports()
	gatewayCtx, stopGateway := context.WithCancelCause(ctx)
	defer stopGateway(nil)
	workersCtx, stopWorkers := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWorkers()

	workersDone := make(chan error, 1)
	go func() {
		err := c.workers.Run(workersCtx)
		if err != nil {
			stopGateway(err)
		}
		workersDone <- err
	}()
	announced := make(chan struct{})
	go func() {
		defer close(announced)
		if c.workers.WaitReady(gatewayCtx, workerTarget) != nil || waitServing(gatewayCtx, c.endpoint()) != nil {
			return
		}
		// A draft that does not come costs speed only.
		others, cancel := context.WithTimeout(gatewayCtx, draftPatience)
		defer cancel()
		err := c.workers.WaitReady(others, c.names...)
		if err == nil && c.cfg.models.draft != "" {
			err = waitAttached(others, c.endpoint())
		}
		if err != nil && gatewayCtx.Err() == nil {
			c.cfg.log.Warn("serving without all workers", zap.NamedError(telemetry.KeyErr, err))
		}
		if gatewayCtx.Err() == nil && ready != nil {
			ready()
		}
	}()

	// The gateway drains first, while its workers still work; then they go.
	gatewayErr := c.gateway.Run(gatewayCtx)
	stopGateway(gatewayErr)
	stopWorkers()
	workersErr := <-workersDone
	<-announced
	return errors.Join(workersErr, gatewayErr)
}
