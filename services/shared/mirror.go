package shared

import (
	"context"
	"maps"
	"slices"
)

// Mirror turns what a driver learns of a prefix into the events of a watch. A driver makes one for each watch, calls
// Reset with every full list, the first one included, and Apply with every change that the store tells.
type Mirror struct {
	known  map[string]Version
	synced bool
	out    chan Event
}

// NewMirror returns a mirror that knows nothing.
func NewMirror() *Mirror { return &Mirror{known: map[string]Version{}, out: make(chan Event)} }

// Events is the channel of the watch.
func (m *Mirror) Events() <-chan Event { return m.out }

// Close ends the watch.
func (m *Mirror) Close() { close(m.out) }

// Reset tells what a full list changes; false: ctx ended.
func (m *Mirror) Reset(ctx context.Context, list []Record) bool {
	gone := maps.Clone(m.known)
	for _, r := range list {
		delete(gone, r.Key)
		if !m.Apply(ctx, Event{Kind: Written, Record: r}) {
			return false
		}
	}
	for _, key := range slices.Sorted(maps.Keys(gone)) {
		if !m.Apply(ctx, Event{Kind: Deleted, Record: Record{Key: key}}) {
			return false
		}
	}
	if !m.synced {
		m.synced = true
		return m.send(ctx, Event{Kind: Synced})
	}
	return true
}

// Apply tells a change, unless it is known; false: ctx ended.
func (m *Mirror) Apply(ctx context.Context, e Event) bool {
	was, there := m.known[e.Record.Key]
	switch e.Kind {
	case Written:
		if there && was == e.Record.Version {
			return true
		}
		m.known[e.Record.Key] = e.Record.Version
	case Deleted:
		if !there {
			return true
		}
		delete(m.known, e.Record.Key)
		e.Record = Record{Key: e.Record.Key}
	}
	return m.send(ctx, e)
}

func (m *Mirror) send(ctx context.Context, e Event) bool {
	select {
	case m.out <- e:
		return true
	case <-ctx.Done():
		return false
	}
}
