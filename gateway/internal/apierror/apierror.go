// Package apierror is the one place where errors become HTTP answers. Handlers return an *Error, or any error that From can
// read: statuses of workers, domain errors of services/rpcerr, context errors.
package apierror

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/jsontext"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"google.golang.org/grpc/codes"
)

// Types of errors in OpenAI's shape.
const (
	TypeInvalidRequest = "invalid_request_error"
	TypeAuthentication = "authentication_error"
	TypeRateLimit      = "rate_limit_error"
	TypeServer         = "server_error"
)

// StatusClientClosed is what the log says of requests whose client went away; it is never sent.
const StatusClientClosed = 499

// Error is an answer to a request that failed.
type Error struct {
	Status  int
	Type    string
	Code    string
	Param   string // JSON path of the field at fault, empty when there is none
	Message string
	// RetryAfter is sent as Retry-After when not 0.
	RetryAfter time.Duration
	// PromptTokens and MaxContext are set for context_length_exceeded, for dialects with words of their own; OutputTokens too
	// when the prompt alone would fit.
	PromptTokens, OutputTokens, MaxContext int
	cause                                  error
}

// Error implements error.
func (e *Error) Error() string {
	if e.Param != "" {
		return fmt.Sprintf("%s (%s): %s", e.Code, e.Param, e.Message)
	}
	return e.Code + ": " + e.Message
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.cause }

// WithCause returns the error with a cause for the log; its text is not sent.
func (e *Error) WithCause(err error) *Error {
	c := *e
	c.cause = err
	return &c
}

func invalid(code, param, format string, args []any) *Error {
	return &Error{Status: http.StatusBadRequest, Type: TypeInvalidRequest, Code: code, Param: param, Message: fmt.Sprintf(format, args...)}
}

// InvalidJSON: the body is no JSON object.
func InvalidJSON(format string, args ...any) *Error { return invalid("invalid_json", "", format, args) }

// InvalidValue: wrong type or out of range. The message starts with the field's path.
func InvalidValue(param, format string, args ...any) *Error {
	e := invalid("invalid_value", param, format, args)
	e.Message = "'" + param + "' " + e.Message
	return e
}

// Missing: a required field is absent or empty.
func Missing(param string) *Error {
	return invalid("missing_required_parameter", param, "'%s' is required and must not be empty", []any{param})
}

// Unsupported: the feature would change the result and is not there.
func Unsupported(param, format string, args ...any) *Error {
	e := invalid("unsupported_parameter", param, format, args)
	e.Message = "'" + param + "' " + e.Message
	return e
}

// Template: the chat template cannot render the messages.
func Template(err error) *Error {
	return invalid("template_error", "messages", "the chat template cannot render this request: %v", []any{err}).WithCause(err)
}

// ContextLength: the prompt, or with strict context prompt and output, does not fit.
func ContextLength(prompt, output, limit int) *Error {
	e := invalid("context_length_exceeded", "messages",
		"This model's maximum context length is %d tokens. However, the prompt has %d tokens", []any{limit, prompt})
	if output > 0 {
		e.Message += fmt.Sprintf(" and %d tokens were requested for the output", output)
	}
	e.Message += ". Please shorten the prompt."
	e.PromptTokens, e.OutputTokens, e.MaxContext = prompt, output, limit
	return e
}

// ContextLengthAtLeast: the prompt is too long by its length alone; it was not even tokenised.
func ContextLengthAtLeast(least, limit int) *Error {
	e := ContextLength(least, 0, limit)
	e.Message = strings.Replace(e.Message, "the prompt has ", "the prompt has at least ", 1)
	return e
}

// BodiesFull: the bodies of the requests at work have as many bytes as they may.
func BodiesFull(limit int64) *Error {
	return &Error{Status: http.StatusTooManyRequests, Type: TypeRateLimit, Code: "queue_full", RetryAfter: time.Second,
		Message: fmt.Sprintf("bodies of other requests fill the %d MB that are allowed for them, please try again", limit>>20)}
}

// Unauthorized: missing or wrong key.
func Unauthorized() *Error {
	return &Error{Status: http.StatusUnauthorized, Type: TypeAuthentication, Code: "invalid_api_key", Message: "missing or wrong API key"}
}

// ModelNotFound: another model was named and the gateway is strict.
func ModelNotFound(name string) *Error {
	return &Error{Status: http.StatusNotFound, Type: TypeInvalidRequest, Code: "model_not_found", Param: "model",
		Message: fmt.Sprintf("the model %q is not served here", name)}
}

// NotFound: unknown path or id.
func NotFound(what string) *Error {
	return &Error{Status: http.StatusNotFound, Type: TypeInvalidRequest, Code: "not_found", Message: what + " was not found"}
}

// PreviousResponse: the response to continue is not kept, or not any more.
func PreviousResponse(id string) *Error {
	return invalid("previous_response_not_found", "previous_response_id", "the response %q is not kept here (any more)", []any{id})
}

// MethodNotAllowed: known path, wrong method.
func MethodNotAllowed(method, path string) *Error {
	return &Error{Status: http.StatusMethodNotAllowed, Type: TypeInvalidRequest, Code: "method_not_allowed",
		Message: fmt.Sprintf("%s does not support %s", path, method)}
}

// Transport: a limit or a rule of the transport was broken: 403 (origin or host), 408, 413, 414, 415, 431, and 400 for what is no HTTP.
func Transport(status int, format string, args ...any) *Error {
	code := map[int]string{
		http.StatusRequestTimeout:              "request_timeout",
		http.StatusRequestEntityTooLarge:       "payload_too_large",
		http.StatusRequestURITooLong:           "uri_too_long",
		http.StatusRequestHeaderFieldsTooLarge: "headers_too_large",
		http.StatusBadRequest:                  "invalid_http",
		http.StatusUnsupportedMediaType:        "unsupported_encoding",
		http.StatusForbidden:                   "forbidden_origin",
	}[status]
	return &Error{Status: status, Type: TypeInvalidRequest, Code: code, Message: fmt.Sprintf(format, args...)}
}

// QueueFull: too many requests wait.
func QueueFull(limit int) *Error {
	return &Error{Status: http.StatusTooManyRequests, Type: TypeRateLimit, Code: "queue_full", RetryAfter: time.Second,
		Message: fmt.Sprintf("%d requests are waiting already, please try again", limit)}
}

func unavailable(code, msg string, retry time.Duration) *Error {
	return &Error{Status: http.StatusServiceUnavailable, Type: TypeServer, Code: code, Message: msg, RetryAfter: retry}
}

// NoWorker: nobody can serve the request now.
func NoWorker(detail string) *Error { return unavailable("no_worker", detail, 5*time.Second) }

// QueueTimeout: the request waited too long.
func QueueTimeout() *Error {
	return unavailable("queue_timeout", "no worker became free in time", 5*time.Second)
}

// Draining: the gateway shuts down.
func Draining() *Error {
	return unavailable("draining", "the server is shutting down", 5*time.Second)
}

// WorkerFailed: the worker failed and so did the retry.
func WorkerFailed(err error) *Error {
	e := &Error{Status: http.StatusInternalServerError, Type: TypeServer, Code: "worker_failed", Message: "the worker failed while serving this request"}
	return e.WithCause(err)
}

// WorkerInvalid reports that a worker's answer cannot be: field is the field of its message, problem what is wrong with it.
func WorkerInvalid(field, problem string) *Error {
	return &Error{Status: http.StatusBadGateway, Type: TypeServer, Code: "worker_invalid",
		Message: "a worker answered with something that cannot be: " + field + ": " + problem}
}

// Deadline: --request-timeout-s ran out.
func Deadline() *Error {
	return &Error{Status: http.StatusGatewayTimeout, Type: TypeServer, Code: "deadline_exceeded", Message: "the request took longer than the server allows"}
}

// Cancelled: the client is gone; nothing can be sent.
func Cancelled() *Error {
	return &Error{Status: StatusClientClosed, Type: TypeServer, Code: "cancelled", Message: "the client closed the connection"}
}

// Internal: a bug.
func Internal(err error) *Error {
	e := &Error{Status: http.StatusInternalServerError, Type: TypeServer, Code: "internal_error", Message: "internal error"}
	return e.WithCause(err)
}

// From reads any error. nil stays nil.
func From(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	switch {
	case errors.Is(err, context.Canceled):
		return Cancelled().WithCause(err)
	case errors.Is(err, context.DeadlineExceeded):
		return Deadline().WithCause(err)
	}
	re := rpcerr.From(err)
	switch re.Code() {
	case codes.InvalidArgument:
		param := ""
		if v := re.Violations(); len(v) > 0 {
			param = v[0].Field
		}
		return invalid("invalid_value", param, "%s", []any{re.Message()}).WithCause(err)
	case codes.NotFound:
		return NotFound(re.Message()).WithCause(err)
	case codes.Unavailable:
		return NoWorker("no worker can serve the request now").WithCause(err)
	case codes.ResourceExhausted:
		return NoWorker("the workers have no room for the request").WithCause(err)
	}
	return WorkerFailed(err)
}

type openAIBody struct {
	Error openAIError `json:"error"`
}

type openAIError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

// OpenAI returns the body of the error in OpenAI's shape.
func (e *Error) OpenAI() []byte {
	b := openAIBody{openAIError{Message: e.Message, Type: e.Type}}
	if e.Param != "" {
		b.Error.Param = &e.Param
	}
	if e.Code != "" {
		b.Error.Code = &e.Code
	}
	out, err := jsontext.Marshal(b)
	if err != nil {
		// Strings always marshal.
		panic(err)
	}
	return out
}

// Write answers with the error in OpenAI's shape.
func (e *Error) Write(w http.ResponseWriter) { e.write(w, e.Status, e.OpenAI()) }

func (e *Error) write(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	if e.RetryAfter > 0 {
		h.Set("Retry-After", fmt.Sprint(max(1, int(e.RetryAfter.Seconds()))))
	}
	if e.Status == http.StatusRequestTimeout || e.Code == "invalid_http" {
		h.Set("Connection", "close")
	}
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}
