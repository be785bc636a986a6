package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/services/config"
)

// ServeCmd is tandem serve: gateway and workers of one machine, supervised.
type ServeCmd struct {
	config.Flags
	Target string `arg:"" optional:"" name:"target" type:"path" help:"Target model, a GGUF file."`
	Demo   bool   `help:"Serve the demonstration models that ship with the project."`
	WorkerFlags
	app.Config
	LogFlags
}

// WorkerFlags are settings of the workers that a command starts.
type WorkerFlags struct {
	Draft        string      `type:"path" placeholder:"PATH" help:"DFlash draft of the target; without it decoding is plain."`
	Device       string      `default:"cpu" help:"Device of all engines; the engine of this build runs on the cpu."`
	Threads      int         `default:"0" help:"CPU threads of the target's engine, 0 = one per core."`
	DraftThreads int         `default:"0" help:"CPU threads of draft and scorer, 0 = as --threads: they work while the target waits."`
	MaxCtx       int         `default:"0" help:"Longest context in tokens, 0 = the model's, as far as --memory-cap allows."`
	Lanes        int         `default:"0" help:"Requests that the target decodes at a time, 0 = the worker's default."`
	MemoryCap    config.Size `default:"0" placeholder:"SIZE" help:"Memory of the target's engine, for example 8GiB; 0 = no limit."`
	CacheTypeK   string      `name:"cache-type-k" default:"f16" enum:"f16,f32" help:"Type of cached keys: f16, f32."`
	CacheTypeV   string      `name:"cache-type-v" default:"f16" enum:"f16,f32" help:"Type of cached values: f16, f32."`
	CacheDir     string      `type:"path" placeholder:"DIR" help:"Where workers keep tables and projections they received from peers."`
	Programs     string      `type:"path" placeholder:"DIR" help:"Folder of the worker programs; default: beside this program."`
}

// Validate reports settings that cannot work, before anything is started.
func (c *ServeCmd) Validate() error {
	if c.Target != "" && c.Model != "" && c.Target != c.Model {
		return errors.New("--model: the target is given twice, as an argument and by --model")
	}
	switch {
	case c.Demo && c.Target != "":
		return errors.New("--demo: serves its own models, leave the file name away")
	case c.Demo && c.Draft != "":
		return errors.New("--demo: serves its own models, leave --draft away")
	case !c.Demo && c.Target == "" && c.Model == "":
		return errors.New("a target model is needed: tandem serve MODEL.gguf, or tandem serve --demo")
	}
	return errors.Join(c.WorkerFlags.validate(), c.Config.Validate())
}

func (w *WorkerFlags) validate() error {
	var problems []error
	for _, f := range []struct {
		flag  string
		value int
	}{{"threads", w.Threads}, {"draft-threads", w.DraftThreads}, {"max-ctx", w.MaxCtx}, {"lanes", w.Lanes}} {
		if f.value < 0 {
			problems = append(problems, fmt.Errorf("--%s: %d is negative", f.flag, f.value))
		}
	}
	return errors.Join(problems...)
}

// models resolves the three files and checks that they belong together.
func (c *ServeCmd) models() (trio, error) {
	if c.Demo {
		return demoTrio()
	}
	t := trio{target: c.Target, draft: c.Draft, prefill: c.PrefillDrafter}
	if t.target == "" {
		t.target = c.Model
	}
	return t, t.check()
}

// Run serves until the process is told to stop; then running requests may finish, and no process stays behind.
func (c *ServeCmd) Run(e *env) error {
	log, format, err := c.logger(e.err)
	if err != nil {
		return err
	}
	models, err := c.models()
	if err != nil {
		return err
	}
	started := time.Now()
	cluster, err := newCluster(clusterConfig{
		models: models, workers: c.WorkerFlags, gateway: c.Config,
		logLevel: c.LogLevel, logFormat: format, log: log, output: e.err,
	})
	if err != nil {
		return err
	}
	onReady := func() {
		fmt.Fprint(e.out, banner(fmt.Sprintf("is ready after %.1f s", time.Since(started).Seconds()), cluster.gateway))
		fmt.Fprintf(e.out, "  Try   tandem run --server http://%s \"What is DFlash?\"\n", cluster.gateway.HTTPAddr())
	}
	return cluster.run(e.ctx, onReady)
}

// waitServing returns when the gateway at addr says it can serve.
func waitServing(ctx context.Context, addr net.Addr) error {
	client := clientFor(addr)
	defer client.CloseIdleConnections()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		attempt, cancel := context.WithTimeout(ctx, 2*time.Second)
		_, err := health(attempt, client, urlFor(addr)+"/health/ready")
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the cluster is not ready: %w", err)
		case <-ticker.C:
		}
	}
}

// clientFor is an HTTP client of a gateway on a TCP or unix socket.
func clientFor(addr net.Addr) *http.Client {
	transport := &http.Transport{}
	if addr.Network() == "unix" {
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", addr.String())
		}
	}
	return &http.Client{Transport: transport}
}

// urlFor is the base URL that goes with clientFor.
func urlFor(addr net.Addr) string {
	if addr.Network() == "unix" {
		return "http://localhost"
	}
	return "http://" + addr.String()
}
