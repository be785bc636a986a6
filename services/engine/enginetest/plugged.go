package enginetest

import (
	"context"
	"net"
	"path"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/host"
)

// Plugged returns an opener whose engines are those of inner behind the plugin's client and server, on a connection in
// memory. Their calls are moments on both sides, and so is an answer between the server, which has given it, and the
// client, which may no longer wait for it.
func (a *Awaits) Plugged(inner engine.Opener) engine.Opener {
	return a.Wrap(plugged{a.Wrap(inner, "server"), a}, "client")
}

type plugged struct {
	inner  engine.Opener
	awaits *Awaits
}

// answered reports answers on their way.
func (p plugged) answered(ctx context.Context, request any, info *grpc.UnaryServerInfo,
	handle grpc.UnaryHandler) (any, error) {
	answer, err := handle(ctx, request)
	p.awaits.Reach(ctx, "the answer of "+path.Base(info.FullMethod)+" is under way")
	return answer, err
}

// OpenTarget implements engine.Opener, as do the methods below.
func (p plugged) OpenTarget(ctx context.Context, o engine.OpenOptions,
	progress engine.Progress) (engine.Target, error) {
	e, err := openPlugged(ctx, p, o, progress, host.OpenTarget)
	if err != nil {
		return nil, err
	}
	return e, nil
}

// OpenDraft opens a draft.
func (p plugged) OpenDraft(ctx context.Context, o engine.OpenOptions, progress engine.Progress) (engine.Draft, error) {
	e, err := openPlugged(ctx, p, o, progress, host.OpenDraft)
	if err != nil {
		return nil, err
	}
	return e, nil
}

// OpenScorer opens a scorer.
func (p plugged) OpenScorer(ctx context.Context, o engine.OpenOptions,
	progress engine.Progress) (engine.Scorer, error) {
	e, err := openPlugged(ctx, p, o, progress, host.OpenScorer)
	if err != nil {
		return nil, err
	}
	return e, nil
}

// remoteOpen is host.OpenTarget, host.OpenDraft or host.OpenScorer.
type remoteOpen[E any] func(context.Context, grpc.ClientConnInterface, engine.OpenOptions, engine.Progress,
	func() error) (E, error)

func openPlugged[E any](ctx context.Context, p plugged, o engine.OpenOptions, progress engine.Progress,
	open remoteOpen[E]) (e E, err error) {
	listener := bufconn.Listen(1 << 20)
	server := host.NewServer(p.inner)
	g := grpc.NewServer(append(host.ServerOptions(nil), grpc.ChainUnaryInterceptor(p.answered))...)
	server.Register(g)
	done := make(chan struct{})
	go func() { defer close(done); _ = g.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///engine", append(host.DialOptions(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return listener.DialContext(ctx)
		}))...)
	stop := func() error {
		if conn != nil {
			_ = conn.Close()
		}
		g.Stop()
		<-done
		return server.Shutdown()
	}
	if err == nil {
		e, err = open(ctx, conn, o, progress, stop)
	}
	if err != nil {
		_ = stop()
	}
	return e, err
}
