// Package program holds the common part of engine programs: they serve one engine to the worker that started them and
// end with that worker.
package program

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/host"
	"github.com/tandem-inference/tandem/services/telemetry"
)

// ExitOrphaned is the status of an engine whose worker died.
const ExitOrphaned = 3

// Logger writes lines that go-plugin hands to the host with level and fields: JSON with @level, @message, @timestamp.
func Logger(w io.Writer, level string) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Name: "engine", Level: hclog.LevelFromString(level), Output: w,
		JSONFormat: true})
}

// Version describes the build of program name.
func Version(name, version string) string {
	text := name + " " + version
	if b, ok := debug.ReadBuildInfo(); ok {
		for _, s := range b.Settings {
			if s.Key == "vcs.revision" {
				text += " " + s.Value[:min(len(s.Value), 12)]
			}
		}
	}
	return fmt.Sprintf("%s %s/%s", text, runtime.GOOS, runtime.GOARCH)
}

// Serve opens an engine by the opener that load returns and serves it until the host ends us. It fails when the program
// was started by hand; hint then says what to do instead.
func Serve(log hclog.Logger, version, hint string, load func() (engine.Opener, error)) error {
	if os.Getenv(host.Handshake.MagicCookieKey) != host.Handshake.MagicCookieValue {
		return fmt.Errorf("this program is started by Tandem's workers; %s", hint)
	}
	if err := guardStdout(); err != nil {
		return err
	}
	if err := followParent(log); err != nil {
		return err
	}
	opener, err := load()
	if err != nil {
		return err
	}
	traces, err := openTraces(log, version)
	if err != nil {
		return err
	}
	server := host.NewServer(opener)
	server.Trace(traces.TracerProvider())
	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig: host.Handshake,
		Plugins:         host.PluginSet(server),
		Logger:          log,
		GRPCServer: func(options []grpc.ServerOption) *grpc.Server {
			options = append(options, telemetry.ServerOptions(host.Providers(traces.TracerProvider()))...)
			g := grpc.NewServer(append(options, host.ServerOptions(func(method string, value any, stack []byte) {
				log.Error("panic", "method", method, "value", fmt.Sprint(value), "stack", string(stack))
			})...)...)
			traces.Register(g)
			return g
		},
	})
	flush, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	_ = traces.Shutdown(flush) // lost spans are no fault
	return server.Shutdown()
}

// flushTimeout bounds the wait for the collector at the end: the host ends a process that takes longer than 2 s.
const flushTimeout = time.Second

// openTraces has the engine's spans kept, and sent to where the worker sends its own.
func openTraces(log hclog.Logger, version string) (*telemetry.Traces, error) {
	traces, err := telemetry.OpenTraces(context.Background(), telemetry.Process{
		Service: "tandem-engine", Version: version, Worker: os.Getenv(host.WorkerVariable),
		Warn: func(err error) { log.Warn("telemetry was not sent", "err", err.Error()) },
	}, &telemetry.TraceFlags{OTLPEndpoint: os.Getenv(host.OTLPVariable)})
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	return traces, nil
}

// guardStdout keeps file descriptor 1 for nobody: the handshake is written to a copy, and whatever a native library
// prints lands on stderr, where the host logs it.
func guardStdout() error {
	fd, err := unix.FcntlInt(1, unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return fmt.Errorf("duplicate stdout: %w", err)
	}
	if err := unix.Dup3(2, 1, 0); err != nil {
		return fmt.Errorf("redirect stdout: %w", err)
	}
	os.Stdout = os.NewFile(uintptr(fd), "handshake")
	return nil
}

// followParent ends this process when the worker dies, so that device memory is freed. While the worker lives, it
// decides when to end us: a SIGTERM to the whole process group must not cut off requests that it is still draining.
func followParent(log hclog.Logger) error {
	text := os.Getenv(host.ParentPIDVariable)
	if text == "" {
		return nil
	}
	pid, err := strconv.Atoi(text)
	if err != nil || pid < 1 { // 1 is a worker that is all of a container
		return fmt.Errorf("%s: not a process id: %q", host.ParentPIDVariable, text)
	}
	signal.Ignore(syscall.SIGTERM)
	go func() {
		awaitDeath(pid)
		log.Warn("the worker is gone", "pid", pid)
		os.Exit(ExitOrphaned)
	}()
	return nil
}

// parentPoll is how often the parent is looked for on kernels without pidfd.
const parentPoll = 500 * time.Millisecond

// awaitDeath returns when a process has ended.
func awaitDeath(pid int) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err == unix.ESRCH {
		return
	}
	if err != nil {
		for unix.Kill(pid, 0) != unix.ESRCH && os.Getppid() == pid {
			time.Sleep(parentPoll)
		}
		return
	}
	defer unix.Close(fd)
	for {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(p, -1); n > 0 || err != nil && err != unix.EINTR {
			return
		}
	}
}
