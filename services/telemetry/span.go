package telemetry

import (
	"strings"

	"github.com/tandem-inference/tandem/services/rpcerr"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	rpccodes "google.golang.org/grpc/codes"
)

// OutcomeCancelled is the AttrOutcome of work that nobody waits for any more, which is no error.
const OutcomeCancelled = "cancelled"

// EndSpan ends the span of work that returned err. What the caller did, leaving included, is no error of this process.
func EndSpan(span trace.Span, err error) {
	if err != nil && span.IsRecording() {
		reason := strings.ToLower(rpcerr.Reason(err))
		switch rpcerr.Code(err) {
		case rpccodes.Canceled:
			span.SetAttributes(attribute.String(AttrOutcome, OutcomeCancelled))
		case rpccodes.InvalidArgument, rpccodes.NotFound, rpccodes.ResourceExhausted, rpccodes.FailedPrecondition,
			rpccodes.Aborted, rpccodes.Unimplemented, rpccodes.DeadlineExceeded:
			span.SetAttributes(attribute.String("error.type", reason))
		default:
			span.SetAttributes(attribute.String("error.type", reason))
			span.SetStatus(codes.Error, reason)
		}
	}
	span.End()
}
