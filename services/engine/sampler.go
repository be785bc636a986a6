package engine

import (
	enginev1 "github.com/tandem-inference/tandem/proto/tandem/engine/v1"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/sampling"
)

// Sampler is tnd_sampler. The zero value is not neutral: start from DefaultSampler.
type Sampler struct {
	TopK              int32
	Temperature       float32
	TopP              float32
	MinP              float32
	RepetitionPenalty float32
	FrequencyPenalty  float32
	PresencePenalty   float32
	PenaltyWindow     int32
	PromptTokens      int32
	Seed              uint64
	Choice            int32
	BiasTokens        []int32
	BiasValues        []float32
}

// DefaultSampler holds the declared defaults: argmax with everything off.
func DefaultSampler() Sampler { return SamplerOf(nil) }

// SamplerOf returns the sampler of a request whose fields were checked; nil = all defaults.
func SamplerOf(m *tandemv1.Sampling) Sampler { return SamplerFromProto(sampling.ForEngine(m)) }

// SamplerToProto returns the message that carries s to an engine's process.
func SamplerToProto(s Sampler) *enginev1.Sampler {
	return &enginev1.Sampler{
		TopK: s.TopK, Temperature: s.Temperature, TopP: s.TopP, MinP: s.MinP, RepetitionPenalty: s.RepetitionPenalty,
		FrequencyPenalty: s.FrequencyPenalty, PresencePenalty: s.PresencePenalty, PenaltyWindow: s.PenaltyWindow,
		PromptTokens: s.PromptTokens, Seed: s.Seed, Choice: s.Choice, BiasTokens: s.BiasTokens, BiasValues: s.BiasValues,
	}
}

// SamplerFromProto returns the sampler of such a message; nil = all defaults.
func SamplerFromProto(m *enginev1.Sampler) Sampler {
	if m == nil {
		return DefaultSampler()
	}
	return Sampler{
		TopK: m.TopK, Temperature: m.Temperature, TopP: m.TopP, MinP: m.MinP, RepetitionPenalty: m.RepetitionPenalty,
		FrequencyPenalty: m.FrequencyPenalty, PresencePenalty: m.PresencePenalty, PenaltyWindow: m.PenaltyWindow,
		PromptTokens: m.PromptTokens, Seed: m.Seed, Choice: m.Choice, BiasTokens: m.BiasTokens, BiasValues: m.BiasValues,
	}
}
