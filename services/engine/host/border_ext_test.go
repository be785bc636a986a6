package host_test

import (
	"context"
	"net"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/engine/enginetest"
	"github.com/tandem-inference/tandem/services/engine/host"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/tensorwire"
)

// middle is a fake with hidden rows of the 27B model, 20,480 bytes.
var middle = enginefake.Options{Hidden: 5120}

// loopback opens engines behind a TCP connection, whose streams do not go through shared memory.
type loopback struct {
	engine.Opener
	b *testing.B
}

func (l loopback) OpenTarget(ctx context.Context, o engine.OpenOptions, p engine.Progress) (engine.Target, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	g, s, done := grpc.NewServer(host.ServerOptions(nil)...), host.NewServer(l.Opener), make(chan struct{})
	s.Register(g)
	go func() { defer close(done); _ = g.Serve(listener) }()
	dial := slices.Concat(tensorwire.DialOptions(), rpcerr.DialOptions(),
		[]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())})
	conn, err := grpc.NewClient(listener.Addr().String(), dial...)
	if err != nil {
		return nil, err
	}
	return host.OpenTarget(ctx, conn, o, p, func() error {
		_ = conn.Close()
		g.Stop()
		<-done
		return s.Shutdown()
	})
}

// BenchmarkBorder reports what a border between two stages costs a step of 23 rows: a stage in the middle takes 471,040
// bytes of hidden rows and hands on as many, less the time inside the engine.
func BenchmarkBorder(b *testing.B) {
	for name, opener := range map[string]engine.Opener{
		"shared memory": newHost(b, "middle"), "gRPC": loopback{enginefake.New(middle), b},
	} {
		b.Run(name, func(b *testing.B) {
			o := enginetest.TargetOptions()
			o.LayerFirst, o.LayerLast = 1, 3
			e, err := opener.OpenTarget(b.Context(), o, nil)
			if err != nil {
				b.Fatal(err)
			}
			defer e.Close()
			q, err := e.NewSequence(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			step := &engine.Step{Groups: []engine.Group{{Sequence: q, Rows: 23}}, HiddenIn: make([]byte, 23*4*middle.Hidden)}
			for i := range int32(23) {
				step.Rows = append(step.Rows, engine.Row{Token: i, Position: i, Parent: i - 1, Mask: -1})
			}
			var r engine.StepResult
			var overhead []time.Duration
			b.ReportAllocs()
			for b.Loop() {
				start := time.Now()
				if err := e.Step(b.Context(), step, &r); err != nil {
					b.Fatal(err)
				}
				overhead = append(overhead, time.Since(start)-time.Duration(r.EngineNanos))
			}
			slices.Sort(overhead)
			b.ReportMetric(float64(overhead[len(overhead)/2].Nanoseconds())/1000, "border-p50-µs")
			b.ReportMetric(float64(overhead[len(overhead)*99/100].Nanoseconds())/1000, "border-p99-µs")
		})
	}
}
