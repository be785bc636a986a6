package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/tandem-inference/tandem/native/plugin/internal/native"
	"github.com/tandem-inference/tandem/native/plugin/internal/program"
	"github.com/tandem-inference/tandem/services/engine"
)

type infoCmd struct {
	Model  string `help:"Model to open." placeholder:"PATH"`
	Tables string `help:"Drafts: GGUF with embedding and head of the target." placeholder:"PATH"`
	Role   string `help:"Role to open the model for: target, draft, score." enum:"target,draft,score" default:"target"`
	Device string `help:"Device whose library is described and on which the model is opened; default: cpu." placeholder:"NAME"`
}

// description is what info prints.
type description struct {
	Version string        `json:"version"`
	Library string        `json:"library"`
	ABI     uint32        `json:"abi"`
	Model   *engine.Info  `json:"model,omitempty"`
	Memory  []engine.Stat `json:"memory,omitempty"`
}

// Run prints what is known as JSON.
func (i *infoCmd) Run(c *cli) error {
	path, err := c.library(i.Device)
	if err != nil {
		return err
	}
	lib, err := native.Load(path, nativeLog(program.Logger(os.Stderr, c.LogLevel)))
	if err != nil {
		return err
	}
	d := description{Version: versionText(), Library: lib.Path(), ABI: lib.ABIVersion()}
	if i.Model != "" {
		if err := i.open(lib, &d); err != nil {
			return err
		}
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", "  ")
	return out.Encode(d)
}

func (i *infoCmd) open(lib *native.Library, d *description) error {
	ctx := context.Background()
	options := engine.OpenOptions{
		ModelPath: i.Model, TablesPath: i.Tables, Device: i.Device, MaxSequences: 1,
		KVTypeK: engine.KVDefault, KVTypeV: engine.KVDefault,
	}
	var e engine.Engine
	var err error
	switch i.Role {
	case "draft":
		e, err = lib.OpenDraft(ctx, options, nil)
	case "score":
		e, err = lib.OpenScorer(ctx, options, nil)
	default:
		e, err = lib.OpenTarget(ctx, options, nil)
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", i.Model, err)
	}
	defer e.Close()
	info := e.Info()
	d.Model = &info
	d.Memory, err = e.Memory(ctx)
	return err
}
