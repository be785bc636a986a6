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
// ends both. apart holds target and draft, with one thread each, to a processor each.
func DemoTarget(ctx context.Context, apart bool, args []string) (target tandemv1.TargetServiceClient, stop func(),
	err error) {
	flags := []string{"--demo"}
	if apart {
		flags = append(flags, "--threads", "1")
	}
	cl, err := Start(ctx, cluster.Options{Args: append(flags, args...)})
	if err != nil {
		return nil, nil, err
	}
	if apart {
		if err := holdApart(cl); err != nil {
			cl.Close()
			return nil, nil, err
		}
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

// holdApart holds target and draft to a processor each.
func holdApart(cl *cluster.Cluster) error {
	processors, err := Processors()
	if err != nil {
		return err
	}
	if len(processors) < 2 {
		return errors.New("target and draft apart need two processors, there is one")
	}
	if err := HoldRole(cl, "worker-target", processors[0]); err != nil {
		return err
	}
	return HoldRole(cl, "worker-draft", processors[1])
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
