package host

import (
	"context"
	"io"
	"time"

	"google.golang.org/grpc"

	enginev1 "github.com/tandem-inference/tandem/proto/tandem/engine/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/tensorwire"
)

// Control calls: each finds the engine, translates and passes on.

// GetInfo implements enginev1.EngineServiceServer, as do the methods below.
func (s *Server) GetInfo(context.Context, *enginev1.GetInfoRequest) (*enginev1.GetInfoResponse, error) {
	e, err := s.open()
	if err != nil {
		return nil, err
	}
	return &enginev1.GetInfoResponse{Info: infoToProto(e.Info())}, nil
}

// GetStats lists counters.
func (s *Server) GetStats(ctx context.Context, _ *enginev1.GetStatsRequest) (*enginev1.GetStatsResponse, error) {
	e, err := s.open()
	if err != nil {
		return nil, err
	}
	stats, err := e.Stats(ctx)
	return &enginev1.GetStatsResponse{Stats: statsToProto(stats)}, err
}

// GetMemory lists planned bytes.
func (s *Server) GetMemory(ctx context.Context, _ *enginev1.GetMemoryRequest) (*enginev1.GetMemoryResponse, error) {
	e, err := s.open()
	if err != nil {
		return nil, err
	}
	stats, err := e.Memory(ctx)
	return &enginev1.GetMemoryResponse{Entries: statsToProto(stats)}, err
}

// CreateSequence makes a sequence.
func (s *Server) CreateSequence(ctx context.Context,
	_ *enginev1.CreateSequenceRequest) (*enginev1.CreateSequenceResponse, error) {
	e, err := as[engine.Sequences](s)
	if err != nil {
		return nil, err
	}
	id, err := e.NewSequence(ctx)
	if err == nil && ctx.Err() != nil {
		return nil, abandon(ctx, func(ctx context.Context) error { return e.FreeSequence(ctx, id) })
	}
	return &enginev1.CreateSequenceResponse{Sequence: int32(id)}, err
}

// ForkSequence makes a sequence of another one.
func (s *Server) ForkSequence(ctx context.Context,
	req *enginev1.ForkSequenceRequest) (*enginev1.ForkSequenceResponse, error) {
	e, err := as[engine.Sequences](s)
	if err != nil {
		return nil, err
	}
	id, err := e.Fork(ctx, engine.Sequence(req.Sequence))
	if err == nil && ctx.Err() != nil {
		return nil, abandon(ctx, func(ctx context.Context) error { return e.FreeSequence(ctx, id) })
	}
	return &enginev1.ForkSequenceResponse{Sequence: int32(id)}, err
}

// abandon frees what was made for a call that was cancelled meanwhile: its caller will not learn the handle. It returns
// the error of the call. The engine outlives its calls, so there is no time limit: as long as the engine works, free
// comes to its turn.
func abandon(ctx context.Context, free func(context.Context) error) error {
	if err := free(context.WithoutCancel(ctx)); err != nil {
		return rpcerr.Internal("free what a cancelled call has made: %v", err)
	}
	return rpcerr.From(ctx.Err())
}

// ListHandles lists sequences and snapshots.
func (s *Server) ListHandles(ctx context.Context,
	_ *enginev1.ListHandlesRequest) (*enginev1.ListHandlesResponse, error) {
	e, err := s.open()
	if err != nil {
		return nil, err
	}
	h, err := e.Handles(ctx)
	return handlesToProto(h), err
}

// FreeSequence frees a sequence.
func (s *Server) FreeSequence(ctx context.Context,
	req *enginev1.FreeSequenceRequest) (*enginev1.FreeSequenceResponse, error) {
	e, err := as[engine.Sequences](s)
	if err != nil {
		return nil, err
	}
	return &enginev1.FreeSequenceResponse{}, e.FreeSequence(ctx, engine.Sequence(req.Sequence))
}

// GetSequenceLength counts positions.
func (s *Server) GetSequenceLength(ctx context.Context,
	req *enginev1.GetSequenceLengthRequest) (*enginev1.GetSequenceLengthResponse, error) {
	e, err := as[engine.Sequences](s)
	if err != nil {
		return nil, err
	}
	n, err := e.SequenceLength(ctx, engine.Sequence(req.Sequence))
	return &enginev1.GetSequenceLengthResponse{Length: int32(n)}, err
}

// TruncateSequence goes back.
func (s *Server) TruncateSequence(ctx context.Context,
	req *enginev1.TruncateSequenceRequest) (*enginev1.TruncateSequenceResponse, error) {
	e, err := as[engine.Sequences](s)
	if err != nil {
		return nil, err
	}
	return &enginev1.TruncateSequenceResponse{}, e.Truncate(ctx, engine.Sequence(req.Sequence), int(req.Length))
}

// SetSampler sets a sampler.
func (s *Server) SetSampler(ctx context.Context,
	req *enginev1.SetSamplerRequest) (*enginev1.SetSamplerResponse, error) {
	e, err := as[engine.Target](s)
	if err != nil {
		return nil, err
	}
	return &enginev1.SetSamplerResponse{}, e.SetSampler(ctx, engine.Sequence(req.Sequence),
		engine.SamplerFromProto(req.Sampler))
}

// CreateSnapshot keeps a state.
func (s *Server) CreateSnapshot(ctx context.Context,
	req *enginev1.CreateSnapshotRequest) (*enginev1.CreateSnapshotResponse, error) {
	e, err := as[engine.Sequences](s)
	if err != nil {
		return nil, err
	}
	id, err := e.NewSnapshot(ctx, engine.Sequence(req.Sequence))
	if err == nil && ctx.Err() != nil {
		return nil, abandon(ctx, func(ctx context.Context) error { return e.FreeSnapshot(ctx, id) })
	}
	return &enginev1.CreateSnapshotResponse{Snapshot: int32(id)}, err
}

// RestoreSnapshot puts a state back.
func (s *Server) RestoreSnapshot(ctx context.Context,
	req *enginev1.RestoreSnapshotRequest) (*enginev1.RestoreSnapshotResponse, error) {
	e, err := as[engine.Sequences](s)
	if err != nil {
		return nil, err
	}
	return &enginev1.RestoreSnapshotResponse{}, e.RestoreSnapshot(ctx, engine.Snapshot(req.Snapshot),
		engine.Sequence(req.Sequence))
}

// DemoteSnapshot makes room in the pool.
func (s *Server) DemoteSnapshot(ctx context.Context,
	req *enginev1.DemoteSnapshotRequest) (*enginev1.DemoteSnapshotResponse, error) {
	e, err := as[engine.Sequences](s)
	if err != nil {
		return nil, err
	}
	return &enginev1.DemoteSnapshotResponse{}, e.DemoteSnapshot(ctx, engine.Snapshot(req.Snapshot))
}

// FreeSnapshot forgets a state.
func (s *Server) FreeSnapshot(ctx context.Context,
	req *enginev1.FreeSnapshotRequest) (*enginev1.FreeSnapshotResponse, error) {
	e, err := as[engine.Sequences](s)
	if err != nil {
		return nil, err
	}
	return &enginev1.FreeSnapshotResponse{}, e.FreeSnapshot(ctx, engine.Snapshot(req.Snapshot))
}

// ExportSequence sends a state in chunks.
func (s *Server) ExportSequence(req *enginev1.ExportSequenceRequest,
	stream grpc.ServerStreamingServer[enginev1.ExportSequenceResponse]) error {
	e, err := as[engine.Sequences](s)
	if err != nil {
		return err
	}
	state, err := e.Export(stream.Context(), engine.Sequence(req.Sequence))
	if err != nil {
		return err
	}
	for first := true; first || len(state) > 0; first = false {
		n := min(len(state), tensorwire.ChunkBytes)
		m := &enginev1.ExportSequenceResponse{Chunk: state[:n]}
		if first {
			m.TotalBytes = uint64(len(state))
		}
		if err := stream.Send(m); err != nil {
			return err
		}
		state = state[n:]
	}
	return nil
}

// maxStateBytes bounds what an import may announce; real caches stay far below.
const maxStateBytes = 1 << 40

// ImportSequence takes a state in chunks.
func (s *Server) ImportSequence(stream grpc.ClientStreamingServer[enginev1.ImportSequenceRequest, enginev1.ImportSequenceResponse]) error {
	e, err := as[engine.Sequences](s)
	if err != nil {
		return err
	}
	m, err := stream.Recv()
	if err != nil {
		return err
	}
	id, total := engine.Sequence(m.Sequence), m.TotalBytes
	if total > maxStateBytes {
		return rpcerr.InvalidArgument("total_bytes", "must be at most %d, got %d", uint64(maxStateBytes), total)
	}
	var state []byte
	for {
		if uint64(len(state)+len(m.Chunk)) > total {
			return rpcerr.DamagedState.With("chunk: more than the announced %d bytes", total)
		}
		if state == nil {
			state = make([]byte, 0, min(total, 1<<30)) // an announcement alone shall not cost all memory
		}
		state = append(state, m.Chunk...)
		if err := stream.RecvMsg(m); err == io.EOF {
			break
		} else if err != nil {
			return err
		}
	}
	if uint64(len(state)) != total {
		return rpcerr.DamagedState.With("chunk: %d of the announced %d bytes", len(state), total)
	}
	if err := e.Import(stream.Context(), id, state); err != nil {
		return err
	}
	return stream.SendAndClose(&enginev1.ImportSequenceResponse{})
}

// SetCapture chooses layers.
func (s *Server) SetCapture(ctx context.Context,
	req *enginev1.SetCaptureRequest) (*enginev1.SetCaptureResponse, error) {
	e, err := as[engine.Target](s)
	if err != nil {
		return nil, err
	}
	if err := e.SetCapture(ctx, req.Layers); err != nil {
		return nil, err
	}
	return &enginev1.SetCaptureResponse{Info: infoToProto(e.Info())}, nil
}

// LoadFuse loads fc.
func (s *Server) LoadFuse(ctx context.Context, req *enginev1.LoadFuseRequest) (*enginev1.LoadFuseResponse, error) {
	e, err := as[engine.Target](s)
	if err != nil {
		return nil, err
	}
	if err := e.LoadFuse(ctx, req.Path); err != nil {
		return nil, err
	}
	return &enginev1.LoadFuseResponse{Info: infoToProto(e.Info())}, nil
}

// Fuse fuses features that were computed elsewhere.
func (s *Server) Fuse(ctx context.Context, req *enginev1.FuseRequest) (*enginev1.FuseResponse, error) {
	e, err := as[engine.Target](s)
	if err != nil {
		return nil, err
	}
	fused, err := e.Fuse(ctx, engine.RawFeatures{
		Rows: req.Rows, Kind: engine.GroupKind(req.Kind - 1), Encoding: req.RawEncoding, Data: req.Raw,
	}, req.FusedEncoding)
	return &enginev1.FuseResponse{Fused: fused}, err
}

// progressPause is the least time between two messages of progress.
const progressPause = 50 * time.Millisecond

// Score rates tokens.
func (s *Server) Score(req *enginev1.ScoreRequest, stream grpc.ServerStreamingServer[enginev1.ScoreResponse]) error {
	e, err := as[engine.Scorer](s)
	if err != nil {
		return err
	}
	prompts := make([]engine.Prompt, len(req.Prompts))
	for i, p := range req.Prompts {
		prompts[i] = engine.Prompt{IDs: p.Ids, QueryRows: p.QueryRows}
	}
	var last time.Time
	scores, err := e.Score(stream.Context(), prompts, req.Rotated, func(done, total uint64) {
		if now := time.Now(); now.Sub(last) >= progressPause {
			last = now
			// A client that is gone shows in the context.
			_ = stream.Send(&enginev1.ScoreResponse{Done: done, Total: total})
		}
	})
	if err != nil {
		return err
	}
	m := &enginev1.ScoreResponse{}
	for _, p := range scores {
		m.Prompts = append(m.Prompts, &enginev1.Scores{Scores: p})
	}
	return stream.Send(m)
}
