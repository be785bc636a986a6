package cli

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
)

// chatClient streams chat completions from a gateway.
type chatClient struct {
	http   *http.Client
	base   string
	apiKey string
}

type chatMessage struct {
	Role      string `json:"role"`
	Content   string `json:"content"`
	Reasoning string `json:"reasoning_content,omitempty"`
}

// chatRequest is the part of the chat completions request that the terminal chat uses.
type chatRequest struct {
	Model          string           `json:"model,omitempty"`
	Messages       []chatMessage    `json:"messages"`
	Stream         bool             `json:"stream"`
	StreamOptions  map[string]bool  `json:"stream_options,omitempty"`
	MaxTokens      int              `json:"max_tokens,omitempty"`
	Temperature    *float64         `json:"temperature,omitempty"`
	TopP           *float64         `json:"top_p,omitempty"`
	TopK           *int64           `json:"top_k,omitempty"`
	Seed           *int64           `json:"seed,omitempty"`
	EnableThinking *bool            `json:"enable_thinking,omitempty"`
	Speculation    *speculationJSON `json:"speculation,omitempty"`
}

type speculationJSON struct {
	Mode   string `json:"mode"`
	Budget int    `json:"budget,omitempty"`
}

// chatUsage is what the last event of a stream tells.
type chatUsage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	PromptDetails    struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	Timings struct {
		TotalMillis    float64 `json:"total_ms"`
		VerifySteps    int64   `json:"verify_steps"`
		TTFTMillis     float64 `json:"ttft_ms"`
		TokensPerSec   float64 `json:"decode_tokens_per_sec"`
		AcceptLength   float64 `json:"accept_length"`
		Drafted        int64   `json:"drafted_tokens"`
		Accepted       int64   `json:"accepted_tokens"`
		LookupDrafted  int64   `json:"lookup_drafted_tokens"`
		LookupAccepted int64   `json:"lookup_accepted_tokens"`
	} `json:"timings"`
}

// answer is a whole reply.
type answer struct {
	text, reasoning, finish string
	usage                   *chatUsage
	// id of the request, for tandem trace and logs.
	id string
}

// stream sends the request and calls onText for every piece of visible text and of reasoning. When ctx ends it returns
// what has come so far with the context's error.
func (c *chatClient) stream(ctx context.Context, request chatRequest,
	onText func(text string, reasoning bool)) (answer, error) {
	request.Stream, request.StreamOptions = true, map[string]bool{"include_usage": true}
	body, err := json.Marshal(request)
	if err != nil {
		return answer{}, err
	}
	post, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	post.Header.Set("Content-Type", "application/json")
	if c.apiKey != "" {
		post.Header.Set("Authorization", "Bearer "+c.apiKey)
	}
	response, err := c.http.Do(post)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return answer{}, httpError(response)
	}
	a, err := readStream(response.Body, onText)
	a.id = response.Header.Get("X-Request-Id")
	return a, err
}

// httpError reads the error body of a failed request.
func httpError(response *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	var reply struct {
		Error struct{ Message string }
	}
	if json.Unmarshal(body, &reply) == nil && reply.Error.Message != "" {
		return fmt.Errorf("the gateway answers %d: %s", response.StatusCode, reply.Error.Message)
	}
	return fmt.Errorf("the gateway answers %s", response.Status)
}

// readStream reads the server-sent events of a chat completion up to [DONE].
func readStream(r io.Reader, onText func(string, bool)) (answer, error) {
	var a answer
	var text, reasoning strings.Builder
	finish := func(err error) (answer, error) {
		a.text, a.reasoning = text.String(), reasoning.String()
		return a, err
	}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		data, isData := strings.CutPrefix(lines.Text(), "data:")
		if !isData {
			continue
		}
		if data = strings.TrimSpace(data); data == "[DONE]" {
			return finish(nil)
		}
		var event struct {
			Choices []struct {
				Delta struct {
					Content          string
					ReasoningContent string `json:"reasoning_content"`
				}
				FinishReason string `json:"finish_reason"`
			}
			Usage *chatUsage
			Error *struct{ Message string }
		}
		if err := json.Unmarshal([]byte(data), &event); err != nil {
			return finish(fmt.Errorf("event of the stream: %w", err))
		}
		if event.Error != nil {
			return finish(errors.New(event.Error.Message))
		}
		if event.Usage != nil {
			a.usage = event.Usage
		}
		for _, choice := range event.Choices {
			if piece := choice.Delta.ReasoningContent; piece != "" {
				reasoning.WriteString(piece)
				onText(piece, true)
			}
			if piece := choice.Delta.Content; piece != "" {
				text.WriteString(piece)
				onText(piece, false)
			}
			if choice.FinishReason != "" {
				a.finish = choice.FinishReason
			}
		}
	}
	if err := lines.Err(); err != nil {
		return finish(err)
	}
	return finish(errors.New("the stream ended early"))
}

// modelName is the name of the served model, empty when it cannot be found out.
func (c *chatClient) modelName(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	_, body, err := get(ctx, c.http, c.base+"/v1/models", c.apiKey, mostPage)
	if err != nil {
		return ""
	}
	var reply struct{ Data []struct{ ID string } }
	if json.Unmarshal(body, &reply) != nil || len(reply.Data) == 0 {
		return ""
	}
	return reply.Data[0].ID
}
