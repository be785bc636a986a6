package engine

import (
	"maps"
	"slices"
	"sync"
)

// Handles are the sequences and snapshots that exist in an engine, ascending.
type Handles struct {
	Sequences []Sequence
	Snapshots []Snapshot
}

// HandleTable is an engine's record of its handles. It is safe for concurrent use; the zero value is empty.
type HandleTable struct {
	mu        sync.Mutex // guards the fields below
	sequences map[Sequence]struct{}
	snapshots map[Snapshot]struct{}
}

// AddSequence records a new sequence.
func (t *HandleTable) AddSequence(s Sequence) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sequences == nil {
		t.sequences = map[Sequence]struct{}{}
	}
	t.sequences[s] = struct{}{}
}

// DropSequence forgets a freed sequence.
func (t *HandleTable) DropSequence(s Sequence) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.sequences, s)
}

// AddSnapshot records a new snapshot.
func (t *HandleTable) AddSnapshot(p Snapshot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.snapshots == nil {
		t.snapshots = map[Snapshot]struct{}{}
	}
	t.snapshots[p] = struct{}{}
}

// DropSnapshot forgets a freed snapshot.
func (t *HandleTable) DropSnapshot(p Snapshot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.snapshots, p)
}

// List returns all handles.
func (t *HandleTable) List() Handles {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Handles{Sequences: slices.Sorted(maps.Keys(t.sequences)), Snapshots: slices.Sorted(maps.Keys(t.snapshots))}
}
