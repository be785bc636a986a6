// Package rpcerr is the one place where errors of the domain become gRPC statuses and statuses become errors again.
//
// Every error that crosses a process border is an *Error: a gRPC code, a stable UPPER_SNAKE reason, a text, and the
// details that a caller may act on (offending fields, when to retry). On the wire it is a status with ErrorInfo{reason,
// domain "tandem", metadata}, BadRequest and RetryInfo. The client turns it back with From, so that
//
//	errors.Is(err, rpcerr.NoSlot)          // by code and reason
//	errors.Is(err, rpcerr.AnyUnavailable)  // by code alone
//	errors.Is(err, context.Canceled)       // cancelled on either side
//
// hold on both sides. An *Error implements GRPCStatus, so a handler may return it, wrapped or not.
package rpcerr

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"google.golang.org/grpc/codes"
)

// Domain is the domain of every ErrorInfo that Tandem sends.
const Domain = "tandem"

// Violation names a field of a request and what is wrong with it.
type Violation struct {
	Field   string // path as in the proto or JSON request, e.g. "rows[3].position"
	Message string
}

// Error is an error with a gRPC code. Values are immutable: the With methods return changed copies.
type Error struct {
	code       codes.Code
	reason     string // "" in the sentinels that match a code with any reason
	message    string
	violations []Violation
	retryAfter time.Duration
	metadata   map[string]string
	cause      error
}

// New makes a sentinel or a plain error. The reason is UPPER_SNAKE and stable: clients and tests match on it.
func New(code codes.Code, reason, message string) *Error {
	return &Error{code: code, reason: reason, message: message}
}

// Code of the error.
func (e *Error) Code() codes.Code { return e.code }

// Reason is the stable UPPER_SNAKE name of the kind of error.
func (e *Error) Reason() string {
	if e.reason == "" {
		return codeReason(e.code)
	}
	return e.reason
}

// Message is the text without the texts of causes.
func (e *Error) Message() string { return e.message }

// Violations lists the fields at fault, nil when none was named.
func (e *Error) Violations() []Violation { return e.violations }

// RetryAfter is when the sender thinks a retry makes sense, 0 when it did not say.
func (e *Error) RetryAfter() time.Duration { return e.retryAfter }

// Metadata of the ErrorInfo; not to be changed.
func (e *Error) Metadata() map[string]string { return e.metadata }

// Error implements error.
func (e *Error) Error() string {
	if e.cause != nil {
		return e.message + ": " + e.cause.Error()
	}
	return e.message
}

// Unwrap returns the cause on the side where the error was made; causes do not cross the wire, their text does.
func (e *Error) Unwrap() error { return e.cause }

// Is reports whether e is of the target's kind: same code and, unless the target stands for any reason, same reason.
func (e *Error) Is(target error) bool {
	switch target {
	case context.Canceled:
		return e.code == codes.Canceled
	case context.DeadlineExceeded:
		return e.code == codes.DeadlineExceeded
	}
	t, ok := target.(*Error)
	return ok && t.code == e.code && (t.reason == "" || t.reason == e.Reason())
}

// With returns the error with another text, formatted as by fmt.Sprintf, keeping code, reason and details.
func (e *Error) With(format string, args ...any) *Error {
	c := *e
	c.message = fmt.Sprintf(format, args...)
	c.reason = e.Reason()
	return &c
}

// WithCause returns the error with a cause whose text follows its own.
func (e *Error) WithCause(cause error) *Error {
	c := *e
	c.cause = cause
	c.reason = e.Reason()
	return &c
}

// WithViolation returns the error with one more field at fault.
func (e *Error) WithViolation(field, message string) *Error {
	c := *e
	c.violations = append(append([]Violation(nil), e.violations...), Violation{field, message})
	return &c
}

// WithRetryAfter returns the error with a hint when to try again.
func (e *Error) WithRetryAfter(d time.Duration) *Error {
	c := *e
	c.retryAfter = d
	return &c
}

// WithMetadata returns the error with one more key of ErrorInfo metadata. No paths, keys or prompts.
func (e *Error) WithMetadata(key, value string) *Error {
	c := *e
	c.metadata = maps.Clone(e.metadata)
	if c.metadata == nil {
		c.metadata = map[string]string{}
	}
	c.metadata[key] = value
	return &c
}

// Code returns the gRPC code of any error: OK for nil, that of an *Error or status inside, Canceled and
// DeadlineExceeded for context errors, Unknown otherwise.
func Code(err error) codes.Code {
	if err == nil {
		return codes.OK
	}
	return From(err).code
}

// Reason returns the stable reason of any error, "" for nil.
func Reason(err error) string {
	if err == nil {
		return ""
	}
	return From(err).Reason()
}

// RetryAfter returns the retry hint inside an error, 0 without one.
func RetryAfter(err error) time.Duration {
	var e *Error
	if errors.As(err, &e) {
		return e.retryAfter
	}
	if err == nil {
		return 0
	}
	return From(err).retryAfter
}
