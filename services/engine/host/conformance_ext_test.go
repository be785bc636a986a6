package host_test

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/engine/enginetest"
	"github.com/tandem-inference/tandem/services/engine/host"
)

// wired opens engines of another opener behind a connection, one server each.
type wired struct {
	t     testing.TB
	inner engine.Opener
}

func (w *wired) OpenTarget(ctx context.Context, o engine.OpenOptions, p engine.Progress) (engine.Target, error) {
	conn, stop := serve(w.t, host.NewServer(w.inner))
	e, err := host.OpenTarget(ctx, conn, o, p, func() error { stop(); return nil })
	if err != nil {
		stop()
		return nil, err
	}
	return e, nil
}

func (w *wired) OpenDraft(ctx context.Context, o engine.OpenOptions, p engine.Progress) (engine.Draft, error) {
	conn, stop := serve(w.t, host.NewServer(w.inner))
	e, err := host.OpenDraft(ctx, conn, o, p, func() error { stop(); return nil })
	if err != nil {
		stop()
		return nil, err
	}
	return e, nil
}

func (w *wired) OpenScorer(ctx context.Context, o engine.OpenOptions, p engine.Progress) (engine.Scorer, error) {
	conn, stop := serve(w.t, host.NewServer(w.inner))
	e, err := host.OpenScorer(ctx, conn, o, p, func() error { stop(); return nil })
	if err != nil {
		stop()
		return nil, err
	}
	return e, nil
}

// serve starts a server on a unix socket and connects to it.
func serve(t testing.TB, s *host.Server) (*grpc.ClientConn, func()) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(host.ServerOptions(func(method string, v any, stack []byte) {
		t.Errorf("panic in %s: %v\n%s", method, v, stack)
	})...)
	s.Register(g)
	done := make(chan struct{})
	go func() { defer close(done); _ = g.Serve(l) }()
	conn, err := grpc.NewClient("unix:"+l.Addr().String(),
		append(host.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	return conn, func() {
		if err := conn.Close(); err != nil && status.Code(err) != codes.Canceled {
			t.Error(err)
		}
		g.Stop()
		<-done
		_ = s.Shutdown()
	}
}

func TestFakeBehindConnection(t *testing.T) {
	for name, o := range map[string]enginefake.Options{
		"recurrent": {},
		"slow":      {RowDelay: 30 * time.Microsecond, ScoreDelay: time.Millisecond, OpenDelay: time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			enginetest.Run(t, func(t *testing.T) (engine.Opener, enginetest.Models) {
				return &wired{t, enginefake.New(o)}, enginetest.FakeModels
			})
		})
	}
}
