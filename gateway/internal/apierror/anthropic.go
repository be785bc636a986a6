package apierror

import (
	"fmt"
	"net/http"

	"github.com/tandem-inference/tandem/gateway/internal/jsontext"
)

// statusOverloaded is what Anthropic's API answers when it has no room.
const statusOverloaded = 529

// AnthropicStatus is the status on paths of Anthropic's dialect.
func (e *Error) AnthropicStatus() int {
	if e.Status == http.StatusServiceUnavailable {
		return statusOverloaded
	}
	return e.Status
}

func (e *Error) anthropicType() string {
	switch e.Status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusServiceUnavailable:
		return "overloaded_error"
	case http.StatusGatewayTimeout:
		return "timeout_error"
	}
	if e.Status >= 500 {
		return "api_error"
	}
	return "invalid_request_error"
}

// anthropicMessage has the words that clients of this dialect look for when a prompt is too long.
func (e *Error) anthropicMessage() string {
	switch {
	case e.OutputTokens > 0:
		return fmt.Sprintf("input length and `max_tokens` exceed context limit: %d + %d > %d", e.PromptTokens,
			e.OutputTokens, e.MaxContext)
	case e.MaxContext > 0:
		return fmt.Sprintf("prompt is too long: %d tokens > %d maximum", e.PromptTokens, e.MaxContext)
	}
	return e.Message
}

type anthropicBody struct {
	Type      string         `json:"type"`
	Error     anthropicError `json:"error"`
	RequestID string         `json:"request_id"`
}

type anthropicError struct {
	Type    string `json:"type"`
	Message string `json:"message"`
}

// Anthropic returns the body of the error in Anthropic's shape.
func (e *Error) Anthropic(requestID string) []byte {
	out, err := jsontext.Marshal(anthropicBody{Type: "error", RequestID: requestID,
		Error: anthropicError{Type: e.anthropicType(), Message: e.anthropicMessage()}})
	if err != nil {
		// Strings always marshal.
		panic(err)
	}
	return out
}

// WriteAnthropic answers with the error in Anthropic's shape.
func (e *Error) WriteAnthropic(w http.ResponseWriter, requestID string) {
	e.write(w, e.AnthropicStatus(), e.Anthropic(requestID))
}
