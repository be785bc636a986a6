package engineplugin

import (
	"google.golang.org/grpc/codes"

	"github.com/tandem-inference/tandem/services/rpcerr"
)

// The messages of the Run stream as the codec of wiregenerated.go writes and reads them: from and into the values of the
// Engine interface, whose memory is used again. Their shape is given by options in proto/tandem/engine/v1/engine.proto.

// Kinds of work and of output: the numbers of the oneofs' fields in RunRequest and RunResponse.
const (
	workStep      = 2
	workPropose   = 3
	outputStep    = 4
	outputPropose = 5
)

// runRequest is enginev1.RunRequest.
type runRequest struct {
	id      uint64
	kind    int // of work; 0 = none
	step    *Step
	propose *proposal
}

// proposal is enginev1.Propose: what Engine.Propose takes.
type proposal struct {
	features []FeatureRows
	requests []DraftRequest
}

// runResponse is enginev1.RunResponse. A reader sets step or propose to where the answer goes.
type runResponse struct {
	id      uint64
	failure *failure // nil on success
	nanos   int64
	kind    int // of output; 0 = none
	step    *StepResult
	propose *DraftResult
}

// failure is enginev1.Failure.
type failure struct {
	code    codes.Code
	message string
	reason  string
	field   string
}

func failureOf(err error) *failure {
	e := rpcerr.From(err)
	f := &failure{code: e.Code(), message: e.Error(), reason: e.Reason()}
	if v := e.Violations(); len(v) > 0 {
		f.field = v[0].Field
	}
	return f
}

func (f *failure) err() error {
	if f == nil {
		return nil
	}
	code := f.code
	if code == codes.OK { // a failure all the same
		code = codes.Unknown
	}
	e := rpcerr.New(code, f.reason, f.message)
	if f.field != "" {
		return e.WithViolation(f.field, f.message)
	}
	return e
}
