package workernode

import (
	"context"
	"errors"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

var errStill = errors.New("the loop that looks at the worker's health stands still")

// reportLife tells whoever started this process that it is alive, until ctx ends. Alive is a process whose own server
// answers a call at addr and whose health loop, which takes the worker's locks, made rounds since the last report. The
// engine is a process of its own, with a guard of its own.
func (n *node) reportLife(ctx context.Context, addr net.Addr) error {
	conn, err := grpc.NewClient("passthrough:///self", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, addr.Network(), addr.String()) // an unspecified address dials this machine
		}))
	if err != nil {
		return err
	}
	defer conn.Close()
	client := healthv1.NewHealthClient(conn)
	seen := int64(0)
	n.notify.Watch(ctx, func(ctx context.Context) error {
		rounds := n.rounds.Load()
		if rounds == seen {
			return errStill
		}
		seen = rounds
		if n.draining.Load() {
			return nil // the server takes no new calls
		}
		_, err := client.Check(ctx, &healthv1.HealthCheckRequest{})
		return err
	})
	return nil
}
