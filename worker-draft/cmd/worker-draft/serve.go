package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/gguf"
	"github.com/tandem-inference/tandem/services/workernode"
	"github.com/tandem-inference/tandem/worker-draft/internal/assets"
	"github.com/tandem-inference/tandem/worker-draft/internal/server"
)

// grace of streams after SIGTERM: targets go on without a draft at once, so there is little to wait for.
const grace = time.Second

type serveCmd struct {
	workernode.Flags
	workernode.CacheFlags

	Tables   string `help:"File with the target's embedding and head, for example the target model itself; default: asked of the first target." placeholder:"PATH"`
	CacheDir string `help:"Folder for files of targets; default: tandem in the user's cache." placeholder:"DIR"`

	LazyDraft bool `help:"Load the draft when a request first wants one, not at the start." default:"false"`
}

// Validate reports every setting that cannot work.
func (c *serveCmd) Validate() error { return errors.Join(c.Flags.Validate(), c.Pool(int(c.MaxCtx))) }

// Run serves until the process is told to end.
func (c *serveCmd) Run(streams workernode.Streams) error {
	ctx := context.Background()
	opened, err := c.Open(streams, tandemv1.Role_ROLE_DRAFT, c.CacheDir)
	if err != nil {
		return err
	}
	log, file := opened.Log, opened.File
	defer file.Close()
	registration, err := opened.Registration(ctx)
	if err != nil {
		return err
	}
	cache, err := workernode.CacheDir(c.CacheDir)
	if err != nil {
		return err
	}
	store, err := assets.Open(ctx, c.Model, cache)
	if err != nil {
		return err
	}
	defer store.Close()
	describe(registration, store.Model, c.Device)
	registration.Settings = map[string]string{
		"lazy-draft": strconv.FormatBool(c.LazyDraft), "park-after": c.ParkAfter.String(),
	}
	tablesDigest := ""
	if c.Tables != "" {
		if tablesDigest, err = assets.Tables(ctx, c.Tables); err != nil {
			return fmt.Errorf("--tables: %w", err)
		}
	}
	host, err := c.Host(log)
	if err != nil {
		return err
	}
	measure, err := server.NewMeasure(opened.Meter())
	if err != nil {
		return err
	}
	s := server.New(server.Config{
		Measure:  measure,
		WorkerID: registration.WorkerId, Assets: store, TablesPath: c.Tables, TablesDigest: tablesDigest, Log: log,
		Tracer: opened.Tracer(),
		Shape: server.Shape{
			Digest: store.Digest, TokenizerDigest: registration.Model.TokenizerDigest, Hidden: store.Model.Hidden,
			Vocab: store.Model.Vocab, CaptureLayers: registration.Model.CaptureLayers,
		},
		Open: func(tables string) server.Engine {
			options := c.OpenOptions()
			options.ModelPath, options.TablesPath = file.Paths()[0], tables
			c.CacheFlags.Apply(&options)
			return workernode.NewDraftKeeper(workernode.KeeperConfig[engine.Draft]{
				Open: host.OpenDraft, Options: options, Log: log.Named("engine"),
				Guard: engine.GuardConfig{HangLimit: c.HangLimit()}, Flags: &c.Flags,
				Lazy: c.LazyDraft, Known: known(store.Model, int(c.MaxCtx)), ParkAfter: c.ParkAfter,
			})
		},
	})
	node := workernode.Config{Flags: &c.Flags, Log: log, Registration: registration, Grace: grace, Again: again(s)}
	return workernode.Run(ctx, node, s)
}

// again waits for engines of s and fills in slots and context of each.
func again(s *server.Server) func(ctx context.Context, r *tandemv1.Registration) error {
	var seen uint64 // generation of the engine that was described
	return func(ctx context.Context, r *tandemv1.Registration) error {
		e, generation, err := s.Next(ctx, seen)
		if err != nil {
			return err
		}
		seen = generation
		r.Limits.Lanes, r.Limits.MaxContext = int32(e.Info().MaxSequences), int32(e.Info().MaxContext)
		return nil
	}
}

// known is what a draft's file says of the engine that will run it; nil when that is not all that a target asks for.
func known(m *gguf.Model, maxCtx int) *engine.Info {
	if m.Draft.MaskToken < 0 || m.Draft.TargetLayers == nil {
		return nil
	}
	info := &engine.Info{BlockSize: m.Draft.BlockSize, MaskToken: int32(m.Draft.MaskToken), FeatureFused: m.Hidden,
		MaxContext: m.Context}
	if maxCtx > 0 {
		info.MaxContext = min(info.MaxContext, maxCtx)
	}
	for _, layer := range m.Draft.TargetLayers {
		info.CaptureLayers = append(info.CaptureLayers, int32(layer))
	}
	return info
}

// describe fills in what the draft's file says; its engine opens later, when a target's tables are there.
func describe(r *tandemv1.Registration, m *gguf.Model, device string) {
	r.Backend, _, _ = strings.Cut(device, ":")
	r.Device = device
	r.Model.Name, r.Model.Arch, r.Model.NLayers, r.Model.LayerLast = m.Name, m.Arch, int32(m.Layers), int32(m.Layers)
	r.Model.Hidden, r.Model.Vocab, r.Model.BlockSize = int32(m.Hidden), int32(m.Vocab), int32(m.Draft.BlockSize)
	for _, layer := range m.Draft.TargetLayers {
		r.Model.CaptureLayers = append(r.Model.CaptureLayers, int32(layer))
	}
	r.Limits.MaxContext = int32(m.Context)
}
