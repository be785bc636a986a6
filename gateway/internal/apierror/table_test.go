package apierror

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strconv"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestTable: every error of the core has its answer in OpenAI's shape, to the byte.
func TestTable(t *testing.T) {
	cause := errors.New("secret")
	seen := map[string]bool{}
	for _, tt := range []struct {
		err error

		status                            int
		retry, kind, code, field, message string
	}{
		{reqerr.InvalidJSON("bad at %d", 3),
			400, "", "invalid_request_error", "invalid_json", "",
			"bad at 3"},
		{reqerr.InvalidValue("a[0].%d", "is %q", "odd"),
			400, "", "invalid_request_error", "invalid_value", "a[0].%d",
			`'a[0].%d' is "odd"`},
		{reqerr.Missing("messages"),
			400, "", "invalid_request_error", "missing_required_parameter", "messages",
			"'messages' is required and must not be empty"},
		{reqerr.Unsupported("suffix", "cannot be"),
			400, "", "invalid_request_error", "unsupported_parameter", "suffix",
			"'suffix' cannot be"},
		{reqerr.Template(cause),
			400, "", "invalid_request_error", "template_error", "messages",
			"the chat template cannot render this request: secret"},
		{reqerr.ContextLength(900, 0, 512),
			400, "", "invalid_request_error", "context_length_exceeded", "messages",
			"This model's maximum context length is 512 tokens. " +
				"However, the prompt has 900 tokens. Please shorten the prompt."},
		{reqerr.ContextLength(400, 200, 512),
			400, "", "invalid_request_error", "context_length_exceeded", "messages",
			"This model's maximum context length is 512 tokens. " +
				"However, the prompt has 400 tokens " +
				"and 200 tokens were requested for the output. Please shorten the prompt."},
		{reqerr.ContextLengthAtLeast(900, 512),
			400, "", "invalid_request_error", "context_length_exceeded", "messages",
			"This model's maximum context length is 512 tokens. " +
				"However, the prompt has at least 900 tokens. Please shorten the prompt."},
		{reqerr.UnknownModel("x"),
			404, "", "invalid_request_error", "model_not_found", "model",
			`the model "x" is not served here`},
		{reqerr.QueueFull(7),
			429, "1", "rate_limit_error", "queue_full", "",
			"7 requests are waiting already, please try again"},
		{reqerr.BodiesFull(64 << 20),
			429, "1", "rate_limit_error", "queue_full", "",
			"bodies of other requests fill the 64 MB that are allowed for them, please try again"},
		{reqerr.BodyTooLarge(64 << 20),
			413, "", "invalid_request_error", "payload_too_large", "",
			"the body needs more than 64 MB of memory to be read, which is all that --body-memory-mb allows"},
		{reqerr.NoWorker("none is there").WithCause(reqerr.ContextLength(9, 0, 8)),
			503, "5", "server_error", "no_worker", "",
			"none is there"},
		{reqerr.QueueTimeout().WithCause(context.Canceled),
			503, "5", "server_error", "queue_timeout", "",
			"no worker became free in time"},
		{reqerr.Draining(),
			503, "5", "server_error", "draining", "",
			"the server is shutting down"},
		{reqerr.WorkerFailed(errors.Join(context.DeadlineExceeded, cause)),
			500, "", "server_error", "worker_failed", "",
			"the worker failed while serving this request"},
		{fmt.Errorf("wrapped: %w", reqerr.WorkerInvalid("a.b", "is odd")),
			502, "", "server_error", "worker_invalid", "",
			"a worker answered with something that cannot be: a.b: is odd"},
		{reqerr.Deadline(),
			504, "", "server_error", "deadline_exceeded", "",
			"the request took longer than the server allows"},
		{context.DeadlineExceeded,
			504, "", "server_error", "deadline_exceeded", "",
			"the request took longer than the server allows"},
		{reqerr.Cancelled(),
			499, "", "server_error", "cancelled", "",
			"the client closed the connection"},
		{context.Canceled,
			499, "", "server_error", "cancelled", "",
			"the client closed the connection"},
		{reqerr.Internal(cause),
			500, "", "server_error", "internal_error", "",
			"internal error"},
		{cause,
			500, "", "server_error", "worker_failed", "",
			"the worker failed while serving this request"},
		// What workers say, as a request is told it.
		{reqerr.OfWorker(rpcerr.InvalidArgument("top_k", "is odd")),
			400, "", "invalid_request_error", "invalid_value", "top_k",
			"top_k: is odd"},
		{reqerr.OfWorker(status.Error(codes.InvalidArgument, "is odd")),
			400, "", "invalid_request_error", "invalid_value", "",
			"is odd"},
		{reqerr.OfWorker(rpcerr.NotFound("the adapter")),
			404, "", "invalid_request_error", "not_found", "",
			"the adapter was not found"},
		{reqerr.OfWorker(rpcerr.EngineLost),
			503, "5", "server_error", "no_worker", "",
			"no worker can serve the request now"},
		{reqerr.OfWorker(rpcerr.MemoryCap),
			503, "5", "server_error", "no_worker", "",
			"the workers have no room for the request"},
		{reqerr.OfWorker(rpcerr.ModelMismatch),
			500, "", "server_error", "worker_failed", "",
			"the worker failed while serving this request"},
		{reqerr.OfWorker(status.Error(codes.DeadlineExceeded, "late")),
			500, "", "server_error", "worker_failed", "",
			"the worker failed while serving this request"},
		{reqerr.OfWorker(status.Error(codes.Canceled, "left")),
			500, "", "server_error", "worker_failed", "",
			"the worker failed while serving this request"},
	} {
		w := httptest.NewRecorder()
		From(tt.err).Write(w)
		param := "null"
		if tt.field != "" {
			param = strconv.Quote(tt.field)
		}
		body := fmt.Sprintf(`{"error":{"message":%q,"type":%q,"param":%s,"code":%q}}`, tt.message,
			tt.kind, param, tt.code) + "\n"
		if w.Code != tt.status || w.Header().Get("Retry-After") != tt.retry || w.Body.String() != body {
			t.Errorf("%v:\n got %d %q %s\nwant %d %q %s", tt.err, w.Code, w.Header().Get("Retry-After"), w.Body,
				tt.status, tt.retry, body)
		}
		seen[reqerr.From(tt.err).Reason()] = true
	}
	for reason := range rows {
		if !seen[reason] {
			t.Errorf("no case for %s", reason)
		}
	}
}
