package openai

import (
	"math"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/generate"
)

// Usage is the account in OpenAI's shape, with the project's extensions.
type Usage struct {
	PromptTokens     int               `json:"prompt_tokens"`
	CompletionTokens int               `json:"completion_tokens"`
	TotalTokens      int               `json:"total_tokens"`
	PromptDetails    promptDetails     `json:"prompt_tokens_details"`
	Details          completionDetails `json:"completion_tokens_details"`
	Timings          Timings           `json:"timings"`
	AcceptRate       *float64          `json:"accept_rate"`
	Pflash           *Pflash           `json:"pflash,omitempty"`
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

// Timings are milliseconds with one decimal unless named otherwise.
type Timings struct {
	QueueMS       float64 `json:"queue_ms"`
	CompressMS    float64 `json:"compress_ms"`
	RestoreMS     float64 `json:"restore_ms"`
	PrefillMS     float64 `json:"prefill_ms"`
	TTFTMS        float64 `json:"ttft_ms"`
	DecodeMS      float64 `json:"decode_ms"`
	TotalMS       float64 `json:"total_ms"`
	DecodePerSec  float64 `json:"decode_tokens_per_sec"`
	PrefillPerSec float64 `json:"prefill_tokens_per_sec"`
	VerifySteps   int64   `json:"verify_steps"`
	AcceptLength  float64 `json:"accept_length"`
	Degraded      bool    `json:"speculation_degraded,omitempty"`
}

// Pflash reports prompt compression.
type Pflash struct {
	Applied        bool    `json:"applied"`
	Reason         string  `json:"reason,omitempty"`
	OriginalTokens int     `json:"original_tokens"`
	KeptTokens     int     `json:"kept_tokens"`
	KeepRatio      float64 `json:"keep_ratio"`
	ScoreMS        float64 `json:"score_ms"`
	Segments       int     `json:"segments"`
}

// NewUsage converts an account.
func NewUsage(u *generate.Usage) *Usage {
	out := &Usage{
		PromptTokens: u.PromptTokens, CompletionTokens: u.CompletionTokens, TotalTokens: u.PromptTokens + u.CompletionTokens,
		Details: completionDetails{Reasoning: u.ReasoningTokens, Accepted: u.Accepted, Rejected: max(0, u.Drafted-u.Accepted)},
		Timings: Timings{
			QueueMS: ms(u.Queue), CompressMS: ms(u.Compress), RestoreMS: ms(u.Restore), PrefillMS: ms(u.Prefill), TTFTMS: ms(u.TTFT),
			DecodeMS: ms(u.Decode), TotalMS: ms(u.Total), VerifySteps: u.VerifySteps, Degraded: u.Degraded,
			DecodePerSec: rate(u.CompletionTokens, u.Decode), PrefillPerSec: rate(u.PrefilledTokens(), u.Prefill),
		},
	}
	if u.VerifySteps > 0 {
		out.Timings.AcceptLength = round(float64(u.CompletionTokens)/float64(u.VerifySteps), 3)
	}
	if u.Drafted > 0 {
		r := round(float64(u.Accepted)/float64(u.Drafted), 4)
		out.AcceptRate = &r
	}
	if c := u.Compression; c != nil {
		out.Pflash = &Pflash{Applied: c.Applied, Reason: c.Reason, OriginalTokens: c.OriginalTokens, KeptTokens: c.KeptTokens,
			KeepRatio: c.KeepRatio, ScoreMS: round(c.ScoreMS, 1), Segments: c.Segments}
		if c.Applied {
			out.PromptDetails.Compressed = c.OriginalTokens - c.KeptTokens
		}
	}
	return out
}

func ms(d time.Duration) float64 { return round(float64(d)/float64(time.Millisecond), 1) }

func rate(n int, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return round(float64(n)/d.Seconds(), 1)
}

func round(x float64, digits int) float64 {
	p := math.Pow10(digits)
	return math.Round(x*p) / p
}

// finishDetails of a choice; nil when there is nothing to report.
type finishDetails struct {
	CloseKind      string `json:"close_kind"`
	ThinkingTokens int    `json:"thinking_tokens"`
	ContentTokens  int    `json:"content_tokens"`
	TotalTokens    int    `json:"total_tokens"`
	Clamped        int    `json:"max_tokens_clamped,omitempty"`
}

func newFinishDetails(c *generate.Choice) *finishDetails {
	if c.CloseKind == "" && c.Clamped == 0 {
		return nil
	}
	kind := c.CloseKind
	if kind == "" {
		kind = "none"
	}
	return &finishDetails{CloseKind: kind, ThinkingTokens: c.Tokens.Thinking, ContentTokens: c.Tokens.Total - c.Tokens.Thinking,
		TotalTokens: c.Tokens.Total, Clamped: c.Clamped}
}
