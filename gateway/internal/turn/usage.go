package turn

import (
	"cmp"
	"math"
	"strings"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/compress"
	"github.com/tandem-inference/tandem/gateway/internal/generate"
)

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
	// Tokens that were proposed and those of them that were right, from any source; then the share of lookup in both.
	Drafted        int64 `json:"drafted_tokens"`
	Accepted       int64 `json:"accepted_tokens"`
	LookupDrafted  int64 `json:"lookup_drafted_tokens"`
	LookupAccepted int64 `json:"lookup_accepted_tokens"`
	Degraded       bool  `json:"speculation_degraded,omitempty"`
}

// NewTimings converts an account.
func NewTimings(u *generate.Usage) Timings {
	t := Timings{
		QueueMS: ms(u.Queue), CompressMS: ms(u.Compress), RestoreMS: ms(u.Restore),
		PrefillMS: ms(u.Prefill), TTFTMS: ms(u.TTFT),
		DecodeMS: ms(u.Decode), TotalMS: ms(u.Total), VerifySteps: u.VerifySteps, Degraded: u.Degraded,
		DecodePerSec: rate(u.CompletionTokens, u.Decode), PrefillPerSec: rate(u.PrefilledTokens(), u.Prefill),
		Drafted: u.Drafted, Accepted: u.Accepted, LookupDrafted: u.LookupDrafted, LookupAccepted: u.LookupAccepted,
	}
	if u.VerifySteps > 0 {
		t.AcceptLength = round(float64(u.CompletionTokens)/float64(u.VerifySteps), 3)
	}
	return t
}

// AcceptRate is accepted over proposed draft tokens, nil when nothing was drafted.
func AcceptRate(u *generate.Usage) *float64 {
	if u.Drafted <= 0 {
		return nil
	}
	r := round(float64(u.Accepted)/float64(u.Drafted), 4)
	return &r
}

// Contract identifies the arithmetic that computed the answer.
type Contract struct {
	// IDs are the contract ids of the workers that computed the choices, with commas between them; nearly always one.
	IDs string `json:"contract,omitempty"`
	// Changes counts moves of a choice to a worker with another id, after which its text may differ from an
	// undisturbed one.
	Changes int `json:"contract_changes,omitempty"`
}

// NewContract converts an account.
func NewContract(u *generate.Usage) Contract {
	return Contract{IDs: strings.Join(u.Contracts, ","), Changes: u.ContractChanges}
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
	// Kept are the parts that were kept, for requests with pflash.spans.
	Kept []compress.KeptMessage `json:"kept_spans,omitempty"`
}

// NewPflash reports compression, nil when it was off.
func NewPflash(u *generate.Usage) *Pflash {
	c := u.Compression
	if c == nil {
		return nil
	}
	return &Pflash{Applied: c.Applied, Reason: c.Reason, OriginalTokens: c.OriginalTokens, KeptTokens: c.KeptTokens,
		KeepRatio: c.KeepRatio, ScoreMS: round(c.ScoreMS, 1), Segments: c.Segments,
		Kept: c.Kept}
}

// FinishDetails of a choice.
type FinishDetails struct {
	CloseKind      string `json:"close_kind"`
	ThinkingTokens int    `json:"thinking_tokens"`
	ContentTokens  int    `json:"content_tokens"`
	TotalTokens    int    `json:"total_tokens"`
	Degenerate     bool   `json:"degenerate_decode,omitempty"`
	Clamped        int    `json:"max_tokens_clamped,omitempty"`
	ToolParseError string `json:"tool_parse_error,omitempty"`
}

// NewFinishDetails returns nil when there is nothing to report: no reasoning, no tools, no special condition.
func NewFinishDetails(c *generate.Choice) *FinishDetails {
	if c.CloseKind == "" && c.Clamped == 0 && !c.Tools && !c.Degenerate {
		return nil
	}
	return &FinishDetails{CloseKind: cmp.Or(c.CloseKind, generate.CloseNone), ThinkingTokens: c.Tokens.Thinking,
		ContentTokens: c.Tokens.Total - c.Tokens.Thinking, TotalTokens: c.Tokens.Total,
		Degenerate: c.Degenerate, Clamped: c.Clamped, ToolParseError: c.ToolParseError}
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
