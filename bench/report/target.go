package report

import (
	"context"
	"errors"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/tests/client"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// DialTarget returns a client that talks straight to the target worker of a running cluster, past the gateway, and a function
// that closes its connection.
func DialTarget(ctx context.Context, c *client.Client) (tandemv1.TargetServiceClient, func() error, error) {
	workers, err := c.Workers(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, w := range workers {
		if w.Role != "target" {
			continue
		}
		conn, err := grpc.NewClient(w.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, nil, err
		}
		return tandemv1.NewTargetServiceClient(conn), conn.Close, nil
	}
	return nil, nil, errors.New("the cluster has no target worker")
}
