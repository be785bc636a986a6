package engine

import "context"

// DescribeSnapshot implements SnapshotParts.
func (g *GuardedTarget) DescribeSnapshot(ctx context.Context, p Snapshot) (layout SnapshotLayout, err error) {
	err = g.timed(func() error { layout, err = g.target.DescribeSnapshot(ctx, p); return err })
	return layout, err
}

// ReadSnapshot implements SnapshotParts.
func (g *GuardedTarget) ReadSnapshot(ctx context.Context, p Snapshot, at Part, data []byte) (crc uint32, err error) {
	err = g.timed(func() error { crc, err = g.target.ReadSnapshot(ctx, p, at, data); return err })
	return crc, err
}

// BeginSnapshot implements SnapshotParts, like NewSnapshot.
func (g *GuardedTarget) BeginSnapshot(ctx context.Context, layout SnapshotLayout, base Snapshot,
	shared int) (Snapshot, error) {
	return create(ctx, &g.guardedSequences, &g.snapshots, func(ctx context.Context) (Snapshot, error) {
		return g.target.BeginSnapshot(ctx, layout, base, shared)
	})
}

// WriteSnapshot implements SnapshotParts.
func (g *GuardedTarget) WriteSnapshot(ctx context.Context, p Snapshot, at Part, data []byte, crc uint32) error {
	return g.timed(func() error { return g.target.WriteSnapshot(ctx, p, at, data, crc) })
}

// FinishSnapshot implements SnapshotParts.
func (g *GuardedTarget) FinishSnapshot(ctx context.Context, p Snapshot) error {
	return g.timed(func() error { return g.target.FinishSnapshot(ctx, p) })
}
