package turn

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"regexp"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/generate"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// Call carries what the HTTP middleware or the gRPC interceptor knows about a request.
type Call struct {
	// ID is the request id.
	ID string
	// Arrived is when its headers were read.
	Arrived time.Time
	// Scope identifies the API key, under which state is kept for a client; empty when there are no keys.
	Scope string
	// Key is the name of the API key, empty for one without a name.
	Key string
	// Trusted calls may set their priority.
	Trusted bool
	// Model is filled with the name of the served model, once it is known, for the log.
	Model string
	// Usage is filled with the account of the request, for log and metrics.
	Usage *generate.Usage
}

type callKey struct{}

// WithCall attaches the call to a context.
func WithCall(ctx context.Context, c *Call) context.Context {
	return context.WithValue(ctx, callKey{}, c)
}

// CallFrom returns the call of a request; one is made up when none was attached.
func CallFrom(ctx context.Context) *Call {
	if c, ok := ctx.Value(callKey{}).(*Call); ok {
		return c
	}
	return &Call{ID: NewID("req-"), Arrived: time.Now()}
}

var idPattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)

// RequestID returns the id that a client chose if it has the right form, else a new one.
func RequestID(chosen string) string {
	if idPattern.MatchString(chosen) {
		return chosen
	}
	return NewID("req-")
}

// NewID returns prefix and 96 random bits in 24 hexadecimal digits.
func NewID(prefix string) string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails
	return prefix + hex.EncodeToString(b[:])
}

// ResponseID makes the id of an answer and notes it in the request's span.
func ResponseID(ctx context.Context, prefix string) string {
	id := NewID(prefix)
	trace.SpanFromContext(ctx).SetAttributes(attribute.String(telemetry.GenAIResponseID, id))
	return id
}

// callID is the id of a tool call in OpenAI's form.
func callID() string { return NewID("call_") }
