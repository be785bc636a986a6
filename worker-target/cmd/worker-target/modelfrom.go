package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"google.golang.org/grpc"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/identity"
	"github.com/tandem-inference/tandem/services/registry"
	"github.com/tandem-inference/tandem/services/workernode"
	"github.com/tandem-inference/tandem/worker-target/internal/modelcopy"
)

// fromCluster is the --model-from that asks the gateway.
const fromCluster = "auto"

// auto says that the gateway names who has the model.
func (s *StageFlags) auto() bool { return slices.Equal(s.ModelFrom, []string{fromCluster}) }

func (s *StageFlags) validateFrom(f *workernode.Flags) error {
	if s.auto() {
		if len(f.Gateway) == 0 {
			return errors.New("--model-from: auto asks the gateway, --gateway names none")
		}
		return nil
	}
	for i, a := range s.ModelFrom {
		if a == "" || a == fromCluster || slices.Contains(s.ModelFrom[:i], a) {
			return fmt.Errorf("--model-from: wants auto, or an address of each peer, got %q", s.ModelFrom)
		}
		if err := f.CheckAddress("model-from", a); err != nil {
			return err
		}
	}
	return nil
}

// fetcher returns what makes the file of --model, nil when it must be there.
func (s *StageFlags) fetcher(f *workernode.Flags) func(context.Context, *workernode.Opened) error {
	if len(s.ModelFrom) == 0 {
		return nil
	}
	return func(ctx context.Context, o *workernode.Opened) error {
		cfg := modelcopy.Config{Path: f.Model, Split: s.TargetLayerSplit, Log: o.Log.Named("modelcopy"),
			Peers: func(context.Context) ([]string, error) { return s.ModelFrom, nil },
			Dial: func(address string) (*grpc.ClientConn, error) {
				return workernode.Dial(address, o.To(identity.Target)...)
			}}
		if s.auto() {
			cfg.Peers = func(ctx context.Context) ([]string, error) {
				targets, err := o.Targets(ctx)
				if err != nil {
					return nil, modelcopy.Later(fmt.Errorf("ask the gateway for targets: %w", err))
				}
				return addressesOf(targets)
			}
		}
		if s.Stage != "" {
			var err error
			if cfg.Stage, cfg.Stages, err = workernode.ParseStage(s.Stage); err != nil {
				return err
			}
		}
		if err := modelcopy.Fetch(ctx, cfg); err != nil {
			return fmt.Errorf("--model-from: %w", err)
		}
		return nil
	}
}

// addressesOf are those of targets, which must have one model. Targets at sockets of other hosts that are reached
// nowhere else, such as those of a tandem serve that other hosts do not join, cannot be asked from here.
func addressesOf(targets []*tandemv1.TargetEntry) (addresses []string, err error) {
	var apart []string
	for _, t := range targets {
		if other := targets[0]; t.GetModelDigest() != other.GetModelDigest() {
			return nil, fmt.Errorf("targets %s and %s have different models, %s (%.12s) and %s (%.12s): give the address of one",
				other.GetWorkerId(), t.GetWorkerId(), other.GetModelName(), other.GetModelDigest(), t.GetModelName(),
				t.GetModelDigest())
		}
		if !registry.Here(t) && t.GetRemoteAddress() == "" {
			apart = append(apart, t.GetWorkerId())
			continue
		}
		addresses = append(addresses, registry.Reach(t))
	}
	if len(addresses) == 0 && len(apart) > 0 {
		return nil, modelcopy.Later(fmt.Errorf("the gateway's targets (%s) are reached on their own host alone: one that "+
			"hands its model to others has a --listen or --remote-listen HOST:PORT", strings.Join(apart, ", ")))
	}
	return addresses, nil
}

// Verify looks at model, engine and library for --verify-config: a model that is to be fetched may be missing.
func (c *serveCmd) Verify() error {
	if _, err := os.Stat(c.Model); len(c.ModelFrom) > 0 && errors.Is(err, os.ErrNotExist) {
		_, _, err := c.EnginePaths()
		return err
	}
	return c.Flags.Verify()
}
