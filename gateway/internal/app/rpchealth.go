package app

import (
	"context"
	"sync"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// healthPoll is how late watchers of the public port's health may be told of a change.
const healthPoll = 200 * time.Millisecond

// rpcHealth is grpc.health.v1 of the public port: it says what /health says over HTTP.
type rpcHealth struct {
	*health.Server
	serving func() bool
	mu      sync.Mutex // an older answer of serving must not replace a newer one
}

// update sets what Watch sends.
func (h *rpcHealth) update() {
	h.mu.Lock()
	defer h.mu.Unlock()
	status := healthv1.HealthCheckResponse_NOT_SERVING
	if h.serving() {
		status = healthv1.HealthCheckResponse_SERVING
	}
	for _, service := range []string{"", tandemv1.InferenceService_ServiceDesc.ServiceName} {
		h.SetServingStatus(service, status)
	}
}

// Check implements the service; its answer is never old.
func (h *rpcHealth) Check(ctx context.Context, req *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse,
	error) {
	h.update()
	return h.Server.Check(ctx, req)
}

// Watch implements the service. Its first answer is not old either: before the first update the server would say
// SERVING.
func (h *rpcHealth) Watch(req *healthv1.HealthCheckRequest, stream healthv1.Health_WatchServer) error {
	h.update()
	return h.Server.Watch(req, stream)
}

// run keeps watchers up to date until ctx is done.
func (h *rpcHealth) run(ctx context.Context) error {
	ticker := time.NewTicker(healthPoll)
	defer ticker.Stop()
	for {
		h.update()
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}
