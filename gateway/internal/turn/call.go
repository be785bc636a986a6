package turn

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/generate"
)

// Call is what the surroundings know of a request.
type Call struct {
	// ID is the request id.
	ID string
	// Arrived is when its headers were read.
	Arrived time.Time
	// Scope tells clients with different API keys apart, for what is kept for them; empty when there are no keys.
	Scope string
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

// NewID returns prefix and 96 random bits in 24 hexadecimal digits.
func NewID(prefix string) string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails
	return prefix + hex.EncodeToString(b[:])
}

// callID is the id of a tool call in OpenAI's form.
func callID() string { return NewID("call_") }
