package cluster

import (
	"context"

	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"google.golang.org/grpc"
)

// ReadAhead leaves a prompt to be read by a worker while it has nothing else to do. It takes no slot.
func (p *Pool) ReadAhead(ctx context.Context, worker string, m *tandemv1.ReadAheadRequest) error {
	conn := p.conn(worker)
	if conn == nil {
		return reqerr.NoWorker("the worker is gone")
	}
	_, err := tandemv1.NewTargetServiceClient(conn).ReadAhead(ctx, m)
	return err
}

// conn returns the connection of a worker that takes work, nil when there is none. It may close at any time.
func (p *Pool) conn(id string) *grpc.ClientConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.workers[id]; w != nil && w.ready() {
		return w.conn
	}
	return nil
}
