package responses

import (
	"encoding/json"
	"strings"

	"github.com/tandem-inference/tandem/gateway/internal/apierror"
	"github.com/tandem-inference/tandem/gateway/internal/jsontext"
)

// States of a response and of its items.
const (
	statusInProgress = "in_progress"
	statusCompleted  = "completed"
	statusIncomplete = "incomplete"
	statusFailed     = "failed"
	statusCancelled  = "cancelled"
)

// reasonMaxTokens is why a response is incomplete.
const reasonMaxTokens = "max_output_tokens"

// object is the response as clients see it.
type object struct {
	ID                 string          `json:"id"`
	Object             string          `json:"object"`
	CreatedAt          int64           `json:"created_at"`
	CompletedAt        *int64          `json:"completed_at"`
	Status             string          `json:"status"`
	Background         bool            `json:"background"`
	Error              *failure        `json:"error"`
	IncompleteDetails  *incomplete     `json:"incomplete_details"`
	Instructions       json.RawMessage `json:"instructions"`
	MaxOutputTokens    *int            `json:"max_output_tokens"`
	MaxToolCalls       *int64          `json:"max_tool_calls"`
	Model              string          `json:"model"`
	Output             []any           `json:"output"`
	OutputText         string          `json:"output_text"`
	ParallelToolCalls  bool            `json:"parallel_tool_calls"`
	PreviousResponseID *string         `json:"previous_response_id"`
	PromptCacheKey     *string         `json:"prompt_cache_key,omitempty"`
	Reasoning          reasoningEcho   `json:"reasoning"`
	ServiceTier        string          `json:"service_tier"`
	Store              bool            `json:"store"`
	Temperature        *float64        `json:"temperature"`
	Text               json.RawMessage `json:"text"`
	ToolChoice         json.RawMessage `json:"tool_choice"`
	Tools              json.RawMessage `json:"tools"`
	TopLogprobs        int             `json:"top_logprobs"`
	TopP               *float64        `json:"top_p"`
	Truncation         string          `json:"truncation"`
	Usage              any             `json:"usage"`
	User               *string         `json:"user,omitempty"`
	Metadata           json.RawMessage `json:"metadata"`
	FinishDetails      any             `json:"finish_details,omitempty"`
}

type failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

type incomplete struct {
	Reason string `json:"reason"`
}

type reasoningEcho struct {
	Effort  *string `json:"effort"`
	Summary *string `json:"summary"`
}

// newFailure tells clients why a response failed, in the codes that they act on.
func newFailure(e *apierror.Error) *failure {
	code := e.Code
	switch e.Type {
	case apierror.TypeServer:
		code = "server_error"
	case apierror.TypeRateLimit:
		code = "rate_limit_exceeded"
	}
	return &failure{Code: code, Message: e.Message}
}

// reasoningItem, messageItem, callItem and customItem are the items of an output.
type reasoningItem struct {
	ID        string     `json:"id"`
	Type      string     `json:"type"`
	Status    string     `json:"status"`
	Summary   []textPart `json:"summary"`
	Content   []textPart `json:"content"`
	Encrypted string     `json:"encrypted_content,omitempty"`
}

type messageItem struct {
	ID      string       `json:"id"`
	Type    string       `json:"type"`
	Status  string       `json:"status"`
	Role    string       `json:"role"`
	Content []outputPart `json:"content"`
}

type callItem struct {
	ID        string `json:"id"`
	Type      string `json:"type"`
	Status    string `json:"status"`
	CallID    string `json:"call_id"`
	Name      string `json:"name"`
	Namespace string `json:"namespace,omitempty"`
	Arguments string `json:"arguments"`
}

type customItem struct {
	ID        string `json:"id"`
	Type      string `json:"type"`
	Status    string `json:"status"`
	CallID    string `json:"call_id"`
	Name      string `json:"name"`
	Namespace string `json:"namespace,omitempty"`
	Input     string `json:"input"`
}

// textPart is reasoning_text or summary_text.
type textPart struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// outputPart is output_text.
type outputPart struct {
	Type        string          `json:"type"`
	Text        string          `json:"text"`
	Annotations []any           `json:"annotations"`
	Logprobs    json.RawMessage `json:"logprobs"`
}

// outputText joins the visible text of items.
func outputText(items []any) string {
	var b strings.Builder
	for _, it := range items {
		if m, ok := it.(*messageItem); ok {
			for _, p := range m.Content {
				b.WriteString(p.Text)
			}
		}
	}
	return b.String()
}

// appendJSON appends v, which is of a type of this package and always marshals.
func appendJSON(dst []byte, v any) []byte {
	b, err := jsontext.Marshal(v)
	if err != nil {
		panic(err)
	}
	return append(dst, b...)
}
