package host

import (
	"context"

	enginev1 "github.com/tandem-inference/tandem/proto/tandem/engine/v1"
	"github.com/tandem-inference/tandem/services/engine"
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
