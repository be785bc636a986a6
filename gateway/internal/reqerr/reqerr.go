// Package reqerr makes the errors with which the gateway's core refuses or gives up a request. Each is a *rpcerr.Error:
// a code, a reason, a text, and where it helps the field at fault and a time to retry. The core knows no other kind of
// error; the borders turn it into answers: package apierror for HTTP, package grpcapi for gRPC.
package reqerr

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tandem-inference/tandem/services/rpcerr"
	"google.golang.org/grpc/codes"
)

// Reasons that rpcerr's table lacks. Only HTTP shows them; gRPC shows what it had before: the code's own reason, or
// NO_WORKER for ReasonQueueTimeout.
const (
	ReasonInvalidJSON   = "INVALID_JSON"
	ReasonInvalid       = "INVALID_ARGUMENT"
	ReasonMissing       = "MISSING_REQUIRED_PARAMETER"
	ReasonUnsupported   = "UNSUPPORTED_PARAMETER"
	ReasonTemplate      = "TEMPLATE_ERROR"
	ReasonNotFound      = "NOT_FOUND"
	ReasonQueueTimeout  = "QUEUE_TIMEOUT"
	ReasonWorkerFailed  = "WORKER_FAILED"
	ReasonWorkerInvalid = "WORKER_INVALID"
	ReasonDeadline      = "DEADLINE_EXCEEDED"
	ReasonCancelled     = "CANCELLED"
	ReasonInternal      = "INTERNAL_ERROR"
	ReasonBodyTooLarge  = "BODY_TOO_LARGE"
)

// When clients may try again what failed for want of room, and for want of a worker.
const (
	retryRoom   = time.Second
	retryWorker = 5 * time.Second
)

// invalid is an error in the request; field is a path in it, empty when none is at fault.
func invalid(reason, field, format string, args ...any) *rpcerr.Error {
	m := fmt.Sprintf(format, args...)
	if field == "" {
		return rpcerr.New(codes.InvalidArgument, reason, m)
	}
	return rpcerr.New(codes.InvalidArgument, reason, field+": "+m).WithViolation(field, m)
}

// InvalidJSON reports a body that is no JSON object.
func InvalidJSON(format string, args ...any) *rpcerr.Error {
	return invalid(ReasonInvalidJSON, "", format, args...)
}

// InvalidValue reports a value of a wrong type or out of range. The text of the violation starts with the field's path.
func InvalidValue(field, format string, args ...any) *rpcerr.Error {
	return invalid(ReasonInvalid, field, "'%s' %s", field, fmt.Sprintf(format, args...))
}

// Missing reports a required field that is absent or empty.
func Missing(field string) *rpcerr.Error {
	return invalid(ReasonMissing, field, "'%s' is required and must not be empty", field)
}

// Unsupported reports a feature that would change the result and is not there.
func Unsupported(field, format string, args ...any) *rpcerr.Error {
	return invalid(ReasonUnsupported, field, "'%s' %s", field, fmt.Sprintf(format, args...))
}

// Template reports messages that the chat template cannot render.
func Template(err error) *rpcerr.Error {
	return invalid(ReasonTemplate, "messages", "the chat template cannot render this request: %v", err).WithCause(err)
}

// Length is the cause of a ContextLength: sizes in tokens, for dialects with words of their own.
type Length struct {
	// Prompt is the prompt's length; Output is what was requested besides, 0 when the prompt alone does not fit.
	Prompt, Output int
	// Limit is the longest context.
	Limit int
}

// Error implements error.
func (l *Length) Error() string {
	return fmt.Sprintf("%d prompt + %d output > %d tokens", l.Prompt, l.Output, l.Limit)
}

// ContextLength reports a prompt of that many tokens, or prompt and output when output is not 0, that do not fit into
// limit.
func ContextLength(prompt, output, limit int) *rpcerr.Error {
	return contextLength("", prompt, output, limit)
}

// ContextLengthAtLeast reports a prompt that is too long by its length alone; it was not even tokenised.
func ContextLengthAtLeast(least, limit int) *rpcerr.Error {
	return contextLength("at least ", least, 0, limit)
}

func contextLength(about string, prompt, output, limit int) *rpcerr.Error {
	m := fmt.Sprintf("This model's maximum context length is %d tokens. However, the prompt has %s%d tokens",
		limit, about, prompt)
	if output > 0 {
		m += fmt.Sprintf(" and %d tokens were requested for the output", output)
	}
	m += ". Please shorten the prompt."
	return rpcerr.ContextLength.With("%s", m).WithViolation("input", m).
		WithCause(&Length{Prompt: prompt, Output: output, Limit: limit})
}

// UnknownModel reports that another model was named and the gateway is strict.
func UnknownModel(name string) *rpcerr.Error {
	return rpcerr.UnknownModel.With("the model %q is not served here", name)
}

// QueueFull reports that limit requests wait already.
func QueueFull(limit int) *rpcerr.Error {
	return rpcerr.QueueFull.With("%d requests are waiting already, please try again", limit).WithRetryAfter(retryRoom)
}

// BodiesFull reports that the bodies of the requests at work take the memory that they may.
func BodiesFull(limit int64) *rpcerr.Error {
	return rpcerr.QueueFull.With("bodies of other requests fill the %d MB that are allowed for them, please try again",
		limit>>20).WithRetryAfter(retryRoom)
}

// BodyTooLarge reports a body that takes more memory than all bodies together may.
func BodyTooLarge(limit int64) *rpcerr.Error {
	return invalid(ReasonBodyTooLarge, "",
		"the body needs more than %d MB of memory to be read, which is all that --body-memory-mb allows", limit>>20)
}

// NoWorker reports that no worker can serve the request now; detail says why.
func NoWorker(detail string) *rpcerr.Error {
	return rpcerr.NoWorker.With("%s", detail).WithRetryAfter(retryWorker)
}

// QueueTimeout reports a request that waited too long.
func QueueTimeout() *rpcerr.Error {
	return rpcerr.New(codes.Unavailable, ReasonQueueTimeout, "no worker became free in time").WithRetryAfter(retryWorker)
}

// Draining reports that the gateway shuts down.
func Draining() *rpcerr.Error {
	return rpcerr.Draining.With("the server is shutting down").WithRetryAfter(retryWorker)
}

// WorkerFailed reports that the worker failed and so did the retry. The cause is for the log.
func WorkerFailed(cause error) *rpcerr.Error {
	return rpcerr.New(codes.Internal, ReasonWorkerFailed, "the worker failed while serving this request").WithCause(cause)
}

// WorkerInvalid reports that a worker's answer cannot be: field is the field of its message, problem what is wrong with
// it.
func WorkerInvalid(field, problem string) *rpcerr.Error {
	return rpcerr.New(codes.Internal, ReasonWorkerInvalid,
		"a worker answered with something that cannot be: "+field+": "+problem)
}

// Deadline reports that --request-timeout-s ran out.
func Deadline() *rpcerr.Error {
	return rpcerr.New(codes.DeadlineExceeded, ReasonDeadline, "the request took longer than the server allows")
}

// Cancelled reports that the client is gone; nothing can be sent.
func Cancelled() *rpcerr.Error {
	return rpcerr.New(codes.Canceled, ReasonCancelled, "the client closed the connection")
}

// Internal reports a bug. The cause is for the log.
func Internal(cause error) *rpcerr.Error {
	return rpcerr.New(codes.Internal, ReasonInternal, "internal error").WithCause(cause)
}

// From finds the *rpcerr.Error in err. Errors that hold none are those of contexts, and of workers and libraries, which
// OfWorker reads. nil stays nil.
func From(err error) *rpcerr.Error {
	if err == nil {
		return nil
	}
	var e *rpcerr.Error
	if errors.As(err, &e) {
		return e
	}
	return OfWorker(err)
}

// OfWorker returns what a request is told when a worker answered with err. A worker's reasons are about itself: only
// what it says about the request's fields is passed on.
func OfWorker(err error) *rpcerr.Error {
	switch {
	case errors.Is(err, context.Canceled):
		return Cancelled().WithCause(err)
	case errors.Is(err, context.DeadlineExceeded):
		return Deadline().WithCause(err)
	}
	e := rpcerr.From(err)
	switch e.Code() {
	case codes.InvalidArgument:
		field := ""
		if v := e.Violations(); len(v) > 0 {
			field = v[0].Field
		}
		return invalid(ReasonInvalid, field, "%s", e.Message()).WithCause(err)
	case codes.NotFound:
		return rpcerr.New(codes.NotFound, ReasonNotFound, e.Message()+" was not found").WithCause(err)
	case codes.Unavailable:
		return NoWorker("no worker can serve the request now").WithCause(err)
	case codes.ResourceExhausted:
		return NoWorker("the workers have no room for the request").WithCause(err)
	}
	return WorkerFailed(err)
}
