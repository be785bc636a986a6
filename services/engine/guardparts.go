package engine

import "context"

// DescribeSnapshot implements SnapshotParts.
func (g *Guard) DescribeSnapshot(ctx context.Context, p Snapshot) (layout SnapshotLayout, err error) {
	err = g.timed(func() error { layout, err = g.Engine.DescribeSnapshot(ctx, p); return err })
	return layout, err
}

// ReadSnapshot implements SnapshotParts.
func (g *Guard) ReadSnapshot(ctx context.Context, p Snapshot, at Part, data []byte) (crc uint32, err error) {
	err = g.timed(func() error { crc, err = g.Engine.ReadSnapshot(ctx, p, at, data); return err })
	return crc, err
}

// BeginSnapshot implements SnapshotParts, like NewSnapshot.
func (g *Guard) BeginSnapshot(ctx context.Context, layout SnapshotLayout, base Snapshot, shared int) (Snapshot, error) {
	return create(ctx, g, &g.snapshots, func(ctx context.Context) (Snapshot, error) {
		return g.Engine.BeginSnapshot(ctx, layout, base, shared)
	})
}

// WriteSnapshot implements SnapshotParts.
func (g *Guard) WriteSnapshot(ctx context.Context, p Snapshot, at Part, data []byte, crc uint32) error {
	return g.timed(func() error { return g.Engine.WriteSnapshot(ctx, p, at, data, crc) })
}

// FinishSnapshot implements SnapshotParts.
func (g *Guard) FinishSnapshot(ctx context.Context, p Snapshot) error {
	return g.timed(func() error { return g.Engine.FinishSnapshot(ctx, p) })
}
