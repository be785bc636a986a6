// Package wire holds the messages of an engine's Run stream, as the codec of generated.go writes and reads them: from and
// into the values of package engine, whose memory is used again. Their shape is given by options in
// proto/tandem/engine/v1/engine.proto; on the wire they are the ordinary protobuf of that file.
package wire

import (
	"google.golang.org/grpc/codes"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// Kinds of work and of output: the numbers of the oneofs' fields in RunRequest and RunResponse.
const (
	WorkStep      = 2
	WorkPropose   = 3
	OutputStep    = 4
	OutputPropose = 5
)

// RunRequest is enginev1.RunRequest.
type RunRequest struct {
	ID      uint64
	Kind    int // of work; 0 = none
	Step    *engine.Step
	Propose *Proposal
}

// Proposal is enginev1.Propose: what Engine.Propose takes.
type Proposal struct {
	Features []engine.FeatureRows
	Requests []engine.DraftRequest
}

// RunResponse is enginev1.RunResponse. A reader sets Step or Propose to where the answer goes.
type RunResponse struct {
	ID      uint64
	Failure *Failure // nil on success
	Nanos   int64    // time inside the native engine
	Kind    int      // of output; 0 = none
	Step    *engine.StepResult
	Propose *engine.DraftResult
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
