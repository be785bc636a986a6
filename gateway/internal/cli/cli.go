// Package cli holds the commands of the program tandem: one file a command, flags as kong structs.
package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"github.com/tandem-inference/tandem/gateway/internal/hub"
	"github.com/tandem-inference/tandem/services/config"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.uber.org/zap"
)

// Commands are the sub-commands of tandem.
type Commands struct {
	Serve   ServeCmd   `cmd:"" help:"Run a whole cluster on this machine: gateway, target, draft and prefill workers."`
	Run     RunCmd     `cmd:"" help:"Chat in the terminal, with a running gateway or with a model file."`
	Pull    PullCmd    `cmd:"" help:"Fetch a model from Hugging Face or another hub; serve and run take its name."`
	Gateway GatewayCmd `cmd:"" help:"Run the gateway only; workers join it at --registry-listen."`
	Inspect InspectCmd `cmd:"" help:"Show what a GGUF model file holds and what it needs to run."`
	Probe   ProbeCmd   `cmd:"" help:"Measure the devices of this host, for tandem plan."`
	Plan    PlanCmd    `cmd:"" help:"Say which device should run what of a model, how fast that is predicted to be, and why."`
	Top     TopCmd     `cmd:"" help:"Show what the workers do, refreshed every second: rates, acceptance, slots, pages, queue."`
	Bench   BenchCmd   `cmd:"" help:"Measure this machine and model: speed by kind of text and speculation, several at a time, long prompts."`
	Doctor  DoctorCmd  `cmd:"" help:"Look for what keeps tandem serve from working here, and say what mends it; exit status 0 or 1."`
	Drain   DrainCmd   `cmd:"" help:"Let a worker take no new work, wait until it has none left, and end it if asked to."`
	Certs   CertsCmd   `cmd:"" help:"Certificates of workers on other hosts: the cluster's authority, join tokens, rotation."`
	Health  HealthCmd  `cmd:"" help:"Ask a gateway whether it can serve; exit status 0 or 1."`
	Trace   TraceCmd   `cmd:"" help:"Show where the time of one request went, in all processes."`
	Version VersionCmd `cmd:"" help:"Print the version."`
}

// Absent implements config.Absent: features that other servers have, or that this one is to get.
func (Commands) Absent() map[string]string {
	return map[string]string{
		"prefix-cache-min-tokens": "this version keeps what a prompt's borders make, 64 tokens at least",
		"pflash-adaptive":         "this version keeps what --prefill-keep-ratio and --prefill-keep-curve say",
		"draft-swa":               "this version takes the window from the draft's file",
		"peer-access":             "this version hands rows from device to device through the host",
		"gpu-layers":              "--target-devices and --target-layer-split say which device has which layers",
		"n-gpu-layers":            "--target-devices and --target-layer-split say which device has which layers",
		"ngl":                     "--target-devices and --target-layer-split say which device has which layers",
		"ctx-size":                "it is called --max-ctx here", "parallel": "it is called --lanes here",
	}
}

// env is what commands get besides their flags.
type env struct {
	ctx context.Context
	in  io.Reader
	out io.Writer
	err io.Writer

	mu        sync.Mutex // guards the rest
	interrupt func()
	stay      bool // Ctrl-C never ends the command
	hangup    func()
}

// stayOnInterrupt makes Ctrl-C do nothing but what onInterrupt says. SIGTERM still ends the command.
func (e *env) stayOnInterrupt() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stay = true
}

// onInterrupt makes Ctrl-C call f once instead of ending the command; the returned function takes that back.
func (e *env) onInterrupt(f func()) (restore func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.interrupt = f
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.interrupt = nil
	}
}

// onHangup makes SIGHUP call f instead of ending the command, unless it says that the terminal is gone.
func (e *env) onHangup(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hangup = f
}

// reloaded says whether somebody took the SIGHUP.
func (e *env) reloaded() bool {
	e.mu.Lock()
	f := e.hangup
	e.mu.Unlock()
	if f != nil {
		f()
	}
	return f != nil
}

// interrupted says whether somebody took the Ctrl-C.
func (e *env) interrupted() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	f := e.interrupt
	e.interrupt = nil
	if f != nil {
		f()
	}
	return f != nil || e.stay
}

// Main runs the command line and returns the exit status: 0, 1 for a failure, 2 for a wrong command line.
func Main(args []string, in io.Reader, out, errOut io.Writer) int {
	var commands Commands
	if len(args) == 0 {
		args = []string{"--help"}
	}
	result := config.Parse(&commands, "tandem", "Tandem: fast, lossless speculative inference of open language models.",
		args, config.Streams{Out: out, Err: errOut}, groupFlags(),
		kong.Vars{"hub": hub.DefaultBase, "gateway": defaultServer()})
	if result.Done {
		return result.Exit
	}
	e := &env{in: in, out: out, err: errOut}
	defer e.watchSignals()()
	if err := result.Context.Run(e); err != nil {
		fmt.Fprintf(errOut, "tandem: %v\n", err)
		return config.ExitError
	}
	return config.ExitOK
}

// watchSignals sets ctx, which the first SIGTERM, Ctrl-C or hang-up of the terminal ends. After a second one the
// process ends within a second, whatever still runs. A SIGHUP that somebody sends makes servers read their files again.
func (e *env) watchSignals() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	e.ctx = ctx
	received := make(chan os.Signal, 2)
	finished := make(chan struct{})
	signal.Notify(received, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	onTerminal := isTerminal(e.err)
	go func() {
		for ctx.Err() == nil {
			select {
			case s := <-received:
				taken := false
				switch s {
				case os.Interrupt:
					taken = e.interrupted()
				case syscall.SIGHUP:
					// A terminal that hung up is no terminal any more when its signal comes.
					taken = onTerminal == isTerminal(e.err) && e.reloaded()
				}
				if !taken {
					cancel()
				}
			case <-finished:
				return
			}
		}
		select {
		case s := <-received:
			for s == syscall.SIGHUP { // a terminal that hangs up may send more than one
				select {
				case s = <-received:
				case <-finished:
					return
				}
			}
			fmt.Fprintln(e.err, "tandem: second signal, ending at once")
			select {
			case <-time.After(time.Second):
				os.Exit(config.ExitError)
			case <-finished:
			}
		case <-finished:
		}
	}()
	return func() {
		signal.Stop(received)
		close(finished)
		cancel()
	}
}

// LogFlags choose what is logged.
type LogFlags struct {
	LogLevel  string `default:"auto" enum:"auto,debug,info,warn,error" help:"Least severe messages shown: debug, info, warn, error, or auto: warn on a terminal, info otherwise."`
	LogFormat string `default:"auto" enum:"auto,json,console" help:"json, console, or auto: console on a terminal, json otherwise."`
}

// resolve replaces auto by what it means for w.
func (f LogFlags) resolve(w io.Writer) LogFlags {
	return LogFlags{telemetry.ChooseLevel(f.LogLevel, w), telemetry.ChooseFormat(f.LogFormat, w)}
}

// logger builds the process's logger; the flags are resolved.
func (f LogFlags) logger(w io.Writer) (*zap.Logger, zap.AtomicLevel, error) {
	return telemetry.NewLeveled(f.LogLevel, f.LogFormat, w)
}

// VersionCmd is tandem version.
type VersionCmd struct{}

// Run prints the version.
func (VersionCmd) Run(e *env) error {
	fmt.Fprintln(e.out, config.VersionLine("tandem"))
	return nil
}
