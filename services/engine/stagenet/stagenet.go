// Package stagenet connects a target in stages with stages on other hosts. A stage is a Server in a worker of its own:
// it runs an engine with its layers for the head that holds it, through the services of tandem.engine.v1. Open is the
// head's side: an engine.Target like one in a process of its own.
//
// A connection holds the stage for as long as its Hold stream lives, and its calls reach the engine that was opened for
// it. When it ends, for whatever reason, that engine is closed: what a lost head leaves behind can reach no engine of
// its successor. The head opens a new connection then, and a new engine, and replays.
package stagenet

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine/host"
	"github.com/tandem-inference/tandem/services/procwatch"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// Description says what a stage serves.
type Description struct {
	Version       string // of the program, for messages
	Stage, Stages int    // its place, from 1, and how many there are
	Layers        int    // of the model
	First, Last   int    // layers [First, Last) are the stage's
	Digest        string // of their tensors, workernode.LayersDigest
}

// rowType is the type of the values that stages hand on.
const rowType = "f32"

func (d *Description) toProto() *tandemv1.HoldResponse {
	return &tandemv1.HoldResponse{
		Version: d.Version, EngineVersion: engineVersion, Stage: int32(d.Stage), Stages: int32(d.Stages),
		NLayers: int32(d.Layers), LayerFirst: int32(d.First), LayerLast: int32(d.Last), LayersDigest: d.Digest,
		RowType: rowType,
	}
}

// described is toProto's reverse.
func described(m *tandemv1.HoldResponse) Description {
	return Description{
		Version: m.GetVersion(), Stage: int(m.GetStage()), Stages: int(m.GetStages()), Layers: int(m.GetNLayers()),
		First: int(m.GetLayerFirst()), Last: int(m.GetLayerLast()), Digest: m.GetLayersDigest(),
	}
}

const engineVersion = int32(host.EngineVersion)

// differs says why a stage that describes itself as m is not the one that the head wants.
func (d *Description) differs(m *tandemv1.HoldResponse) error {
	switch {
	case m.EngineVersion != engineVersion:
		return rpcerr.ProtocolMismatch.With("the stage (version %s) speaks version %d of the engine's protocol, "+
			"this program (version %s) version %d: run the same release on both", m.Version, m.EngineVersion, d.Version,
			engineVersion)
	case m.RowType != rowType:
		return rpcerr.ProtocolMismatch.With("the stage hands on rows of %s, this program takes %s", m.RowType, rowType)
	case int(m.Stage) != d.Stage || int(m.Stages) != d.Stages:
		return rpcerr.ModelMismatch.With("it is stage %d/%d, here it is to be %d/%d: see --stage there and the order of "+
			"--target-stages here", m.Stage, m.Stages, d.Stage, d.Stages)
	case int(m.NLayers) != d.Layers:
		return rpcerr.ModelMismatch.With("its model has %d layers, this one %d: see --model", m.NLayers, d.Layers)
	case int(m.LayerFirst) != d.First || int(m.LayerLast) != d.Last:
		return rpcerr.ModelMismatch.With("it serves layers %d to %d, here they are to be %d to %d: give both the same "+
			"--target-layer-split", m.LayerFirst, m.LayerLast-1, d.First, d.Last-1)
	case m.LayersDigest != d.Digest:
		return rpcerr.ModelMismatch.With("the tensors of its layers %d to %d have digest %.12s, those here %.12s: "+
			"--model is another file there", d.First, d.Last-1, m.LayersDigest, d.Digest)
	}
	return nil
}

// beats a limit: as many messages are sent while a peer may be silent, and one more may be missing.
const beats = 8

// heard counts messages of the peer.
type heard struct{ n atomic.Uint64 }

// exchange sends a message several times a limit until ctx ends, send fails, or the peer is silent for the limit. Time
// in which this process could not run counts as one period. limit is as in host.HostConfig.
func exchange(ctx context.Context, limit time.Duration, send func() error, h *heard) error {
	period := limit / beats
	switch {
	case limit == 0:
		limit = procwatch.DefaultLimit
		period = limit / beats
	case limit < 0:
		period = procwatch.DefaultLimit / beats
	}
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	last, silent := h.n.Load(), 0
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
		if err := send(); err != nil {
			return err
		}
		if n := h.n.Load(); n != last {
			last, silent = n, 0
		} else if silent++; limit > 0 && silent > beats {
			return fmt.Errorf("has sent nothing for %v", limit)
		}
	}
}
