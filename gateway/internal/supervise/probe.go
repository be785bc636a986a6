package supervise

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// Healthy asks the gRPC health service at address (host:port or unix:///path) and returns nil when it serves.
func Healthy(ctx context.Context, address string) error {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	reply, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
	if err != nil {
		return err
	}
	if reply.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		return fmt.Errorf("%s: %s", address, reply.GetStatus())
	}
	return nil
}
