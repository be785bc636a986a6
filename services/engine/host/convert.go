package host

import (
	enginev1 "github.com/tandem-inference/tandem/proto/tandem/engine/v1"
	"github.com/tandem-inference/tandem/services/engine"
)

// Translation between the domain and the messages of control calls.

func optionsToProto(role engine.Role, o engine.OpenOptions) *enginev1.OpenRequest {
	return &enginev1.OpenRequest{
		Role: enginev1.Role(role), ModelPath: o.ModelPath, TablesPath: o.TablesPath, Device: o.Device,
		MemoryCapBytes: o.MemoryCapBytes, Threads: int32(o.Threads), MaxSequences: int32(o.MaxSequences),
		MaxContext: int32(o.MaxContext), MaxTreeRows: int32(o.MaxTreeRows), MaxBatchRows: int32(o.MaxBatchRows),
		KvTypeK: o.KVTypeK, KvTypeV: o.KVTypeV, LayerFirst: int32(o.LayerFirst), LayerLast: int32(o.LayerLast),
		MaxTopK: int32(o.MaxTopK), KvPositions: int32(o.KVPositions), HostCapBytes: o.HostCapBytes,
		AttentionWindow: int32(o.AttentionWindow),
	}
}

func optionsFromProto(m *enginev1.OpenRequest) engine.OpenOptions {
	return engine.OpenOptions{
		ModelPath: m.ModelPath, TablesPath: m.TablesPath, Device: m.Device,
		MemoryCapBytes: m.MemoryCapBytes, Threads: int(m.Threads), MaxSequences: int(m.MaxSequences),
		MaxContext: int(m.MaxContext), MaxTreeRows: int(m.MaxTreeRows), MaxBatchRows: int(m.MaxBatchRows),
		KVTypeK: m.KvTypeK, KVTypeV: m.KvTypeV, LayerFirst: int(m.LayerFirst), LayerLast: int(m.LayerLast),
		MaxTopK: int(m.MaxTopK), KVPositions: int(m.KvPositions), HostCapBytes: m.HostCapBytes,
		AttentionWindow: int(m.AttentionWindow),
	}
}

func infoToProto(i engine.Info) *enginev1.Info {
	return &enginev1.Info{
		Role: enginev1.Role(i.Role), Arch: i.Arch, Name: i.Name, Backend: i.Backend, Device: i.Device,
		Layers: int32(i.Layers), LayerFirst: int32(i.LayerFirst), LayerLast: int32(i.LayerLast),
		Hidden: int32(i.Hidden), Vocab: int32(i.Vocab), MaxSequences: int32(i.MaxSequences), MaxContext: int32(i.MaxContext),
		MaxTreeRows: int32(i.MaxTreeRows), MaxBatchRows: int32(i.MaxBatchRows), MaxTopK: int32(i.MaxTopK),
		KvTypeK: i.KVTypeK, KvTypeV: i.KVTypeV, BlockSize: int32(i.BlockSize), MaskToken: i.MaskToken,
		CaptureLayers: i.CaptureLayers, FeatureRaw: int32(i.FeatureRaw), FeatureFused: int32(i.FeatureFused),
		Recurrent: i.Recurrent, KvBytesPerToken: i.KVBytesPerToken, StateBytesPerSequence: i.StateBytesPerSequence,
		Numerics: i.Numerics, PromptRows: int32(i.PromptRows), Concurrent: i.Concurrent,
		KvPositions: int32(i.KVPositions), KvPage: int32(i.KVPage), FuseRaw: int32(i.FuseRaw),
	}
}

func infoFromProto(m *enginev1.Info) engine.Info {
	if m == nil {
		return engine.Info{}
	}
	return engine.Info{
		Role: engine.Role(m.Role), Arch: m.Arch, Name: m.Name, Backend: m.Backend, Device: m.Device,
		Layers: int(m.Layers), LayerFirst: int(m.LayerFirst), LayerLast: int(m.LayerLast),
		Hidden: int(m.Hidden), Vocab: int(m.Vocab), MaxSequences: int(m.MaxSequences), MaxContext: int(m.MaxContext),
		MaxTreeRows: int(m.MaxTreeRows), MaxBatchRows: int(m.MaxBatchRows), MaxTopK: int(m.MaxTopK),
		KVTypeK: m.KvTypeK, KVTypeV: m.KvTypeV, BlockSize: int(m.BlockSize), MaskToken: m.MaskToken,
		CaptureLayers: m.CaptureLayers, FeatureRaw: int(m.FeatureRaw), FeatureFused: int(m.FeatureFused),
		Recurrent: m.Recurrent, KVBytesPerToken: m.KvBytesPerToken, StateBytesPerSequence: m.StateBytesPerSequence,
		Numerics: m.Numerics, PromptRows: int(m.PromptRows), Concurrent: m.Concurrent,
		KVPositions: int(m.KvPositions), KVPage: int(m.KvPage), FuseRaw: int(m.FuseRaw),
	}
}

func statsToProto(stats []engine.Stat) []*enginev1.Stat {
	out := make([]*enginev1.Stat, len(stats))
	for i, s := range stats {
		out[i] = &enginev1.Stat{Name: s.Name, Value: s.Value}
	}
	return out
}

func statsFromProto(stats []*enginev1.Stat) []engine.Stat {
	out := make([]engine.Stat, len(stats))
	for i, s := range stats {
		out[i] = engine.Stat{Name: s.Name, Value: s.Value}
	}
	return out
}

func handlesToProto(h engine.Handles) *enginev1.ListHandlesResponse {
	m := &enginev1.ListHandlesResponse{}
	for _, s := range h.Sequences {
		m.Sequences = append(m.Sequences, int32(s))
	}
	for _, p := range h.Snapshots {
		m.Snapshots = append(m.Snapshots, int32(p))
	}
	return m
}

func handlesFromProto(m *enginev1.ListHandlesResponse) engine.Handles {
	var h engine.Handles
	for _, s := range m.Sequences {
		h.Sequences = append(h.Sequences, engine.Sequence(s))
	}
	for _, p := range m.Snapshots {
		h.Snapshots = append(h.Snapshots, engine.Snapshot(p))
	}
	return h
}
