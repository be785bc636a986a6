package supervise

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// Answers asks the gRPC health service at address and returns nil when it answers, whatever it says.
func Answers(ctx context.Context, address string) error {
	_, err := check(ctx, address)
	return err
}

// Healthy asks the gRPC health service at address (host:port or unix:///path) and returns nil when it serves.
func Healthy(ctx context.Context, address string) error {
	status, err := check(ctx, address)
	if err != nil {
		return err
	}
	if status != healthv1.HealthCheckResponse_SERVING {
		return fmt.Errorf("%s: %s", address, status)
	}
	return nil
}

func check(ctx context.Context, address string) (healthv1.HealthCheckResponse_ServingStatus, error) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	reply, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
	return reply.GetStatus(), err
}
