package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/config"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/gguf"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/services/workernode"
	"github.com/tandem-inference/tandem/worker-draft/internal/assets"
	"github.com/tandem-inference/tandem/worker-draft/internal/server"
	"go.uber.org/zap"
)

// grace of streams after SIGTERM: targets go on without a draft at once, so there is little to wait for.
const grace = time.Second

type serveCmd struct {
	workernode.Flags
	workernode.CacheFlags

	Tables   string `help:"File with the target's embedding and head, for example the target model itself; default: asked of the first target." placeholder:"PATH"`
	CacheDir string `help:"Folder for files of targets; default: tandem in the user's cache." placeholder:"DIR"`
}

// Validate reports every setting that cannot work.
func (c *serveCmd) Validate() error { return errors.Join(c.Flags.Validate(), c.Pool(c.MaxCtx)) }

// Run serves until the process is told to end.
func (c *serveCmd) Run(streams workernode.Streams) error {
	log, err := c.Logger(streams)
	if err != nil {
		return err
	}
	ctx := context.Background()
	cache, err := workernode.CacheDir(c.CacheDir)
	if err != nil {
		return err
	}
	workernode.RememberDigests(c.CacheDir, log)
	store, err := assets.Open(ctx, c.Model, cache)
	if err != nil {
		return err
	}
	defer store.Close()
	file, err := gguf.Open(c.Model)
	if err != nil {
		return err
	}
	defer file.Close()
	id := c.ID("draft")
	log = log.Named("worker.draft").With(zap.String(telemetry.KeyWorker, id))
	registration, err := workernode.Registration(ctx, &c.Flags, id, tandemv1.Role_ROLE_DRAFT, file, config.Version())
	if err != nil {
		return err
	}
	describe(registration, store.Model, c.Device)
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
	s := server.New(server.Config{
		WorkerID: id, Slots: c.Lanes, Assets: store, TablesPath: c.Tables, TablesDigest: tablesDigest, Log: log,
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
			})
		},
	})
	return workernode.Run(ctx, workernode.Config{Flags: &c.Flags, Log: log, Registration: registration, Grace: grace}, s)
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
