package host

import (
	"context"

	enginev1 "github.com/tandem-inference/tandem/proto/tandem/engine/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// DescribeSnapshot implements engine.SnapshotParts, as do the methods below.
func (c *targetCalls) DescribeSnapshot(ctx context.Context, p engine.Snapshot) (engine.SnapshotLayout, error) {
	m, err := c.client.DescribeSnapshot(ctx, &enginev1.DescribeSnapshotRequest{Snapshot: int32(p)})
	if err != nil {
		return engine.SnapshotLayout{}, c.r.translate(err)
	}
	return layoutFromProto(m.Layout), nil
}

// ReadSnapshot asks for one message of bytes.
func (c *targetCalls) ReadSnapshot(ctx context.Context, p engine.Snapshot, at engine.Part,
	data []byte) (uint32, error) {
	m, err := c.client.ReadSnapshot(ctx, &enginev1.ReadSnapshotRequest{
		Snapshot: int32(p), Page: int32(at.Page), OffsetBytes: at.Offset, Bytes: uint64(len(data)),
	})
	if err != nil {
		return 0, c.r.translate(err)
	}
	if len(m.Data) != len(data) {
		return 0, rpcerr.Internal("the engine sent %d of %d bytes of a snapshot", len(m.Data), len(data))
	}
	copy(data, m.Data)
	return m.Crc, nil
}

// BeginSnapshot makes a snapshot to be written.
func (c *targetCalls) BeginSnapshot(
	ctx context.Context, layout engine.SnapshotLayout, base engine.Snapshot, shared int,
) (engine.Snapshot, error) {
	m, err := c.client.BeginSnapshot(ctx, &enginev1.BeginSnapshotRequest{
		Layout: layoutToProto(layout), Base: int32(base), SharedPages: int32(shared),
	})
	if err != nil {
		return 0, c.r.translate(err)
	}
	return engine.Snapshot(m.Snapshot), nil
}

// WriteSnapshot sends one message of bytes.
func (c *targetCalls) WriteSnapshot(ctx context.Context, p engine.Snapshot, at engine.Part, data []byte,
	crc uint32) error {
	_, err := c.client.WriteSnapshot(ctx, &enginev1.WriteSnapshotRequest{
		Snapshot: int32(p), Page: int32(at.Page), OffsetBytes: at.Offset, Crc: crc, Data: data,
	})
	return c.r.translate(err)
}

// FinishSnapshot ends the writing.
func (c *targetCalls) FinishSnapshot(ctx context.Context, p engine.Snapshot) error {
	_, err := c.client.FinishSnapshot(ctx, &enginev1.FinishSnapshotRequest{Snapshot: int32(p)})
	return c.r.translate(err)
}
