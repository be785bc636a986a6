package workernode

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"github.com/tandem-inference/tandem/services/sdnotify"
	"github.com/tandem-inference/tandem/services/supervise"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.uber.org/zap"
)

// superviseGrace is how long a supervised worker may take to end after SIGTERM: longer than any worker's own grace.
const superviseGrace = 40 * time.Second

// supervised returns the flags of the chosen command when it asks for a supervisor, else nil.
func supervised(ctx *kong.Context) *Flags {
	node := ctx.Selected()
	if node == nil || !node.Target.CanAddr() {
		return nil
	}
	command, ok := node.Target.Addr().Interface().(interface{ shared() *Flags })
	if !ok || !command.shared().Supervise {
		return nil
	}
	return command.shared()
}

// shared is promoted to every command that embeds Flags.
func (f *Flags) shared() *Flags { return f }

// supervise runs this program again as a child, with the same arguments, and replaces it when it hangs or dies: a
// container's engine restarts what has ended, never what stands still. SIGTERM and SIGINT are passed on; a second one
// reaches the worker, too, which then ends at once. As process 1 it also waits for orphans.
func (f *Flags) supervise(name string, args []string, streams Streams) error {
	log, err := f.Logger(streams)
	if err != nil {
		return err
	}
	log = log.Named("supervisor")
	program, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := supervise.RunDir()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	outer, err := sdnotify.FromEnvironment()
	if err != nil {
		return err
	}
	defer outer.Close()
	life, err := sdnotify.Listen(dir)
	if err != nil {
		return err
	}
	var reading sync.WaitGroup
	reading.Go(func() { life.Run(outer) })
	defer reading.Wait()
	defer life.Close()

	limit := f.HangLimit()
	child := supervise.Spec{
		Name: name, Path: program, Essential: true,
		Args:  append(append([]string(nil), args...), "--supervise=false", "--parent-pid="+strconv.Itoa(os.Getpid())),
		Env:   append(sdnotify.Without(os.Environ()), life.Environment(limit)...),
		Probe: life.Serving,
	}
	if limit > 0 {
		child.Ping = life.Alive
	}
	s := supervise.New(supervise.Config{Grace: superviseGrace, HangLimit: limit, Output: streams.Err,
		Reap: os.Getpid() == 1, OnRestart: func(string) { life.Restarted() }}, log, child)

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	defer signal.Stop(signals)
	stopped := make(chan error, 1)
	go func() { stopped <- s.Run(ctx) }()
	for first := true; ; first = false {
		select {
		case sig := <-signals:
			log.Info("stopping the worker", zap.Stringer(telemetry.KeySignal, sig))
			if first {
				cancel() // sends SIGTERM
			} else {
				s.Signal(syscall.SIGTERM)
			}
		case err := <-stopped:
			var unfit *supervise.StartError
			if errors.As(err, &unfit) {
				return ended{unfit}
			}
			return err
		}
	}
}

// ended is the end of a supervised worker that said why: with its words, and its exit status.
type ended struct{ *supervise.StartError }

func (e ended) Error() string { return e.Reason }

// status of the whole program.
func (e ended) status() int {
	if e.Status < 0 {
		return 1
	}
	return e.Status
}
