// worker-prefill scores long prompts and returns which parts of them the target should read.
package main

import (
	"cmp"
	"context"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/workernode"
	"github.com/tandem-inference/tandem/worker-prefill/internal/server"
	"google.golang.org/grpc"
)

// grace of prompts in progress after SIGTERM.
const grace = 30 * time.Second

func main() {
	workernode.Exit(&cli{}, "worker-prefill", "Score long prompts for a Tandem cluster.")
}

type cli struct {
	Serve  serveCmd             `cmd:"" default:"withargs" help:"Run the worker (the default)."`
	Health workernode.HealthCmd `cmd:"" help:"Ask a worker whether it serves; exit status 0 or 1."`
}

// Variables implements config.Variables: on a machine where one variable reaches several programs it means the same to
// all of them.
func (cli) Variables() map[string][]string {
	return map[string][]string{
		"model": {"PREFILL_DRAFTER"}, "device": {"PREFILL_DEVICE", "DEVICE"}, "threads": {"DRAFT_THREADS", "THREADS"},
		"memory-cap": {"PREFILL_MEMORY_CAP"}, "max-ctx": {"PREFILL_MAX_CTX"},
	}
}

type serveCmd struct {
	workernode.Flags

	CacheDir string `help:"Folder for digests of model files; default: tandem in the user's cache." placeholder:"DIR"`
}

// Validate reports every setting that cannot work.
func (c *serveCmd) Validate() error { return c.Flags.Validate() }

// Run serves until the process is told to end.
func (c *serveCmd) Run(streams workernode.Streams) error {
	ctx := context.Background()
	opened, err := c.Open(streams, tandemv1.Role_ROLE_PREFILL, c.CacheDir)
	if err != nil {
		return err
	}
	log, file := opened.Log, opened.File
	defer file.Close()
	registration, err := opened.Registration(ctx)
	if err != nil {
		return err
	}
	registration.Settings = map[string]string{"park-after": c.ParkAfter.String()}
	host, err := c.Host(log)
	if err != nil {
		return err
	}
	options := c.OpenOptions()
	options.MaxSequences = 1 // scoring needs no sequences; the engine takes one prompt at a time
	keeper := workernode.NewScorerKeeper(workernode.KeeperConfig[engine.Scorer]{
		Open: host.OpenScorer, Options: options, Log: log.Named("engine"),
		Guard: engine.GuardConfig{HangLimit: c.HangLimit()}, Flags: &c.Flags, Trained: workernode.Trained(file),
		ParkAfter: c.ParkAfter,
	})
	measure, err := server.NewMeasure(opened.Meter())
	if err != nil {
		return err
	}
	lanes := cmp.Or(c.Lanes, automatic)
	w := &worker{Server: server.New(keeper, lanes, measure, log), keeper: keeper}
	node := workernode.Config{Flags: &c.Flags, Log: log, Registration: registration, Grace: grace}
	return workernode.RunWithEngine(ctx, node, w, keeper, func(r *tandemv1.Registration, info engine.Info) {
		workernode.Describe(r, info)
		r.Limits.Lanes, r.Limits.MaxScoreTokens = int32(lanes), int32(info.MaxContext)
	})
}

// automatic is the number of requests at a time when --lanes leaves it open. Those that wait for the engine hold their
// prompt and nothing else; a target takes no more by itself.
const automatic = 32

// worker is the scorer's part of a node.
type worker struct {
	*server.Server
	keeper *workernode.Keeper[engine.Scorer]
}

func (w *worker) Register(s *grpc.Server) { tandemv1.RegisterPrefillServiceServer(s, w.Server) }

func (w *worker) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Ready reports whether requests are taken.
func (w *worker) Ready() bool {
	return w.keeper.Ready()
}

// Lease has nothing to say to a scorer.
func (w *worker) Lease(*tandemv1.Lease) {}
