package host

import (
	"context"

	enginev1 "github.com/tandem-inference/tandem/proto/tandem/engine/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// maxPartBytes bounds one read of a snapshot: a block of 64 positions in one layer of real models is far smaller.
const maxPartBytes = 16 << 20

// DescribeSnapshot returns a layout.
func (s *Server) DescribeSnapshot(
	ctx context.Context, req *enginev1.DescribeSnapshotRequest,
) (*enginev1.DescribeSnapshotResponse, error) {
	e, err := as[engine.Target](s)
	if err != nil {
		return nil, err
	}
	layout, err := e.DescribeSnapshot(ctx, engine.Snapshot(req.Snapshot))
	if err != nil {
		return nil, err
	}
	return &enginev1.DescribeSnapshotResponse{Layout: layoutToProto(layout)}, nil
}

// ReadSnapshot reads bytes of a snapshot.
func (s *Server) ReadSnapshot(
	ctx context.Context, req *enginev1.ReadSnapshotRequest,
) (*enginev1.ReadSnapshotResponse, error) {
	e, err := as[engine.Target](s)
	if err != nil {
		return nil, err
	}
	if req.Bytes > maxPartBytes {
		return nil, rpcerr.InvalidArgument("bytes", "must be at most %d, got %d", maxPartBytes, req.Bytes)
	}
	data := make([]byte, req.Bytes)
	crc, err := e.ReadSnapshot(ctx, engine.Snapshot(req.Snapshot), part(req), data)
	if err != nil {
		return nil, err
	}
	return &enginev1.ReadSnapshotResponse{Crc: crc, Data: data}, nil
}

// BeginSnapshot makes a snapshot to be written.
func (s *Server) BeginSnapshot(
	ctx context.Context, req *enginev1.BeginSnapshotRequest,
) (*enginev1.BeginSnapshotResponse, error) {
	e, err := as[engine.Target](s)
	if err != nil {
		return nil, err
	}
	id, err := e.BeginSnapshot(ctx, layoutFromProto(req.Layout), engine.Snapshot(req.Base), int(req.SharedPages))
	if err == nil && ctx.Err() != nil {
		return nil, abandon(ctx, func(ctx context.Context) error { return e.FreeSnapshot(ctx, id) })
	}
	return &enginev1.BeginSnapshotResponse{Snapshot: int32(id)}, err
}

// WriteSnapshot writes bytes of a snapshot.
func (s *Server) WriteSnapshot(
	ctx context.Context, req *enginev1.WriteSnapshotRequest,
) (*enginev1.WriteSnapshotResponse, error) {
	e, err := as[engine.Target](s)
	if err != nil {
		return nil, err
	}
	return &enginev1.WriteSnapshotResponse{},
		e.WriteSnapshot(ctx, engine.Snapshot(req.Snapshot), part(req), req.Data, req.Crc)
}

// FinishSnapshot ends the writing.
func (s *Server) FinishSnapshot(
	ctx context.Context, req *enginev1.FinishSnapshotRequest,
) (*enginev1.FinishSnapshotResponse, error) {
	e, err := as[engine.Target](s)
	if err != nil {
		return nil, err
	}
	return &enginev1.FinishSnapshotResponse{}, e.FinishSnapshot(ctx, engine.Snapshot(req.Snapshot))
}

// part is where the bytes of a request lie.
func part(req interface {
	GetPage() int32
	GetOffsetBytes() uint64
}) engine.Part {
	return engine.Part{Page: int(req.GetPage()), Offset: req.GetOffsetBytes()}
}

func layoutToProto(l engine.SnapshotLayout) *enginev1.SnapshotLayout {
	return &enginev1.SnapshotLayout{
		Length: int32(l.Length), Pages: int32(l.Pages), FirstPage: int32(l.FirstPage), Identity: l.Identity,
		KvTypeK: l.KVTypeK, KvTypeV: l.KVTypeV, StateBytes: l.StateBytes, PageBytes: l.PageBytes, BlockBytes: l.BlockBytes,
	}
}

func layoutFromProto(l *enginev1.SnapshotLayout) engine.SnapshotLayout {
	return engine.SnapshotLayout{
		Length: int(l.GetLength()), Pages: int(l.GetPages()), FirstPage: int(l.GetFirstPage()), Identity: l.GetIdentity(),
		KVTypeK: l.GetKvTypeK(), KVTypeV: l.GetKvTypeV(),
		StateBytes: l.GetStateBytes(), PageBytes: l.GetPageBytes(), BlockBytes: l.GetBlockBytes(),
	}
}
