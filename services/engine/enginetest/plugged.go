package enginetest

import (
	"context"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	enginev1 "github.com/tandem-inference/tandem/proto/tandem/engine/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/host"
)

// Plugged returns an opener whose engines are those of inner behind the plugin's client and server, on a connection in memory.
func Plugged(inner engine.Opener) engine.Opener { return plugged{inner} }

type plugged struct{ inner engine.Opener }

// Open implements engine.Opener.
func (p plugged) Open(ctx context.Context, o engine.OpenOptions, progress engine.Progress) (engine.Engine, error) {
	listener := bufconn.Listen(1 << 20)
	server := host.NewServer(p.inner)
	g := grpc.NewServer(host.ServerOptions(nil)...)
	enginev1.RegisterEngineServiceServer(g, server)
	done := make(chan struct{})
	go func() { defer close(done); _ = g.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///engine", append(host.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))...)
	stop := func() error {
		if conn != nil {
			_ = conn.Close()
		}
		g.Stop()
		<-done
		return server.Shutdown()
	}
	if err != nil {
		_ = stop()
		return nil, err
	}
	e, err := host.OpenRemote(ctx, conn, o, progress, stop)
	if err != nil {
		_ = stop()
		return nil, err
	}
	return e, nil
}
