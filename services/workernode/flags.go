package workernode

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tandem-inference/tandem/services/config"
	"github.com/tandem-inference/tandem/services/device"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/gguf"
	"github.com/tandem-inference/tandem/services/identity"
	"github.com/tandem-inference/tandem/services/procwatch"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/services/unixsocket"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// Flags are the settings that all workers share.
type Flags struct {
	config.Flags

	Gateway      []string `help:"Registry of the gateway (host:port or unix:///path), several separated by commas; the worker also joins the gateways that these name. Empty = stand-alone." placeholder:"ADDR"`
	Listen       string   `help:"Where to serve: host:port or unix:///path." default:"127.0.0.1:0" placeholder:"ADDR"`
	RemoteListen string   `help:"Where to serve other hosts, host:port, when --listen is a socket, which processes of this host go on using; port 0 = a free one." placeholder:"ADDR"`
	Advertise    string   `help:"Address at which gateway and peers reach this worker, if not the one it listens on; with --remote-listen those on other hosts." placeholder:"ADDR"`
	WorkerID     string   `help:"Name in the cluster; default: role, host and a random part." placeholder:"ID"`

	Model     string         `help:"Model file (GGUF); of a draft also a folder with config.json and model.safetensors." required:"" placeholder:"PATH"`
	Engine    string         `help:"Engine program; default: tandem-engine beside this program." placeholder:"PATH"`
	EngineLib string         `help:"Engine library; default: the one of --device beside the engine program, libtandem_cpu.so for cpu." placeholder:"PATH"`
	Device    string         `help:"Device to run on: cpu, cuda:0, hip:0." default:"cpu"`
	Threads   int            `help:"CPU threads of the engine, 0 = one per core." default:"0"`
	MaxCtx    config.Context `help:"Context length in tokens; auto = the model's, as far as memory allows." default:"auto" placeholder:"TOKENS"`
	Lanes     int            `help:"Requests at a time, 0 = as many as memory allows, at most 32." default:"0"`
	MemoryCap config.Size    `help:"Memory of the engine, 0 = what is free." default:"0" placeholder:"SIZE"`

	ParkAfter time.Duration `help:"Close engines that nobody has used for so long, and give their memory back; the next request opens them again. 0 = never." default:"0s" placeholder:"DURATION"`

	HangTimeout string `help:"How long a worker or engine process may show no sign of life before it is killed and replaced; off = never." default:"3s" placeholder:"DURATION"`

	Supervise bool `help:"Run the worker as a child process that is killed and started again when it hangs, and pass signals on; for containers, whose engine restarts only what has ended." default:"false"`

	CertFlags

	telemetry.TraceFlags
	MetricsListen string `help:"Where metrics are served at /metrics: host:port, or :port for this machine only; default: nowhere, the gateway's /metrics shows the counters of its workers." placeholder:"ADDR"`
	AdminListen   string `help:"Where profiles (/debug/pprof/) and the level of logs (/log/level) are served, without a key: host:port, or :port for this machine only; default: nowhere." placeholder:"ADDR"`

	LogLevel  string `help:"Least severe messages shown: debug, info, warn, error, or auto: warn on a terminal, info otherwise." default:"auto" enum:"auto,debug,info,warn,error"`
	LogFormat string `help:"json, console, or auto: console on a terminal, json otherwise." default:"auto" enum:"auto,json,console,text"`
	ParentPid int    `help:"Exit when this process is gone, 0 = stay." default:"0" placeholder:"PID"`

	// nil before Open:
	traces  *telemetry.Traces
	metrics *telemetry.Metrics
	level   *zap.AtomicLevel
}

// leastPark is the least --park-after: below it, an engine would be opened for nearly every request.
const leastPark = time.Second

// CheckParkAfter says why a value of --park-after cannot work.
func CheckParkAfter(d time.Duration) error {
	if d < 0 || d > 0 && d < leastPark {
		return fmt.Errorf("--park-after: must be 0 or at least %v, got %v", leastPark, d)
	}
	return nil
}

// CheckWindow says why a value of --fa-window cannot work.
func CheckWindow(positions int) error {
	if positions != 0 && (positions < engine.LeastWindow || positions > engine.MostWindow) {
		return fmt.Errorf("--fa-window: must be 0 or in %d..%d, got %d", engine.LeastWindow, engine.MostWindow, positions)
	}
	return nil
}

// Validate reports every setting that cannot work.
func (f *Flags) Validate() error {
	var errs []error
	if f.Threads < 0 {
		errs = append(errs, fmt.Errorf("--threads: must be >= 0, got %d", f.Threads))
	}
	if f.Lanes < 0 {
		errs = append(errs, fmt.Errorf("--lanes: must be >= 0, got %d", f.Lanes))
	}
	if err := CheckParkAfter(f.ParkAfter); err != nil {
		errs = append(errs, err)
	}
	if _, err := procwatch.ParseLimit(f.HangTimeout); err != nil {
		errs = append(errs, fmt.Errorf("--hang-timeout: %w", err))
	}
	if _, err := device.Parse(f.Device); err != nil {
		errs = append(errs, fmt.Errorf("--device: %w", err))
	}
	if err := f.checkRemote(); err != nil {
		errs = append(errs, err)
	}
	if err := f.CertFlags.validate(map[string]string{"listen": f.Listen, "remote-listen": f.RemoteListen}); err != nil {
		errs = append(errs, err)
	}
	for _, address := range f.Gateway {
		errs = append(errs, f.CheckAddress("gateway", address))
	}
	if (f.JoinToken != "" || f.JoinTokenFile != "") && len(f.Gateway) == 0 {
		errs = append(errs, errors.New("--join-token: needs --gateway, which gives the certificate"))
	}
	return errors.Join(append(errs, f.TraceFlags.Validate())...)
}

// checkRemote says what cannot work in --remote-listen.
func (f *Flags) checkRemote() error {
	if f.RemoteListen == "" {
		return nil
	}
	if _, socket := unixsocket.Path(f.Listen); !socket {
		return fmt.Errorf("--remote-listen: is for workers whose --listen is a socket; other hosts reach %s as it is", f.Listen)
	}
	if _, _, err := net.SplitHostPort(f.RemoteListen); err != nil {
		return fmt.Errorf("--remote-listen: %w", err)
	}
	return nil
}

// Check reports settings that are legal and dangerous.
func (f *Flags) Check() (warnings []config.Warning) {
	for _, address := range []string{f.Listen, f.RemoteListen} {
		if !f.Plaintext || address == "" || !config.Exposed(address) {
			continue
		}
		warnings = append(warnings, config.Warning{Flag: "plaintext",
			Text: address + " is reachable from other machines, and asks nobody who they are: whoever reaches it can use the " +
				"engine; keep it on a network of your own"})
	}
	for flag, address := range map[string]string{"metrics-listen": f.MetricsListen, "admin-listen": f.AdminListen} {
		if w, ok := telemetry.ExposedWarning(flag, address); ok {
			warnings = append(warnings, w)
		}
	}
	return warnings
}

// HangLimit is --hang-timeout as engine hosts and guards take it.
func (f *Flags) HangLimit() time.Duration {
	limit, err := procwatch.ParseLimit(f.HangTimeout)
	if err != nil {
		return 0 // Flags that were not parsed: the default
	}
	return limit
}

// Verify looks at model, engine and library for --verify-config.
func (f *Flags) Verify() error {
	file, err := gguf.Open(f.Model)
	if err != nil {
		return fmt.Errorf("--model: %w", err)
	}
	defer file.Close()
	if _, err := file.Model(); err != nil {
		return fmt.Errorf("--model: %w", err)
	}
	_, _, err = f.EnginePaths()
	return err
}

// ID returns the worker's name, made up for role when none was given.
func (f *Flags) ID(role string) string {
	if f.WorkerID != "" {
		return f.WorkerID
	}
	host, err := os.Hostname()
	if err != nil || identity.CheckID(host) != nil {
		host = "host"
	}
	return fmt.Sprintf("%s-%s-%s", role, host, strings.ToLower(rand.Text()[:6]))
}

// EnginePaths resolves the engine program and its library.
func (f *Flags) EnginePaths() (program, library string, err error) {
	program = f.Engine
	if program == "" {
		exe, err := os.Executable()
		if err != nil {
			return "", "", err
		}
		program = filepath.Join(filepath.Dir(exe), "tandem-engine")
	}
	if _, err := os.Stat(program); err != nil {
		return "", "", fmt.Errorf("--engine: %w", err)
	}
	if f.EngineLib != "" {
		if _, err := os.Stat(f.EngineLib); err != nil {
			return "", "", fmt.Errorf("--engine-lib: %w", err)
		}
		return program, f.EngineLib, nil
	}
	d, err := device.Parse(f.Device)
	if err != nil {
		return "", "", fmt.Errorf("--device: %w", err)
	}
	library, err = device.FindLibrary(filepath.Dir(program), d)
	if err != nil && f.Engine != "" && d.Backend == "cpu" {
		// An engine program of the user's choice may have its library elsewhere, or need none.
		return program, "", nil
	}
	if err != nil {
		return "", "", fmt.Errorf("--device: %w", err)
	}
	return program, library, nil
}

// OpenOptions are the engine options that follow from the flags.
func (f *Flags) OpenOptions() engine.OpenOptions {
	return engine.OpenOptions{
		ModelPath: f.Model, Device: f.Device, Threads: f.Threads, MaxContext: int(f.MaxCtx),
		MemoryCapBytes: uint64(f.MemoryCap), MaxSequences: f.Lanes,
		KVTypeK: engine.KVDefault, KVTypeV: engine.KVDefault,
	}
}

// HealthCmd is the sub-command of health checks in containers.
type HealthCmd struct {
	Address string        `help:"Worker to ask: host:port or unix:///path." required:"" placeholder:"ADDR"`
	Timeout time.Duration `help:"Longest wait." default:"3s"`
}

// Run returns nil when the worker serves.
func (c *HealthCmd) Run() error {
	ctx, cancel := context.WithTimeout(context.Background(), c.Timeout)
	defer cancel()
	conn, err := grpc.NewClient(unixsocket.DialTarget(c.Address), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	reply, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
	if err != nil {
		return err
	}
	if s := reply.GetStatus(); s != healthv1.HealthCheckResponse_SERVING {
		return fmt.Errorf("%s: %s", c.Address, s)
	}
	return nil
}
