package apierror

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
)

func TestAnthropic(t *testing.T) {
	for name, tt := range map[string]struct {
		err     *Error
		status  int
		kind    string
		message string // empty = the error's own
	}{
		"value": {From(reqerr.InvalidValue("a[0]", "is odd")), 400, "invalid_request_error", ""},
		"long prompt": {From(reqerr.ContextLength(900, 0, 512)), 400, "invalid_request_error",
			"prompt is too long: 900 tokens > 512 maximum"},
		"strict": {From(reqerr.ContextLength(400, 200, 512)), 400, "invalid_request_error",
			"input length and `max_tokens` exceed context limit: 400 + 200 > 512"},
		"key":           {Unauthorized(), 401, "authentication_error", ""},
		"model":         {From(reqerr.UnknownModel("x")), 404, "not_found_error", ""},
		"method":        {MethodNotAllowed("PUT", "/"), 405, "invalid_request_error", ""},
		"slow":          {Transport(408, "slow"), 408, "invalid_request_error", ""},
		"body":          {Transport(413, "large"), 413, "request_too_large", ""},
		"queue":         {From(reqerr.QueueFull(1)), 429, "rate_limit_error", ""},
		"worker failed": {From(reqerr.WorkerFailed(errors.New("secret"))), 500, "api_error", ""},
		"no worker":     {From(reqerr.NoWorker("none")), 529, "overloaded_error", ""},
		"draining":      {From(reqerr.Draining()), 529, "overloaded_error", ""},
		"deadline":      {From(reqerr.Deadline()), 504, "timeout_error", ""},
	} {
		if tt.message == "" {
			tt.message = tt.err.Message
		}
		var got anthropicBody
		if err := json.Unmarshal(tt.err.Anthropic("req-1"), &got); err != nil {
			t.Fatal(name, err)
		}
		want := anthropicBody{Type: "error", RequestID: "req-1", Error: anthropicError{tt.kind, tt.message}}
		if got != want || tt.err.AnthropicStatus() != tt.status {
			t.Errorf("%s: %d %+v, want %d %+v", name, tt.err.AnthropicStatus(), got, tt.status, want)
		}
	}
}
