package cli

import (
	"context"
	"sync"

	"github.com/tandem-inference/tandem/services/sdnotify"
)

// reportLife tells the service manager that the gateway is up and, until stop is called, that its own HTTP port
// answers. Without a service manager that asked for it it does nothing.
func reportLife(ctx context.Context, at endpoint) (stop func(), err error) {
	n, err := sdnotify.FromEnvironment()
	if err != nil {
		return nil, err
	}
	n.Send(sdnotify.Ready)
	// Draining is being alive, too: only stop ends it.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var watching sync.WaitGroup
	watching.Go(func() {
		client := at.client()
		defer client.CloseIdleConnections()
		n.Watch(ctx, func(ctx context.Context) error {
			_, err := health(ctx, client, at.url()+"/health/live")
			return err
		})
	})
	return func() {
		n.Send(sdnotify.Stopping)
		cancel()
		watching.Wait()
		n.Close()
	}, nil
}
