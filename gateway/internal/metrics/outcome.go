package metrics

import (
	"github.com/tandem-inference/tandem/services/rpcerr"
	"google.golang.org/grpc/codes"
)

// OutcomeOf returns the outcome of a request that ended with err, by the error's gRPC code.
func OutcomeOf(err error) string {
	switch rpcerr.Code(err) {
	case codes.OK:
		return OutcomeOK
	case codes.Canceled:
		return OutcomeCancelled
	case codes.InvalidArgument, codes.NotFound, codes.ResourceExhausted, codes.Unauthenticated, codes.PermissionDenied,
		codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented:
		return OutcomeClientError
	}
	return OutcomeServerError
}
