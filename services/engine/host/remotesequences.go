package host

import (
	"context"
	"io"

	"google.golang.org/grpc"

	enginev1 "github.com/tandem-inference/tandem/proto/tandem/engine/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/tensorwire"
)

// sequenceCalls are those of SequenceService.
type sequenceCalls struct {
	r      *Remote
	client enginev1.SequenceServiceClient
}

func newSequenceCalls(r *Remote, conn grpc.ClientConnInterface) sequenceCalls {
	return sequenceCalls{r, enginev1.NewSequenceServiceClient(conn)}
}

// NewSequence implements Sequences.
func (c *sequenceCalls) NewSequence(ctx context.Context) (engine.Sequence, error) {
	m, err := c.client.CreateSequence(ctx, &enginev1.CreateSequenceRequest{})
	if err != nil {
		return 0, c.r.translate(err)
	}
	return engine.Sequence(m.Sequence), nil
}

// Fork implements Sequences.
func (c *sequenceCalls) Fork(ctx context.Context, s engine.Sequence) (engine.Sequence, error) {
	m, err := c.client.ForkSequence(ctx, &enginev1.ForkSequenceRequest{Sequence: int32(s)})
	if err != nil {
		return 0, c.r.translate(err)
	}
	return engine.Sequence(m.Sequence), nil
}

// FreeSequence implements Sequences.
func (c *sequenceCalls) FreeSequence(ctx context.Context, s engine.Sequence) error {
	_, err := c.client.FreeSequence(ctx, &enginev1.FreeSequenceRequest{Sequence: int32(s)})
	return c.r.translate(err)
}

// SequenceLength implements Sequences.
func (c *sequenceCalls) SequenceLength(ctx context.Context, s engine.Sequence) (int, error) {
	m, err := c.client.GetSequenceLength(ctx, &enginev1.GetSequenceLengthRequest{Sequence: int32(s)})
	if err != nil {
		return 0, c.r.translate(err)
	}
	return int(m.Length), nil
}

// Truncate implements Sequences.
func (c *sequenceCalls) Truncate(ctx context.Context, s engine.Sequence, length int) error {
	_, err := c.client.TruncateSequence(ctx, &enginev1.TruncateSequenceRequest{Sequence: int32(s), Length: int32(length)})
	return c.r.translate(err)
}

// NewSnapshot implements Sequences.
func (c *sequenceCalls) NewSnapshot(ctx context.Context, s engine.Sequence) (engine.Snapshot, error) {
	m, err := c.client.CreateSnapshot(ctx, &enginev1.CreateSnapshotRequest{Sequence: int32(s)})
	if err != nil {
		return 0, c.r.translate(err)
	}
	return engine.Snapshot(m.Snapshot), nil
}

// RestoreSnapshot implements Sequences.
func (c *sequenceCalls) RestoreSnapshot(ctx context.Context, p engine.Snapshot, s engine.Sequence) error {
	_, err := c.client.RestoreSnapshot(ctx, &enginev1.RestoreSnapshotRequest{Snapshot: int32(p), Sequence: int32(s)})
	return c.r.translate(err)
}

// DemoteSnapshot implements Sequences.
func (c *sequenceCalls) DemoteSnapshot(ctx context.Context, p engine.Snapshot) error {
	_, err := c.client.DemoteSnapshot(ctx, &enginev1.DemoteSnapshotRequest{Snapshot: int32(p)})
	return c.r.translate(err)
}

// FreeSnapshot implements Sequences.
func (c *sequenceCalls) FreeSnapshot(ctx context.Context, p engine.Snapshot) error {
	_, err := c.client.FreeSnapshot(ctx, &enginev1.FreeSnapshotRequest{Snapshot: int32(p)})
	return c.r.translate(err)
}

// Export implements Sequences.
func (c *sequenceCalls) Export(ctx context.Context, s engine.Sequence) ([]byte, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // frees the stream when we leave before its end
	stream, err := c.client.ExportSequence(ctx, &enginev1.ExportSequenceRequest{Sequence: int32(s)})
	if err != nil {
		return nil, c.r.translate(err)
	}
	var m enginev1.ExportSequenceResponse
	if err := stream.RecvMsg(&m); err != nil {
		return nil, c.r.translate(err)
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
			return nil, c.r.translate(err)
		}
	}
	if uint64(len(state)) != total {
		return nil, rpcerr.Internal("the engine sent %d of the announced %d bytes", len(state), total)
	}
	return state, nil
}

// Import implements Sequences.
func (c *sequenceCalls) Import(ctx context.Context, s engine.Sequence, state []byte) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.client.ImportSequence(ctx)
	if err != nil {
		return c.r.translate(err)
	}
	rest := state
	for first := true; first || len(rest) > 0; first = false {
		n := min(len(rest), tensorwire.ChunkBytes)
		m := &enginev1.ImportSequenceRequest{Chunk: rest[:n]}
		if first {
			m.Sequence, m.TotalBytes = int32(s), uint64(len(state))
		}
		if err := stream.Send(m); err == io.EOF {
			break // the engine has refused: CloseAndRecv says why
		} else if err != nil {
			return c.r.translate(err)
		}
		rest = rest[n:]
	}
	_, err = stream.CloseAndRecv()
	return c.r.translate(err)
}
