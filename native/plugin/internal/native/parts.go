package native

import (
	"context"
	"runtime"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// cLayout is tnd_snapshot_layout.
type cLayout struct {
	StructSize uint32 `c:"struct_size"`
	Length     int32  `c:"length"`
	Identity   uint64 `c:"identity"`
	KVTypeK    int32  `c:"kv_type_k"`
	KVTypeV    int32  `c:"kv_type_v"`
	StateBytes uint64 `c:"state_bytes"`
	PageBytes  uint64 `c:"page_bytes"`
	BlockBytes uint64 `c:"block_bytes"`
	Pages      int32  `c:"pages"`
	FirstPage  int32  `c:"first_page"`
}

// DescribeSnapshot implements engine.SnapshotParts, as do the methods below.
func (e *target) DescribeSnapshot(ctx context.Context, p engine.Snapshot) (engine.SnapshotLayout, error) {
	if err := e.enter(ctx); err != nil {
		return engine.SnapshotLayout{}, err
	}
	defer e.leave()
	c := &cLayout{StructSize: uint32(unsafe.Sizeof(cLayout{}))}
	r, _, _ := purego.SyscallN(e.lib.sym.snapshotDescribe, e.handle, uintptr(uint32(p)), uintptr(unsafe.Pointer(c)))
	if err := e.check(ctx, r); err != nil {
		return engine.SnapshotLayout{}, err
	}
	return engine.SnapshotLayout{
		Length: int(c.Length), Pages: int(c.Pages), FirstPage: int(c.FirstPage), Identity: c.Identity,
		KVTypeK: c.KVTypeK, KVTypeV: c.KVTypeV, StateBytes: c.StateBytes, PageBytes: c.PageBytes, BlockBytes: c.BlockBytes,
	}, nil
}

// ReadSnapshot copies bytes out.
func (e *target) ReadSnapshot(
	ctx context.Context, p engine.Snapshot, at engine.Part, data []byte,
) (uint32, error) {
	if len(data) == 0 {
		return 0, rpcerr.InvalidArgument("bytes", "must be at least 1")
	}
	if err := e.enter(ctx); err != nil {
		return 0, err
	}
	defer e.leave()
	crc := new(uint32)
	r, _, _ := purego.SyscallN(e.lib.sym.snapshotRead, e.handle, uintptr(uint32(p)), uintptr(uint32(int32(at.Page))),
		uintptr(at.Offset), uintptr(pointer(data)), uintptr(len(data)), uintptr(unsafe.Pointer(crc)))
	runtime.KeepAlive(data)
	if err := e.check(ctx, r); err != nil {
		return 0, err
	}
	return *crc, nil
}

// BeginSnapshot makes a snapshot to be written.
func (e *target) BeginSnapshot(
	ctx context.Context, l engine.SnapshotLayout, base engine.Snapshot, shared int,
) (engine.Snapshot, error) {
	for name, v := range map[string]int{"length": l.Length, "pages": l.Pages, "first_page": l.FirstPage,
		"shared_pages": shared} {
		if int(int32(v)) != v {
			return 0, rpcerr.InvalidArgument(name, "%d is out of range", v)
		}
	}
	c := &cLayout{
		StructSize: uint32(unsafe.Sizeof(cLayout{})), Length: int32(l.Length), Pages: int32(l.Pages),
		FirstPage: int32(l.FirstPage), Identity: l.Identity, KVTypeK: l.KVTypeK, KVTypeV: l.KVTypeV,
		StateBytes: l.StateBytes, PageBytes: l.PageBytes, BlockBytes: l.BlockBytes,
	}
	if err := e.enter(ctx); err != nil {
		return 0, err
	}
	defer e.leave()
	r, _, _ := purego.SyscallN(e.lib.sym.snapshotBegin, e.handle, uintptr(unsafe.Pointer(c)), uintptr(uint32(base)),
		uintptr(uint32(int32(shared))), uintptr(unsafe.Pointer(&e.out.i32)))
	runtime.KeepAlive(c)
	if err := e.check(ctx, r); err != nil {
		return 0, err
	}
	p := engine.Snapshot(e.out.i32)
	e.handles.AddSnapshot(p)
	return p, nil
}

// WriteSnapshot copies bytes in.
func (e *target) WriteSnapshot(
	ctx context.Context, p engine.Snapshot, at engine.Part, data []byte, crc uint32,
) error {
	if len(data) == 0 {
		return rpcerr.InvalidArgument("bytes", "must be at least 1")
	}
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	r, _, _ := purego.SyscallN(e.lib.sym.snapshotWrite, e.handle, uintptr(uint32(p)), uintptr(uint32(int32(at.Page))),
		uintptr(at.Offset), uintptr(pointer(data)), uintptr(len(data)), uintptr(crc))
	runtime.KeepAlive(data)
	return e.check(ctx, r)
}

// FinishSnapshot ends the writing.
func (e *target) FinishSnapshot(ctx context.Context, p engine.Snapshot) error {
	return e.call(ctx, e.lib.sym.snapshotFinish, int32(p), 0)
}
