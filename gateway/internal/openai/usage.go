package openai

import (
	"github.com/tandem-inference/tandem/gateway/internal/generate"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
)

// Usage is the account in OpenAI's shape, with the project's extensions.
type Usage struct {
	PromptTokens     int               `json:"prompt_tokens"`
	CompletionTokens int               `json:"completion_tokens"`
	TotalTokens      int               `json:"total_tokens"`
	PromptDetails    promptDetails     `json:"prompt_tokens_details"`
	Details          completionDetails `json:"completion_tokens_details"`
	Timings          turn.Timings      `json:"timings"`
	AcceptRate       *float64          `json:"accept_rate"`
	Pflash           *turn.Pflash      `json:"pflash,omitempty"`
	turn.Contract
}

type promptDetails struct {
	Cached     int `json:"cached_tokens"`
	Compressed int `json:"compressed_tokens"`
}

type completionDetails struct {
	Reasoning int   `json:"reasoning_tokens"`
	Accepted  int64 `json:"accepted_prediction_tokens"`
	Rejected  int64 `json:"rejected_prediction_tokens"`
}

// NewUsage converts an account.
func NewUsage(u *generate.Usage) *Usage {
	out := &Usage{
		PromptTokens: u.PromptTokens, CompletionTokens: u.CompletionTokens, TotalTokens: u.PromptTokens + u.CompletionTokens,
		PromptDetails: promptDetails{Cached: u.CachedTokens},
		Details: completionDetails{Reasoning: u.ReasoningTokens, Accepted: u.Accepted,
			Rejected: max(0, u.Drafted-u.Accepted)},
		Timings: turn.NewTimings(u), AcceptRate: turn.AcceptRate(u), Pflash: turn.NewPflash(u),
		Contract: turn.NewContract(u),
	}
	if c := u.Compression; c != nil && c.Applied {
		out.PromptDetails.Compressed = c.OriginalTokens - c.KeptTokens
	}
	return out
}
