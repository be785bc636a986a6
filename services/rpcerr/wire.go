package rpcerr

import (
	"context"
	"errors"
	"io"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
)

// GRPCStatus makes an *Error usable as the result of a handler.
func (e *Error) GRPCStatus() *status.Status {
	s := status.New(e.code, e.Error())
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: e.Reason(), Domain: Domain, Metadata: e.metadata}}
	if len(e.violations) > 0 {
		b := &errdetails.BadRequest{}
		for _, v := range e.violations {
			b.FieldViolations = append(b.FieldViolations,
				&errdetails.BadRequest_FieldViolation{Field: v.Field, Description: v.Message})
		}
		details = append(details, b)
	}
	if e.retryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(e.retryAfter)})
	}
	with, err := s.WithDetails(details...)
	if err != nil { // code OK: a sentinel of that code is a programming error, the bare status says so
		return s
	}
	return with
}

// From turns any error, in particular a status that a gRPC client returned, into an *Error. nil stays nil. An *Error
// inside the chain is found and, when it was wrapped, carries the text of the whole chain.
func From(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := err.(*Error); ok {
		return e
	}
	var e *Error
	if errors.As(err, &e) {
		c := *e
		c.message, c.cause, c.reason = err.Error(), nil, e.Reason()
		return &c
	}
	switch {
	case errors.Is(err, context.Canceled):
		return &Error{code: codes.Canceled, reason: "CANCELED", message: err.Error()}
	case errors.Is(err, context.DeadlineExceeded):
		return &Error{code: codes.DeadlineExceeded, reason: "DEADLINE_EXCEEDED", message: err.Error()}
	}
	s, ok := status.FromError(err)
	if !ok {
		return &Error{code: codes.Unknown, reason: "UNKNOWN", message: err.Error(), cause: nil}
	}
	return fromStatus(s)
}

func fromStatus(s *status.Status) *Error {
	e := &Error{code: s.Code(), reason: codeReason(s.Code()), message: s.Message()}
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			if d.Domain == Domain {
				e.reason, e.metadata = d.Reason, d.Metadata
			}
		case *errdetails.BadRequest:
			for _, v := range d.FieldViolations {
				e.violations = append(e.violations, Violation{v.Field, v.Description})
			}
		case *errdetails.RetryInfo:
			e.retryAfter = d.RetryDelay.AsDuration()
		}
	}
	return e
}

// FromRPC is From for results of gRPC calls and streams: nil and io.EOF pass unchanged.
func FromRPC(err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return From(err)
}

// ToStatus is what a server does with the error of a handler: nil stays nil, everything else becomes an error that
// carries a status. Unknown errors are bugs or foreign errors: INTERNAL.
func ToStatus(err error) error {
	if err == nil {
		return nil
	}
	e := From(err)
	if e.code == codes.Unknown {
		c := *e
		c.code, c.reason = codes.Internal, "INTERNAL"
		e = &c
	}
	return e.GRPCStatus().Err()
}
