package host

import (
	"context"
	"io"

	enginev1 "github.com/tandem-inference/tandem/proto/tandem/engine/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// Stats implements Engine.
func (r *Remote) Stats(ctx context.Context) ([]engine.Stat, error) {
	m, err := r.client.GetStats(ctx, &enginev1.GetStatsRequest{})
	if err != nil {
		return nil, r.translate(err)
	}
	return statsFromProto(m.Stats), nil
}

// Memory implements Engine.
func (r *Remote) Memory(ctx context.Context) ([]engine.Stat, error) {
	m, err := r.client.GetMemory(ctx, &enginev1.GetMemoryRequest{})
	if err != nil {
		return nil, r.translate(err)
	}
	return statsFromProto(m.Entries), nil
}

// Handles implements Engine.
func (r *Remote) Handles(ctx context.Context) (engine.Handles, error) {
	m, err := r.client.ListHandles(ctx, &enginev1.ListHandlesRequest{})
	if err != nil {
		return engine.Handles{}, r.translate(err)
	}
	return handlesFromProto(m), nil
}

// NewSequence implements Engine.
func (r *Remote) NewSequence(ctx context.Context) (engine.Sequence, error) {
	m, err := r.client.CreateSequence(ctx, &enginev1.CreateSequenceRequest{})
	if err != nil {
		return 0, r.translate(err)
	}
	return engine.Sequence(m.Sequence), nil
}

// Fork implements Engine.
func (r *Remote) Fork(ctx context.Context, s engine.Sequence) (engine.Sequence, error) {
	m, err := r.client.ForkSequence(ctx, &enginev1.ForkSequenceRequest{Sequence: int32(s)})
	if err != nil {
		return 0, r.translate(err)
	}
	return engine.Sequence(m.Sequence), nil
}

// FreeSequence implements Engine.
func (r *Remote) FreeSequence(ctx context.Context, s engine.Sequence) error {
	_, err := r.client.FreeSequence(ctx, &enginev1.FreeSequenceRequest{Sequence: int32(s)})
	return r.translate(err)
}

// SequenceLength implements Engine.
func (r *Remote) SequenceLength(ctx context.Context, s engine.Sequence) (int, error) {
	m, err := r.client.GetSequenceLength(ctx, &enginev1.GetSequenceLengthRequest{Sequence: int32(s)})
	if err != nil {
		return 0, r.translate(err)
	}
	return int(m.Length), nil
}

// Truncate implements Engine.
func (r *Remote) Truncate(ctx context.Context, s engine.Sequence, length int) error {
	_, err := r.client.TruncateSequence(ctx, &enginev1.TruncateSequenceRequest{Sequence: int32(s), Length: int32(length)})
	return r.translate(err)
}

// SetSampler implements Engine.
func (r *Remote) SetSampler(ctx context.Context, s engine.Sequence, sampler engine.Sampler) error {
	_, err := r.client.SetSampler(ctx, &enginev1.SetSamplerRequest{Sequence: int32(s), Sampler: engine.SamplerToProto(sampler)})
	return r.translate(err)
}

// NewSnapshot implements Engine.
func (r *Remote) NewSnapshot(ctx context.Context, s engine.Sequence) (engine.Snapshot, error) {
	m, err := r.client.CreateSnapshot(ctx, &enginev1.CreateSnapshotRequest{Sequence: int32(s)})
	if err != nil {
		return 0, r.translate(err)
	}
	return engine.Snapshot(m.Snapshot), nil
}

// RestoreSnapshot implements Engine.
func (r *Remote) RestoreSnapshot(ctx context.Context, p engine.Snapshot, s engine.Sequence) error {
	_, err := r.client.RestoreSnapshot(ctx, &enginev1.RestoreSnapshotRequest{Snapshot: int32(p), Sequence: int32(s)})
	return r.translate(err)
}

// DemoteSnapshot implements Engine.
func (r *Remote) DemoteSnapshot(ctx context.Context, p engine.Snapshot) error {
	_, err := r.client.DemoteSnapshot(ctx, &enginev1.DemoteSnapshotRequest{Snapshot: int32(p)})
	return r.translate(err)
}

// FreeSnapshot implements Engine.
func (r *Remote) FreeSnapshot(ctx context.Context, p engine.Snapshot) error {
	_, err := r.client.FreeSnapshot(ctx, &enginev1.FreeSnapshotRequest{Snapshot: int32(p)})
	return r.translate(err)
}

// Export implements Engine.
func (r *Remote) Export(ctx context.Context, s engine.Sequence) ([]byte, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // frees the stream when we leave before its end
	stream, err := r.client.ExportSequence(ctx, &enginev1.ExportSequenceRequest{Sequence: int32(s)})
	if err != nil {
		return nil, r.translate(err)
	}
	var m enginev1.ExportSequenceResponse
	if err := stream.RecvMsg(&m); err != nil {
		return nil, r.translate(err)
	}
	total := m.TotalBytes
	if total > maxStateBytes {
		return nil, rpcerr.Internal("the engine announced a state of %d bytes", total)
	}
	state := make([]byte, 0, total)
	for {
		if state = append(state, m.Chunk...); uint64(len(state)) > total {
			return nil, rpcerr.Internal("the engine sent more than the announced %d bytes", total)
		}
		if err := stream.RecvMsg(&m); err == io.EOF {
			break
		} else if err != nil {
			return nil, r.translate(err)
		}
	}
	if uint64(len(state)) != total {
		return nil, rpcerr.Internal("the engine sent %d of the announced %d bytes", len(state), total)
	}
	return state, nil
}

// Import implements Engine.
func (r *Remote) Import(ctx context.Context, s engine.Sequence, state []byte) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := r.client.ImportSequence(ctx)
	if err != nil {
		return r.translate(err)
	}
	rest := state
	for first := true; first || len(rest) > 0; first = false {
		n := min(len(rest), chunkBytes)
		m := &enginev1.ImportSequenceRequest{Chunk: rest[:n]}
		if first {
			m.Sequence, m.TotalBytes = int32(s), uint64(len(state))
		}
		if err := stream.Send(m); err == io.EOF {
			break // the engine has refused: CloseAndRecv says why
		} else if err != nil {
			return r.translate(err)
		}
		rest = rest[n:]
	}
	_, err = stream.CloseAndRecv()
	return r.translate(err)
}

// SetCapture implements Engine.
func (r *Remote) SetCapture(ctx context.Context, layers []int32) error {
	m, err := r.client.SetCapture(ctx, &enginev1.SetCaptureRequest{Layers: layers})
	if err != nil {
		return r.translate(err)
	}
	r.setInfo(m.Info)
	return nil
}

// LoadFuse implements Engine.
func (r *Remote) LoadFuse(ctx context.Context, path string) error {
	m, err := r.client.LoadFuse(ctx, &enginev1.LoadFuseRequest{Path: path})
	if err != nil {
		return r.translate(err)
	}
	r.setInfo(m.Info)
	return nil
}

// Score implements Engine.
func (r *Remote) Score(ctx context.Context, ids []int32, queryRows []int32, rotated bool) ([]float32, error) {
	m, err := r.client.Score(ctx, &enginev1.ScoreRequest{Ids: ids, QueryRows: queryRows, Rotated: rotated})
	if err != nil {
		return nil, r.translate(err)
	}
	return m.Scores, nil
}
