// Package accesslog writes the one line that every finished request leaves in the log, over HTTP and gRPC alike.
package accesslog

import (
	"cmp"
	"context"
	"math"
	"net"
	"strings"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/generate"
	"github.com/tandem-inference/tandem/gateway/internal/metrics"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.uber.org/zap"
)

// Entry is what the border knows of a finished request; the rest comes from its turn.Call.
type Entry struct {
	// Method of HTTP, or RPC.
	Method string
	// Endpoint is the route, not the path: paths hold ids.
	Endpoint string
	// Client is the peer's address.
	Client string
	// Status is that of HTTP, 499 for a client that left; Code the one of gRPC. One of them is there.
	Status  int
	Code    string
	Outcome string
	// Reason names the kind of error, as the border calls it.
	Reason string
	// Err is the cause of the outcome.
	Err error
}

// Write logs the request of ctx: at warn when the server failed, else at info. Prompts, answers and keys are never part
// of it, only the key's name.
func Write(ctx context.Context, log *zap.Logger, e Entry) {
	call := turn.CallFrom(ctx)
	fields := []zap.Field{
		zap.String(telemetry.KeyRequestID, call.ID), zap.String(telemetry.KeyClient, Host(e.Client)),
		zap.String(telemetry.KeyMethod, e.Method),
		zap.String(telemetry.KeyEndpoint, cmp.Or(e.Endpoint, "unknown")), zap.String(telemetry.KeyDialect, dialect(e)),
		zap.String(telemetry.KeyOutcome, e.Outcome),
		zap.Int64(telemetry.KeyDurationMS, time.Since(call.Arrived).Milliseconds()), telemetry.TraceField(ctx),
	}
	if e.Code != "" {
		fields = append(fields, zap.String(telemetry.KeyCode, e.Code))
	} else {
		fields = append(fields, zap.Int(telemetry.KeyStatus, e.Status))
	}
	if call.Key != "" {
		fields = append(fields, zap.String(telemetry.KeyKeyName, call.Key))
	}
	if call.Model != "" {
		fields = append(fields, zap.String(telemetry.KeyModel, call.Model))
	}
	if call.Usage != nil {
		fields = append(fields, usage(call.Usage)...)
	}
	if e.Outcome == metrics.OutcomeServerError {
		log.Warn("request failed", append(fields, zap.NamedError(telemetry.KeyErr, e.Err))...)
		return
	}
	if e.Outcome == metrics.OutcomeClientError && e.Err != nil {
		fields = append(fields, zap.String(telemetry.KeyReason, e.Reason))
	}
	log.Info("request", fields...)
}

// usage is what a generation did and where its time went.
func usage(u *generate.Usage) []zap.Field {
	fields := []zap.Field{
		zap.String(telemetry.KeyWorker, u.Worker),
		zap.Int(telemetry.KeyPrompt, u.PromptTokens), zap.Int(telemetry.KeyCached, u.CachedTokens),
		zap.Int(telemetry.KeyTokens, u.CompletionTokens), zap.Int64(telemetry.KeyRounds, u.VerifySteps),
		zap.Int64(telemetry.KeyDrafted, u.Drafted), zap.Int64(telemetry.KeyAccepted, u.Accepted),
		zap.Int(telemetry.KeyRetries, u.Retries), zap.Bool(telemetry.KeyDegraded, u.Degraded),
		zap.Int64(telemetry.KeyQueueMS, u.Queue.Milliseconds()),
		zap.Int64(telemetry.KeyCompressMS, u.Compress.Milliseconds()),
		zap.Int64(telemetry.KeyRestoreMS, u.Restore.Milliseconds()),
		zap.Int64(telemetry.KeyPrefillMS, u.Prefill.Milliseconds()),
		zap.Int64(telemetry.KeyTTFTMS, u.TTFT.Milliseconds()), zap.Int64(telemetry.KeyDecodeMS, u.Decode.Milliseconds()),
	}
	if d := u.Decode.Seconds(); d > 0 {
		fields = append(fields, zap.Float64(telemetry.KeyTokenRate, math.Round(10*float64(u.CompletionTokens)/d)/10))
	}
	return fields
}

// Host is the address of a peer without its port; sockets of the file system have none.
func Host(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return "local"
}

// dialect names the API that a request spoke.
func dialect(e Entry) string {
	switch {
	case e.Code != "":
		return "grpc"
	case strings.HasPrefix(e.Endpoint, "/messages"):
		return "anthropic"
	case strings.HasPrefix(e.Endpoint, "/responses"):
		return "responses"
	case strings.HasPrefix(e.Endpoint, "/chat/completions"):
		return "chat"
	case strings.HasPrefix(e.Endpoint, "/completions"):
		return "completions"
	}
	return "tandem"
}
