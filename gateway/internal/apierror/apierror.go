// Package apierror is the one place where errors become HTTP answers. Handlers return the errors of package reqerr,
// which From reads by one table, or an *Error for what only HTTP has. No package below the HTTP border uses this one.
package apierror

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/jsontext"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/services/rpcerr"
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
	// PromptTokens and MaxContext are set for context_length_exceeded, for dialects with words of their own; OutputTokens
	// too when the prompt alone would fit.
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

// row is what HTTP makes of the errors of one kind.
type row struct {
	status int
	kind   string // Error.Type
	code   string
	param  string // Error.Param, empty = the field that the error names
}

// rows is the one table from the reasons of package reqerr to answers.
var rows = map[string]row{
	reqerr.ReasonInvalidJSON:      {400, TypeInvalidRequest, "invalid_json", ""},
	reqerr.ReasonInvalid:          {400, TypeInvalidRequest, "invalid_value", ""},
	reqerr.ReasonMissing:          {400, TypeInvalidRequest, "missing_required_parameter", ""},
	reqerr.ReasonUnsupported:      {400, TypeInvalidRequest, "unsupported_parameter", ""},
	reqerr.ReasonTemplate:         {400, TypeInvalidRequest, "template_error", ""},
	rpcerr.ContextLength.Reason(): {400, TypeInvalidRequest, "context_length_exceeded", "messages"},
	rpcerr.UnknownModel.Reason():  {404, TypeInvalidRequest, "model_not_found", "model"},
	reqerr.ReasonNotFound:         {404, TypeInvalidRequest, "not_found", ""},
	reqerr.ReasonBodyTooLarge:     {413, TypeInvalidRequest, "payload_too_large", ""},
	rpcerr.QueueFull.Reason():     {429, TypeRateLimit, "queue_full", ""},
	reqerr.ReasonCancelled:        {StatusClientClosed, TypeServer, "cancelled", ""},
	reqerr.ReasonInternal:         {500, TypeServer, "internal_error", ""},
	reqerr.ReasonWorkerFailed:     {500, TypeServer, "worker_failed", ""},
	reqerr.ReasonWorkerInvalid:    {502, TypeServer, "worker_invalid", ""},
	rpcerr.NoWorker.Reason():      {503, TypeServer, "no_worker", ""},
	reqerr.ReasonQueueTimeout:     {503, TypeServer, "queue_timeout", ""},
	rpcerr.Draining.Reason():      {503, TypeServer, "draining", ""},
	reqerr.ReasonDeadline:         {504, TypeServer, "deadline_exceeded", ""},
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
	re := reqerr.From(err)
	r, ok := rows[re.Reason()]
	if !ok {
		// An error of another vocabulary: that of a worker or of a library.
		re = reqerr.OfWorker(err)
		r = rows[re.Reason()]
	}
	e = &Error{Status: r.status, Type: r.kind, Code: r.code, Param: r.param, Message: re.Message(),
		RetryAfter: re.RetryAfter(), cause: re.Unwrap()}
	if v := re.Violations(); len(v) > 0 {
		e.Param, e.Message = cmp.Or(r.param, v[0].Field), v[0].Message
	}
	if length, ok := e.cause.(*reqerr.Length); ok {
		e.PromptTokens, e.OutputTokens, e.MaxContext, e.cause = length.Prompt, length.Output, length.Limit, nil
	}
	return e
}

// Unauthorized: missing or wrong key.
func Unauthorized() *Error {
	return &Error{Status: http.StatusUnauthorized, Type: TypeAuthentication, Code: "invalid_api_key",
		Message: "missing or wrong API key"}
}

// NotTrusted: the key may not tell workers what to do.
func NotTrusted() *Error {
	return &Error{Status: http.StatusForbidden, Type: TypeAuthentication, Code: "key_not_trusted",
		Message: "only a trusted key may do that: a line NAME,trusted:KEY of --api-key-file"}
}

// NotFound: unknown path or id.
func NotFound(what string) *Error {
	return &Error{Status: http.StatusNotFound, Type: TypeInvalidRequest, Code: "not_found",
		Message: what + " was not found"}
}

// PreviousResponse: the response to continue is not kept, or not any more.
func PreviousResponse(id string) *Error {
	return &Error{Status: http.StatusBadRequest, Type: TypeInvalidRequest, Code: "previous_response_not_found",
		Param: "previous_response_id", Message: fmt.Sprintf("the response %q is not kept here (any more)", id)}
}

// StoreAway: what was asked for may be kept by the store that the gateways share, which does not answer.
func StoreAway(cause error) *Error {
	return &Error{Status: http.StatusServiceUnavailable, Type: TypeServer, Code: "store_unavailable",
		Message: "the store that the gateways share does not answer", RetryAfter: storeRetry, cause: cause}
}

// storeRetry is when a store that does not answer may be asked again.
const storeRetry = 2 * time.Second

// MethodNotAllowed: known path, wrong method.
func MethodNotAllowed(method, path string) *Error {
	return &Error{Status: http.StatusMethodNotAllowed, Type: TypeInvalidRequest, Code: "method_not_allowed",
		Message: fmt.Sprintf("%s does not support %s", path, method)}
}

// Transport: a limit or a rule of the transport was broken: 403 (origin or host), 408, 413, 414, 415, 431, and 400 for
// what is no HTTP.
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
