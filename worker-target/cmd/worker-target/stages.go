package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/config"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/host"
	"github.com/tandem-inference/tandem/services/engine/staged"
	"github.com/tandem-inference/tandem/services/engine/stagenet"
	"github.com/tandem-inference/tandem/services/gguf"
	"github.com/tandem-inference/tandem/services/identity"
	"github.com/tandem-inference/tandem/services/workernode"
	"github.com/tandem-inference/tandem/worker-target/internal/modelcopy"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// StageFlags spread the layers of a target over several devices, of this host and of others.
type StageFlags struct {
	TargetDevices    []string `help:"Devices that share the layers of the target, in the order of the layers, such as cuda:0,hip:0 or cpu,cpu: each has an engine of its own. Default: one device has all." placeholder:"NAME,…"`
	TargetStages     []string `help:"Workers on other hosts that have the layers after those of --target-devices (without it: of one device), in the order of the layers: each runs worker-target --stage K/N." placeholder:"ADDR,…"`
	TargetLayerSplit string   `help:"Layers of each of --target-devices and --target-stages, such as 40,24; auto = as many for each." default:"auto" placeholder:"N,…"`
	StageRowType     string   `help:"Type of the rows that stages hand each other: f32, or bf16, which is half the bytes between hosts, and other texts." enum:"f32,bf16" default:"f32"`
	StageTransport   string   `help:"Way of hidden rows between stages: auto (memory that both see where they are on one host, else straight from stage to stage) or grpc, which takes no memory between workers." enum:"auto,grpc" default:"auto"`
	Stage            string   `help:"Serve stage K of N of a target, at --listen, for the worker that names it in --target-stages." placeholder:"K/N"`

	ModelFrom []string `help:"Targets that hand over the model, or the tensors of --stage, while the file of --model is missing: addresses, or auto = those that the gateway names. What was fetched stays there." placeholder:"ADDR,…"`
}

func (s *StageFlags) validate(f *workernode.Flags) error {
	for _, a := range s.TargetStages {
		if err := f.CheckAddress("target-stages", a); err != nil {
			return err
		}
	}
	if err := s.validateFrom(f); err != nil {
		return err
	}
	if s.Stage == "" {
		return workernode.CheckStages(s.TargetDevices, s.TargetStages, s.TargetLayerSplit, s.StageRowType)
	}
	_, _, err := workernode.ParseStage(s.Stage)
	switch {
	case len(s.TargetDevices)+len(s.TargetStages) > 0:
		return errors.New("--stage: a stage runs on --device, leave --target-devices and --target-stages to the first")
	case len(f.Gateway) > 0 && !s.auto() && f.JoinToken == "" && f.JoinTokenFile == "" && f.Certs == "":
		return errors.New("--stage: a stage serves the worker that names it in --target-stages; --gateway only renews its " +
			"certificate (--join-token, --certs)")
	}
	return err
}

// open returns what opens the target: one engine, or one for each stage.
func (s *StageFlags) open(ctx context.Context, f *workernode.Flags, opened *workernode.Opened) (
	engine.Open[engine.Target], error) {
	file, log := opened.File, opened.Log
	if len(s.TargetDevices)+len(s.TargetStages) == 0 {
		host, err := f.Host(log)
		if err != nil {
			return nil, err
		}
		return host.OpenTarget, nil
	}
	devices := s.TargetDevices
	if len(devices) == 0 {
		devices = []string{f.Device}
	}
	n := len(devices) + len(s.TargetStages)
	places, err := s.places(ctx, file, n)
	if err != nil {
		return nil, err
	}
	var stages []staged.Stage
	for i, device := range devices {
		own := *f
		own.Device = device
		host, err := own.Host(log.With(zap.Int("stage", i+1)))
		if err != nil {
			return nil, fmt.Errorf("--target-devices: %w", err)
		}
		stages = append(stages, staged.Stage{Open: host.OpenTarget, Device: device, Layers: places[i].layers()})
	}
	head := rand.Text()
	for i, address := range s.TargetStages {
		p := places[len(devices)+i]
		d, err := p.describe(ctx)
		if err != nil {
			return nil, err
		}
		stages = append(stages, staged.Stage{Device: address, Layers: p.layers(), Open: stagenet.Open(stagenet.OpenConfig{
			Address: address, Dial: s.dial(opened), Want: d, HeadID: head, HangLimit: f.HangLimit(),
			NoMemory: s.StageTransport == workernode.TransportGRPC, Log: log.With(zap.Int("stage", d.Stage)),
		})})
	}
	return staged.Open(stages, rowTypes[s.StageRowType]), nil
}

var rowTypes = map[string]engine.HiddenEncoding{"f32": engine.HiddenF32, "bf16": engine.HiddenBF16}

// dial returns what connects to a stage.
func (s *StageFlags) dial(opened *workernode.Opened) func(address string) (*grpc.ClientConn, error) {
	options := []grpc.DialOption{grpc.WithTransportCredentials(opened.Credentials(identity.Target))}
	if s.StageTransport != workernode.TransportGRPC {
		options = append(options, host.LoopDialOption())
	}
	return func(address string) (*grpc.ClientConn, error) { return workernode.Dial(address, options...) }
}

// place is a stage's among the layers of a model file.
type place struct {
	file          *gguf.File
	stage, stages int
	first, last   int
	of            int // layers of the model
}

func (p *place) layers() int { return p.last - p.first }

// places divides the layers of a file among n stages.
func (s *StageFlags) places(ctx context.Context, file *gguf.File, n int) ([]place, error) {
	model, err := file.Model()
	if err != nil {
		return nil, fmt.Errorf("--model: %w", err)
	}
	layers, err := workernode.SplitLayers(s.TargetLayerSplit, n, model.Layers)
	if err != nil {
		return nil, err
	}
	var out []place
	at := 0
	for i, count := range layers {
		out = append(out, place{file, i + 1, n, at, at + count, model.Layers})
		at += count
	}
	return out, ctx.Err()
}

// describe says what head and stage must agree on.
func (p *place) describe(ctx context.Context) (stagenet.Description, error) {
	digest, err := workernode.LayersDigest(ctx, p.file, p.first, p.last, p.of)
	return stagenet.Description{Version: config.Version(), Stage: p.stage, Stages: p.stages, Layers: p.of,
		First: p.first, Last: p.last, Digest: digest}, err
}

// stageGrace is how long calls of a head may take to end after SIGTERM: they fail at once, and the head replays.
const stageGrace = 5 * time.Second

// serveStage serves a stage until the process is told to end.
func (c *serveCmd) serveStage(ctx context.Context, opened *workernode.Opened) error {
	file, log := opened.File, opened.Log
	stage, stages, err := workernode.ParseStage(c.Stage)
	if err != nil {
		return err
	}
	places, err := c.places(ctx, file, stages)
	if err != nil {
		return err
	}
	d, err := places[stage-1].describe(ctx)
	if err != nil {
		return err
	}
	cache, err := workernode.CacheDir(c.CacheDir)
	if err != nil {
		return err
	}
	host, err := c.Host(log)
	if err != nil {
		return err
	}
	w := stageWorker{model: modelcopy.NewServer(file), Server: stagenet.NewServer(stagenet.ServerConfig{
		Description: d, Open: host.OpenTarget, Options: c.OpenOptions(), Dir: cache, HangLimit: c.HangLimit(),
		Dial: c.dial(opened), Log: log.Named("stage"),
	})}
	log.Info("serving a stage", zap.String("stage", c.Stage), zap.Int("layer_first", d.First),
		zap.Int("layers", d.Last-d.First))
	node := workernode.Config{Flags: &c.Flags, Log: log, Registration: &tandemv1.Registration{}, Grace: stageGrace,
		Alone: true, Options: stagenet.Options(workernode.MaxRequestBytes)}
	return workernode.Run(ctx, node, w)
}

// stageWorker is a stage as a node's role. No gateway leases it.
type stageWorker struct {
	*stagenet.Server
	model *modelcopy.Server
}

func (w stageWorker) Register(s *grpc.Server) {
	w.Server.Register(s)
	tandemv1.RegisterModelServiceServer(s, w.model)
}

// Run implements workernode.Worker: a stage does nothing without its head.
func (w stageWorker) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Ready reports that a head may take the stage.
func (w stageWorker) Ready() bool { return true }

// Heartbeat and Lease are for workers of a gateway.
func (w stageWorker) Heartbeat(*tandemv1.Heartbeat) {}

// Lease is not called.
func (w stageWorker) Lease(*tandemv1.Lease) {}
