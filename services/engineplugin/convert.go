package engineplugin

import (
	enginev1 "github.com/tandem-inference/tandem/proto/tandem/engine/v1"
)

// Translation between the domain and the messages of control calls.

func optionsToProto(o OpenOptions) *enginev1.OpenRequest {
	return &enginev1.OpenRequest{
		Role: enginev1.Role(o.Role), ModelPath: o.ModelPath, TablesPath: o.TablesPath, Device: o.Device,
		MemoryCapBytes: o.MemoryCapBytes, Threads: int32(o.Threads), MaxSequences: int32(o.MaxSequences),
		MaxContext: int32(o.MaxContext), MaxTreeRows: int32(o.MaxTreeRows), MaxBatchRows: int32(o.MaxBatchRows),
		KvTypeK: o.KVTypeK, KvTypeV: o.KVTypeV, LayerFirst: int32(o.LayerFirst), LayerLast: int32(o.LayerLast),
		MaxTopK: int32(o.MaxTopK),
	}
}

func optionsFromProto(m *enginev1.OpenRequest) OpenOptions {
	return OpenOptions{
		Role: Role(m.Role), ModelPath: m.ModelPath, TablesPath: m.TablesPath, Device: m.Device,
		MemoryCapBytes: m.MemoryCapBytes, Threads: int(m.Threads), MaxSequences: int(m.MaxSequences),
		MaxContext: int(m.MaxContext), MaxTreeRows: int(m.MaxTreeRows), MaxBatchRows: int(m.MaxBatchRows),
		KVTypeK: m.KvTypeK, KVTypeV: m.KvTypeV, LayerFirst: int(m.LayerFirst), LayerLast: int(m.LayerLast),
		MaxTopK: int(m.MaxTopK),
	}
}

func infoToProto(i Info) *enginev1.Info {
	return &enginev1.Info{
		Role: enginev1.Role(i.Role), Arch: i.Arch, Name: i.Name, Backend: i.Backend, Device: i.Device,
		Layers: int32(i.Layers), LayerFirst: int32(i.LayerFirst), LayerLast: int32(i.LayerLast),
		Hidden: int32(i.Hidden), Vocab: int32(i.Vocab), MaxSequences: int32(i.MaxSequences), MaxContext: int32(i.MaxContext),
		MaxTreeRows: int32(i.MaxTreeRows), MaxBatchRows: int32(i.MaxBatchRows), MaxTopK: int32(i.MaxTopK),
		KvTypeK: i.KVTypeK, KvTypeV: i.KVTypeV, BlockSize: int32(i.BlockSize), MaskToken: i.MaskToken,
		CaptureLayers: i.CaptureLayers, FeatureRaw: int32(i.FeatureRaw), FeatureFused: int32(i.FeatureFused),
		Recurrent: i.Recurrent, KvBytesPerToken: i.KVBytesPerToken, StateBytesPerSequence: i.StateBytesPerSequence,
		Numerics: i.Numerics, PromptRows: int32(i.PromptRows), Concurrent: i.Concurrent,
	}
}

func infoFromProto(m *enginev1.Info) Info {
	if m == nil {
		return Info{}
	}
	return Info{
		Role: Role(m.Role), Arch: m.Arch, Name: m.Name, Backend: m.Backend, Device: m.Device,
		Layers: int(m.Layers), LayerFirst: int(m.LayerFirst), LayerLast: int(m.LayerLast),
		Hidden: int(m.Hidden), Vocab: int(m.Vocab), MaxSequences: int(m.MaxSequences), MaxContext: int(m.MaxContext),
		MaxTreeRows: int(m.MaxTreeRows), MaxBatchRows: int(m.MaxBatchRows), MaxTopK: int(m.MaxTopK),
		KVTypeK: m.KvTypeK, KVTypeV: m.KvTypeV, BlockSize: int(m.BlockSize), MaskToken: m.MaskToken,
		CaptureLayers: m.CaptureLayers, FeatureRaw: int(m.FeatureRaw), FeatureFused: int(m.FeatureFused),
		Recurrent: m.Recurrent, KVBytesPerToken: m.KvBytesPerToken, StateBytesPerSequence: m.StateBytesPerSequence,
		Numerics: m.Numerics, PromptRows: int(m.PromptRows), Concurrent: m.Concurrent,
	}
}

func samplerToProto(s Sampler) *enginev1.Sampler {
	return &enginev1.Sampler{
		TopK: s.TopK, Temperature: s.Temperature, TopP: s.TopP, MinP: s.MinP, RepetitionPenalty: s.RepetitionPenalty,
		FrequencyPenalty: s.FrequencyPenalty, PresencePenalty: s.PresencePenalty, PenaltyWindow: s.PenaltyWindow,
		PromptTokens: s.PromptTokens, Seed: s.Seed, Choice: s.Choice, BiasTokens: s.BiasTokens, BiasValues: s.BiasValues,
	}
}

func samplerFromProto(m *enginev1.Sampler) Sampler {
	if m == nil {
		return DefaultSampler()
	}
	return Sampler{
		TopK: m.TopK, Temperature: m.Temperature, TopP: m.TopP, MinP: m.MinP, RepetitionPenalty: m.RepetitionPenalty,
		FrequencyPenalty: m.FrequencyPenalty, PresencePenalty: m.PresencePenalty, PenaltyWindow: m.PenaltyWindow,
		PromptTokens: m.PromptTokens, Seed: m.Seed, Choice: m.Choice, BiasTokens: m.BiasTokens, BiasValues: m.BiasValues,
	}
}

func statsToProto(stats []Stat) []*enginev1.Stat {
	out := make([]*enginev1.Stat, len(stats))
	for i, s := range stats {
		out[i] = &enginev1.Stat{Name: s.Name, Value: s.Value}
	}
	return out
}

func statsFromProto(stats []*enginev1.Stat) []Stat {
	out := make([]Stat, len(stats))
	for i, s := range stats {
		out[i] = Stat{Name: s.Name, Value: s.Value}
	}
	return out
}
