// Package wire holds the messages of an engine's decode loops, as the codec of generated.go writes and reads them: from
// and into the values of package engine, whose memory is used again. Their shape is given by options in
// proto/tandem/engine/v1/engine.proto; on the wire they are the ordinary protobuf of that file.
package wire

import (
	"google.golang.org/grpc/codes"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// Request is what the requests of all decode loops have in common.
type Request struct {
	ID uint64
}

// Response is what the responses of all decode loops have in common.
type Response struct {
	ID      uint64
	Failure *Failure // nil on success
	Nanos   int64    // time inside the native engine
}

// Shared says where hidden rows lie in memory that processes share (package border). The zero value says that they do
// not.
type Shared struct {
	At, Bytes uint64
}

// StepRequest is enginev1.StepRequest. A reader sets Step to where the step goes.
type StepRequest struct {
	Request
	Step      *engine.Step
	SharedIn  Shared // of Step.HiddenIn
	SharedOut Shared // of the result's HiddenOut
}

// StepResponse is enginev1.StepResponse. A reader sets Result to where the result goes.
type StepResponse struct {
	Response
	Result      *engine.StepResult
	SharedBytes uint64 // of Result.HiddenOut that lie where SharedOut wanted them
}

// ProposeRequest is enginev1.ProposeRequest: what Draft.Propose takes.
type ProposeRequest struct {
	Request
	Features []engine.FeatureRows
	Requests []engine.DraftRequest
}

// ProposeResponse is enginev1.ProposeResponse. A reader sets Result to where the result goes.
type ProposeResponse struct {
	Response
	Result *engine.DraftResult
}

// Failure is enginev1.Failure.
type Failure struct {
	Code    codes.Code
	Message string
	Reason  string
	Field   string // at fault, when one is known
}

// FailureOf returns what crosses the wire of an error.
func FailureOf(err error) *Failure {
	e := rpcerr.From(err)
	f := &Failure{Code: e.Code(), Message: e.Error(), Reason: e.Reason()}
	if v := e.Violations(); len(v) > 0 {
		f.Field = v[0].Field
	}
	return f
}

// Err returns the error that f stands for; nil for a nil Failure.
func (f *Failure) Err() error {
	if f == nil {
		return nil
	}
	code := f.Code
	if code == codes.OK { // a failure all the same
		code = codes.Unknown
	}
	e := rpcerr.New(code, f.Reason, f.Message)
	if f.Field != "" {
		return e.WithViolation(f.Field, f.Message)
	}
	return e
}
