package rpcerr

import (
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
)

// Sentinels that match every error of a code, whatever its reason.
var (
	AnyInvalidArgument    = &Error{code: codes.InvalidArgument, message: "invalid argument"}
	AnyNotFound           = &Error{code: codes.NotFound, message: "not found"}
	AnyResourceExhausted  = &Error{code: codes.ResourceExhausted, message: "resource exhausted"}
	AnyFailedPrecondition = &Error{code: codes.FailedPrecondition, message: "failed precondition"}
	AnyAborted            = &Error{code: codes.Aborted, message: "aborted"}
	AnyUnimplemented      = &Error{code: codes.Unimplemented, message: "unimplemented"}
	AnyInternal           = &Error{code: codes.Internal, message: "internal"}
	AnyUnavailable        = &Error{code: codes.Unavailable, message: "unavailable"}
	AnyDataLoss           = &Error{code: codes.DataLoss, message: "data loss"}
)

// The table of domain errors. A package with an error of its own that crosses the wire adds its line here.
var (
	// ContextLength: prompt and output do not fit into the context.
	ContextLength = New(codes.InvalidArgument, "CONTEXT_LENGTH", "the context is too short")
	// UnknownModel: no such model is served.
	UnknownModel = New(codes.NotFound, "UNKNOWN_MODEL", "unknown model")
	// NoSlot: every slot of the worker is taken.
	NoSlot = New(codes.ResourceExhausted, "NO_LANE", "no slot is free")
	// QueueFull: the gateway's queue has no room.
	QueueFull = New(codes.ResourceExhausted, "QUEUE_FULL", "the queue is full")
	// MemoryCap: something does not fit into the engine's memory.
	MemoryCap = New(codes.ResourceExhausted, "MEMORY_CAP", "the memory cap is reached")
	// ModelMismatch: model, tokenizer, tables or feature layout differ from what the peer has.
	ModelMismatch = New(codes.FailedPrecondition, "MODEL_MISMATCH", "the models do not match")
	// ProtocolMismatch: the peer speaks another version.
	ProtocolMismatch = New(codes.FailedPrecondition, "PROTOCOL_MISMATCH", "the protocol versions do not match")
	// StaleEpoch: the message belongs to an older epoch of the session.
	StaleEpoch = New(codes.Aborted, "STALE_EPOCH", "the epoch is stale")
	// Draining: the process accepts nothing new.
	Draining = New(codes.Unavailable, "DRAINING", "shutting down")
	// EngineLost: the engine process is gone; its sequences are lost.
	EngineLost = New(codes.Unavailable, "ENGINE_LOST", "the engine is gone")
	// NoWorker: no worker can serve the request now.
	NoWorker = New(codes.Unavailable, "NO_WORKER", "no worker is available")
	// DamagedState: checksum of a snapshot or exported state is wrong.
	DamagedState = New(codes.DataLoss, "DAMAGED_STATE", "the state is damaged")
)

// InvalidArgument names the field that can never work and says why: the text is "field: message".
func InvalidArgument(field, format string, args ...any) *Error {
	m := fmt.Sprintf(format, args...)
	e := &Error{code: codes.InvalidArgument, reason: "INVALID_ARGUMENT", message: m}
	if field != "" {
		e.message = field + ": " + m
		e.violations = []Violation{{field, m}}
	}
	return e
}

// NotFound formats an error of that code. The functions below do the same for theirs.
func NotFound(format string, args ...any) *Error { return AnyNotFound.With(format, args...) }

// ResourceExhausted says what did not fit and what would.
func ResourceExhausted(format string, args ...any) *Error {
	return AnyResourceExhausted.With(format, args...)
}

// FailedPrecondition says which state or capability is missing.
func FailedPrecondition(format string, args ...any) *Error {
	return AnyFailedPrecondition.With(format, args...)
}

// Aborted says that the round must be redone.
func Aborted(format string, args ...any) *Error { return AnyAborted.With(format, args...) }

// Unimplemented says that the peer lacks an operation.
func Unimplemented(format string, args ...any) *Error { return AnyUnimplemented.With(format, args...) }

// Internal reports a broken invariant or a device fault.
func Internal(format string, args ...any) *Error { return AnyInternal.With(format, args...) }

// Unavailable says that another worker, or this one later, may serve.
func Unavailable(format string, args ...any) *Error { return AnyUnavailable.With(format, args...) }

// DataLoss reports a wrong checksum.
func DataLoss(format string, args ...any) *Error { return AnyDataLoss.With(format, args...) }

// FromCode makes an error of a bare code, as native engines report them.
func FromCode(code codes.Code, message string) *Error {
	return &Error{code: code, reason: codeReason(code), message: message}
}

var codeNames = [...]string{
	codes.OK: "OK", codes.Canceled: "CANCELED", codes.Unknown: "UNKNOWN", codes.InvalidArgument: "INVALID_ARGUMENT",
	codes.DeadlineExceeded: "DEADLINE_EXCEEDED", codes.NotFound: "NOT_FOUND", codes.AlreadyExists: "ALREADY_EXISTS",
	codes.PermissionDenied: "PERMISSION_DENIED", codes.ResourceExhausted: "RESOURCE_EXHAUSTED",
	codes.FailedPrecondition: "FAILED_PRECONDITION", codes.Aborted: "ABORTED", codes.OutOfRange: "OUT_OF_RANGE",
	codes.Unimplemented: "UNIMPLEMENTED", codes.Internal: "INTERNAL", codes.Unavailable: "UNAVAILABLE",
	codes.DataLoss: "DATA_LOSS", codes.Unauthenticated: "UNAUTHENTICATED",
}

// codeReason is the reason of errors that came without one.
func codeReason(c codes.Code) string {
	if int(c) < len(codeNames) {
		return codeNames[c]
	}
	return strings.ToUpper(c.String())
}
