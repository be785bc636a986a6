package app

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// watcher is a client's stream that ends with its first answer.
type watcher struct {
	grpc.ServerStream
	ctx   context.Context
	end   context.CancelFunc
	first *healthv1.HealthCheckResponse
}

func (w *watcher) Context() context.Context { return w.ctx }

func (w *watcher) Send(r *healthv1.HealthCheckResponse) error {
	if w.first == nil {
		w.first = r
	}
	w.end()
	return nil
}

// TestFirstWatchIsNotOld: who watches before the first poll is told what is true, not what grpc's server begins with.
func TestFirstWatchIsNotOld(t *testing.T) {
	for serving, want := range map[bool]healthv1.HealthCheckResponse_ServingStatus{
		false: healthv1.HealthCheckResponse_NOT_SERVING, true: healthv1.HealthCheckResponse_SERVING,
	} {
		h := &rpcHealth{Server: health.NewServer(), serving: func() bool { return serving }}
		ctx, cancel := context.WithCancel(t.Context())
		w := &watcher{ctx: ctx, end: cancel}
		_ = h.Watch(&healthv1.HealthCheckRequest{}, w)
		cancel()
		if w.first.GetStatus() != want {
			t.Errorf("serving is %v, watched %v", serving, w.first.GetStatus())
		}
	}
}
