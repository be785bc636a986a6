// Package client is a small HTTP client of the gateway for tests and measurements. It shares nothing with the gateway's
// own code, so that it judges what is on the wire.
package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Client talks to one gateway.
type Client struct {
	Base string
	HTTP *http.Client
	Key  string // sent with every request unless empty
}

// New makes a client of the gateway at base, for example http://127.0.0.1:8000.
func New(base string) *Client {
	return &Client{Base: strings.TrimRight(base, "/"),
		HTTP: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}}
}

// Speculation is the request field of that name.
type Speculation struct {
	Mode   string `json:"mode"`
	Budget int    `json:"budget,omitempty"`
	Block  int    `json:"block,omitempty"`
}

// Message is a turn of a chat.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Request is a request to /v1/chat/completions (with Messages) or /v1/completions (with Prompt). Fields at zero are
// left out.
type Request struct {
	Messages       []Message       `json:"messages,omitempty"`
	Prompt         any             `json:"prompt,omitempty"` // string or token ids
	MaxTokens      int             `json:"max_tokens,omitempty"`
	Temperature    float64         `json:"temperature,omitempty"`
	TopP           float64         `json:"top_p,omitempty"`
	TopK           int             `json:"top_k,omitempty"`
	RepPenalty     float64         `json:"repetition_penalty,omitempty"`
	Seed           *int64          `json:"seed,omitempty"`
	N              int             `json:"n,omitempty"`
	Stop           []string        `json:"stop,omitempty"`
	Logprobs       any             `json:"logprobs,omitempty"`
	LogitBias      map[string]int  `json:"logit_bias,omitempty"`
	Echo           bool            `json:"echo,omitempty"`
	Speculation    *Speculation    `json:"speculation,omitempty"`
	PFlash         map[string]any  `json:"pflash,omitempty"`
	EnableThinking *bool           `json:"enable_thinking,omitempty"`
	CachePrompt    *bool           `json:"cache_prompt,omitempty"`
	Stream         bool            `json:"stream,omitempty"`
	StreamOptions  map[string]bool `json:"stream_options,omitempty"`
}

// Usage of a reply.
type Usage struct {
	PromptTokens     int      `json:"prompt_tokens"`
	CompletionTokens int      `json:"completion_tokens"`
	TotalTokens      int      `json:"total_tokens"`
	AcceptRate       *float64 `json:"accept_rate"`
	PromptDetails    struct {
		CompressedTokens int `json:"compressed_tokens"`
		CachedTokens     int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	Timings Timings        `json:"timings"`
	PFlash  map[string]any `json:"pflash"`
}

// Timings of a reply, milliseconds.
type Timings struct {
	QueueMs             float64 `json:"queue_ms"`
	CompressMs          float64 `json:"compress_ms"`
	RestoreMs           float64 `json:"restore_ms"`
	PrefillMs           float64 `json:"prefill_ms"`
	TTFTMs              float64 `json:"ttft_ms"`
	DecodeMs            float64 `json:"decode_ms"`
	TotalMs             float64 `json:"total_ms"`
	DecodeTokensPerSec  float64 `json:"decode_tokens_per_sec"`
	PrefillTokensPerSec float64 `json:"prefill_tokens_per_sec"`
	VerifySteps         int     `json:"verify_steps"`
	AcceptLength        float64 `json:"accept_length"`
	DraftedTokens       int     `json:"drafted_tokens"`
	AcceptedTokens      int     `json:"accepted_tokens"`
	LookupDraftedTokens int     `json:"lookup_drafted_tokens"`
	SpeculationDegraded bool    `json:"speculation_degraded"`
}

// Reply is a whole answer, of choice 0 unless Texts is asked.
type Reply struct {
	Text      string
	Reasoning string
	Texts     []string // by choice
	Finish    string
	Usage     Usage
	// Streams only: time to the first text, the longest pause between two events after it, and of the whole call.
	First, Gap, Total time.Duration
	Raw               []byte // body of a reply that was not streamed
}

// StatusError is an answer other than 200.
type StatusError struct {
	Status int
	Body   string
}

func (e *StatusError) Error() string { return fmt.Sprintf("status %d: %s", e.Status, e.Body) }

func path(r Request) string {
	if r.Prompt != nil {
		return "/v1/completions"
	}
	return "/v1/chat/completions"
}

// Do sends the request and waits for the whole answer.
func (c *Client) Do(ctx context.Context, r Request) (Reply, error) {
	r.Stream = false
	start := time.Now()
	var out Reply
	raw, err := c.Post(ctx, path(r), r)
	if err != nil {
		return out, err
	}
	var body struct {
		Choices []struct {
			Text    string
			Message struct {
				Content          string
				ReasoningContent string `json:"reasoning_content"`
			}
			FinishReason string `json:"finish_reason"`
		}
		Usage Usage
	}
	if err := json.Unmarshal(raw, &body); err != nil {
		return out, fmt.Errorf("reply: %w", err)
	}
	if len(body.Choices) == 0 {
		return out, fmt.Errorf("reply without choices: %s", raw)
	}
	for _, choice := range body.Choices {
		out.Texts = append(out.Texts, choice.Text+choice.Message.Content)
	}
	first := body.Choices[0]
	out.Text, out.Reasoning, out.Finish = out.Texts[0], first.Message.ReasoningContent, first.FinishReason
	out.Usage, out.Raw, out.Total = body.Usage, raw, time.Since(start)
	return out, nil
}

// Stream sends the request as a stream. onText, if not nil, sees every piece of visible text as it comes.
func (c *Client) Stream(ctx context.Context, r Request, onText func(string)) (Reply, error) {
	r.Stream, r.StreamOptions = true, map[string]bool{"include_usage": true}
	start := time.Now()
	response, err := c.post(ctx, path(r), r)
	if err != nil {
		return Reply{}, err
	}
	defer response.Body.Close()
	out, err := readEvents(response.Body, start, onText)
	out.Total = time.Since(start)
	return out, err
}

func readEvents(r io.Reader, start time.Time, onText func(string)) (Reply, error) {
	var out Reply
	var text, reasoning strings.Builder
	defer func() { out.Text, out.Reasoning = text.String(), reasoning.String() }()
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 64<<20)
	var last time.Time
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data:")
		if !ok {
			continue
		}
		if data = strings.TrimSpace(data); data == "[DONE]" {
			out.Text, out.Reasoning = text.String(), reasoning.String()
			return out, nil
		}
		var event struct {
			Choices []struct {
				Text  string
				Delta struct {
					Content          string
					ReasoningContent string `json:"reasoning_content"`
				}
				FinishReason string `json:"finish_reason"`
			}
			Usage *Usage
			Error *struct{ Message string }
		}
		if err := json.Unmarshal([]byte(data), &event); err != nil {
			return out, fmt.Errorf("event %q: %w", data, err)
		}
		if event.Error != nil {
			return out, errors.New(event.Error.Message)
		}
		if event.Usage != nil {
			out.Usage = *event.Usage
		}
		for _, choice := range event.Choices {
			piece := choice.Text + choice.Delta.Content
			text.WriteString(piece)
			reasoning.WriteString(choice.Delta.ReasoningContent)
			if choice.FinishReason != "" {
				out.Finish = choice.FinishReason
			}
			if piece == "" && choice.Delta.ReasoningContent == "" {
				continue
			}
			now := time.Now()
			if last.IsZero() {
				out.First = now.Sub(start)
			} else {
				out.Gap = max(out.Gap, now.Sub(last))
			}
			last = now
			if onText != nil && piece != "" {
				onText(piece)
			}
		}
	}
	if err := lines.Err(); err != nil {
		return out, err
	}
	return out, io.ErrUnexpectedEOF
}

// Post sends body as JSON and returns the answer's body; other statuses than 200 are a *StatusError.
func (c *Client) Post(ctx context.Context, path string, body any) ([]byte, error) {
	response, err := c.post(ctx, path, body)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return io.ReadAll(response.Body)
}

func (c *Client) post(ctx context.Context, path string, body any) (*http.Response, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.Base+path, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	if c.Key != "" {
		request.Header.Set("Authorization", "Bearer "+c.Key)
	}
	request.Header.Set("Content-Type", "application/json")
	return c.do(request)
}

// Get returns the body of a GET.
func (c *Client) Get(ctx context.Context, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.Base+path, nil)
	if err != nil {
		return nil, err
	}
	if c.Key != "" {
		request.Header.Set("Authorization", "Bearer "+c.Key)
	}
	response, err := c.do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return io.ReadAll(response.Body)
}

func (c *Client) do(request *http.Request) (*http.Response, error) {
	response, err := c.HTTP.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(response.Body, 1<<16))
		return nil, &StatusError{response.StatusCode, string(text)}
	}
	return response, nil
}

// Worker is an entry of /cluster.
type Worker struct {
	ID, Role, State, Address, Backend, Device, Model string
	Lanes                                            int
	MaxCtx                                           int `json:"max_ctx"`
	LanesBusy                                        int `json:"lanes_busy"`
	Sequences                                        int `json:"engine_sequences"`
	Orphans                                          int `json:"orphaned_sequences"`
	Restarts                                         int `json:"engine_restarts"`
	Speculation                                      *Estimates
	Counters                                         map[string]float64
}

// Estimates are what a target has measured of its steps, in milliseconds by rows.
type Estimates struct {
	StepMS         map[string]float64 `json:"step_ms"`
	PromptMS       map[string]float64 `json:"prompt_ms"`
	PromptBesideMS map[string]float64 `json:"prompt_beside_ms"`
}

// Workers lists the cluster.
func (c *Client) Workers(ctx context.Context) ([]Worker, error) {
	body, err := c.Get(ctx, "/cluster")
	if err != nil {
		return nil, err
	}
	var reply struct{ Workers []Worker }
	if err := json.Unmarshal(body, &reply); err != nil {
		return nil, fmt.Errorf("/cluster: %w", err)
	}
	return reply.Workers, nil
}
