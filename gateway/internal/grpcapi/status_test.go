package grpcapi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestStatuses: callers get the status of every error of the core, without its causes.
func TestStatuses(t *testing.T) {
	cause := errors.New("secret")
	for _, tt := range []struct {
		err  error
		want string // code, reason, time to retry
		// field is the one at fault, empty = none, and message what is said about it, else the text.
		field, message string
	}{
		{reqerr.InvalidValue("a[0].%d", "is %q", "odd"),
			"InvalidArgument INVALID_ARGUMENT 0s", "a[0].%d",
			`'a[0].%d' is "odd"`},
		{reqerr.Missing("messages"),
			"InvalidArgument INVALID_ARGUMENT 0s", "messages",
			"'messages' is required and must not be empty"},
		{reqerr.Unsupported("suffix", "cannot be"),
			"InvalidArgument INVALID_ARGUMENT 0s", "suffix",
			"'suffix' cannot be"},
		{reqerr.Template(cause),
			"InvalidArgument INVALID_ARGUMENT 0s", "messages",
			"the chat template cannot render this request: secret"},
		{reqerr.ContextLength(900, 0, 512),
			"InvalidArgument CONTEXT_LENGTH 0s", "input",
			"This model's maximum context length is 512 tokens. " +
				"However, the prompt has 900 tokens. Please shorten the prompt."},
		{reqerr.ContextLength(400, 200, 512),
			"InvalidArgument CONTEXT_LENGTH 0s", "input",
			"This model's maximum context length is 512 tokens. " +
				"However, the prompt has 400 tokens " +
				"and 200 tokens were requested for the output. Please shorten the prompt."},
		{reqerr.ContextLengthAtLeast(900, 512),
			"InvalidArgument CONTEXT_LENGTH 0s", "input",
			"This model's maximum context length is 512 tokens. " +
				"However, the prompt has at least 900 tokens. Please shorten the prompt."},
		{reqerr.UnknownModel("x"),
			"NotFound UNKNOWN_MODEL 0s", "",
			`the model "x" is not served here`},
		{reqerr.QueueFull(7),
			"ResourceExhausted QUEUE_FULL 1s", "",
			"7 requests are waiting already, please try again"},
		{reqerr.BodiesFull(64 << 20),
			"ResourceExhausted QUEUE_FULL 1s", "",
			"bodies of other requests fill the 64 MB that are allowed for them, please try again"},
		{reqerr.BodyTooLarge(64 << 20),
			"InvalidArgument INVALID_ARGUMENT 0s", "",
			"the body needs more than 64 MB of memory to be read, which is all that --body-memory-mb allows"},
		{reqerr.NoWorker("none is there").WithCause(reqerr.ContextLength(9, 0, 8)),
			"Unavailable NO_WORKER 5s", "",
			"none is there"},
		{reqerr.QueueTimeout().WithCause(context.Canceled),
			"Unavailable NO_WORKER 5s", "",
			"no worker became free in time"},
		{reqerr.Draining(),
			"Unavailable DRAINING 5s", "",
			"the server is shutting down"},
		{reqerr.WorkerFailed(errors.Join(context.DeadlineExceeded, cause)),
			"Internal INTERNAL 0s", "",
			"the worker failed while serving this request"},
		{fmt.Errorf("wrapped: %w", reqerr.WorkerInvalid("a.b", "is odd")),
			"Internal INTERNAL 0s", "",
			"a worker answered with something that cannot be: a.b: is odd"},
		{reqerr.Deadline(),
			"DeadlineExceeded DEADLINE_EXCEEDED 0s", "",
			"context deadline exceeded"},
		{context.DeadlineExceeded,
			"DeadlineExceeded DEADLINE_EXCEEDED 0s", "",
			"context deadline exceeded"},
		{reqerr.Cancelled(),
			"Canceled CANCELED 0s", "",
			"context canceled"},
		{context.Canceled,
			"Canceled CANCELED 0s", "",
			"context canceled"},
		{reqerr.Internal(cause),
			"Internal INTERNAL 0s", "",
			"internal error"},
		{cause,
			"Internal INTERNAL 0s", "",
			"the worker failed while serving this request"},
		// What workers say, as a request is told it.
		{reqerr.OfWorker(rpcerr.InvalidArgument("top_k", "is odd")),
			"InvalidArgument INVALID_ARGUMENT 0s", "top_k",
			"top_k: is odd"},
		{reqerr.OfWorker(status.Error(codes.InvalidArgument, "is odd")),
			"InvalidArgument INVALID_ARGUMENT 0s", "",
			"is odd"},
		{reqerr.OfWorker(rpcerr.NotFound("the adapter")),
			"NotFound NOT_FOUND 0s", "",
			"the adapter was not found"},
		{reqerr.OfWorker(rpcerr.EngineLost),
			"Unavailable NO_WORKER 5s", "",
			"no worker can serve the request now"},
		{reqerr.OfWorker(rpcerr.MemoryCap),
			"Unavailable NO_WORKER 5s", "",
			"the workers have no room for the request"},
		{reqerr.OfWorker(rpcerr.ModelMismatch),
			"Internal INTERNAL 0s", "",
			"the worker failed while serving this request"},
		{reqerr.OfWorker(status.Error(codes.DeadlineExceeded, "late")),
			"Internal INTERNAL 0s", "",
			"the worker failed while serving this request"},
		{reqerr.OfWorker(status.Error(codes.Canceled, "left")),
			"Internal INTERNAL 0s", "",
			"the worker failed while serving this request"},
	} {
		e := rpcerr.From(rpcerr.ToStatus(toRPC(tt.err)))
		got := fmt.Sprintf("%v %s %v", e.Code(), e.Reason(), e.RetryAfter())
		text, fields := tt.message, []rpcerr.Violation(nil)
		if tt.field != "" {
			fields = []rpcerr.Violation{{Field: tt.field, Message: tt.message}}
		}
		if tt.field != "" && e.Reason() == "INVALID_ARGUMENT" {
			text = tt.field + ": " + tt.message
		}
		if got != tt.want || e.Message() != text || !slices.Equal(e.Violations(), fields) || len(e.Metadata()) > 0 {
			t.Errorf("%v:\n got %s %q %v %v\nwant %s %q %v", tt.err, got, e.Message(), e.Violations(), e.Metadata(),
				tt.want, text, fields)
		}
	}
}
