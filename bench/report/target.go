package report

import (
	"context"
	"errors"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// Start runs a cluster, which has a minute to say that it is ready.
func Start(ctx context.Context, o cluster.Options) (*cluster.Cluster, error) {
	ctx, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	return cluster.Start(ctx, o)
}

// DemoTarget starts a cluster of the demonstration models with more flags of tandem serve and dials its target. stop
// ends both.
func DemoTarget(ctx context.Context, args []string) (target tandemv1.TargetServiceClient, stop func(), err error) {
	cl, err := Start(ctx, cluster.Options{Args: append([]string{"--demo"}, args...)})
	if err != nil {
		return nil, nil, err
	}
	target, hangUp, err := DialTarget(ctx, client.New(cl.HTTP))
	if err != nil {
		cl.Close()
		return nil, nil, err
	}
	return target, func() {
		_ = hangUp()
		cl.Close()
	}, nil
}

// DialTarget returns a client that talks straight to the target worker of a running cluster, past the gateway, and a
// function that closes its connection.
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
